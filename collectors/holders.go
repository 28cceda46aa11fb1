package collectors

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// Knows reports whether this host has, or ever had, the GPU or MIG device with
// that UUID. Without a driver, and until the GPUs of one were first read, any
// GPU's UUID may be right.
func (h *Host) Knows(uuid string) bool {
	if _, is := h.MIG(uuid); is {
		return true
	}
	return !isMIG(uuid) && (h.Driver() != nil || h.begins() ||
		slices.ContainsFunc(h.inventory.all(), func(id gpu.ID) bool { return id.UUID == uuid }))
}

// begins reports whether a driver was opened a moment ago, and some of its GPUs were not read yet.
func (h *Host) begins() bool {
	s := h.state.Load()
	return time.Now().Before(s.quiet) && slices.ContainsFunc(s.shown(), func(r *reader) bool { return s.snapshot(r) == nil })
}

// Names returns the names of a GPU, the most specific last: the driver's index,
// such as 0, and the UUID. A MIG device has its GPU's names, then that of its
// GPU instance, such as 0:1, and its own UUID. A GPU that this host never had
// has no names.
func (h *Host) Names(uuid string) []string {
	if m, is := h.MIG(uuid); is {
		return []string{m.Index, m.Parent, m.Index + ":" + m.GI, uuid}
	}
	all := h.inventory.all()
	i := slices.IndexFunc(all, func(id gpu.ID) bool { return id.UUID == uuid })
	if i < 0 {
		return nil
	}
	return []string{strconv.Itoa(all[i].Index), uuid}
}

// GPUs returns every GPU that this host has or ever had, also while it is drained.
func (h *Host) GPUs() []gpu.ID { return h.inventory.all() }

// Parent returns the UUID of a MIG device's GPU; for any other UUID, the UUID
// itself.
func (h *Host) Parent(uuid string) string {
	if m, is := h.MIG(uuid); is {
		return m.Parent
	}
	return uuid
}

// A MIGDevice is one of the devices into which a GPU is partitioned.
type MIGDevice struct {
	UUID          string
	Index, Parent string // index and UUID of its GPU
	GI            string // its GPU instance
}

// isMIG reports whether a UUID belongs to a MIG device.
func isMIG(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") }

// MIG returns the MIG device with that UUID, if there is or was one: the
// partitions do not change while the GPU does not answer.
func (h *Host) MIG(uuid string) (m MIGDevice, is bool) {
	if !isMIG(uuid) {
		return m, false
	}
	s := h.state.Load()
	for _, r := range s.shown() {
		snap := s.snapshot(r)
		if snap == nil {
			continue
		}
		for _, p := range snap.passes {
			for _, m := range p.MIG {
				if m.UUID == uuid {
					h.mig.Store(uuid, m)
					return m, true
				}
			}
		}
	}
	known, is := h.mig.Load(uuid)
	if is {
		m = known.(MIGDevice)
	}
	return m, is
}

// Holds returns the bytes of a GPU's memory that a process had when the driver
// was last asked, which can be one fast interval ago, and whether the driver
// listed the process. at is the time of that request. If the GPU does not
// answer, or the driver gives no bytes, at is zero, the bytes are unknown, and
// listed is the last known answer.
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
		i := slices.IndexFunc(snap.passes, func(p *pass) bool { return p.collector.Lists })
		if i < 0 {
			return 0, at, false
		}
		last := snap.passes[i]
		if last.failure == nvml.SUCCESS && snap.up(now, fast) && last.fresh(now) {
			at = last.began
		}
		is := func(x DeviceProcess) bool { return x.Process.PID == pid && x.UUID == uuid }
		if i := slices.IndexFunc(last.Holders, is); i >= 0 {
			if !last.Holders[i].Known {
				at = time.Time{}
			}
			return last.Holders[i].Memory, at, true
		}
		return 0, at, false
	}
	return 0, at, false
}

// Silent returns, by UUID, the GPUs whose processes are unknown now, with their
// MIG devices: the GPU does not answer, or the driver gave no list.
func (h *Host) Silent() map[string]bool {
	now, s, fast, all := time.Now(), h.state.Load(), h.Interval(), map[string]bool{}
	for _, r := range s.shown() {
		p := r.peer.Load()
		if p == nil {
			continue
		}
		silent := !slices.ContainsFunc(s.snapshot(r).fresh(now, fast), func(p *pass) bool {
			return p.collector.Lists && p.failure == nvml.SUCCESS
		})
		all[p.UUID] = silent
		if snap := s.snapshot(r); snap != nil {
			for _, p := range snap.passes {
				for _, m := range p.MIG {
					all[m.UUID] = silent
				}
			}
		}
	}
	return all
}
