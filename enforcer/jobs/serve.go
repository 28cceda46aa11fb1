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
//   - A server is a process with a GPU, the processes of its process group that started it, and all that these have
//     started, as far as they are of one party (procs.Whose). So an API and its engine are one. It listens.
//   - Input waits at a port or path of it (sockets.go): a connection is not accepted, what a client sent is not read,
//     or a client got not a byte in answer to its first request, as if an engine is dead behind an API that reads.
//   - Meanwhile the server does nothing: it calls no driver, its GPU has no work of it, and its processes on GPUs and
//     those that they started hardly compute, read or write. An API may answer others, and does not compute all the time.
//   - That lasts for unreadFor, and as much longer as it ever did before the server went on, at most mostUnread.
//   - The server has worked on its GPU, and has taken input: before that, it may load.
//   - The server can go on: none of its processes is stopped or traced, waits for a disk, is held by a quota or by us,
//     or waits for its GPU, which endless.go judges.
//
// What cannot be told: input that a process has read and keeps, if its connection has had an answer before, as those
// of HTTP/2, of TLS and of pools of connections have; a server that was stuck when the agent began; one that spins.
// A client that sends half of its first request to an idle server looks as if it waited.

const (
	serveEvery  = 10 * time.Second // a server is looked at
	unreadFor   = 30 * time.Second
	mostUnread  = 10 * time.Minute
	mostServers = 64
	mostSame    = 8       // of a workload
	someCPU     = 20      // hundredths of a second, in each second
	muchCPU     = 80      // likewise, of an API with them
	someMoved   = 1 << 20 // bytes, likewise
	someGPU     = 0.05    // seconds, between two looks
)

// serving is what is known of servers.
type serving struct {
	all    map[int]*server // by the PID of the first process
	looked int64           // CLOCK_MONOTONIC, ns
	views  chan []view     // of the look under way; nil: none is
}

// A view is what a look at a server shows.
type view struct {
	root  int
	start uint64 // with root, its identity
	on    []GPUProcess
	use   use // of all
	work  use // of those on GPUs, and of what they started
	sockets
	err error
}

// A job is what a workload of a tenant does.
type job struct{ tenant, workload string }

// A server is a program that serves clients.
type server struct {
	of      GPUProcess // the first of its processes with a GPU
	start   uint64
	listens bool
	looked  int64    // CLOCK_MONOTONIC, ns
	use     use      // at that time, as in a view
	work    use      // likewise
	used    float64  // seconds of GPUs
	called  int64    // last call of the driver, or work on the GPU, CLOCK_MONOTONIC, ns
	worked  bool     // on a GPU, ever
	took    bool     // input, or there was none
	blocked int      // looks in a row at which it waited for a disk
	got     int64    // when it last got on, or could not, CLOCK_MONOTONIC, ns
	seen    int64    // when it was last looked at, even if in vain, likewise
	clients []client // that wait
	first   client   // the one to which it owes most
	since   int64    // for which it has waited in vain; 0: none does
	longest time.Duration
}

// A client is an input, since it was first seen.
type client struct {
	input
	since int64 // CLOCK_MONOTONIC, ns
	spare bool  // the server has gone on without it
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
	for _, pid := range slices.Sorted(maps.Keys(s.all)) {
		if v, is := s.all[pid].verdict(); is {
			for _, p := range o.processes {
				if p.pid == v.culprit.pid && p.ended == 0 {
					v.culprit = p
				}
			}
			if !v.culprit.hangs {
				v.culprit.hangs = true
				all = append(all, v)
			}
		}
	}
	return all
}

// Unread returns for how long input of servers has waited while they did nothing.
func (o *Observer) Unread() (all []wire.UnreadStats) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(o.serving.all)) {
		if s := o.serving.all[pid]; s.listens {
			all = append(all, wire.UnreadStats{Tenant: s.of.Tenant, Workload: s.of.Workload, GPU: s.of.GPU,
				Seconds: s.idle().Seconds()})
		}
	}
	return all
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

// view looks at the servers to which processes on GPUs belong. It takes long, and needs no lock.
func (o *Observer) view(on []GPUProcess) (all []view) {
	same := map[job]int{}
	for _, p := range on {
		root, stat, err := rootOf(o.procfs(), p.PID)
		i := slices.IndexFunc(all, func(v view) bool { return v.root == root })
		of := job{p.Tenant, p.Workload}
		switch {
		case err != nil:
		case i >= 0:
			all[i].on = append(all[i].on, p)
		case len(all) < mostServers && same[of] < mostSame:
			same[of]++
			all = append(all, view{root: root, start: stat.Start, on: []GPUProcess{p}})
		}
	}
	var looks sync.WaitGroup // the kernel may hold one that looks at a server, and others go on
	for i := range all {
		looks.Go(func() { all[i].look(o) })
	}
	looks.Wait()
	return all
}

// look looks at a server.
func (v *view) look(o *Observer) {
	asks := ask
	if o.sockets != nil {
		asks = o.sockets
	}
	for _, p := range v.on {
		used, _, err := useOf(o.procfs(), p.PID)
		v.work = use{ticks: v.work.ticks + used.ticks, bytes: v.work.bytes + used.bytes, disk: v.work.disk || used.disk}
		v.err = cmp.Or(v.err, err)
	}
	if used, family, err := useOf(o.procfs(), v.root); v.err == nil && err == nil {
		v.use = used
		v.sockets, v.err = asks(o.procfs(), procs.Whose(o.procfs(), v.root), family)
	} else {
		v.err = cmp.Or(v.err, err)
	}
}

// rootOf returns the first process of the program to which a process belongs.
func rootOf(procfs string, pid int) (int, procs.Stat, error) {
	whose := procs.Whose(procfs, pid)
	stat, err := procs.ReadStat(procfs, pid)
	for range maxFamily {
		parent, failed := procs.ReadStat(procfs, stat.Parent)
		if err != nil || stat.Parent <= 1 || failed != nil || parent.Group != stat.Group ||
			procs.Whose(procfs, stat.Parent) != whose {
			break
		}
		pid, stat = stat.Parent, parent
	}
	return pid, stat, err
}

// serve takes what a look at all servers shows.
func (o *Observer) serve(at int64, views []view) {
	all := map[int]*server{}
	for _, v := range views {
		s := o.serving.all[v.root]
		if s == nil || s.start != v.start {
			s = &server{start: v.start}
		}
		s.of, all[v.root] = v.on[0], s
		went, can := s.goes(o, &v, at)
		s.see(v.sockets, went, can, at)
		if v.err == nil {
			s.use, s.work, s.looked = v.use, v.work, at
		}
	}
	o.serving.all = all
}

// goes reports whether the server got on since the last look, and whether it could.
func (s *server) goes(o *Observer, v *view, at int64) (went, can bool) {
	used, called, mine := 0.0, int64(0), map[int]bool{}
	can = v.err == nil && !v.use.halted
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
			can = can && !p.hangs && !p.gated(at) && !p.waits(at)
		}
	}
	if s.blocked++; !v.work.disk {
		s.blocked = 0
	}
	can = can && (s.blocked == 0 || s.blocked > mostBlocked/int(serveEvery/time.Second))
	seconds := uint64(max(0, at-s.looked) / 1e9)
	went = called > s.called || used > s.used+someGPU || v.err == nil && s.looked > 0 &&
		(v.work.ticks >= s.work.ticks+someCPU*seconds || v.work.bytes >= s.work.bytes+someMoved*seconds ||
			v.use.ticks >= s.use.ticks+muchCPU*seconds)
	s.used, s.called = used, called
	return went, can && s.looked > 0
}

// see takes what waits at the server's sockets.
func (s *server) see(now sockets, went, can bool, at int64) {
	if went && can && s.since > 0 {
		s.longest = max(s.longest, time.Duration(at-s.since))
	}
	if went || !can {
		s.got = at
	}
	before := s.clients
	s.clients, s.since, s.seen, s.listens = nil, 0, at, s.listens || now.Listen
	for _, in := range now.Inputs {
		w := client{input: in, since: at}
		if i := slices.IndexFunc(before, func(w client) bool { return w.input == in }); i >= 0 {
			w = before[i]
		}
		w.spare = w.spare || went && in.How == unread && at-w.since >= int64(unreadFor)
		s.clients = append(s.clients, w)
		if since := max(w.since, s.got); !w.spare && (s.since == 0 || since < s.since) {
			s.since, s.first = since, w
		}
	}
	fewer := func(w client) bool { return !slices.Contains(now.Inputs, w.input) }
	s.took = s.took || s.worked && now.Listen && (len(now.Inputs) == 0 || slices.ContainsFunc(before, fewer))
}

// idle returns for how long input had waited at the last look, while the server did nothing.
func (s *server) idle() time.Duration {
	if s.since == 0 {
		return 0
	}
	return time.Duration(s.seen - s.since)
}

// verdict returns the verdict on a server that is stuck; false: there is none.
func (s *server) verdict() (v verdict, is bool) {
	if !s.took || s.idle() < min(unreadFor+s.longest, mostUnread) {
		return v, false
	}
	pid := s.first.PID
	if s.first.How == unanswered {
		pid = s.of.PID // who has read it may do well
	}
	return verdict{culprit: &process{pid: pid, tenant: s.of.Tenant, gpus: []string{s.of.GPU}, last: s.since,
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
