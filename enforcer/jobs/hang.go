package jobs

import (
	"cmp"
	"fmt"
	"maps"
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
//     (deadlock.go). A process without communicators hangs if its work does not end (endless.go),
//     and a server if input waits while it does nothing (serve.go).
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

// A hang is one of a group of processes.
type hang struct {
	wire.HangStats
	since int64       // its last call
	where chan string // where it stands, once that has been read; nil: nobody reads it
	place string      // that
	known bool        // it has been read
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
	what    string     // the stream for which it waits, or the input that waits for it; empty: unknown
}

// judge finds the present hangs.
func (o *Observer) judge(at int64, f files) (all []wire.HangStats) {
	found := map[string]*hang{}
	blamed := map[*process]bool{}
	wanted := map[string]int{} // processes of each party of which it will be read what is in flight
	for _, v := range slices.Concat(o.verdicts(at, f), o.unhooked(at, f), o.unread(at)) {
		if blamed[v.culprit] {
			continue
		}
		blamed[v.culprit] = true
		key := fmt.Sprint(v.culprit.pid, cmp.Or(v.since, v.culprit.last), v.reason)
		h := o.hangs[key]
		if h == nil {
			h = &hang{since: cmp.Or(v.since, v.culprit.since())}
			h.HangStats = wire.HangStats{PID: v.culprit.pid, GPU: v.culprit.gpu(), Rank: v.rank, Reason: v.reason}
			if v.vague() {
				h.Rank = -1
			}
			if v.reason == "ended" {
				h.PID = 0
			} else {
				v.culprit.flight = flight{}
			}
		}
		if h.where == nil && h.PID != 0 && o.mayRead(&v, at) {
			h.where = make(chan string, 1)
			places := o.places(v)
			go func() { h.where <- places() }()
		}
		select {
		case h.place = <-h.where:
			h.known = true
		default:
			h.looks++
		}
		known := h.known
		h.Where = h.place
		if f := &v.culprit.flight; v.reason == "kernel" {
			if !f.known && wanted[v.culprit.party] < flightLooks {
				wanted[v.culprit.party]++
				f.wanted = true
			}
			known, h.Where = known && f.known, joined(h.place, f.text)
		}
		h.Tenant, h.Workload = v.culprit.tenant, v.culprit.sums.Workload
		h.Waiting, h.Seconds = v.waiting, time.Duration(at-h.since).Seconds()
		found[key] = h
		if known || h.looks >= placeLooks || h.PID == 0 {
			all = append(all, h.HangStats)
		}
	}
	o.hangs = found
	slices.SortFunc(all, func(a, b wire.HangStats) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

// A reading is one of where a culprit stands. Each stack takes a child process, or placeTries if they are late.
type reading struct {
	at     int64 // CLOCK_MONOTONIC, ns
	pid    int
	party  string
	stacks int
}

// mayRead reports whether it may be read where the culprit stands, and counts that. A process can tell of another hang
// at each look: it is read once within patience, and a party's have mostStacks read within readWithin.
func (o *Observer) mayRead(v *verdict, at int64) bool {
	o.readings = slices.DeleteFunc(o.readings, func(r reading) bool { return at-r.at >= int64(readWithin) })
	now := reading{at, v.culprit.pid, v.culprit.party, max(1, min(len(v.ring), maxPlaces))}
	sum := now.stacks
	for _, r := range o.readings {
		if r.pid == now.pid && at-r.at < int64(patience) {
			return false
		}
		if r.party == now.party {
			sum += r.stacks
		}
	}
	if sum > mostStacks {
		return false
	}
	o.readings = append(o.readings, now)
	return true
}

// verdicts returns what is found, the communicators with most ranks first. A
// culprit that waits itself may be the victim of another one, which then comes
// first.
func (o *Observer) verdicts(at int64, f files) []verdict {
	groups := o.groups(at, f)
	o.inTurn(groups)
	shareUsual(groups)
	// Who waits for one that gets on may stand in the way of others, and one that does nothing may wait for
	// a lock of one that works.
	getsOn, helped := map[*process]bool{}, map[*process]bool{}
	mark := func(all map[*process]bool, group []*process) {
		for _, p := range group {
			all[p] = true
		}
	}
	var all []verdict
	for of, group := range groups {
		group = users(of.id, present(group))
		groups[of] = group
		if slices.ContainsFunc(group, func(p *process) bool { return p.quiet(at) >= patience && p.works(at) }) {
			mark(helped, group)
		}
		switch v := judgeGroup(of.id, group, at); {
		case v.culprit != nil:
			all = append(all, v)
		case v.waiting > 0, slices.ContainsFunc(group, func(p *process) bool { return p.quiet(at) < patience }):
			mark(getsOn, group)
		}
	}
	maps.DeleteFunc(groups, func(of communicatorOf, _ []*process) bool { return o.crowded[of] })
	all = append(all, deadlocks(groups, at)...)
	all = slices.DeleteFunc(all, func(v verdict) bool {
		return v.vague() && getsOn[v.culprit] || v.reason == "absent" && helped[v.culprit]
	})
	return append(unexplained(all, at), o.endless(at)...)
}

// groups returns the ranks of each communicator, and takes what those that are quiet do.
func (o *Observer) groups(at int64, f files) map[communicatorOf][]*process {
	groups := map[communicatorOf][]*process{}
	for _, p := range o.processes {
		p.hangs, p.usual = false, p.waiting.usual
		switch u, known := f.uses[p.pid]; {
		case p.ended > 0 || p.quiet(at) < lookFrom:
			p.watch = watch{}
		case known: // else it let the GPU go only a moment ago
			p.watch.saw(u)
		}
		for i := range p.communicators {
			if c := &p.communicators[i]; c.there {
				of := communicatorOf{p.tenant, p.owner, c.ID}
				groups[of] = append(groups[of], p)
			}
		}
	}
	return groups
}

// inTurn leaves out communicators of parties whose ranks are in too many of them: those that were left out most often
// are judged now. Such a party is judged for no deadlock, because not all of its waits are known.
func (o *Observer) inTurn(groups map[communicatorOf][]*process) {
	before := o.left
	o.crowded, o.left = crowded(groups), map[communicatorOf]int{}
	if len(o.crowded) == 0 {
		return
	}
	all := slices.SortedFunc(maps.Keys(groups), func(a, b communicatorOf) int {
		return cmp.Or(cmp.Compare(before[b], before[a]), cmp.Compare(a.id, b.id))
	})
	judged := map[string]int{}
	for _, of := range all {
		party := groups[of][0].party
		if judged[party] += len(groups[of]); o.crowded[of] && judged[party] > mostRanks {
			o.left[of] = before[of] + 1
			delete(groups, of)
		}
	}
}

// crowded returns the communicators of parties whose processes are ranks of communicators more than mostRanks times.
func crowded(groups map[communicatorOf][]*process) map[communicatorOf]bool {
	ranks, all := map[string]int{}, map[communicatorOf]bool{}
	for _, group := range groups {
		ranks[group[0].party] += len(group)
	}
	for of, group := range groups {
		if ranks[group[0].party] > mostRanks {
			all[of] = true
		}
	}
	return all
}

// shareUsual gives the ranks of a communicator the longest usual pause of any of them: they run the same
// program, but some may know only other steps of it.
func shareUsual(groups map[communicatorOf][]*process) {
	for _, group := range groups {
		longest := time.Duration(0)
		for _, p := range group {
			longest = max(longest, p.waiting.usual)
		}
		for _, p := range group {
			p.usual = max(p.usual, longest)
		}
	}
}

// unexplained returns the verdicts, the surest first, without those whose processes wait with an earlier
// one's: one culprit explains all who wait with it, in any of its communicators.
func unexplained(all []verdict, at int64) []verdict {
	slices.SortStableFunc(all, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.doubt(at), b.doubt(at)), len(b.group)-len(a.group),
			cmp.Compare(a.culprit.pid, b.culprit.pid))
	})
	return slices.DeleteFunc(all, func(v verdict) bool {
		known := slices.ContainsFunc(v.group, func(p *process) bool { return p.hangs })
		for _, p := range v.group {
			p.hangs = true
		}
		return known
	})
}

// endless returns the verdicts on processes that hang alone.
func (o *Observer) endless(at int64) (all []verdict) {
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

// status returns the finder's status at a time. It is asked for often while nothing changes.
func (p *process) status(at int64) steps.Status {
	if p.known == nil || p.knownAt != at {
		now := p.finder.Status(at)
		p.known, p.knownAt = &now, at
	}
	return *p.known
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
	s := p.status(at)
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
	s, usual := p.status(at), p.usual
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

// waits reports whether a thread of the process waits for the GPU, in a call that waits or in a launch.
func (p *process) waits(at int64) bool {
	for i := range p.waiters {
		if w := &p.waiters[i]; w.since == 0 && w.begun(at, p) > 0 {
			return true
		}
	}
	for _, w := range p.status(at).Waits {
		if w.For == wire.EventWait || w.For == wire.EventCopying {
			return true
		}
	}
	return false
}

// gated reports whether the gate holds a thread of the process back.
func (p *process) gated(at int64) bool {
	return slices.ContainsFunc(p.status(at).Waits, func(w steps.Wait) bool { return w.For == wire.EventHeld })
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
