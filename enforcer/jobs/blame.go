package jobs

import (
	"cmp"
	"slices"
	"time"

	"gpusteward/internal/wire"
)

// A stall is a communicator with its ranks on this host, of which some may wait for too long.
type stall struct {
	id    uint64
	ranks []*process // in the order of their ranks
	at    int64      // CLOCK_MONOTONIC, ns
	most  uint64     // collectives that the first of them has called

	places []place
	owing  *process // for whose sends or receives others wait, and that waits for none; nil: see debtor
	late   *process // whose GPU others' GPUs wait for; nil: see latest
	last   *process // that has come least far
}

// A ground is what can be true of a stall, and for which reason it then names a rank.
type ground struct {
	reason string                // see wire.HangReasons; nobody: the rank may get on
	rank   func(*stall) *process // of which it is true; nil: of none
}

const nobody = ""

// grounds are tried in this order, and the first one that is true of a rank decides.
// Ranks that wait for each other are found by deadlock.go, work without ranks by endless.go, and ranks without the hook
// by reason in ras.go. verdicts in hang.go says which verdict gives way to which.
var grounds = []ground{
	{"ended", (*stall).ended},      // it has ended, and others wait for it
	{nobody, (*stall).debugged},    // a debugger holds it
	{"stopped", (*stall).halted},   // a signal has stopped it
	{nobody, (*stall).pausesOnly},  // it has paused for no longer than usual: an evaluation, data, its usual work for the GPU
	{nobody, (*stall).owesLater},   // others wait for its sends or receives, and it computes, or reads or writes files
	{"kernel", (*stall).unmet},     // its GPU has not come to an exchange in which its peer's GPU is
	{"absent", (*stall).owes},      // others wait for its sends or receives
	{nobody, (*stall).callsLater},  // it has called fewer collectives, and computes, or waits for a request
	{"absent", (*stall).fewer},     // it has called fewer collectives, and does not wait for its GPU
	{"kernel", (*stall).unreached}, // its GPU has not come to where the GPUs of others wait for it
	{"unlike", (*stall).odd},       // of two ranks, it alone called what it had never called
	{"unlike", (*stall).differs},   // the bytes of its calls are not those of all others
	{"unlike", (*stall).ahead},     // it has left out a collective, and called the next one
	{"unlike", (*stall).alone},     // it is in a collective that nobody else calls
	{"absent", (*stall).behind},    // it has called fewer collectives, and waits for its GPU
	{"unknown", (*stall).complete}, // all ranks are on this host, and have called the same
	{"elsewhere", (*stall).beyond}, // a rank on another host has had time enough to compute
}

// judgeGroup judges the ranks of a communicator on this host: how many wait in
// it for too long, and for whom.
func judgeGroup(id uint64, group []*process, at int64) (v verdict) {
	slices.SortFunc(group, func(a, b *process) int { return cmp.Compare(a.in(id).Rank, b.in(id).Rank) })
	v.group = group
	s := &stall{id: id, ranks: group, at: at, most: mostOf(id, group), places: placesOf(id, group)}
	s.owing = debtor(s.places, at)
	if v.waiting = s.waiting(); v.waiting > 0 {
		if v.culprit, v.reason = s.blame(); v.culprit != nil {
			v.rank = int(s.of(v.culprit).Rank)
		}
	}
	return v
}

// blame returns the culprit; nil: nobody, or one that gets on.
func (s *stall) blame() (*process, string) {
	s.late, s.last = s.latest(), s.least()
	for _, g := range grounds {
		switch p := g.rank(s); {
		case p == nil:
		case g.reason == nobody:
			return nil, ""
		default:
			return p, g.reason
		}
	}
	return nil, ""
}

// waiting returns how many ranks wait for too long.
func (s *stall) waiting() (n int) {
	// Before steps are known, all may wait for a long one: only counts tell.
	uneven := s.owing != nil || s.first(s.calledFewer) != nil
	// Who waits for a rank that cannot call is in no long step.
	cannot := s.first(func(p *process) bool { return (p.ended > 0 || p.watch.state == 'T') && s.calledFewer(p) }) != nil
	for _, p := range s.ranks {
		c := s.of(p)
		stuck := p.stuck(s.at) || cannot && p.quiet(s.at) > patience
		called := (c.Entered > c.Ended || c.exchanges()) && (p.recurred() || uneven)
		if p.ended == 0 && (c.stands(s.at) || called && stuck && (p.blocked(s.at) || c.inside())) {
			n++
		}
	}
	return n
}

// of returns the communicator as a rank has it.
func (s *stall) of(p *process) *communicator { return p.in(s.id) }

// first returns the first rank of which something is true; nil: there is none.
func (s *stall) first(is func(*process) bool) *process {
	if i := slices.IndexFunc(s.ranks, is); i >= 0 {
		return s.ranks[i]
	}
	return nil
}

// when returns a rank if something is true; nil otherwise.
func when(is bool, p *process) *process {
	if is {
		return p
	}
	return nil
}

func (s *stall) calledFewer(p *process) bool { return s.of(p).Entered < s.most }

// least returns the rank that has come least far: one that does not wait for its GPU, that has called
// fewest collectives, and that called last before the others.
func (s *stall) least() *process {
	return slices.MinFunc(s.ranks, func(a, b *process) int {
		return cmp.Or(cmp.Compare(truth(a.blocked(s.at)), truth(b.blocked(s.at))),
			cmp.Compare(s.of(a).Entered, s.of(b).Entered), cmp.Compare(a.last, b.last))
	})
}

func (s *stall) ended() *process { return s.first(func(p *process) bool { return p.ended > 0 }) }

func (s *stall) halted() *process {
	return s.first(func(p *process) bool { return p.watch.state == 'T' || p.watch.state == 't' })
}

func (s *stall) debugged() *process {
	p := s.halted()
	return when(p != nil && p.watch.state == 't', p)
}

// pausesOnly returns a rank that has paused for no longer than usual.
func (s *stall) pausesOnly() *process {
	return s.first(func(p *process) bool {
		c := s.of(p)
		starts := c.Entered == 0 && !c.exchanges()
		usual := (!p.still(s.at) || (p.blocked(s.at) || starts) && !p.stuck(s.at)) && !(p == s.late && p.overdue(s.at))
		return min(p.quiet(s.at), time.Duration(s.at-c.since)) < patience || usual && !c.stands(s.at)
	})
}

func (s *stall) owesLater() *process { return when(s.owing != nil && s.owing.works(s.at), s.owing) }

func (s *stall) unmet() *process {
	return when(s.owing == nil || s.owing.awaits(), before(s.places))
}

func (s *stall) owes() *process { return s.owing }

func (s *stall) callsLater() *process {
	return when(s.calledFewer(s.last) && (s.last.works(s.at) || s.serves() && !s.last.waits(s.at)), s.last)
}

func (s *stall) fewer() *process {
	return when(s.calledFewer(s.last) && !s.last.blocked(s.at), s.last)
}

func (s *stall) unreached() *process { return s.late }

func (s *stall) alone() *process {
	c := s.of(s.last)
	return when(s.calledFewer(s.last) && c.strange() == c.Entered, s.last)
}

func (s *stall) behind() *process {
	return when(s.calledFewer(s.last) && s.last.waits(s.at), s.last)
}

func (s *stall) complete() *process {
	return when(int(s.of(s.last).Ranks) == len(s.ranks), s.last)
}

func (s *stall) beyond() *process {
	return when(s.last.quiet(s.at) >= computesFor && !s.serves(), s.last)
}

// serves reports whether the ranks of a server wait for the next request, in a broadcast
// by the rank that listens for it. They have made what may be tokens, and no steps.
func (s *stall) serves() bool {
	return s.first(func(p *process) bool {
		return p.taken > 0 || p.tokens == 0 || !s.calledFewer(p) && s.of(p).Op != wire.Broadcast
	}) == nil
}

// latest returns the only rank whose GPU has not come to a collective that
// others have begun, or to where others wait for it, and waits for nobody; nil:
// there is none, or it is not measured.
func (s *stall) latest() (found *process) {
	var begun, reached uint64
	for _, p := range s.ranks {
		begun, reached = max(begun, s.of(p).Begun), max(reached, s.of(p).Reached)
	}
	for _, p := range s.ranks {
		c := s.of(p)
		late := c.Unbegun > 0 && c.Unbegun <= begun || c.Unreached > 0 && c.Unreached <= reached && p.only(s.id)
		if !late || p.awaits() {
			continue
		}
		if found != nil {
			return nil
		}
		found = p
	}
	return found
}

// only reports whether the GPU can wait for other ranks only in this
// communicator, and only in collectives.
func (p *process) only(id uint64) bool {
	return !slices.ContainsFunc(p.communicators[:], func(c communicator) bool {
		return c.there && (c.exchanges() || c.ID != id && c.Entered > c.Ended)
	})
}

// odd returns the rank of two that called something unlike all that it called
// before where the other one did not, whatever it has called since.
func (s *stall) odd() *process {
	if len(s.ranks) != 2 || s.exchanges() {
		return nil
	}
	for i, p := range s.ranks {
		other := s.of(s.ranks[1-i])
		if n := s.of(p).strange(); n > 0 && n <= other.Entered && n != other.strange() {
			return p
		}
	}
	return nil
}

// differs returns the rank whose calls differ from the others' in the bytes of
// all. Ranks that exchange data with others do so with different sizes.
func (s *stall) differs() *process {
	if s.exchanges() || s.calledFewer(s.last) && s.last.waits(s.at) {
		return nil
	}
	counts := map[uint64]int{}
	for _, p := range s.ranks {
		counts[s.of(p).Bytes]++
	}
	return s.first(func(p *process) bool { return len(counts) == 2 && 2*counts[s.of(p).Bytes] < len(s.ranks) })
}

// ahead returns the only rank of several that has called more than the others, which have called equally
// many, and wait for their GPUs.
func (s *stall) ahead() *process {
	first := slices.MaxFunc(s.ranks, func(a, b *process) int { return cmp.Compare(s.of(a).Entered, s.of(b).Entered) })
	others := map[uint64]bool{}
	for _, p := range s.ranks {
		if p != first {
			others[s.of(p).Entered] = true
		}
	}
	return when(len(s.ranks) >= 3 && len(others) == 1 && !others[s.most] && s.last.waits(s.at), first)
}

// exchanges reports whether a rank has sent or received.
func (s *stall) exchanges() bool {
	return s.first(func(p *process) bool { return s.of(p).exchanges() }) != nil
}

// users returns the ranks of a communicator that use it: all, once one has called
// a collective, and otherwise those that exchange data.
func users(id uint64, group []*process) []*process {
	if mostOf(id, group) > 0 {
		return group
	}
	return slices.DeleteFunc(group, func(p *process) bool { return !p.in(id).exchanges() })
}

// mostOf returns how many collectives the first of the ranks has called.
func mostOf(id uint64, group []*process) (most uint64) {
	for _, p := range group {
		most = max(most, p.in(id).Entered)
	}
	return most
}
