package audit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

const (
	slot    = time.Second / 6 // of the driver's samples
	perStep = 6
)

// An obedient world is a GPU whose tenants keep to their limits, with hooks
// that tell the truth. It advances by a sixth of a second at a time.
type obedient struct {
	random    *rand.Rand
	start     time.Time
	slots     int64
	processes []*client
	tenants   []*wire.TenantStats
	limits    []float64
	buckets   []float64
	together  float64
	light     bool
	sampled   int64 // slot
	held      []collectors.DeviceProcess
	pid       int
	audit     Audit
	quotas    map[string]policy.Quota
}

// A client is an obedient process.
type client struct {
	host.Process
	tenant    int
	busy      bool
	until     int64   // slot in which its wish changes
	wish      float64 // of the GPU while it is busy
	memory    uint64
	committed uint64
	context   uint64
	taking    bool      // the books have the memory, and the driver has not given it yet
	samples   []float64 // since the driver was asked
	sm        float64   // as collected
	lost      int64     // slot until which it has no session
	last      int64     // slot in which it last lost its session
}

func newObedient(random *rand.Rand) *obedient {
	o := &obedient{random: random, start: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), pid: 1000,
		quotas: map[string]policy.Quota{}}
	for i, limit := range []float64{1, .5, .3, .1} {
		name := fmt.Sprint("t", i)
		o.tenants = append(o.tenants, &wire.TenantStats{Tenant: name, GPU: gpuA, Sessions: 1})
		o.limits = append(o.limits, limit)
		o.buckets = append(o.buckets, 0)
		o.quotas[name] = policy.Quota{Limit: limit, Memory: 40 * gib}
	}
	return o
}

func (o *obedient) now() time.Time { return o.start.Add(time.Duration(o.slots) * slot) }

func (o *obedient) chance(one int) bool { return o.random.IntN(one) == 0 }

// slot advances the world by one slot.
func (o *obedient) slot() {
	o.slots++
	if o.chance(120) && len(o.processes) < 6 {
		o.pid++
		tenant := o.random.IntN(len(o.tenants))
		o.processes = append(o.processes, &client{tenant: tenant, context: uint64(300+o.random.IntN(500)) << 20,
			last: math.MinInt32,
			Process: host.Process{PID: o.pid, Start: uint64(o.slots), Began: o.now(),
				Workload: &host.Workload{Key: fmt.Sprint("pod:", tenant, o.random.IntN(2))}}})
	}
	if o.chance(300) && len(o.processes) > 0 {
		i := o.random.IntN(len(o.processes))
		o.processes = slices.Delete(o.processes, i, i+1)
	}
	if o.chance(60) {
		o.light = !o.light
	}
	wishes := make([]float64, len(o.tenants))
	for _, c := range o.processes {
		o.live(c)
		if c.busy {
			wishes[c.tenant] += c.wish
		}
	}
	o.share(wishes)
}

// live changes a process at random.
func (o *obedient) live(c *client) {
	if o.slots >= c.until {
		c.busy, c.wish = !c.busy, .1+o.random.Float64()*.9
		c.until = o.slots + 1 + int64(math.Exp(o.random.Float64()*5.5))
	}
	if c.memory > c.committed {
		panic("memory without a commit")
	}
	switch {
	case c.taking:
		c.taking, c.memory = false, c.committed
	case c.memory < c.committed:
		c.committed = c.memory
	case c.memory > 0 && o.chance(12):
		c.memory = 0 // the driver has the memory back, and the books do not know it yet
	case c.memory == 0 && o.chance(12):
		used := uint64(0)
		for _, p := range o.processes {
			if p.tenant == c.tenant {
				used += p.committed
			}
		}
		c.taking, c.committed = true, uint64(o.random.Float64()*float64(40*gib-used))
	}
	if o.chance(3000) && o.slots-c.last > int64(90*time.Second/slot) && o.now().Sub(c.Began) > 3*time.Second {
		c.last, c.lost = o.slots, o.slots+int64(o.random.IntN(30))
	}
}

// share divides the slot among the processes that want it, within the limits.
func (o *obedient) share(wishes []float64) {
	long := slot.Seconds()
	all, on := 0.0, 0
	for i := range wishes {
		o.buckets[i] = min(o.buckets[i]+o.limits[i]*long, o.limits[i]*max(.1, long))
		wishes[i] = min(wishes[i], 1)
		if o.limits[i] < 1 {
			wishes[i] = min(wishes[i], max(o.buckets[i], 0)/long)
		}
		if all += wishes[i]; wishes[i] > 0 {
			on++
		}
	}
	light := o.light && on > 1
	if light {
		o.together += long
	}
	for i, wish := range wishes {
		charged, runs := wish, wish // part of the slot
		switch {
		case light:
			charged, runs = wish/max(all, 1), min(wish*1.3, 1)
		case all > 1:
			charged, runs = wish/all, wish/all
		}
		o.buckets[i] -= charged * long
		o.tenants[i].ChargedSeconds += charged * long
		runs *= .3 + .7*o.random.Float64() // kernels do not fill the whole time
		if o.chance(3) {
			runs = charged
		}
		o.spread(i, runs)
	}
}

// spread divides a tenant's time among its processes.
func (o *obedient) spread(tenant int, runs float64) {
	total := 0.0
	for _, c := range o.processes {
		if c.tenant == tenant && c.busy {
			total += c.wish
		}
	}
	for _, c := range o.processes {
		sample := 0.0
		if c.tenant == tenant && c.busy && total > 0 {
			sample = runs * c.wish / total
		}
		c.samples = append(c.samples, sample)
	}
}

// collect is the collector's pass: the list of processes, and at times the
// driver's samples.
func (o *obedient) collect() {
	young := slices.ContainsFunc(o.processes, func(c *client) bool { return o.now().Sub(c.Began) < 10*time.Second })
	if o.slots-o.sampled >= 5*perStep || young && o.slots-o.sampled >= perStep {
		late := int64(o.random.IntN(2)) // the newest sample may be missing
		for _, c := range o.processes {
			n := max(len(c.samples)-int(late), 0)
			sum := 0.0
			for _, s := range c.samples[:n] {
				sum += s
			}
			if n > 0 {
				window := (time.Duration(o.slots-late-o.sampled) * slot).Seconds()
				mean := sum * slot.Seconds() / window
				c.sm += math.Round(mean*100) / 100 * window
			}
			c.samples = append(c.samples[:0], c.samples[n:]...)
		}
		o.sampled = o.slots - late
	}
	o.held = o.held[:0]
	for _, c := range o.processes {
		o.held = append(o.held, collectors.DeviceProcess{UUID: gpuA, Process: c.Process, Kind: "compute", Known: true,
			Memory: c.memory + c.context,
			SM:     c.sm, Sampled: o.start.Add(time.Duration(o.sampled) * slot), At: o.now()})
	}
}

// step advances the world by one second, with one collector's pass at a random
// moment, and audits it.
func (o *obedient) step() Audited {
	pass := o.random.IntN(perStep)
	for i := range perStep {
		o.slot()
		if i == pass {
			o.collect()
		}
	}
	b := Books{Now: o.now(), DeviceProcesses: o.held, GPUs: []wire.GPUStats{{GPU: gpuA, TogetherSeconds: o.together}},
		Quota: func(tenant, _ string) policy.Quota { return o.quotas[tenant] },
		Tenant: func(h collectors.DeviceProcess) (string, bool) {
			return "t" + h.Process.Workload.Key[len("pod:"):len("pod:")+1], true
		}}
	for _, t := range o.tenants {
		b.Tenants = append(b.Tenants, *t)
	}
	for _, c := range o.processes {
		if o.slots >= c.lost {
			b.Sessions = append(b.Sessions, Session{PID: c.PID, Start: c.Start, Tenant: fmt.Sprint("t", c.tenant),
				GPUs: []SessionGPU{{gpuA, c.committed, 0}}})
		}
	}
	return o.audit.Look(b)
}

// hostBooks returns the books of a large host: 8 GPUs, 100 tenants, 1,000
// processes.
func hostBooks() Books {
	b := Books{Quota: func(string, string) policy.Quota {
		return policy.Quota{Guarantee: .01, Limit: .5, Memory: 40 * gib, Reserved: gib,
			LaunchWait: quota.Wait(time.Millisecond)}
	}, Tenant: func(h collectors.DeviceProcess) (string, bool) { return "t" + h.Process.User, true }}
	for t := range 100 {
		b.Names = append(b.Names, fmt.Sprint("t", t))
		for g := range 8 {
			b.Tenants = append(b.Tenants, wire.TenantStats{Tenant: b.Names[t], GPU: fmt.Sprint("GPU-", g), Sessions: 1})
		}
	}
	for g := range 8 {
		b.GPUs = append(b.GPUs, wire.GPUStats{GPU: fmt.Sprint("GPU-", g)})
	}
	for i := range 1000 {
		gpu := fmt.Sprint("GPU-", i%8)
		b.DeviceProcesses = append(b.DeviceProcesses,
			collectors.DeviceProcess{UUID: gpu, Known: true, Memory: gib, Kind: "compute",
				Process: host.Process{PID: 1000 + i, Start: uint64(i), User: fmt.Sprint(i % 100),
					Workload: &host.Workload{Key: fmt.Sprint("pod:default/worker-", i)}}})
		b.Sessions = append(b.Sessions, Session{PID: 1000 + i, Start: uint64(i), Tenant: b.Names[i%100],
			GPUs: []SessionGPU{{gpu, gib / 2, 0}}})
	}
	return b
}

// advance moves the books of a large host forward in time.
func advance(b *Books, at time.Duration) {
	b.Now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(at)
	for i := range b.DeviceProcesses {
		b.DeviceProcesses[i].At, b.DeviceProcesses[i].Sampled, b.DeviceProcesses[i].SM = b.Now,
			b.Now.Truncate(5*time.Second), at.Truncate(5*time.Second).Seconds()*.01
	}
	for i := range b.Tenants {
		t := &b.Tenants[i]
		t.ChargedSeconds, t.ServedSeconds, t.WantedSeconds = at.Seconds()*.05, at.Seconds()*.05, at.Seconds()*.55
	}
}
