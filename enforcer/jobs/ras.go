package jobs

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/enforcer/ras"
	"gpusteward/enforcer/stack"
	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
)

// Use of NCCL's RAS service. A question can crash the processes that are asked, so
// NCCL is asked on suspicion, and while nothing changes.
//
// A hang is suspected if two processes of a workload run without the hook, and for
// restFor one uses its GPU as a rank does that waits, while another one hardly does
// or has ended. For settledFor no process of the workload may have opened or closed a
// connection, or started or ended a thread: both happen while NCCL makes
// communicators, so one that is stuck half made is not noticed. Each process that
// listens at the port must be on one of the host's GPUs, as still, and of a version
// that may be asked, because the kernel chooses who answers. A version is read from
// the library that the process has mapped; it is not known of one that was replaced or
// is part of another. After an answer that raises the suspicion NCCL is asked again in
// 10 s. Other answers double the time, up to maxWait.
//
// A job may hang if the counts of a communicator differ between its ranks, and answers
// over 10 s show no change. The ranks with the lowest count are suspects, and one is
// reported only with evidence from its own host (reason). Nothing is reported if a
// suspect is ahead of another rank in a second communicator, or has launched a
// collective in another one within 10 s; if only counts of Broadcast or Reduce differ,
// which some ranks leave before others enter; if a rank finalizes or aborts the
// communicator or has reported an error; or if the suspect is its job's only process
// here. A suspect that computes is reported after ten minutes, if its GPU still is idle.
//
// In the simulation a report takes at most 54 s: 10 s until the suspicion, 30 s without a
// change of connections and threads, 10 s without a change of counts, and up to 4 s between
// looks and to read where the culprit stands; 332 s if a process was killed before NCCL was
// asked (TestUnhookedWithin). The driver reports the use of a GPU late, which comes on top.

// A GPUProcess is a process on a GPU, as the driver lists it.
type GPUProcess struct {
	PID                   int
	GPU, Tenant, Workload string    // GPU: UUID
	Hooked                bool      // it has a session
	Used                  float64   // seconds of the GPU so far
	Sampled               time.Time // end of the time that Used counts; zero: it is not known
}

// jobsOfNCCL is what NCCL reports about jobs. A job without the hook has no trace.
type jobsOfNCCL struct {
	members  map[int]*member // by PID
	looked   int64           // when it was last looked at what they have open
	asked    int64           // and before that
	wait     time.Duration   // NCCL is not asked again
	answers  chan *told      // nil: no question is under way
	last     told
	watch    ras.Watch
	refusals map[string]bool // that the log has
}

// told is an answer of NCCL, and its source.
type told struct {
	ras.Status
	whose string          // of the process that answered (procs.Whose); empty: unknown, or several
	here  map[string]bool // this host's addresses
}

// A member is a process that may belong to a job.
type member struct {
	GPUProcess
	inner   int    // PID in its own namespace
	party   string // procs.Whose
	gone    int64  // since then the driver does not list it; 0: it does
	use     usage
	opens   opens
	settled int64  // since then that is the same
	watch   *watch // nil: it is no suspect
}

// A usage is since when a process uses its GPU all the time, or hardly.
type usage struct {
	last       sample
	busy, idle time.Time // zero: it does not
}

// A sample is how much of its GPU a process had used by then.
type sample struct {
	used float64 // s
	at   time.Time
}

// share returns the part of a GPU that was used since an earlier sample.
func (s sample) share(since sample) float64 {
	return (s.used - since.used) / s.at.Sub(since.at).Seconds()
}

// add takes a sample.
func (u *usage) add(now sample) {
	if u.last.at.IsZero() || now.at.IsZero() || now.used < u.last.used { // it falls when the driver is opened again
		*u = usage{last: now}
		return
	}
	if !now.at.After(u.last.at) {
		return
	}
	share := now.share(u.last)
	for since, is := range map[*time.Time]bool{&u.busy: share >= waitShare, &u.idle: share < idleShare} {
		switch {
		case !is:
			*since = time.Time{}
		case since.IsZero():
			*since = u.last.at
		}
	}
	u.last = now
}

// during returns how long the use has been such, as far as samples tell.
func (u *usage) during(since time.Time) time.Duration {
	if since.IsZero() {
		return 0
	}
	return u.last.at.Sub(since)
}

// waits reports whether a process uses its GPU as one does that waits in a
// collective, for so long.
func (m *member) waits(long time.Duration) bool {
	return m.gone == 0 && m.use.during(m.use.busy) >= long
}

// rests reports whether a process has hardly used its GPU for so long, or has ended.
func (m *member) rests(long time.Duration) bool {
	return m.gone > 0 || m.use.during(m.use.idle) >= long
}

// See takes the processes on the host's GPUs. One that is on several is listed
// for each.
func (o *Observer) See(all []GPUProcess) {
	listed := map[int]GPUProcess{}
	for _, p := range all {
		if other, more := listed[p.PID]; more {
			other.Used += p.Used
			p = other
		}
		listed[p.PID] = p
	}
	j, at, came := &o.nccl, o.now(), map[int]*member{}
	o.mu.Lock()
	for pid := range listed {
		if m := j.members[pid]; m == nil || m.gone > 0 {
			came[pid] = &member{settled: at}
		}
	}
	o.mu.Unlock()
	for pid, m := range came { // others observe meanwhile
		m.inner, m.party = innerOf(o.procfs(), pid), procs.Whose(o.procfs(), pid)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if j.members == nil {
		j.members = map[int]*member{}
	}
	for pid, p := range listed {
		if came[pid] != nil {
			j.members[pid] = came[pid]
		}
		j.members[pid].GPUProcess = p
		if j.members[pid].use.add(sample{p.Used, p.Sampled}); o.Held != nil && o.Held(p.Tenant, p.Workload) {
			j.members[pid].use = usage{} // it neither waits for others, nor they for it
		}
	}
	for pid, m := range j.members {
		if _, there := listed[pid]; !there && m.gone == 0 {
			m.gone = at
		}
	}
	maps.DeleteFunc(j.members, func(_ int, m *member) bool { return m.gone > 0 && at-m.gone > int64(keepEnded) })
}

// innerOf returns a process's PID in its own namespace.
func innerOf(procfs string, pid int) int {
	status, _ := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "status"))
	return procs.Inner(status, pid)
}

// unhooked returns the hangs of jobs whose culprit has no session.
func (o *Observer) unhooked(at int64, f files) (all []verdict) {
	j := &o.nccl
	if o.RAS == "" {
		return nil
	}
	suspects := j.suspects()
	for _, m := range j.members {
		switch {
		case !suspects[m]:
			m.watch = nil
		case m.watch == nil:
			m.watch = &watch{}
			fallthrough
		default:
			if u, known := f.uses[m.PID]; known {
				m.watch.saw(u)
			}
		}
	}
	o.hear(at, suspects, f)
	if len(suspects) == 0 {
		j.watch = ras.Watch{}
		for _, m := range j.members {
			m.opens = opens{}
		}
		return nil
	}
	for _, h := range j.standing(at, ras.Patience) {
		if v, found := j.convict(h, at); found {
			all = append(all, v)
		}
	}
	return all
}

// standing returns the communicators that stand still for so long.
func (j *jobsOfNCCL) standing(at int64, still time.Duration) []ras.Hang {
	return append(j.watch.Hangs(time.Duration(at), still), j.watch.Silent(still)...)
}

// suspects returns the processes of which one may wait for another: one leaves its
// GPU idle, or has ended, while that of another one of its workload is busy. A
// process for which others wait on other hosts only is no suspect.
func (j *jobsOfNCCL) suspects() map[*member]bool {
	type workload struct{ tenant, name string }
	waiting, found := map[workload][]*member{}, map[*member]bool{}
	for _, m := range j.members {
		if w := (workload{m.Tenant, m.Workload}); !m.Hooked && m.waits(restFor) {
			waiting[w] = append(waiting[w], m)
		}
	}
	for _, m := range j.members {
		others := waiting[workload{m.Tenant, m.Workload}]
		if m.Hooked || len(others) == 0 || !m.rests(restFor) {
			continue
		}
		found[m] = true
		for _, other := range others {
			found[other] = true
		}
	}
	return found
}

// hear takes an answer of NCCL, and asks again when it is time.
func (o *Observer) hear(at int64, suspects map[*member]bool, f files) {
	j := &o.nccl
	select {
	case t := <-j.answers:
		j.answers = nil
		j.wait = min(max(2*j.wait, ras.Patience), maxWait)
		if t != nil && len(suspects) > 0 { // the process that was asked may hang itself
			j.last = *t
			j.watch.See(time.Duration(at), t.Status)
			if j.confirms(at) {
				j.wait = ras.Patience
			}
		}
	default:
	}
	if len(suspects) == 0 {
		return
	}
	for pid, m := range j.members {
		if now, known := f.opens[pid]; known {
			m.reopen(now, at)
		}
	}
	if j.answers != nil || j.wait > 0 && at-j.asked < int64(j.wait) || !j.settled(at, suspects) {
		return
	}
	q := question{}
	for _, m := range j.members {
		for _, inode := range m.opens.sockets {
			q[inode] = append(q[inode], answerer{m.PID, m.party, m.still(at)})
		}
	}
	j.asked, j.answers = at, make(chan *told, 1)
	go func(answers chan<- *told) { answers <- o.inquire(q) }(j.answers)
}

// confirms reports whether a later answer may confirm a hang that this one only
// suggests.
func (j *jobsOfNCCL) confirms(at int64) bool {
	known := map[int]bool{}
	for _, h := range j.standing(at, ras.Patience) {
		known[h.Culprits[0].PID] = true
	}
	return slices.ContainsFunc(j.standing(at, 0), func(h ras.Hang) bool {
		m := j.member(h.Culprits[0])
		return !known[h.Culprits[0].PID] && m != nil && m.watch != nil
	})
}

// settled reports whether the workloads of the suspects make no communicators, as
// far as this host shows.
func (j *jobsOfNCCL) settled(at int64, suspects map[*member]bool) bool {
	workloads := map[string]bool{}
	for m := range suspects {
		workloads[m.Workload] = true
	}
	for _, m := range j.members {
		if workloads[m.Workload] && !m.still(at) {
			return false
		}
	}
	return true
}

// still reports whether a process has opened and closed nothing for a while, or
// has ended then.
func (m *member) still(at int64) bool {
	if m.gone > 0 {
		return at-m.gone >= int64(settledFor)
	}
	return m.opens.known && at-m.settled >= int64(settledFor)
}

// opens is what a process has open, and its threads. Both change while NCCL
// makes a communicator.
type opens struct {
	sockets []uint64 // inodes
	threads []int
	known   bool
	files   int // that were read
}

// reopen takes what the process has open.
func (m *member) reopen(now opens, at int64) {
	if !now.known || !m.opens.known || !slices.Equal(now.sockets, m.opens.sockets) ||
		!slices.Equal(now.threads, m.opens.threads) {
		m.settled = at
	}
	m.opens = now
}

// opensOfAll looks at what processes have open, as long as files are left: of each party a quarter. What others have is
// not known, so NCCL is not asked about them.
func opensOfAll(procfs string, all []reader, most int) map[int]opens {
	found, of, sum := map[int]opens{}, map[string]int{}, 0
	for _, r := range all {
		one := opens{}
		if of[r.party] < most/4 && sum < most {
			one = opensOf(procfs, r.pid)
		}
		found[r.pid], of[r.party], sum = one, of[r.party]+one.files, sum+one.files
	}
	return found
}

func opensOf(procfs string, pid int) (s opens) {
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	files, more := entries(filepath.Join(dir, "fd"))
	threads, many := entries(filepath.Join(dir, "task"))
	s.files = len(files) + len(threads)
	if more || many || len(threads) == 0 {
		return s
	}
	for i := range files {
		files[i] = filepath.Join("fd", files[i])
	}
	targets, err := procs.Readlinks(procfs, pid, files)
	if err != nil {
		return s
	}
	for _, target := range targets {
		if inode, is := strings.CutPrefix(target, "socket:["); is {
			s.sockets = append(s.sockets, number([]byte(strings.TrimSuffix(inode, "]"))))
		}
	}
	for _, name := range threads {
		s.threads = append(s.threads, int(number([]byte(name))))
	}
	slices.Sort(s.sockets)
	slices.Sort(s.threads)
	s.known = true
	return s
}

// entries returns the names in a directory, and whether there are too many of them.
func entries(dir string) (all []string, more bool) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, false
	}
	defer f.Close()
	all, _ = f.Readdirnames(maxOpen + 1)
	return all, len(all) > maxOpen
}

// A question is what is known of those that may be asked, by their sockets.
type question map[uint64][]answerer

// An answerer is a process that has a socket.
type answerer struct {
	pid   int
	whose string // procs.Whose
	still bool   // it makes no communicators
}

// inquire asks NCCL if each process that may answer is known and may be asked. The kernel
// chooses one of those that listen. The answer is nil if there is none, as most jobs
// do not listen where this host can ask, or if others listen after it.
func (o *Observer) inquire(q question) *told {
	ask := ras.Ask
	if o.ask != nil {
		ask = o.ask
	}
	servers := listeners(o.procfs(), o.RAS)
	if len(servers) == 0 {
		return nil
	}
	t := told{here: map[string]bool{}}
	for i, inode := range servers {
		for k, a := range q[inode] {
			if !a.still || o.refuses(a.pid) {
				return nil
			}
			if i+k == 0 {
				t.whose = a.whose
			} else if t.whose != a.whose {
				t.whose = ""
			}
		}
		if len(q[inode]) == 0 {
			return nil
		}
	}
	var err error
	if t.Status, err = ask(context.Background(), o.RAS); err != nil || !slices.Equal(listeners(o.procfs(), o.RAS), servers) {
		return nil
	}
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if own, ok := a.(*net.IPNet); ok {
			t.here[own.IP.String()] = true
		}
	}
	return &t
}

// refuses reports whether the process is not to be asked because of its version
// of NCCL, and lets the log tell so once for each reason.
func (o *Observer) refuses(pid int) bool {
	version := o.version
	if version == nil {
		version = o.versionOf
	}
	err := ras.Refuse(version(pid), o.Trusted)
	if err == nil {
		return false
	}
	o.mu.Lock()
	told := o.nccl.refusals[err.Error()]
	if o.nccl.refusals == nil {
		o.nccl.refusals = map[string]bool{}
	}
	if len(o.nccl.refusals) < maxRefusals {
		o.nccl.refusals[err.Error()] = true
	} else {
		told = true
	}
	o.mu.Unlock()
	if o.Log != nil && !told {
		o.Log.Info("a job without the hook may hang, and NCCL is not asked for which process it waits", "pid", pid, "reason", err)
	}
	return true
}

var versions = stack.Sections(ras.IsLibrary, ".rodata", ras.VersionIn)

// versionOf returns the version of NCCL that the process has mapped; empty: none,
// or it is not known. One that is linked statically has no file of its own.
func (o *Observer) versionOf(pid int) string {
	all, err := versions.Of(context.Background(), pid, stack.Options{Procfs: o.procfs()})
	all = slices.Compact(slices.DeleteFunc(all, func(v string) bool { return v == "" })) // a plugin has none
	if err != nil || len(all) != 1 {
		return ""
	}
	return all[0]
}

// listeners returns the inodes of the sockets that listen at the port of the address.
func listeners(procfs, address string) (all []uint64) {
	_, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text)
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(procfs, "net", name))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		lines.Scan() // the heading
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 10 || fields[3] != "0A" {
				break // those that listen come first
			}
			if strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				all = append(all, number([]byte(fields[9])))
			}
		}
		f.Close()
	}
	return all
}

// member returns the process of a rank on this host; nil: it is not known, or
// two may be meant. Only processes of the party that answered may be: root in a container is not root on the host.
func (j *jobsOfNCCL) member(r ras.Rank) (found *member) {
	address, _, _ := strings.Cut(r.Host, "%")
	if !j.last.here[address] || j.last.whose == "" {
		return nil
	}
	for _, m := range j.members {
		switch {
		case m.inner != r.PID || j.last.whose != m.party:
		case found != nil:
			return nil
		default:
			found = m
		}
	}
	return found
}

// convict finds the culprit of a hang, and the reason. It must be on this host:
// the agent of another host sees what that one does. One of several that
// computes still may be the one for which the others wait, too.
func (j *jobsOfNCCL) convict(h ras.Hang, at int64) (v verdict, found bool) {
	for _, r := range h.Culprits {
		m := j.member(r)
		if m == nil || m.Hooked {
			return v, false
		}
		reason := m.reason(r, time.Duration(at)-h.Since)
		if reason == "" || reason == "ended" && !j.waits(h) {
			return v, false
		}
		if v.culprit == nil {
			v.culprit = &process{pid: m.PID, party: m.party, tenant: m.Tenant, gpus: []string{m.GPU}, last: int64(h.Since),
				sums: wire.JobStats{Workload: m.Workload}}
			v.reason, v.rank, v.waiting = reason, r.Rank, len(h.Waiting)
		}
	}
	return v, v.culprit != nil
}

// reason returns why the others wait for the rank; empty: maybe they do not.
func (m *member) reason(r ras.Rank, still time.Duration) string {
	if m.watch == nil {
		return ""
	}
	state := m.watch.state
	switch {
	case m.gone > 0 && r.Missing && (state == 0 || state == 'Z') && (r.Counts != nil || still >= aloneFor):
		return "ended"
	case m.gone > 0 || state == 't': // a debugger holds it
		return ""
	case state == 'T':
		return "stopped"
	}
	// A long step may wait for data and then use the GPU, or the other way round.
	if r.Missing || !m.rests(sampledFor) || m.watch.computes() && still < computesFor {
		return ""
	}
	return "absent"
}

// waits reports whether a rank on this host waits on its GPU. A process that
// ends early, while another only saves, is no culprit.
func (j *jobsOfNCCL) waits(h ras.Hang) bool {
	return slices.ContainsFunc(h.Waiting, func(r ras.Rank) bool {
		m := j.member(r)
		return m != nil && m.waits(sampledFor)
	})
}
