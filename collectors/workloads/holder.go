package workloads

import (
	"maps"
	"slices"
	"strconv"
	"strings"

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
	for _, a := range out.Allocations().All {
		for _, at := range places(a, g) {
			given.add(at, tenure{a.Namespace, a.Pod, a.Container, a.Job})
		}
	}
	for _, h := range holders {
		if w := h.owner; w != nil && (w.Kind == host.KindPod || w.Kind == host.KindSlurm) {
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
	cover := func(whole bool, d, gi string) {
		if whole && len(g.Instances()) == 0 {
			all = append(all, "")
		}
		for _, m := range g.Instances() {
			if at := strconv.Itoa(m.GI); whole || m.UUID == d || at == gi {
				all = append(all, at)
			}
		}
	}
	for _, d := range a.Devices {
		// GKE's device plugin has nvidia0 and nvidia0/gi1 in place of UUIDs, and nvidia0/vgpu2 and
		// nvidia0/gi1/vgpu2 for those that share them.
		part, gke := after(d, "nvidia", g, "/")
		part, _, _ = strings.Cut(part, "/vgpu")
		gi, isPart := strings.CutPrefix(part, "/gi")
		if !isPart {
			gi = ""
		}
		cover(d == g.UUID || a.Job != "" && d == strconv.Itoa(g.Index) || gke && !isPart, d, gi)
	}
	for _, c := range a.Claims {
		switch part, ok := named(c, g); {
		case !ok:
		case part == "":
			cover(true, "", "")
		default:
			all = append(all, "") // a part of which the name does not tell the instance
		}
	}
	return all
}

// named reports whether c gave the GPU, or a part of it. NVIDIA's DRA driver
// calls them gpu-0 and gpu-0-mig-19-0-1.
func named(c host.Claim, g *gpu.Device) (part string, ok bool) {
	if c.Driver != "gpu.nvidia.com" {
		return "", false
	}
	return after(c.Device, "gpu-", g, "-mig-")
}

// after returns what follows prefix and the GPU's minor number in name: nothing,
// or separator and more.
func after(name, prefix string, g *gpu.Device, separator string) (rest string, ok bool) {
	rest, ok = strings.CutPrefix(name, prefix+strconv.Itoa(g.Minor))
	return rest, ok && g.Minor >= 0 && (rest == "" || strings.HasPrefix(rest, separator))
}
