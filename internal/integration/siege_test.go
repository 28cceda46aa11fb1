package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// stubGPU is the UUID of the simulated GPU.
var stubGPU = [16]byte([]byte("gpusteward-stub\x00"))

// A siege is a host: an observer and an enforcer on a simulated GPU, with honest tenants, two of which always
// want the GPU, and peers of an adversary. Each cgroup belongs to a tenant: one each to serving, batch and
// jobs, and two to the hostile tenant. The processes in one of these two are not under the hook.
type siege struct {
	*rand.Rand
	*testing.T
	f                  fakeDriver
	dir                string // every user can read it
	config             string
	groups             map[string]string // directories, by name
	observer, enforcer *agent
	env                []string // of programs on the GPU
	truth              *truth
	enforced, began    time.Time
	stolen             time.Duration // at the last look
	peers              []*besieger
	reloads            int
	weights            []int // of the moves up to each

	mu      sync.Mutex
	log     []string // the last moves
	count   map[string]float64
	came    []time.Duration // how long honest processes waited for a session
	comes   time.Time       // when they last did
	working sync.WaitGroup  // honest jobs
}

// guaranteed are the parts of the GPU for the tenants that always want it. The rest is guaranteed too, to
// jobs and to the hostile tenant, which always has a program that wants more. So no tenant gets time that is
// not wanted elsewhere, and all that is taken shows.
var guaranteed = map[string]float64{"serving": .5, "batch": .38}

// newSiege starts everything honest.
func newSiege(t *testing.T, seed uint64) *siege {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("NOT TESTED: only root can be others")
	}
	fixture.Must(t, fixture.MakeHook("enforcer/hook", "all", "stub"))
	s := &siege{T: t, Rand: rand.New(rand.NewPCG(seed, 0)), f: newDriver(t), groups: map[string]string{},
		count: map[string]float64{}}
	for _, name := range []string{"serving", "batch", "jobs", "hostile", "around"} {
		s.groups[name] = ownGroup(t, name)
	}
	s.place()
	s.at(first, func() {
		s.truth = watch(t, filepath.Join(s.dir, "stat"), s.env[0], s.env[1])
	})
	s.f.set("uuid.0", "GPU-67707573-7465-7761-7264-2d7374756200")
	go s.feed()

	s.config = fixture.Config(t, s.table())
	s.enforce()
	s.observe().ready()
	s.observer.sees("the broker", func(s series) bool { return s["gpusteward_broker_up"] == 1 })
	for _, name := range []string{"serving", "batch"} {
		s.load(name, true, "--kernel-us=500", "--alloc-mib=1024", "--alloc-step-mib=64", "--seconds=1e9")
	}
	s.wants()
	s.observer.sees("both at work", func(m series) bool {
		return len(m.family("nvgpu_quota_sessions", `tenant="serving"`)) == 1 &&
			len(m.family("nvgpu_quota_sessions", `tenant="batch"`)) == 1
	})
	return s
}

// role starts the program in a role.
func (s *siege) role(name string) *agent {
	return spawn(s.T, s.f.environment(), "--path.sysfs=/sys", "--config.file="+s.config,
		"--runtime.dir="+filepath.Join(s.dir, "run"), "--state.dir="+filepath.Join(s.dir, "state"), "--role="+name)
}

// enforce starts the enforcer.
func (s *siege) enforce() {
	s.Helper()
	s.enforced = time.Now()
	s.at(first, func() { s.enforcer = s.role("enforce") })
	eventually(s.T, "it enforces", func() bool {
		return s.enforcer.log.find("gpusteward enforces") != nil || s.enforcer.hasEnded()
	})
}

// observe starts the observer.
func (s *siege) observe() *agent {
	s.observer = s.role("observe")
	return s.observer
}

// table returns the configuration. A cap of the hostile tenant differs each time.
func (s *siege) table() string {
	fixture.Must(s, os.WriteFile(filepath.Join(s.dir, "gemini"), []byte("1\npod/a 0.5 1.0 1000\n"), 0o644))
	unit := func(name string) string { return filepath.Base(s.groups[name]) }
	return fmt.Sprintf(`
collectors: {fast: 500ms, medium: 500ms}
enforcer:
  enabled: true
  ladder: {mode: terminate, shadow: false, confirm: 2, of: 3, hold: 5s, grace: 2s, actions: 100}
  gemini: [{role: pod-manager, listen: "127.0.0.1:0", file: %s, unknown: deny}]
  tenants:
    - {name: serving, select: [{units: [%s]}], guarantee: 50 %%, memory: 4 GiB, memory_guarantee: 4 GiB}
    - {name: batch, select: [{units: [%s]}], guarantee: 38 %%, memory: 4 GiB, memory_guarantee: 4 GiB}
    - {name: jobs, select: [{units: [%s]}], guarantee: 2 %%, memory: 60 GiB, memory_guarantee: 60 GiB}
    - {name: hostile, select: [{units: [%s, %s]}], guarantee: 10 %%, memory: %d GiB}
`, filepath.Join(s.dir, "gemini"), unit("serving"), unit("batch"), unit("jobs"), unit("hostile"), unit("around"),
		8+s.reloads%2)
}

// ownGroup makes a cgroup of version 2 like that of a unit. Its processes end with the test.
func ownGroup(t *testing.T, name string) string {
	t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err != nil {
		root = filepath.Join(root, "unified")
	}
	dir := filepath.Join(root, fmt.Sprintf("gs-siege-%s-%d.service", name, os.Getpid()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("NOT TESTED: cgroups cannot be made here:", err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		eventually(t, dir+" is empty", func() bool { return os.Remove(dir) == nil })
	})
	return dir
}

// place puts the hook and the simulated driver where all users can run them.
func (s *siege) place() {
	s.Helper()
	dir, err := os.MkdirTemp("", "siege") // t.TempDir is private to the user, and too long for a socket
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	fixture.Must(s, err)
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.dir = dir
	for _, name := range []string{"libgpusteward.so", "stub/libcuda.so.1", "stub/load", "stub/stat"} {
		program := content(s.T, filepath.Join("enforcer/hook/build", name))
		fixture.Program(s, filepath.Join(dir, filepath.Base(name)), program)
	}
	fixture.Must(s, os.Symlink("libcuda.so.1", filepath.Join(dir, "libcuda.so")))
	s.env = []string{"LD_LIBRARY_PATH=" + dir, "GS_STUB_FILE=" + filepath.Join(dir, "gpu")}
}

func (s *siege) socket() string { return filepath.Join(s.dir, "run/broker/broker.sock") }

// A truth is what the simulated GPU really did, by cgroup. Nothing under test can change it.
type truth struct {
	mu        sync.Mutex
	at        time.Duration            // of the simulation, at the last look
	switching time.Duration            // total lost to switches
	busy      map[string]time.Duration // total
	pids      map[int]*onGPU           // present ones
	// total waits of honest ones for a processor; under "": those of the enforcer, and the time that a hypervisor took
	waited map[string]time.Duration
}

type onGPU struct {
	group string
	busy  time.Duration
	used  uint64
	seen  time.Duration
}

// watch reads the output of the program stat until the test ends.
func watch(t *testing.T, stat string, env ...string) *truth {
	t.Helper()
	cmd := exec.Command(stat, "20")
	cmd.Env, cmd.Stderr = append(os.Environ(), env...), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	fixture.Must(t, err)
	tr := &truth{busy: map[string]time.Duration{}, pids: map[int]*onGPU{}, waited: map[string]time.Duration{}}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			tr.read(lines.Text())
		}
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended; _ = cmd.Wait() })
	eventually(t, "there is a GPU", func() bool { return tr.now().at > 0 })
	fixture.Must(t, os.Chmod(strings.TrimPrefix(env[1], "GS_STUB_FILE="), 0o666))
	return tr
}

func (tr *truth) read(text string) {
	var at, busy int64
	var gpu, pid int
	var used, peak uint64
	if _, err := fmt.Sscan(text, &at, &gpu, &pid, &busy, &used, &peak); err != nil {
		return
	}
	tr.mu.Lock()
	defer tr.mu.Unlock()
	if pid == 0 {
		maps.DeleteFunc(tr.pids, func(_ int, p *onGPU) bool { return p.seen < tr.at })
		tr.at, tr.switching = time.Duration(at), time.Duration(busy)
		return
	}
	p := tr.pids[pid]
	if p == nil {
		p = &onGPU{group: groupOf(pid)}
		tr.pids[pid] = p
	}
	tr.busy[p.group] += time.Duration(busy) - p.busy
	p.busy, p.used, p.seen = time.Duration(busy), used, tr.at
}

// groupOf returns the part of a siege's cgroup that identifies it; empty for a process in none.
func groupOf(pid int) string {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	_, rest, _ := strings.Cut(string(text), "/gs-siege-")
	name, _, _ := strings.Cut(rest, "-")
	return name
}

// now returns the truth so far.
func (tr *truth) now() span {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	return span{time.Now(), maps.Clone(tr.busy), tr.switching, tr.at, maps.Clone(tr.waited)}
}

// feed passes the driver's reports of the GPU on until the test ends.
func (s *siege) feed() {
	before, waits := map[int]time.Duration{}, map[string]time.Duration{}
	var last time.Duration
	took := fixture.Stolen(s.T)
	for tick := time.Tick(250 * time.Millisecond); s.Context().Err() == nil; <-tick {
		var processes, utilization strings.Builder
		s.truth.mu.Lock()
		used, now := uint64(1<<30), map[int]time.Duration{}
		steady := map[int]string{}
		for pid, p := range s.truth.pids {
			const own = 300 << 20 // of a context
			used += p.used + own
			if guaranteed[p.group] > 0 {
				steady[pid] = p.group
			}
			now[pid] = p.busy
			fmt.Fprintf(&processes, "%d %d\n", pid, p.used+own)
			if span := s.truth.at - last; span > 0 {
				fmt.Fprintf(&utilization, "%d %d 0 0 0\n", pid, (100*(p.busy-before[pid])+span/2)/span)
			}
		}
		before, last = now, s.truth.at
		s.truth.mu.Unlock()
		if s.enforcer != nil {
			steady[s.enforcer.pid] = ""
		}
		s.wait(steady, waits)
		was := took
		took = fixture.Stolen(s.T)
		s.truth.add("", took-was)
		for name, text := range map[string]string{"processes.0": processes.String(),
			"utilization.0": utilization.String(), "memory.0": fmt.Sprint(80<<30, " ", used)} {
			path := s.f.path(name)
			if os.WriteFile(path+".next", []byte(text), 0o644) == nil {
				_ = os.Rename(path+".next", path)
			}
		}
	}
}

// wait adds up the time that processes have waited for a processor since the
// last look. A process counts as one of its threads, with times in waits.
func (s *siege) wait(groups map[int]string, waits map[string]time.Duration) {
	for pid, group := range groups {
		s.truth.add(group, fixture.Waited(pid, waits))
	}
}

func (tr *truth) add(group string, waited time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.waited[group] += waited
}

// A program runs in a cgroup.
type program struct {
	*exec.Cmd
	out *transcript
}

func (p program) killAfter(d time.Duration) { time.AfterFunc(d, func() { _ = p.Process.Kill() }) }

// Priorities: honest processes go before everything else on the machine, and the adversary's own after it.
const first, last = -15, 5

// at has the processes that start begins run at a priority.
func (s *siege) at(priority int, start func()) {
	s.Helper()
	runtime.LockOSThread() // the priority belongs to the thread, and its children inherit it
	defer runtime.UnlockOSThread()
	for _, p := range []struct {
		priority int
		then     func()
	}{{priority, start}, {0, func() {}}} {
		fixture.Must(s, unix.Setpriority(unix.PRIO_PROCESS, 0, p.priority))
		p.then()
	}
}

// begin starts a command as a user in a cgroup.
func (s *siege) begin(cmd *exec.Cmd, group string, uid int) {
	s.Helper()
	dir := fixture.Value(os.Open(s.groups[group]))(s)
	defer func() { _ = dir.Close() }()
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()),
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	fixture.Must(s, cmd.Start())
}

// load starts the load generator in a cgroup, under the hook or not. It ends with the test at the latest.
func (s *siege) load(group string, hooked bool, options ...string) program {
	s.Helper()
	p := s.loads(group, hooked, options...)
	go func() { _ = p.Wait() }()
	return p
}

func (s *siege) loads(group string, hooked bool, options ...string) program {
	s.Helper()
	p := program{exec.Command(filepath.Join(s.dir, "load"), append(options, "--report-ms=1000")...), new(transcript)}
	p.Dir, p.Env = "/", append(os.Environ(), s.env...)
	if hooked {
		p.Env = append(p.Env, "LD_PRELOAD="+filepath.Join(s.dir, "libgpusteward.so"), "GPUSTEWARD_SOCKET="+s.socket())
	}
	p.Stdout, p.Stderr = p.out, p.out
	s.at(first, func() {
		s.begin(p.Cmd, group, map[string]int{"serving": 5001, "batch": 0, "jobs": 5002, "hostile": 0,
			"around": 5001}[group])
	})
	return p
}

// wants keeps a program of the hostile tenant that wants all of the GPU: when the escalation ends it, another starts.
func (s *siege) wants() {
	go func() {
		for s.Context().Err() == nil {
			_ = s.loads("hostile", true, "--kernel-us=500", "--seconds=1e9").Wait()
		}
	}()
}

// job runs a job, which must get its memory and succeed.
func (s *siege) job(mib int) {
	p := s.loads("jobs", true, fmt.Sprintf("--alloc-mib=%d", mib), "--alloc-step-mib=64", "--kernel-us=200",
		"--sync-every=8", "--seconds=1")
	s.working.Go(func() {
		err := p.Wait()
		if text := p.out.String(); err != nil || !strings.Contains(text, fmt.Sprintf("alloc %d 0\n", mib<<20)) ||
			!strings.Contains(text, "total ") {
			s.broken("a job that wanted %d MiB ended with %v: %s", mib, err, text)
		}
	})
}

// reload makes both processes read the configuration again.
func (s *siege) reload() {
	s.reloads++
	fixture.Rewrite(s.T, s.config, s.table())
	for _, a := range []*agent{s.enforcer, s.observer} {
		if err := syscall.Kill(a.pid, syscall.SIGHUP); err != nil {
			s.broken("a process is gone: %v", err)
		}
	}
}

// sees requests a page, which must be answered. All programs of this host are one client of the observer,
// which may cut off any of them: sees then asks again.
func (s *siege) sees(path string) string {
	status, body, err := s.observer.fetch(path)
	for range 2 {
		if err != nil {
			status, body, err = s.observer.fetch(path)
		}
	}
	if err != nil || status != http.StatusOK {
		s.broken("%s is answered %d, %v", path, status, err)
	}
	return body
}

// A besieger is the process of a peer, with its pending moves.
type besieger struct {
	*exec.Cmd
	pid   int
	in    io.WriteCloser
	free  chan struct{} // as many as there can be pending moves
	since time.Time     // the last move was sent
}

// besiegers are the users of peers: one is the user of an honest process, the others are different.
var besiegers = []struct {
	uid   int
	group string
}{{0, "hostile"}, {5001, "hostile"}, {6001, "hostile"}, {6002, "hostile"}, {0, "around"}, {6001, "around"}}

// peer starts a process that asks the broker for sessions. The adversary's processes get only processor time
// that nobody else wants, because the kernel has to bound that; the work that others do for them counts.
func (s *siege) peer(uid int, group, how string) (cmd *exec.Cmd, in io.WriteCloser, out io.Reader) {
	s.Helper()
	cmd = exec.Command("/proc/self/exe") // others may run it, wherever it is
	gemini, _ := s.enforcer.log.find("programs under Gemini's hook are served")["address"].(string)
	cmd.Env = append(os.Environ(), asPeer+"="+strings.Join([]string{s.socket(),
		strings.TrimPrefix(s.observer.url, "http://"), gemini, how}, ","))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err == nil {
		out, err = cmd.StdoutPipe()
	}
	fixture.Must(s, err)
	s.at(map[string]int{"honest": first, "hostile": last}[how], func() { s.begin(cmd, group, uid) })
	return cmd, in, out
}

// end kills a peer, if there is one.
func (s *siege) end(i int) {
	if p := s.peers[i]; p != nil {
		_ = p.Process.Kill()
		go func() { _ = p.Wait() }()
	}
}

// respawn kills a peer, if there is one, and starts it again.
func (s *siege) respawn(i int) {
	s.end(i)
	p := &besieger{free: make(chan struct{}, 4)}
	for range cap(p.free) {
		p.free <- struct{}{}
	}
	var out io.Reader
	p.Cmd, p.in, out = s.peer(besiegers[i].uid, besiegers[i].group, "hostile")
	p.pid = p.Process.Pid
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if lines.Text() != "done" {
				s.broken("a hostile process %s", lines.Text())
			}
			p.free <- struct{}{}
		}
	}()
	s.peers[i] = p
}

// moveTo puts a peer into another cgroup.
func (s *siege) moveTo(pid int, group string) {
	_ = os.WriteFile(filepath.Join(s.groups[group], "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
}

// come has an honest process open session after session.
func (s *siege) come() {
	s.comes = time.Now()
	_, in, out := s.peer(5001, "serving", "honest")
	s.Cleanup(func() { _ = in.Close() })
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var ms int64
			var refused int
			if _, err := fmt.Sscan(lines.Text(), &ms, &refused); err != nil {
				s.broken("an honest process says %q", lines.Text())
				return
			}
			s.mu.Lock()
			s.came, s.comes = append(s.came, time.Duration(ms)*time.Millisecond), time.Now()
			s.mu.Unlock()
			if refused > 0 {
				s.tell("an honest process was refused %d times, and had a session after %d ms", refused, ms)
			}
		}
	}()
}

// eventually waits until nothing is wrong any more.
func (s *siege) eventually(what string, wrong func() string) {
	s.Helper()
	said := ""
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		if said = wrong(); said == "" {
			return
		}
		if time.Now().After(end) {
			s.broken("after %v still not: %s: %s", patience, what, said)
			return
		}
	}
}

// tell adds a line to the log of moves.
func (s *siege) tell(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%8.3f s  ", time.Since(s.began).Seconds())+fmt.Sprintf(format, args...))
	s.log = s.log[max(0, len(s.log)-60):]
}

// broken reports that something honest was hurt, and the moves before that.
func (s *siege) broken(format string, args ...any) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Context().Err() == nil && !s.Failed() {
		s.Errorf("after %.1f s: %s\nthe last moves:\n%s", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...),
			strings.Join(s.log, "\n"))
	}
}

// A span is the time since a moment, or the state at that moment.
type span struct {
	began         time.Time
	busy          map[string]time.Duration // by cgroup
	switching, at time.Duration            // lost to switches; of the simulation
	waited        map[string]time.Duration // for processors, by cgroup
}

// pace returns the part of their guarantees that honest tenants got since then, of the time that programs
// around the hook left them; finding those is the audit's task. A tenant on a simulated GPU gives it no work
// while it waits for a processor, and others get unused time. So the time that a tenant waited counts as its
// own. As much of the GPU's time without work as the enforcer waited is left out. If that is half of the
// time, or of what a tenant should have, the pace says nothing.
func (s *siege) pace(from span) (all map[string]float64, judged bool) {
	to := s.truth.now()
	left := to.at - from.at
	idle := left - (to.switching - from.switching)
	for name, busy := range to.busy {
		idle -= busy - from.busy[name]
	}
	if around := to.busy["around"] - from.busy["around"] + to.busy[""] - from.busy[""]; around > 0 {
		left -= around + to.switching - from.switching
	}
	enforcer := max(min(to.waited[""]-from.waited[""], idle), 0)
	judged = enforcer < left/2
	left -= enforcer
	all = map[string]float64{}
	for name, part := range guaranteed {
		due, waited := left.Seconds()*part, (to.waited[name] - from.waited[name]).Seconds()
		all[name] = ((to.busy[name] - from.busy[name]).Seconds() + waited) / due
		judged = judged && waited < due/2
	}
	return all, judged
}

// taken returns the use of a process: memory in bytes, and descriptors.
func (s *siege) taken(a *agent) (memory uint64, descriptors int) {
	p, err := procfs.NewProc(a.pid)
	if err != nil {
		s.broken("a process is gone: %v", err)
		return 0, 0
	}
	status, _ := p.NewStatus()
	descriptors, _ = p.FileDescriptorsLen()
	return status.VmRSS, descriptors
}

// neverReads opens connection after connection to the agent until ctx ends. On each it requests 40 pages at
// once, each with a query of its own, as often as it can. It counts the connections that have sent a request.
func neverReads(ctx context.Context, n int, address string, asked *atomic.Int64) {
	query := []string{"x=%d", "name[]=nvgpu_up&name[]=n%d"}[n%2] // the whole response, or a part
	var requests strings.Builder
	for i := range 40 {
		fmt.Fprintf(&requests, "GET /metrics?"+query+" HTTP/1.1\r\nHost: agent\r\nAccept: text/plain;q=0.%d\r\n\r\n",
			n*40+i, n*40+i)
	}
	hold := func() {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })() // ends a waiting write
		for sent := 0; ; sent++ {
			if _, err := c.Write([]byte(requests.String())); err != nil {
				return
			}
			if sent == 0 {
				asked.Add(1)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	for ctx.Err() == nil {
		hold()
	}
}
