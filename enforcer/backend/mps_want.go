package backend

import (
	"maps"
	"math"

	"gpusteward/enforcer/policy"
)

// An mpsWant is what MPS should hold for a tenant, on all GPUs.
type mpsWant struct {
	threads   float64            // percent of the multiprocessors that a client gets; 0 is not to be set
	memory    map[string]uint64  // MiB, by GPU
	limits    map[string]float64 // by GPU, 0 to 1
	processes map[int]uint64     // their starts by PID
}

// same reports whether w and v need the same settings.
func (w mpsWant) same(v mpsWant) bool {
	return w.threads == v.threads && maps.Equal(w.memory, v.memory) && maps.Equal(w.limits, v.limits)
}

// mpsWants returns the wants that follow from demands, by tenant. A server has
// one percentage for all its GPUs: the largest limit, so that no tenant gets
// less than its limit anywhere.
func mpsWants(demands []Demand) map[string]mpsWant {
	wants := map[string]mpsWant{}
	hooked := map[string]bool{}
	for _, d := range demands {
		if d.Tenant == policy.DefaultTenant {
			continue
		}
		w, ok := wants[d.Tenant]
		if !ok {
			w = mpsWant{memory: map[string]uint64{}, limits: map[string]float64{}, processes: map[int]uint64{}}
		}
		w.limits[d.GPU] = d.Limit
		w.threads = max(w.threads, max(math.Floor(d.Limit*1000+1e-6)/10, 1))
		if d.Memory > 0 {
			w.memory[d.GPU] = max(d.Memory>>20, 1)
		}
		for _, p := range d.Processes {
			w.processes[p.PID] = p.Start
		}
		hooked[d.Tenant] = hooked[d.Tenant] || d.Hooked
		wants[d.Tenant] = w
	}
	for tenant, w := range wants {
		if w.threads >= 100 || hooked[tenant] {
			w.threads = 0
			wants[tenant] = w
		}
	}
	return wants
}
