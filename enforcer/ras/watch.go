package ras

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// When a communicator is taken to stand still.
const (
	Patience = 10 * time.Second // from the first to the last of the answers without a change
	forget   = 30 * time.Minute // without an answer that has it: questions are rare
)

// maxKnown is how many bytes of communicators are known, together with those of the next answer: of
// more, only the answer. The ranks of the largest real answer take a third of it.
const maxKnown = 16 << 20

// joint collectives end on no rank before all ranks have entered them. The root
// of a Broadcast, and all but the root of a Reduce, may be ahead and go on.
// total stands for all collectives of NCCL 2.24.
var joint = []string{"AllReduce", "AllGather", "ReduceScatter", total}

// A Watch judges successive answers. Its zero value is ready; one goroutine may
// use it.
type Watch struct {
	known map[string]*history // by communicator
}

// A history is what is known of a communicator.
type history struct {
	last  Communicator  // a missing rank has its last counts
	since time.Duration // first answer since which nothing has changed
	seen  time.Duration // last answer that had it
}

// A Hang is a communicator in which ranks wait for others.
type Hang struct {
	Since    time.Duration // since then nothing has changed
	Culprits []Rank        // they have not entered what others entered; either all are missing, or none
	Waiting  []Rank        // they have entered it
}

// See takes an answer.
func (w *Watch) See(at time.Duration, s Status) {
	bytes := 0
	for _, h := range w.known {
		bytes += h.last.bytes()
	}
	for _, c := range s.Communicators {
		bytes += c.bytes()
	}
	if w.known == nil || bytes > maxKnown {
		w.known = map[string]*history{}
	}
	for _, c := range s.Communicators {
		h := w.known[c.ID]
		if h == nil {
			h = &history{since: at}
			w.known[c.ID] = h
		}
		h.recall(c.Ranks)
		if !same(h.last, c) {
			h.since = at
		}
		h.last, h.seen = c, at
	}
}

// bytes returns about how much memory a communicator takes.
func (c Communicator) bytes() int {
	n := 256 + len(c.ID)
	for _, r := range c.Ranks {
		n += 64 + len(r.Host) + 64*len(r.Counts)
	}
	return n
}

// recall gives missing ranks the counts that they had.
func (h *history) recall(ranks []Rank) {
	if !slices.ContainsFunc(ranks, func(r Rank) bool { return r.Missing }) {
		return
	}
	counts := map[int]map[string]uint64{}
	for _, r := range h.last.Ranks {
		counts[r.Rank] = r.Counts
	}
	for i, r := range ranks {
		if r.Missing && r.Counts == nil {
			ranks[i].Counts = counts[r.Rank]
		}
	}
}

// same reports whether nothing has changed between two answers.
func same(a, b Communicator) bool {
	return a.Closing == b.Closing && slices.EqualFunc(a.Ranks, b.Ranks, func(a, b Rank) bool {
		return a.Rank == b.Rank && a.Host == b.Host && a.PID == b.PID && a.Missing == b.Missing &&
			maps.Equal(a.Counts, b.Counts)
	})
}

// A process is one of a job's.
type process struct {
	host string
	pid  int
}

// Hangs returns the communicators that stand still, as answers over so long a time
// tell, while some ranks are ahead of others. A process that waits in one
// communicator is the culprit of none, nor is one that gets on in another.
func (w *Watch) Hangs(at, still time.Duration) (all []Hang) {
	maps.DeleteFunc(w.known, func(_ string, h *history) bool { return at-h.seen > forget })
	excused := map[process]bool{}
	for _, h := range w.known {
		_, ahead := h.sides()
		if h.seen-h.since < still {
			ahead = h.last.Ranks
		}
		for _, r := range ahead {
			excused[process{r.Host, r.PID}] = true
		}
	}
	for _, h := range w.known {
		if slices.ContainsFunc(h.last.Ranks, Rank.silent) {
			continue // the others may wait for that one: Silent has it
		}
		behind, ahead := h.sides()
		if slices.ContainsFunc(behind, func(r Rank) bool { return r.PID == 0 }) {
			continue // text does not name all of them
		}
		behind = slices.DeleteFunc(behind, func(r Rank) bool { return excused[process{r.Host, r.PID}] })
		if slices.ContainsFunc(behind, func(r Rank) bool { return r.Missing }) {
			behind = slices.DeleteFunc(behind, func(r Rank) bool { return !r.Missing })
		}
		if len(behind) > 0 {
			all = append(all, Hang{Since: h.since, Culprits: behind, Waiting: ahead})
		}
	}
	slices.SortFunc(all, func(a, b Hang) int {
		return cmp.Or(len(b.Waiting)-len(a.Waiting), cmp.Compare(a.Since, b.Since),
			cmp.Compare(a.Culprits[0].PID, b.Culprits[0].PID))
	})
	return all
}

// Silent returns the communicators that stand still for so long while some ranks do
// not answer, of which it is not known what they have launched: nobody asked before.
func (w *Watch) Silent(still time.Duration) (all []Hang) {
	for _, h := range w.known {
		s := Hang{Since: h.since}
		for _, r := range h.last.Ranks {
			switch {
			case !r.Missing:
				s.Waiting = append(s.Waiting, r)
			case r.silent() && r.PID != 0:
				s.Culprits = append(s.Culprits, r)
			}
		}
		if len(s.Culprits) > 0 && !h.last.Closing && h.seen-h.since >= still {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Hang) int { return cmp.Compare(a.Culprits[0].PID, b.Culprits[0].PID) })
	return all
}

// silent reports whether r does not answer, and never did.
func (r Rank) silent() bool { return r.Missing && r.Counts == nil }

// sides returns the ranks that are behind others in a joint collective, and
// those that are ahead. A missing rank is where it was last.
func (h *history) sides() (behind, ahead []Rank) {
	if h.last.Closing {
		return nil, nil
	}
	low, high := map[string]uint64{}, map[string]uint64{}
	for _, r := range h.last.Ranks {
		for name, n := range r.Counts {
			if least, there := low[name]; !there || n < least {
				low[name] = n
			}
			high[name] = max(high[name], n)
		}
	}
	for _, r := range h.last.Ranks {
		first, last := false, false
		for _, name := range joint {
			n, told := r.Counts[name]
			first = first || told && n > low[name]
			last = last || told && n == low[name] && n < high[name]
		}
		switch {
		case first && !r.Missing:
			ahead = append(ahead, r)
		case last && !first:
			behind = append(behind, r)
		}
	}
	return behind, ahead
}
