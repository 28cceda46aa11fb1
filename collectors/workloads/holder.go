package workloads

import (
	"maps"
	"slices"
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// HolderInfo joins with every metric of a GPU on gpu and uuid, and with those
// of a GPU instance on gi as well: a place has one series at most.
var HolderInfo = collectors.Gauge("nvgpu_holder_info",
	"Pod or Slurm job that has the GPU, or its MIG GPU instance gi, always 1; a label on which several of them "+
		"differ is empty.",
	"gi", "namespace", "pod", "container", "slurm_job")

// A tenure says to whom a scheduler gave a place.
type tenure struct{ namespace, pod, container, job string }

// and returns what two tenures have in common.
func (t tenure) and(o tenure) tenure {
	for _, l := range []struct {
		mine *string
		its  string
	}{{&t.namespace, o.namespace}, {&t.pod, o.pod}, {&t.container, o.container}, {&t.job, o.job}} {
		if *l.mine != l.its {
			*l.mine = ""
		}
	}
	if t.namespace == "" {
		t.pod = "" // pods of two namespaces can have the same name
	}
	if t.pod == "" {
		t.container = ""
	}
	return t
}

// tenures are what the holders of each place have in common. A place is a GPU
// instance; "" is the GPU.
type tenures map[string]tenure

func (all tenures) add(at string, t tenure) {
	if before, held := all[at]; held {
		t = before.and(t)
	}
	all[at] = t
}

// putHolders shows which pod or job has the GPU and its instances. For a place,
// the allocations of schedulers come first, because they cover idle workloads
// too; without one its processes tell. Programs of users and of systemd do not
// count: no scheduler gave them the GPU.
func putHolders(g *gpu.Device, out *collectors.Readings, holders []*holder) {
	given, running := tenures{}, tenures{}
	for _, a := range out.Allocations() {
		for _, at := range places(a, g) {
			given.add(at, tenure{a.Namespace, a.Pod, a.Container, a.Job})
		}
	}
	for _, h := range holders {
		if w := h.process.Workload; w != nil && (w.Kind == host.KindPod || w.Kind == host.KindSlurm) {
			running.add(instance(h.gi), tenure{w.Namespace, w.Pod, w.Container, w.Job})
		}
	}
	for at, t := range running {
		if _, known := given[at]; !known {
			given[at] = t
		}
	}
	whole := tenures{}
	for _, at := range slices.Sorted(maps.Keys(given)) {
		whole.add("", given[at])
		if at != "" {
			given[at].put(out, at)
		}
	}
	whole[""].put(out, "")
}

func (t tenure) put(out *collectors.Readings, at string) {
	if t != (tenure{}) {
		out.Set(HolderInfo, 1, at, t.namespace, t.pod, t.container, t.job)
	}
}

// places returns the places on the GPU that a covers. A whole GPU covers its
// instances.
func places(a host.Allocation, g *gpu.Device) (all []string) {
	for _, d := range a.Devices {
		whole := d == g.UUID || d == strconv.Itoa(g.Index)
		if whole && len(g.Instances()) == 0 {
			all = append(all, "")
		}
		for _, m := range g.Instances() {
			if whole || m.UUID == d {
				all = append(all, strconv.Itoa(m.GI))
			}
		}
	}
	return all
}
