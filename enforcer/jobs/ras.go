package jobs

import (
	"bufio"
	"bytes"
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

	"gpusteward/internal/ras"
	"gpusteward/internal/wire"
)

// Use of NCCL's RAS service.
const (
	askEvery = 5 * time.Second
	// Every host asks all ranks of a job, and an answer has 700 bytes for each: NCCL
	// is asked again so soon only if it told of few ranks, on all communicators.
	askSoon    = 2 * time.Second
	fewRanks   = 512
	twice      = time.Nanosecond // or longer without a change: two answers agree, and suspicion begins
	sampledFor = 8 * time.Second // of GPU time tell whether a process uses its GPU
	idleShare  = 0.5             // of a GPU; a culprit uses less, and has so in each of the last samples
	waitShare  = 0.9             // of a GPU; NCCL's kernel spins while it waits for other ranks
)

// A GPUProcess is a process on a GPU, as the driver lists it.
type GPUProcess struct {
	PID                   int
	GPU, Tenant, Workload string    // GPU: UUID
	Hooked                bool      // it has a session
	Used                  float64   // seconds of the GPU so far
	Sampled               time.Time // end of the time that Used counts; zero: it is not known
}

// jobsOfNCCL is what NCCL tells of jobs. A job without the hook has no trace.
type jobsOfNCCL struct {
	members map[int]*member // by PID
	asked   int64
	answers chan *told // nil: nobody asks
	last    told
	watch   ras.Watch
}

// told is an answer of NCCL, and who gave it.
type told struct {
	ras.Status
	user int             // who serves it; -1: not known, or several
	here map[string]bool // this host's addresses
}

// A member is a process that may belong to a job.
type member struct {
	GPUProcess
	inner, user int   // PID in its own namespace, and user
	gone        int64 // since then the driver does not list it; 0: it does
	suspicion   *suspicion
}

// A suspicion is what has been seen of a process since its communicator stands
// still.
type suspicion struct {
	watch       watch
	first, last sample
	busy        time.Time // end of the last sample in which it used its GPU, or of the first
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

// See takes the processes on the host's GPUs. One that is on several is listed
// for each.
func (o *Observer) See(all []GPUProcess) {
	o.mu.Lock()
	defer o.mu.Unlock()
	j, at := &o.nccl, o.now()
	if j.members == nil {
		j.members = map[int]*member{}
	}
	listed := map[int]GPUProcess{}
	for _, p := range all {
		if other, more := listed[p.PID]; more {
			other.Used += p.Used
			p = other
		}
		listed[p.PID] = p
	}
	for pid, p := range listed {
		if m := j.members[pid]; m == nil || m.gone > 0 {
			inner, user := identity(o.procfs(), pid)
			j.members[pid] = &member{inner: inner, user: user}
		}
		j.members[pid].GPUProcess = p
	}
	for pid, m := range j.members {
		if _, there := listed[pid]; !there && m.gone == 0 {
			m.gone = at
		}
	}
	maps.DeleteFunc(j.members, func(_ int, m *member) bool { return m.gone > 0 && at-m.gone > int64(keepEnded) })
}

// identity returns a process's PID in its own namespace, and its user.
func identity(procfs string, pid int) (inner, user int) {
	text, _ := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "status"))
	inner, user = pid, -1
	for line := range bytes.Lines(text) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		fields := bytes.Fields(value)
		switch {
		case string(name) == "NSpid" && len(fields) > 0:
			inner = int(number(fields[len(fields)-1]))
		case string(name) == "Uid" && len(fields) > 0:
			user = int(number(fields[0]))
		}
	}
	return inner, user
}

// unhooked returns the hangs of jobs whose culprit has no session.
func (o *Observer) unhooked(at int64) (all []verdict) {
	j := &o.nccl
	o.hear(at)
	suspects := map[*member]bool{}
	for _, h := range j.watch.Hangs(time.Duration(at), twice) {
		for _, r := range slices.Concat(h.Culprits, h.Waiting) {
			if m := j.member(r); m != nil && !suspects[m] {
				suspects[m] = true
				m.look(o.procfs())
			}
		}
	}
	for _, m := range j.members {
		if !suspects[m] {
			m.suspicion = nil
		}
	}
	if len(suspects) == 0 {
		return nil
	}
	for _, h := range j.watch.Hangs(time.Duration(at), ras.Patience) {
		if v, found := j.convict(h, at); found {
			all = append(all, v)
		}
	}
	return all
}

// hear takes an answer of NCCL, and asks again when it is time.
func (o *Observer) hear(at int64) {
	j := &o.nccl
	select {
	case t := <-j.answers:
		j.answers = nil
		if t != nil { // the process that was asked may hang itself
			j.last = *t
			j.watch.See(time.Duration(at), t.Status)
		}
	default:
	}
	needed := false
	for _, m := range j.members {
		needed = needed || !m.Hooked && m.gone == 0
	}
	every := askEvery
	if n := j.last.Size(); n > 0 && n <= fewRanks { // text tells of no ranks while all is well, however many there are
		every = askSoon
	}
	if o.RAS != "" && needed && j.answers == nil && at-j.asked >= int64(every) {
		j.asked, j.answers = at, make(chan *told, 1)
		go o.inquire(j.answers)
	}
}

// inquire asks NCCL. The answer is nil if there is none: most jobs do not listen
// where this host can ask.
func (o *Observer) inquire(answers chan<- *told) {
	ask := ras.Ask
	if o.ask != nil {
		ask = o.ask
	}
	s, err := ask(context.Background(), o.RAS)
	if err != nil {
		answers <- nil
		return
	}
	t := told{Status: s, user: listener(o.procfs(), o.RAS), here: map[string]bool{}}
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		if own, ok := a.(*net.IPNet); ok {
			t.here[own.IP.String()] = true
		}
	}
	answers <- &t
}

// listener returns the user whose processes listen at the port of the address;
// -1: nobody does, or several users. Only a user's own processes, and root's,
// may be told of.
func listener(procfs, address string) int {
	_, text, _ := net.SplitHostPort(address)
	port, _ := strconv.Atoi(text)
	var users []int
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(procfs, "net", name))
		if err != nil {
			continue
		}
		lines := bufio.NewScanner(f)
		lines.Scan() // the heading
		for lines.Scan() {
			fields := strings.Fields(lines.Text())
			if len(fields) < 8 || fields[3] != "0A" {
				break // those that listen come first
			}
			if strings.HasSuffix(fields[1], fmt.Sprintf(":%04X", port)) {
				users = append(users, int(number([]byte(fields[7]))))
			}
		}
		f.Close()
	}
	slices.Sort(users)
	if users = slices.Compact(users); len(users) != 1 {
		return -1
	}
	return users[0]
}

// member returns the process of a rank on this host; nil: it is not known, or
// two may be meant.
func (j *jobsOfNCCL) member(r ras.Rank) (found *member) {
	address, _, _ := strings.Cut(r.Host, "%")
	if !j.last.here[address] || j.last.user < 0 {
		return nil
	}
	for _, m := range j.members {
		switch {
		case m.inner != r.PID || j.last.user != 0 && j.last.user != m.user:
		case found != nil:
			return nil
		default:
			found = m
		}
	}
	return found
}

// look is made once a second.
func (m *member) look(procfs string) {
	s, now := m.suspicion, sample{m.Used, m.Sampled}
	if s == nil || s.first.at.IsZero() || now.used < s.last.used { // it falls when the driver is opened again
		s = &suspicion{first: now, last: now, busy: now.at}
		m.suspicion = s
	}
	if now.at.After(s.last.at) {
		if now.share(s.last) >= idleShare {
			s.busy = now.at
		}
		s.last = now
	}
	s.watch.look(procfs, m.PID)
}

// share returns the part of a GPU that the process has used since it is a
// suspect, if that is known.
func (m *member) share() (float64, bool) {
	if m.suspicion == nil {
		return 0, false
	}
	first, last := m.suspicion.first, m.suspicion.last
	return last.share(first), last.at.Sub(first.at) >= sampledFor
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
			v.culprit = &process{pid: m.PID, tenant: m.Tenant, gpus: []string{m.GPU}, last: int64(h.Since),
				sums: wire.JobStats{Workload: m.Workload}}
			v.reason, v.rank, v.waiting = reason, r.Rank, len(h.Waiting)
		}
	}
	return v, v.culprit != nil
}

// reason returns why the others wait for the rank; empty: maybe they do not.
func (m *member) reason(r ras.Rank, still time.Duration) string {
	if m.suspicion == nil {
		return ""
	}
	state := m.suspicion.watch.state
	switch {
	case m.gone > 0 && r.Missing && (state == 0 || state == 'Z'):
		return "ended"
	case m.gone > 0 || state == 't': // a debugger holds it
		return ""
	case state == 'T':
		return "stopped"
	}
	share, known := m.share()
	// A long step may wait for data and then use the GPU, or the other way round.
	rests := m.suspicion.last.at.Sub(m.suspicion.busy) >= sampledFor
	if r.Missing || !known || share >= idleShare || !rests || m.suspicion.watch.computes() && still < computesFor {
		return ""
	}
	return "absent"
}

// waits reports whether a rank on this host waits on its GPU. A process that
// ends early, while another only saves, is no culprit.
func (j *jobsOfNCCL) waits(h ras.Hang) bool {
	return slices.ContainsFunc(h.Waiting, func(r ras.Rank) bool {
		m := j.member(r)
		if m == nil || m.gone > 0 {
			return false
		}
		share, known := m.share()
		return known && share >= waitShare
	})
}
