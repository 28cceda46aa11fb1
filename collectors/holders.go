package collectors

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Knows reports whether this host has a GPU of that UUID, or was ever seen to,
// or a MIG device of that. Where there is no driver to say so now, any GPU may be.
func (h *Host) Knows(uuid string) bool {
	if _, is := h.mig(uuid); is {
		return true
	}
	return !isMIG(uuid) && (h.Driver() != nil || slices.ContainsFunc(h.inventory.all(), func(id gpu.ID) bool { return id.UUID == uuid }))
}

// Names returns what a GPU is called, the closest last: the driver's index, as
// 0, and the UUID. A MIG device is called as its GPU is, then as its GPU
// instance, as 0:1, and by its own UUID. One that this host was never seen to
// have has no names.
func (h *Host) Names(uuid string) []string {
	if m, is := h.mig(uuid); is {
		return []string{m.index, m.parent, m.index + ":" + m.gi, uuid}
	}
	all := h.inventory.all()
	i := slices.IndexFunc(all, func(id gpu.ID) bool { return id.UUID == uuid })
	if i < 0 {
		return nil
	}
	return []string{strconv.Itoa(all[i].Index), uuid}
}

// Parent returns the UUID of the GPU that a MIG device is on; of any other, its
// own.
func (h *Host) Parent(uuid string) string {
	if m, is := h.mig(uuid); is {
		return m.parent
	}
	return uuid
}

// A slice is a MIG device, as it was last seen.
type slice struct{ index, parent, gi string }

// isMIG reports whether a UUID is a MIG device's.
func isMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// mig returns the MIG device of that UUID, if there is one, or was: what holds
// there does not change while the GPU does not answer.
func (h *Host) mig(uuid string) (m slice, is bool) {
	if !isMIG(uuid) {
		return m, false
	}
	now, s, fast := time.Now(), h.state.Load(), h.Interval()
	for _, r := range s.shown() {
		for _, p := range s.snapshot(r).fresh(now, fast) {
			if !slices.Contains(p.collector.Metrics, MIGInfo) {
				continue
			}
			for _, x := range p.samples {
				if x.Metric == MIGInfo && x.Labels[2] == uuid {
					m = slice{x.Labels[0], x.Labels[1], x.Labels[3]}
					h.slices.Store(uuid, m)
					return m, true
				}
			}
		}
	}
	known, is := h.slices.Load(uuid)
	if is {
		m = known.(slice)
	}
	return m, is
}

// Holds returns how many bytes of a GPU's memory a process had when the driver
// was last asked, which may be a turn of the fast tier ago, and whether it was
// listed there. It was asked at that time; where the GPU does not answer, or the
// driver does not say, the bytes are not known and the time is zero, and the
// process is listed if it last was.
func (h *Host) Holds(uuid string, pid int) (bytes uint64, at time.Time, listed bool) {
	now, s, fast, parent := time.Now(), h.state.Load(), h.Interval(), h.Parent(uuid)
	for _, r := range s.shown() {
		p := r.peer.Load()
		if p == nil || p.UUID != parent {
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
		last := snap.passes[i]
		if last.failure == nvml.SUCCESS && snap.up(now, fast) && last.fresh(now) {
			at = last.began
		}
		if i := slices.IndexFunc(last.holders, func(x DeviceProcess) bool { return x.Process.PID == pid && x.UUID == uuid }); i >= 0 {
			if !last.holders[i].Known {
				at = time.Time{}
			}
			return last.holders[i].Memory, at, true
		}
		return 0, at, false
	}
	return 0, at, false
}

// Silent returns the GPUs of which nobody knows who is on them now, by UUID:
// those that do not answer, and those that the driver said nothing of, with
// their MIG devices.
func (h *Host) Silent() map[string]bool {
	now, s, fast, all := time.Now(), h.state.Load(), h.Interval(), map[string]bool{}
	for _, r := range s.shown() {
		p := r.peer.Load()
		if p == nil {
			continue
		}
		silent := !slices.ContainsFunc(s.snapshot(r).fresh(now, fast), func(p *pass) bool {
			return p.collector.Name == processesName && p.failure == nvml.SUCCESS
		})
		all[p.UUID] = silent
		if snap := s.snapshot(r); snap != nil {
			for _, p := range snap.passes {
				for _, x := range p.samples {
					if x.Metric == MIGInfo {
						all[x.Labels[2]] = silent
					}
				}
			}
		}
	}
	return all
}
