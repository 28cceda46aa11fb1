package jobs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// How deadlocks are found: ranks that wait for each other, as rank 0 in one communicator for rank
// 1, and rank 1 in another one for rank 0.
//
//   - A process stands if it has called nothing for as long as one that waits in a hang (hang.go), and
//     its thread waits for its GPU or in a call of NCCL, or its GPU is in a collective or an exchange.
//   - It lacks another one in a communicator if that one has not called what it has called, and that
//     one's thread waits, too; or if that one's GPU has not come to the call in which its own GPU is.
//     Of exchanges only those count in which the GPU is known to be.
//   - Those that stand and lack one of themselves in every communicator in which they may wait are
//     deadlocked. One that may wait for anybody else is not: for a rank that computes, sleeps, has ended,
//     is stopped or held by its quota, for one on another host, or for the network. Neither is one that
//     waits for such a rank, directly or through others.
//
// What cannot be told: ranks that wait for each other while they make a communicator call nothing
// that is noted.

// A meeting is a communicator, and whom its ranks may lack.
type meeting struct {
	ranks        []place
	least        uint64   // collectives that a rank has called
	called, came *process // of those that stand: whose thread waits and has called least; whose GPU has come least far
}

// deadlocks returns a verdict for each ring of processes that wait for each other, with those that
// wait for them.
func deadlocks(groups map[communicatorOf][]*process, at int64) []verdict {
	stand, barred := map[*process]bool{}, map[*process]bool{}
	all := map[communicatorOf]*meeting{}
	for of, group := range groups {
		m := &meeting{ranks: placesOf(of.id, group)}
		slices.SortFunc(m.ranks, func(a, b place) int { return cmp.Compare(a.Rank, b.Rank) })
		gone := slices.ContainsFunc(group, func(p *process) bool {
			return p.ended > 0 || p.watch.state == 'T' || p.watch.state == 't'
		})
		for i, p := range m.ranks {
			if i == 0 || p.Entered < m.least {
				m.least = p.Entered
			}
			stand[p.process] = stand[p.process] || p.standstill(at)
			barred[p.process] = barred[p.process] || gone
		}
		all[of] = m
	}
	maps.DeleteFunc(stand, func(p *process, stands bool) bool { return !stands || barred[p] })
	for range maxRounds {
		for _, m := range all {
			m.look(stand, at)
		}
		lacks := map[*process]*process{}
		for p := range stand {
			if q := p.lacks(all, stand); q != nil {
				lacks[p] = q
			}
		}
		if len(lacks) == len(stand) {
			return rings(lacks)
		}
		maps.DeleteFunc(stand, func(p *process, _ bool) bool { return lacks[p] == nil })
	}
	return nil
}

// standstill reports whether the process has waited for too long, and does nothing else.
func (p *process) standstill(at int64) bool {
	if p.ended > 0 || p.quiet(at) < patience || p.gated(at) || !p.pauses(at) && !p.awaits() {
		return false
	}
	return p.stuck(at) || slices.ContainsFunc(p.communicators[:], func(c communicator) bool { return c.stands(at) })
}

// pauses reports whether a thread of the process waits for the GPU, or in a call of NCCL, which launches at its end:
// in its first call a communicator looks for the other ranks.
func (p *process) pauses(at int64) bool { return p.calls || p.waits(at) }

// look finds whom the ranks may lack among those that stand.
func (m *meeting) look(stand map[*process]bool, at int64) {
	m.called, m.came = nil, nil
	var called, unbegun uint64
	for _, p := range m.ranks {
		if !stand[p.process] {
			continue
		}
		if p.pauses(at) && (m.called == nil || p.Entered < called) {
			m.called, called = p.process, p.Entered
		}
		if p.Unbegun > 0 && (m.came == nil || p.Unbegun < unbegun) {
			m.came, unbegun = p.process, p.Unbegun
		}
	}
}

// lacks returns one of those that stand without which the process cannot go on; nil: it may wait for others.
func (p *process) lacks(all map[communicatorOf]*meeting, stand map[*process]bool) (found *process) {
	for i := range p.communicators {
		c := &p.communicators[i]
		m := all[communicatorOf{p.tenant, p.owner, c.ID}]
		if !c.there || m == nil || !c.pends(m) {
			continue
		}
		q := c.partner(m, stand)
		switch {
		case m.called != nil && m.called.in(c.ID).Entered < c.Entered:
			q = m.called
		case m.came != nil && m.came.in(c.ID).Unbegun <= c.Begun:
			q = m.came
		}
		if q == nil || q == p {
			return nil
		}
		found = cmp.Or(found, q)
	}
	return found
}

// pends reports whether the GPU may be in a call of the communicator that others have not made.
func (c *communicator) pends(m *meeting) bool {
	return c.inside() || c.Entered > c.Ended && c.Unbegun == 0 && (m.least < c.Entered || int(c.Ranks) > len(m.ranks))
}

// partner returns one of those that stand that has not come to an exchange in which the GPU is. If the GPUs of both are
// in exchanges with each other, these are of different calls only if each has made one that the other has not.
func (c *communicator) partner(m *meeting, stand map[*process]bool) *process {
	for _, to := range c.Peers {
		if q, here := find(m.ranks, to.Rank); to.Inside && here && stand[q.process] {
			back, _ := q.with(c.Rank)
			if !back.Inside && (q.owes(c) || back.Before) || q.owes(c) && c.owes(q.communicator) {
				return q.process
			}
		}
	}
	return nil
}

// rings returns a verdict for each ring of those that lack each other. All others lead to one.
func rings(lacks map[*process]*process) (all []verdict) {
	of, wait := map[*process]int{}, map[*process]int{} // the number of its verdict, and of those that lack it
	for _, q := range lacks {
		wait[q]++
	}
	for _, p := range slices.SortedFunc(maps.Keys(lacks), func(a, b *process) int { return cmp.Compare(a.pid, b.pid) }) {
		var path []*process
		for ; of[p] == 0 && !slices.Contains(path, p); p = lacks[p] {
			path = append(path, p)
		}
		if i := slices.Index(path, p); i >= 0 {
			all = append(all, deadlocked(path[i:], wait))
			of[p] = len(all)
		}
		v := &all[of[p]-1]
		for _, q := range path {
			of[q] = of[p]
		}
		v.group = append(v.group, path...)
		v.waiting = len(v.group)
	}
	return all
}

// deadlocked returns the verdict on a ring, from the one on that most lack: it may have gone another way than all.
func deadlocked(ring []*process, wait map[*process]int) verdict {
	first := slices.MinFunc(ring, func(a, b *process) int {
		return cmp.Or(cmp.Compare(wait[b], wait[a]), cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.pid, b.pid))
	})
	i := slices.Index(ring, first)
	return verdict{culprit: first, reason: "deadlock", rank: first.rank(), ring: slices.Concat(ring[i:], ring[:i])}
}

// rank returns the process's rank in its largest communicator.
func (p *process) rank() int { return int(p.largest()[0].Rank) }

// places returns a function that tells where the culprit stands and what waits, and where the others of
// its ring stand, behind their ranks. It takes long, and needs no lock.
func (o *Observer) places(v verdict) func() string {
	pids, ranks := []int{v.culprit.pid}, []int{v.rank}
	for i := 1; i < len(v.ring); i++ {
		pids, ranks = append(pids, v.ring[i].pid), append(ranks, v.ring[i].rank())
	}
	where := o.where
	if o.read != nil {
		where = o.read
	}
	return func() string {
		text := joined(where(pids[0], v.reason), v.what)
		for i := 1; i < min(len(pids), maxPlaces); i++ {
			text += fmt.Sprintf("; rank %d: %s", ranks[i], cmp.Or(where(pids[i], v.reason), "unknown"))
		}
		if more := len(pids) - maxPlaces; more > 0 {
			text += fmt.Sprintf("; %d more ranks", more)
		}
		return strings.TrimPrefix(text, "; ")
	}
}

// joined joins texts of which any may be empty.
func joined(texts ...string) string {
	return strings.Join(slices.DeleteFunc(texts, func(s string) bool { return s == "" }), ", ")
}
