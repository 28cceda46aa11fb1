package jobs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
)

// How servers that are stuck are found. A server has no steps; what it has to do is the input of its clients.
//
//   - A server is the first that listens of a process on a GPU and those of its process group and party (procs.Whose)
//     that started it, with all that it has started. So an API and its engine are one, and two servers of a script are two.
//   - Input waits at a port or path of it (sockets.go): a connection is not accepted, what a client sent is not read,
//     or a client got not a byte in answer to its first request, as if an engine is dead behind an API that reads.
//     It need not be one client all the time: clients give up and come back.
//   - Meanwhile the server does nothing: it calls no driver, its GPU has no work of it, and its processes on GPUs and
//     those that they started hardly compute, read or write. An API may answer others, and does not compute all the time.
//   - That lasts for unreadFor, and as much longer as it ever did before the server went on, at most mostUnread.
//   - The input came settleFor after the server was first seen, and after it had worked on its GPU: before, it may load.
//     A connection beside which the server has gone on for unreadFor is not awaited: ranks of NCCL send each other what
//     has no answer.
//   - The server can go on: none of its processes is stopped or traced, waits for a disk, is held by a quota or by us,
//     or waits for its GPU, which endless.go judges.
//
// What cannot be told: input that a process has read and keeps, if its connection has had an answer before, as those
// of HTTP/2, of TLS and of pools of connections have; a server that was stuck when the agent began; one that spins.
// A client that sends half of its first request to an idle server looks as if it waited.

// serving is what is known of servers.
type serving struct {
	all    map[parent]*server
	looked int64       // CLOCK_MONOTONIC, ns
	views  chan []view // of the look under way; nil: none is
}

// A view is what a look at a server shows.
type view struct {
	parent  // the first process
	on      []GPUProcess
	use     use    // of all
	work    use    // of those on GPUs, and of what they started
	whose   string // procs.Whose
	listens bool
	inputs  []input
	err     error // it cannot be looked at
}

// A server is a program that serves clients.
type server struct {
	of      GPUProcess // the first of its processes with a GPU
	whose   string
	listens bool
	born    int64    // when it was first seen, CLOCK_MONOTONIC, ns
	looked  int64    // CLOCK_MONOTONIC, ns
	use     use      // at that time, as in a view
	work    use      // likewise
	used    float64  // seconds of GPUs
	called  int64    // last call of the driver, or work on the GPU, CLOCK_MONOTONIC, ns
	worked  bool     // on a GPU, ever
	blocked int      // looks in a row at which it waited for a disk
	got     int64    // when it last got on, or could not, CLOCK_MONOTONIC, ns
	seen    int64    // when it was last looked at, even if in vain, likewise
	clients []client // that wait
	first   *client  // of them that should not, or that did at the look before; nil: none
	gap     bool     // none waits now; one may give up before the next one comes
	since   int64    // since then one waits, and the server has not got on, likewise; 0: none waits
	longest time.Duration
}

// A client is an input, since it was first seen.
type client struct {
	input
	since int64 // CLOCK_MONOTONIC, ns
	spare bool  // it waited before the server could serve, or the server goes on without it
}

// unread returns the verdicts on servers that are stuck. It looks at them, too.
func (o *Observer) unread(at int64) (all []verdict) {
	s := &o.serving
	select {
	case views := <-s.views:
		s.views = nil
		o.serve(at, views)
	default:
	}
	if s.views == nil && at-s.looked >= int64(serveEvery) {
		s.looked, s.views = at, make(chan []view, 1)
		go func(on []GPUProcess, views chan<- []view) { views <- o.view(on) }(o.onGPUs(), s.views)
	}
	for _, server := range s.sorted() {
		if v, is := server.verdict(); is {
			for _, p := range o.processes {
				if p.pid == v.culprit.pid && p.ended == 0 {
					v.culprit = p
				}
			}
			v.culprit.hangs = true
			all = append(all, v)
		}
	}
	return all
}

// Unread returns for how long input of servers has waited while they did nothing.
func (o *Observer) Unread() (all []wire.UnreadStats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range o.serving.sorted() {
		if s.listens {
			all = append(all, wire.UnreadStats{Tenant: s.of.Tenant, Workload: s.of.Workload, GPU: s.of.GPU,
				Seconds: s.idle().Seconds()})
		}
	}
	return all
}

// sorted returns the servers in the order of their processes.
func (s *serving) sorted() []*server {
	return slices.SortedFunc(maps.Values(s.all), func(a, b *server) int { return cmp.Compare(a.of.PID, b.of.PID) })
}

// onGPUs returns the processes on GPUs: those that the driver lists with what they use, and those that have called it.
func (o *Observer) onGPUs() (all []GPUProcess) {
	known := map[int]bool{}
	for pid, m := range o.nccl.members {
		if m.gone == 0 {
			known[pid] = true
			all = append(all, m.GPUProcess)
		}
	}
	for _, p := range o.processes {
		if p.ended == 0 && !known[p.pid] {
			known[p.pid] = true
			all = append(all, GPUProcess{PID: p.pid, GPU: p.gpu(), Tenant: p.tenant, Workload: p.sums.Workload, Hooked: true})
		}
	}
	slices.SortFunc(all, func(a, b GPUProcess) int { return cmp.Compare(a.PID, b.PID) })
	return all
}

// A processGroup is processes on GPUs with the same first process.
type processGroup struct {
	first  int
	whose  string
	turn   int // so many of its party come before
	left   int // files that may be read
	on     []GPUProcess
	chains [][]parent // of each
}

// A parent is a process with its start, as its identity.
type parent struct {
	pid   int
	start uint64
}

// view looks at the servers to which processes on GPUs belong. It takes long, and needs no lock.
func (o *Observer) view(on []GPUProcess) (all []view) {
	groups := o.processGroups(on)
	found := make([][]view, len(groups))
	var looks sync.WaitGroup // the kernel may hold one that looks at a server, and others go on
	for i := range groups {
		looks.Go(func() { found[i] = o.servers(groups[i]) })
	}
	looks.Wait()
	return slices.Concat(found...)
}

// processGroups returns those of which the servers are looked at: the first one of each party, then the second one of
// each, and so on.
func (o *Observer) processGroups(on []GPUProcess) (groups []processGroup) {
	known, own, left := map[int]int{}, map[string]int{}, map[string]*int{}
	for _, p := range on {
		whose := procs.Whose(o.procfs(), p.PID)
		if left[whose] == nil {
			left[whose] = new(mostFiles)
		}
		chain := chainOf(o.procfs(), whose, p.PID, left[whose])
		if len(chain) == 0 {
			continue // it has ended, or the party has too many
		}
		first := chain[len(chain)-1].pid
		i, is := known[first]
		if !is {
			i = len(groups)
			known[first], groups = i, append(groups, processGroup{first: first, whose: whose, turn: own[whose]})
			own[whose]++
		}
		groups[i].on, groups[i].chains = append(groups[i].on, p), append(groups[i].chains, chain)
	}
	slices.SortStableFunc(groups, func(a, b processGroup) int { return cmp.Compare(a.turn, b.turn) })
	groups = groups[:min(len(groups), mostServers)]
	for i := range groups {
		groups[i].left = serverFiles / min(own[groups[i].whose], mostServers)
	}
	return groups
}

// chainOf returns a process and those of its process group and party that started it. left are the files that may
// still be read for the party.
func chainOf(procfs, whose string, pid int, left *int) (chain []parent) {
	stat, err := procs.ReadStat(procfs, pid)
	for group := stat.Group; err == nil && pid > 1 && stat.Group == group && len(chain) < maxFamily &&
		procs.Whose(procfs, pid) == whose; {
		if *left -= 3; *left < 0 {
			return nil
		}
		chain = append(chain, parent{pid, stat.Start})
		pid = stat.Parent
		stat, err = procs.ReadStat(procfs, pid)
	}
	return chain
}

// servers looks at those of a program: each is the first process in a chain that listens, with its descendants.
func (o *Observer) servers(p processGroup) (all []view) {
	asks := ask
	if o.sockets != nil {
		asks = o.sockets
	}
	_, family, err := useOf(o.procfs(), p.first, &p.left)
	var found sockets
	if err == nil {
		found, err = asks(o.procfs(), p.whose, family)
	}
	if err != nil {
		return []view{{on: p.on, err: err}}
	}
	for i, chain := range p.chains {
		root := chain[0]
		for _, q := range chain {
			if slices.Contains(found.Listeners, q.pid) {
				root = q
			}
		}
		at := slices.IndexFunc(all, func(v view) bool { return v.parent == root })
		if at < 0 {
			at, all = len(all), append(all, view{parent: root, whose: p.whose})
		}
		v := &all[at]
		used, _, err := useOf(o.procfs(), chain[0].pid, &p.left)
		v.on, v.err = append(v.on, p.on[i]), cmp.Or(v.err, err)
		v.work = use{ticks: v.work.ticks + used.ticks, bytes: v.work.bytes + used.bytes, disk: v.work.disk || used.disk}
	}
	for i := range all {
		v := &all[i]
		used, family, err := useOf(o.procfs(), v.pid, &p.left)
		v.use, v.err = used, cmp.Or(v.err, err)
		of := func(pid int) bool { return slices.Contains(family, pid) }
		v.listens = slices.ContainsFunc(found.Listeners, of)
		v.inputs = slices.DeleteFunc(slices.Clone(found.Inputs), func(in input) bool { return !of(in.PID) })
	}
	return all
}

// serve takes what a look at all servers shows.
func (o *Observer) serve(at int64, views []view) {
	all := map[parent]*server{}
	for _, v := range views {
		for of, s := range o.serving.all { // what cannot be looked at is as it was
			if v.err != nil && slices.ContainsFunc(v.on, func(p GPUProcess) bool { return p.PID == s.of.PID }) {
				all[of], s.got, s.since = s, at, 0
			}
		}
		if v.err != nil {
			continue
		}
		s := o.serving.all[v.parent]
		if s == nil {
			s = &server{born: at}
		}
		s.of, s.whose, all[v.parent] = v.on[0], v.whose, s
		went, can := s.goes(o, &v, at)
		s.see(&v, went, can, at)
		s.use, s.work, s.looked = v.use, v.work, at
	}
	o.serving.all = all
}

// goes reports whether the server got on since the last look, and whether it could.
func (s *server) goes(o *Observer, v *view, at int64) (went, can bool) {
	used, called, mine := 0.0, int64(0), map[int]bool{}
	can = !v.use.halted
	for _, p := range v.on {
		used += p.Used
		mine[p.PID] = true
		s.worked = s.worked || p.Used > 0
		can = can && (p.Hooked || !p.Sampled.IsZero()) && !(o.Held != nil && o.Held(p.Tenant, p.Workload))
	}
	for _, p := range o.processes {
		if mine[p.pid] && p.ended == 0 {
			called = max(called, p.last, p.busy)
			s.worked = s.worked || p.sums.Launches+p.sums.Graphs > 0
			can = can && !p.gated(at) && !p.waits(at)
		}
	}
	if s.blocked++; !v.work.disk {
		s.blocked = 0
	}
	can = can && (s.blocked == 0 || s.blocked > mostBlocked/int(serveEvery/time.Second))
	seconds := uint64(max(0, at-s.looked) / 1e9)
	went = called > s.called || used > s.used+someGPU || s.looked > 0 &&
		(v.work.ticks >= s.work.ticks+someCPU*seconds || v.work.bytes >= s.work.bytes+someMoved*seconds ||
			v.use.ticks >= s.use.ticks+muchCPU*seconds)
	s.used, s.called = used, called
	return went, can && s.looked > 0
}

// see takes what waits at the server's sockets.
func (s *server) see(now *view, went, can bool, at int64) {
	if went && can && s.since > 0 {
		s.longest = max(s.longest, time.Duration(at-s.since))
	}
	if went || !can {
		s.got = at
	}
	before, first := s.clients, s.first
	s.clients, s.first, s.seen, s.listens = nil, nil, at, s.listens || now.listens
	for _, in := range now.inputs {
		c := client{input: in, since: at}
		if i := slices.IndexFunc(before, func(c client) bool { return c.input == in }); i >= 0 {
			c = before[i]
		}
		c.spare = c.spare || !s.worked || at-s.born < int64(settleFor) ||
			went && in.How != unaccepted && at-c.since >= int64(unreadFor)
		if in.How == unaccepted && slices.ContainsFunc(before, in.accepted) {
			c.spare = false
		}
		if s.clients = append(s.clients, c); !c.spare && (s.first == nil || c.since < s.first.since) {
			s.first = &c
		}
	}
	if s.gap = s.first == nil && !s.gap; s.gap {
		s.first = first
	}
	if s.since = max(cmp.Or(s.since, at), s.got); s.first == nil {
		s.since = 0
	}
}

// accepted reports whether the client has come by the same port or path lately.
func (i input) accepted(c client) bool { return c.At == i.At && c.How != unaccepted && !c.spare }

// idle returns for how long input had waited at the last look, while the server did nothing.
func (s *server) idle() time.Duration {
	if s.since == 0 {
		return 0
	}
	return time.Duration(s.seen - s.since)
}

// verdict returns the verdict on a server that is stuck; false: there is none.
func (s *server) verdict() (v verdict, is bool) {
	if s.idle() < min(unreadFor+s.longest, mostUnread) {
		return v, false
	}
	pid := s.first.PID
	if s.first.How == unanswered {
		pid = s.of.PID // who has read it may do well
	}
	return verdict{culprit: &process{pid: pid, party: s.whose, tenant: s.of.Tenant, gpus: []string{s.of.GPU}, last: s.since,
		sums: wire.JobStats{Workload: s.of.Workload}}, reason: "unread", rank: -1, waiting: 1, since: s.since,
		what: s.first.says()}, true
}

// says tells what waits.
func (i input) says() string {
	return map[string]string{
		unaccepted: fmt.Sprintf("connections at %s are not accepted", i.At),
		unread:     fmt.Sprintf("what clients sent to %s is not read", i.At),
		unanswered: fmt.Sprintf("requests at %s have no answer", i.At),
	}[i.How]
}
