package collectors

import (
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Knows reports whether this host has a GPU of that UUID, or was ever seen to.
// Where there is no driver to say so now, any GPU may be.
func (h *Host) Knows(uuid string) bool {
	return h.Driver() != nil || slices.ContainsFunc(h.inventory.all(), func(id gpu.ID) bool { return id.UUID == uuid })
}

// Index returns the driver's index of a GPU; false for one that this host was
// never seen to have.
func (h *Host) Index(uuid string) (int, bool) {
	all := h.inventory.all()
	i := slices.IndexFunc(all, func(id gpu.ID) bool { return id.UUID == uuid })
	if i < 0 {
		return 0, false
	}
	return all[i].Index, true
}

// Holds returns how many bytes of a GPU's memory a process had when the driver
// was last asked, which may be a turn of the fast tier ago, and whether it was
// listed there. It was asked at that time; where the GPU does not answer, or the
// driver does not say, the bytes are not known and the time is zero, and the
// process is listed if it last was.
func (h *Host) Holds(uuid string, pid int) (bytes uint64, at time.Time, listed bool) {
	now, s, fast := time.Now(), h.state.Load(), h.Beat()
	for _, r := range s.shown() {
		if p := r.peer.Load(); p == nil || p.UUID != uuid {
			continue
		}
		snap := s.snapshot(r)
		if snap == nil {
			continue
		}
		i := slices.IndexFunc(snap.passes, func(p *pass) bool { return p.collector.Name == processesName })
		if i < 0 {
			return 0, at, false
		}
		p := snap.passes[i]
		if p.failure == nvml.SUCCESS && snap.up(now, fast) && p.fresh(now) {
			at = p.began
		}
		if i := slices.IndexFunc(p.holders, func(x Holding) bool { return x.Process.PID == pid }); i >= 0 {
			if !p.holders[i].Known {
				at = time.Time{}
			}
			return p.holders[i].Memory, at, true
		}
		return 0, at, false
	}
	return 0, at, false
}

// Silent returns the GPUs of which nobody knows who is on them now, by UUID:
// those that do not answer, and those that the driver said nothing of.
func (h *Host) Silent() map[string]bool {
	now, s, fast, all := time.Now(), h.state.Load(), h.Beat(), map[string]bool{}
	for _, r := range s.shown() {
		p := r.peer.Load()
		if p == nil {
			continue
		}
		all[p.UUID] = !slices.ContainsFunc(s.snapshot(r).fresh(now, fast), func(p *pass) bool {
			return p.collector.Name == processesName && p.failure == nvml.SUCCESS
		})
	}
	return all
}
