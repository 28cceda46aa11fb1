package collectors

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// A gpuStatus is the current view of one GPU: a GPU that is read, or a known GPU
// that should be there.
type gpuStatus struct {
	gpu.ID
	reader *reader   // nil if the driver does not list the GPU
	snap   *snapshot // the latest; nil if the GPU was never read
}

// gpuStatuses returns every GPU that the host has or had, by index.
func (h *Host) gpuStatuses(s *state) []gpuStatus {
	var all []gpuStatus
	seen := map[string]bool{}
	for _, r := range s.readers {
		if p := r.peer.Load(); p != nil {
			all = append(all, gpuStatus{p.ID, r, s.snapshot(r)})
			seen[p.UUID] = true
		}
	}
	missing := slices.DeleteFunc(h.inventory.all(), func(id gpu.ID) bool { return seen[id.UUID] })
	for _, r := range s.readers {
		if r.peer.Load() != nil || r.index == hostIndex {
			continue
		}
		// Without an identity yet, it is most likely the GPU that was in this
		// place.
		id := gpu.ID{Index: r.index, Minor: -1}
		if i := slices.IndexFunc(missing, func(id gpu.ID) bool { return id.Index == r.index }); i >= 0 {
			id = missing[i]
			missing = slices.Delete(missing, i, i+1)
		}
		all = append(all, gpuStatus{id, r, cmp.Or(r.snap.Load(), s.earlier(id.UUID))})
	}
	for _, id := range missing {
		all = append(all, gpuStatus{ID: id, snap: s.earlier(id.UUID)})
	}
	slices.SortStableFunc(all, func(a, b gpuStatus) int { return cmp.Compare(a.Index, b.Index) })
	return all
}

// shown returns the readers whose snapshots may still be shown when s ends.
func (s *state) shown() []*reader {
	if s.readers != nil {
		return s.readers
	}
	return s.before
}

// snapshot returns the last snapshot of r, or of the reader of the same GPU
// before the driver was reopened.
func (s *state) snapshot(r *reader) *snapshot {
	if snap := r.snap.Load(); snap != nil {
		return snap
	}
	if p := r.peer.Load(); p != nil {
		return s.earlier(p.UUID)
	}
	if r.index == hostIndex && len(s.before) > 0 {
		return s.before[0].snap.Load()
	}
	return nil
}

// earlier returns the last snapshot of a GPU before the driver was reopened.
func (s *state) earlier(uuid string) *snapshot {
	for _, r := range s.before {
		if p := r.peer.Load(); p != nil && p.UUID == uuid {
			return r.snap.Load()
		}
	}
	return nil
}

// reason names in one word why the GPU does not answer.
func (g gpuStatus) reason(s *state, now time.Time) string {
	if g.reader != nil {
		if call, hangs := g.reader.hangs(now); hangs {
			return call
		}
	}
	var e hanging
	switch {
	case errors.As(s.err, &e):
		return e.call
	case g.reader != nil:
		if g.snap != nil && g.snap.lost != nvml.SUCCESS {
			return gpu.ReturnName(g.snap.lost)
		}
		return "late"
	case s.err == nil:
		return "not_listed"
	}
	if e := new(gpu.Error); errors.As(s.err, &e) {
		return gpu.ReturnName(e.Return)
	}
	return "driver_closed"
}

// allLost reports whether no GPU answers, and none hangs.
func (h *Host) allLost() bool {
	readers := h.state.Load().readers
	return len(readers) > 1 && !slices.ContainsFunc(readers[1:], func(r *reader) bool {
		s := r.snap.Load()
		return s == nil || s.lost == nvml.SUCCESS
	})
}

// again asks for the driver to be reopened.
func (h *Host) again(why string) {
	select {
	case h.reopen <- why:
	default:
	}
}

// peers returns the GPUs that are read, without those that hang: asking for the
// path to such a GPU might hang too.
func (h *Host) peers() []*gpu.Peer {
	var all []*gpu.Peer
	for _, r := range h.state.Load().readers {
		if p := r.peer.Load(); p != nil && r.snap.Load() != nil {
			if _, hangs := r.hangs(time.Now()); !hangs {
				all = append(all, p)
			}
		}
	}
	return all
}

// Samples returns everything known now: the fresh readings of every GPU, and
// the state of the agent itself.
func (h *Host) Samples() []Sample {
	now, s, fast := time.Now(), h.state.Load(), h.Interval()
	out := make([]Sample, 0, 256*(1+len(s.readers)))
	collected := standings{}
	for _, r := range h.kernel {
		out = s.read(out, gpuStatus{}, r.snap.Load(), now, fast, collected)
	}
	if shown := s.shown(); len(shown) > 0 {
		out = s.read(out, gpuStatus{}, s.snapshot(shown[0]), now, fast, collected)
	}
	if !errors.Is(s.err, ErrDrained) {
		for _, g := range h.gpuStatuses(s) {
			if g.snap == nil && now.Before(s.quiet) && !h.inventory.met(g.UUID) {
				continue // its state is not known yet
			}
			out = g.standing(out, s, now, fast)
			out = s.read(out, g, g.snap, now, fast, collected)
		}
	}
	return h.self(out, s, collected)
}

// read adds the fresh samples of a snapshot, and records the state of its
// collectors.
func (s *state) read(out []Sample, g gpuStatus, snap *snapshot, now time.Time, fast time.Duration,
	collected standings) []Sample {
	if snap == nil {
		return out
	}
	up := snap.up(now, fast)
	for _, p := range snap.passes {
		fresh := up && p.fresh(now)
		collected.add(p, fresh && p.failure == nvml.SUCCESS)
		if fresh {
			out = append(out, p.samples...)
			out = p.lacks(out, g.ID)
		}
	}
	return out
}

// Reading returns the last reading of a series of a GPU, with the labels after
// gpu and uuid, unless it is stale.
func (h *Host) Reading(uuid string, m *Metric, labels ...string) (float64, bool) {
	now, s, fast := time.Now(), h.state.Load(), h.Interval()
	for _, r := range s.shown() {
		if p := r.peer.Load(); p == nil || p.UUID != uuid {
			continue
		}
		for _, p := range s.snapshot(r).fresh(now, fast) {
			if !slices.Contains(p.collector.Metrics, m) {
				continue
			}
			for _, x := range p.samples {
				if x.Metric == m && slices.Equal(x.Labels[2:], labels) {
					return x.Value, true
				}
			}
		}
	}
	return 0, false
}
