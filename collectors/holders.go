package collectors

import (
	"slices"

	"gpusteward/collectors/gpu"
)

// Knows reports whether this host has a GPU of that UUID, or was ever seen to.
// Where there is no driver to say so now, any GPU may be.
func (h *Host) Knows(uuid string) bool {
	return h.Driver() != nil || slices.ContainsFunc(h.inventory.all(), func(id gpu.ID) bool { return id.UUID == uuid })
}

// Holds reports whether a process was on a GPU when the driver was last asked,
// which may be a turn of the fast tier ago, or longer where the GPU does not
// answer. false for a GPU that was never read.
func (h *Host) Holds(uuid string, pid int) bool {
	s := h.state.Load()
	for _, r := range s.shown() {
		p := r.peer.Load()
		if p == nil || p.UUID != uuid {
			continue
		}
		if snap := s.snapshot(r); snap != nil {
			return slices.ContainsFunc(snap.passes, func(p *pass) bool { return slices.Contains(p.holders, uint32(pid)) })
		}
	}
	return false
}
