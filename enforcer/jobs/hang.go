package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpusteward/enforcer/steps"
	"gpusteward/internal/wire"
)

// How hangs are judged.
//
//   - A job hangs if a rank has waited for patience, and for three times its longest usual pause.
//     The second condition does not apply to a rank whose GPU is known to have been in a
//     collective for patience. No rank is judged while a GPU gets on in its collectives.
//   - The culprit must have been still for as long, by its usual pauses in which it does not wait
//     for its GPU. Jobs with steps of a minute are therefore judged soon.
//   - The reason kernel is the exception, because a GPU may just be slower than usual: see
//     overdue. While a clock was reduced or another process was on the GPU within the last 10 s,
//     the limit stays three pauses. Ranks of a communicator share the longest usual pause of that
//     kind, because some may know only the steps of an evaluation.
//   - Before steps are known, settleFor takes the place of patience, unless GPUs are known to be in
//     a collective, and other ranks must have called fewer collectives: otherwise all may be waiting
//     for a long step. A rank that has called no collective yet has settleFor, too. About a dozen
//     steps are enough for kernel. What may be tokens of a server's answers is no step, but it has
//     usual pauses: after 32 repetitions settleFor does not apply while they go on.
//   - Ranks that have made tokens and no steps may wait in a broadcast for the next request: the
//     rank that they wait for is blamed only if it is stopped, has ended, or waits for its GPU.
//   - Where a rank that has called fewer collectives is stopped or has ended, patience is enough.
//   - In a pipeline each rank waits for the next one. The calls that a rank has not made for its
//     peer, and the exchanges in which GPUs are, lead to the rank that waits for nobody
//     (exchange.go).
//   - A rank that computes, or reads or writes files, is not blamed for computesFor, and no other
//     rank of the communicator is absent until then: it may wait for a lock or a file of that one.
//   - The reasons elsewhere and unknown blame no rank. Ranks that wait for each other are a deadlock
//     (deadlock.go). A process without communicators hangs if its work does not end (endless.go).
//
// What cannot be told: a stage that exchanges data with another host and waits for its GPU is not
// blamed for calls that it has not made. Sends and receives are counted for three peers of each
// communicator, so a hang among more peers is often unknown. An endless kernel in a graph is not
// seen. With more than 200 collectives a second, an endless kernel among them is unknown if no other
// stream waits for them, if streams wait more than 200 times a second, or if the rank may also wait
// in another communicator. Of two ranks, one is unlike if it called something that it had never
// called and the other one did not, after calls that were mostly alike: different sizes in the first
// steps are unknown. Hooks with a protocol older than 3.3 report neither peers nor which streams wait
// for a collective. A server whose ranks wait in a broadcast for its first request, or for requests in
// another collective, is reported after settleFor.

// When a process that stepped, or decoded tokens, is taken to hang.
const (
	patience  = 10 * time.Second // without a call, and
	pauses    = 3                // times its usual longest pause in a step
	lookFrom  = 3 * time.Second  // without a call: from then on its use of processors is observed
	kernelFor = 30 * time.Second // for a single process, whose kernels may be long
	settleFor = time.Minute      // for a process that starts: no step is known yet, which may be long
	// An absent process that computes may compile or save. After so long it does
	// neither. One on another host is not seen, and may do it, too.
	computesFor = 10 * time.Minute
	busyFor     = 2 * time.Second // after its GPU was last seen with work
	// A hang is told once it is known where its culprit stands, and after so many
	// looks anyway: an alert is sent once, and again only after a minute.
	placeLooks = 3
)

// A hang is one of a group of processes.
type hang struct {
	wire.HangStats
	since int64       // its last call
	where chan string // where it stands, once that has been read
	looks int         // at it, without knowing that
}

// A verdict is what a look at one communicator finds.
type verdict struct {
	culprit *process
	reason  string
	rank    int
	group   []*process
	waiting int
	ring    []*process // of a deadlock, the culprit first: each waits for the next one, the last one for the culprit
	since   int64      // CLOCK_MONOTONIC, ns; 0: since the culprit's last call
	stream  string     // for which it waits; empty: unknown
}

// judge finds the present hangs.
func (o *Observer) judge(at int64) (all []wire.HangStats) {
	found := map[string]*hang{}
	blamed := map[*process]bool{}
	for _, v := range slices.Concat(o.verdicts(at), o.unhooked(at)) {
		if blamed[v.culprit] {
			continue
		}
		blamed[v.culprit] = true
		key := fmt.Sprint(v.culprit.pid, cmp.Or(v.since, v.culprit.last), v.reason)
		h := o.hangs[key]
		if h == nil {
			h = &hang{since: cmp.Or(v.since, v.culprit.since()), where: make(chan string, 1)}
			h.HangStats = wire.HangStats{PID: v.culprit.pid, GPU: v.culprit.gpu(), Rank: v.rank, Reason: v.reason}
			if v.vague() {
				h.Rank = -1
			}
			if v.reason == "ended" {
				h.PID = 0
			} else {
				places := o.places(v)
				go func() { h.where <- places() }()
			}
		}
		select {
		case h.Where = <-h.where:
			h.looks = placeLooks
		default:
			h.looks++
		}
		h.Tenant, h.Workload = v.culprit.tenant, v.culprit.sums.Workload
		h.Waiting, h.Seconds = v.waiting, time.Duration(at-h.since).Seconds()
		found[key] = h
		if h.looks >= placeLooks || h.PID == 0 {
			all = append(all, h.HangStats)
		}
	}
	o.hangs = found
	slices.SortFunc(all, func(a, b wire.HangStats) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

// verdicts returns what is found, the communicators with most ranks first. A
// culprit that waits itself may be the victim of another one, which then comes
// first.
func (o *Observer) verdicts(at int64) (all []verdict) {
	groups := map[communicatorOf][]*process{}
	for _, p := range o.processes {
		p.hangs, p.usual = false, p.waiting.usual
		if p.ended == 0 && p.quiet(at) >= lookFrom {
			p.watch.look(o.procfs(), p.pid)
		} else {
			p.watch = watch{}
		}
		for i := range p.communicators {
			if c := &p.communicators[i]; c.there {
				of := communicatorOf{p.tenant, p.owner, c.ID}
				groups[of] = append(groups[of], p)
			}
		}
	}
	for _, group := range groups { // ranks run the same program, but some may know only other steps of it
		longest := time.Duration(0)
		for _, p := range group {
			longest = max(longest, p.waiting.usual)
		}
		for _, p := range group {
			p.usual = max(p.usual, longest)
		}
	}
	excused, helped := map[*process]bool{}, map[*process]bool{}
	for of, group := range groups {
		group = users(of.id, present(group))
		if slices.ContainsFunc(group, func(p *process) bool { return p.quiet(at) >= patience && p.works(at) }) {
			for _, p := range group {
				helped[p] = true
			}
		}
		groups[of] = group
		switch v := judgeGroup(of.id, group, at); {
		case v.culprit != nil:
			all = append(all, v)
		case v.waiting > 0, slices.ContainsFunc(group, func(p *process) bool { return p.quiet(at) < patience }):
			for _, p := range group {
				excused[p] = true
			}
		}
	}
	all = append(all, deadlocks(groups, at)...)
	// Who waits for one that gets on may stand in the way of others.
	all = slices.DeleteFunc(all, func(v verdict) bool { return v.vague() && excused[v.culprit] })
	// One that does nothing may wait for a lock of one that works.
	all = slices.DeleteFunc(all, func(v verdict) bool { return v.reason == "absent" && helped[v.culprit] })
	slices.SortStableFunc(all, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.doubt(at), b.doubt(at)), len(b.group)-len(a.group),
			cmp.Compare(a.culprit.pid, b.culprit.pid))
	})
	// One culprit explains all who wait with it, in any of its communicators.
	all = slices.DeleteFunc(all, func(v verdict) bool {
		known := slices.ContainsFunc(v.group, func(p *process) bool { return p.hangs })
		for _, p := range v.group {
			p.hangs = true
		}
		return known
	})
	for _, p := range o.processes {
		if v, is := p.endless(at); is && !p.hangs {
			p.hangs = true
			all = append(all, v)
		}
	}
	return all
}

// vague reports whether the verdict names nobody.
func (v *verdict) vague() bool { return v.reason == "unknown" || v.reason == "elsewhere" }

// doubt orders verdicts: a culprit that waits itself is less certain, and one in
// a collective, which waits for another rank, even less. A deadlock explains both.
func (v *verdict) doubt(at int64) int {
	switch {
	case v.ring != nil:
		return 0
	case v.vague():
		return 3
	case v.culprit.awaits():
		return 2
	case v.culprit.blocked(at):
		return 1
	}
	return 0
}

// alone reports whether the process is a rank of nothing.
func (p *process) alone() bool {
	return !slices.ContainsFunc(p.communicators[:], func(c communicator) bool { return c.there })
}

func truth(is bool) int {
	if is {
		return 1
	}
	return 0
}

// quiet returns for how long the process has called nothing, although it could.
func (p *process) quiet(at int64) time.Duration { return time.Duration(at - p.since()) }

// still reports whether the process has called nothing for too long, compared
// with its usual pauses of that kind.
func (p *process) still(at int64) bool {
	usual := p.standing.usual
	if p.waits(at) {
		usual = p.usual
	}
	return p.quiet(at) > max(patience, pauses*usual)
}

// stuck reports whether a process has called nothing for too long.
func (p *process) stuck(at int64) bool {
	if !p.still(at) {
		return false
	}
	s := p.finder.Status(at)
	if p.taken == 0 {
		return p.quiet(at)-min(p.braked, 2*settleFor) > settleFor || s.Decodes && p.standing.known()
	}
	if !s.Within { // its usual pauses are those of other steps
		return s.Stepping && p.quiet(at) > settleFor
	}
	return s.Stepping && (p.standing.known() || p.quiet(at) > pauses*s.Median)
}

// overdue reports whether a process waits for its GPU for clearly longer than
// usual, although nothing is known to slow that GPU down; the time for which something did
// does not count. That is not enough unless the GPUs of others already wait for it.
func (p *process) overdue(at int64) bool {
	s, usual := p.finder.Status(at), p.usual
	if !p.waiting.known() { // these may be pieces of steps
		usual = pauses * s.Median
	}
	return s.Stepping && s.Within && p.waits(at) && at-p.slowed > int64(patience) &&
		p.quiet(at)-p.braked > max(usual+patience, usual*3/2)
}

// stands reports whether the GPU has been in one collective or exchange for too
// long. The process need not be stuck: its steps may be minutes.
func (c *communicator) stands(at int64) bool {
	return c.inside() && at-c.since > int64(patience)
}

// blocked reports whether the process waits for the GPU, or the GPU for others: a
// thread may stand in a launch, because the queue is full.
func (p *process) blocked(at int64) bool {
	return p.busy > 0 && at-p.busy < int64(busyFor) || p.waits(at)
}

// works reports whether a process that nothing blocks may save, compile or
// prepare.
func (p *process) works(at int64) bool {
	return p.ended == 0 && !p.blocked(at) && p.watch.computes() && p.quiet(at) < computesFor
}

// waits reports whether a thread of the process waits for the GPU.
func (p *process) waits(at int64) bool {
	for _, w := range p.finder.Status(at).Waits {
		if w.For == wire.EventWait || w.For == wire.EventCopying {
			return true
		}
	}
	return false
}

// gated reports whether the gate holds a thread of the process back.
func (p *process) gated(at int64) bool {
	return slices.ContainsFunc(p.finder.Status(at).Waits, func(w steps.Wait) bool { return w.For == wire.EventHeld })
}

// in returns the process's communicator with the ID.
func (p *process) in(id uint64) *communicator {
	for i := range p.communicators {
		if c := &p.communicators[i]; c.there && c.ID == id {
			return c
		}
	}
	return nil
}

// present returns the group without sessions that ended while their processes have
// others: a process may lose its broker and find it again.
func present(group []*process) []*process {
	lives := map[int]bool{}
	for _, p := range group {
		lives[p.pid] = lives[p.pid] || p.ended == 0
	}
	return slices.DeleteFunc(group, func(p *process) bool { return p.ended > 0 && lives[p.pid] })
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

// judgeGroup judges the ranks of a communicator on this host: how many wait in
// it for too long, and for whom.
func judgeGroup(id uint64, group []*process, at int64) (v verdict) {
	slices.SortFunc(group, func(a, b *process) int { return cmp.Compare(a.in(id).Rank, b.in(id).Rank) })
	v.group = group
	uneven, most := uneven(id, group, at), mostOf(id, group)
	// Who waits for a rank that cannot call is in no long step.
	cannot := slices.ContainsFunc(group, func(p *process) bool {
		return (p.ended > 0 || p.watch.state == 'T') && p.in(id).Entered < most
	})
	for _, p := range group {
		c := p.in(id)
		stuck := p.stuck(at) || cannot && p.quiet(at) > patience
		// Before steps are known, all may wait for a long one: only counts tell.
		called := (c.Entered > c.Ended || c.exchanges()) && (p.recurred() || uneven)
		if p.ended == 0 && (c.stands(at) || called && stuck && (p.blocked(at) || c.inside())) {
			v.waiting++
		}
	}
	if v.waiting == 0 {
		return v
	}
	if v.culprit, v.reason = blame(id, group, at); v.culprit != nil {
		v.rank = int(v.culprit.in(id).Rank)
	}
	return v
}

// uneven reports whether some have called what others have not.
func uneven(id uint64, group []*process, at int64) bool {
	most := mostOf(id, group)
	return slices.ContainsFunc(group, func(p *process) bool { return p.in(id).Entered < most }) ||
		debtor(placesOf(id, group), at) != nil
}

// blame returns the culprit of a group in which somebody waits for too long;
// nil: nobody, or one that gets on.
func blame(id uint64, group []*process, at int64) (*process, string) {
	for _, p := range group {
		if p.ended > 0 {
			return p, "ended" // while others wait in a collective
		}
	}
	for _, p := range group {
		switch p.watch.state {
		case 't': // a debugger holds it
			return nil, ""
		case 'T':
			return p, "stopped"
		}
	}
	late := behind(id, group)
	for _, p := range group {
		c := p.in(id)
		starts := c.Entered == 0 && !c.exchanges()
		usual := (!p.still(at) || (p.blocked(at) || starts) && !p.stuck(at)) && !(p == late && p.overdue(at))
		if min(p.quiet(at), time.Duration(at-c.since)) < patience || usual && !c.stands(at) {
			return nil, "" // it gets on: an evaluation, or data, or its usual work for the GPU
		}
	}
	places := placesOf(id, group)
	switch owing, first := debtor(places, at), before(places); {
	case owing != nil && owing.works(at):
		return nil, ""
	case first != nil && (owing == nil || owing.awaits()):
		return first, "kernel"
	case owing != nil:
		return owing, "absent"
	}
	last := slices.MinFunc(group, func(a, b *process) int {
		return cmp.Or(cmp.Compare(truth(a.blocked(at)), truth(b.blocked(at))),
			cmp.Compare(a.in(id).Entered, b.in(id).Entered), cmp.Compare(a.last, b.last))
	})
	c, most, serves := last.in(id), mostOf(id, group), serves(id, group)
	switch {
	case c.Entered < most && (last.works(at) || serves && !last.waits(at)):
		return nil, ""
	case c.Entered < most && !last.blocked(at):
		return last, "absent"
	}
	if late != nil {
		return late, "kernel"
	}
	if p := odd(id, group); p != nil {
		return p, "unlike"
	}
	if p := unlike(id, group); p != nil && (c.Entered == most || !last.waits(at)) {
		return p, "unlike"
	}
	if p := ahead(id, group); p != nil && last.waits(at) {
		return p, "unlike"
	}
	switch {
	case c.Entered < most && c.strange() == c.Entered:
		return last, "unlike" // it waits in a collective that nobody else calls
	case c.Entered < most && last.waits(at):
		return last, "absent"
	case int(c.Ranks) == len(group):
		return last, "unknown"
	case last.quiet(at) >= computesFor && !serves:
		return last, "elsewhere"
	}
	return nil, ""
}

// serves reports whether the ranks of a server wait for the next request, in a broadcast
// by the rank that listens for it. They have made what may be tokens, and no steps.
func serves(id uint64, group []*process) bool {
	most := mostOf(id, group)
	return !slices.ContainsFunc(group, func(p *process) bool {
		c := p.in(id)
		return p.taken > 0 || p.tokens == 0 || c.Entered == most && c.Op != wire.Broadcast
	})
}

// behind returns the only rank whose GPU has not come to a collective that
// others have begun, or to where others wait for it, and waits for nobody; nil:
// there is none, or it is not measured.
func behind(id uint64, group []*process) (found *process) {
	var begun, reached uint64
	for _, p := range group {
		begun, reached = max(begun, p.in(id).Begun), max(reached, p.in(id).Reached)
	}
	for _, p := range group {
		c := p.in(id)
		late := c.Unbegun > 0 && c.Unbegun <= begun || c.Unreached > 0 && c.Unreached <= reached && p.only(id)
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

// ahead returns the only rank of several that has called more than the others,
// which have called equally many: it has left one out. nil: there is none.
func ahead(id uint64, group []*process) *process {
	first := slices.MaxFunc(group, func(a, b *process) int { return cmp.Compare(a.in(id).Entered, b.in(id).Entered) })
	others := map[uint64]bool{}
	for _, p := range group {
		if p != first {
			others[p.in(id).Entered] = true
		}
	}
	if len(group) < 3 || len(others) != 1 || others[first.in(id).Entered] {
		return nil
	}
	return first
}

// odd returns the rank of two that called something unlike all that it called
// before where the other one did not, whatever it has called since; nil: there is
// none.
func odd(id uint64, group []*process) *process {
	if len(group) != 2 || slices.ContainsFunc(group, func(p *process) bool { return p.in(id).exchanges() }) {
		return nil
	}
	for i, p := range group {
		other := group[1-i].in(id)
		if n := p.in(id).strange(); n > 0 && n <= other.Entered && n != other.strange() {
			return p
		}
	}
	return nil
}

// unlike returns the rank whose calls differ from the others' in the bytes of
// all; nil: there is none. Ranks that exchange data with others do so with
// different sizes.
func unlike(id uint64, group []*process) *process {
	counts, alike := map[uint64]int{}, true
	for _, p := range group {
		counts[p.in(id).Bytes]++
		alike = alike && !p.in(id).exchanges()
	}
	for _, p := range group {
		if alike && len(counts) == 2 && 2*counts[p.in(id).Bytes] < len(group) {
			return p
		}
	}
	return nil
}
