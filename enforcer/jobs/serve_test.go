package jobs

import (
	"bufio"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
	"gpusteward/internal/worker"
)

var (
	serverHours = flag.Float64("servers.hours", 0.5, "simulated hours of each kind of healthy server")
	serverStuck = flag.Int("servers.stuck", 25, "simulated servers that come to be stuck")
	serverSeed  = flag.Uint64("servers.seed", 1, "seed of simulated servers")
)

// A shop is a simulated server: an API, PID 900, that started the engine, PID 1000, which has the GPU. Clients send
// requests, each on a connection of its own, of which the engine serves some at a time. A client leaves after a minute.
type shop struct {
	*host
	*rand.Rand
	trade
	rate, leaves, now float64 // requests a second; seconds after which a client leaves; and so far
	requests          []request
	next              uint64  // inode
	inputs, odd       []input // those of odd stay whatever the server does
	worked, ticks     int     // hundredths of a second so far, of the engine and of the API
	bytes             int     // of the engine, likewise
	used              float64 // seconds of the GPU, likewise
	state             byte    // of the engine
	stands, kernel    bool    // the engine does nothing; waits for its GPU
	taken             int     // requests that are read, while it does nothing
	api, work, disk   int     // hundredths of a second, and of the engine, and bytes that it moves, in each second
	gpu               float64 // seconds of the GPU in each second, besides
	start             int     // of the API
	told              string  // reason of a hang
}

type trade struct {
	reads bool // an API reads all requests; otherwise who serves accepts one after the other
	queue bool // what the engine is to do waits in a socket of its own
	slots int  // requests served at a time
	hook  bool
}

var trades = []trade{{false, false, 1, true}, {true, false, 8, true}, {true, true, 8, true}, {true, false, 8, false}}

type request struct {
	socket      uint64
	since, left float64 // s, of work
	read        bool
}

func newShop(t *testing.T, seed uint64, s trade) *shop {
	w := &shop{host: newHost(t, truth(s.hook)), Rand: rand.New(rand.NewPCG(seed, 9)), trade: s, rate: 0.5, leaves: 60, next: 5000,
		state: 'S', api: 1, start: 100}
	w.Observer.sockets = func(string, string, []int) (sockets, error) { return sockets{[]int{900}, w.inputs}, nil }
	fixture.Rewrite(t, w.Observer.Procfs+"/900/task/900/children", "1000")
	return w
}

// second lets a second pass.
func (w *shop) second() {
	w.now, w.at = w.now+1, w.at+1e9
	for w.Float64() < w.rate/(1+w.rate) {
		w.next++
		w.requests = append(w.requests, request{w.next, w.now, 0.2 + 3*w.Float64()*w.Float64(), w.reads})
	}
	w.requests = slices.DeleteFunc(w.requests, func(c request) bool { return w.now-c.since >= w.leaves })
	busy := 0
	if !w.stands {
		w.taken = 0
	}
	for i := range w.requests {
		if c := &w.requests[i]; i < w.slots && !w.stands && w.state == 'S' && !w.kernel {
			c.left, c.read = c.left-1, true
			busy++
		} else if !c.read && w.taken < w.slots {
			c.read = true
		}
		w.taken += truth(w.requests[i].read)
	}
	w.requests = slices.DeleteFunc(w.requests, func(c request) bool { return c.left <= 0 })
	w.inputs = append([]input{{1000, 4003, unaccepted, "port 9"}}, w.odd...) // it never accepts there
	for _, c := range w.requests {
		if c.read && w.now-c.since >= 2 {
			w.inputs = append(w.inputs, input{900, c.socket, unanswered, "port 8000"})
		}
	}
	if slices.ContainsFunc(w.requests, func(c request) bool { return !c.read }) {
		w.inputs = append(w.inputs, input{900, 4000, unaccepted, "port 8000"})
	}
	if w.queue && len(w.requests) > w.slots {
		w.inputs = append(w.inputs, input{1000, 4001, unread, `"/tmp/engine"`})
	}
	if w.hook {
		r := w.ranks[0]
		for range min(busy, 4) {
			r.by(1, w.at-9e6, wire.EventLaunch, uint32(w.IntN(90)))
			r.by(1, w.at-8e6, wire.EventWait, 0)
			r.by(1, w.at-1e6, wire.EventWaited, 0)
		}
		if busy > 0 || w.kernel {
			r.note(w.at, wire.EventBusy, 900e3)
		}
	} else {
		w.used += 0.5*float64(truth(busy > 0 || w.kernel)) + w.gpu
		w.Observer.See([]GPUProcess{{PID: 1000, GPU: "GPU-0", Tenant: "default", Workload: "job", Used: w.used,
			Sampled: time.Unix(0, w.at)}})
	}
	w.ticks, w.worked, w.bytes = w.ticks+w.api, w.worked+w.work+2*truth(busy > 0), w.bytes+w.disk
	for pid, text := range map[int]string{900: fmt.Sprintf("(api) S 1 900 900 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 %d\n", w.ticks, w.start),
		1000: fmt.Sprintf("(engine) %c 900 900 900 0 -1 0 0 0 0 0 %d 0 0 0 20 0 1 0 200\n", w.state, w.worked)} {
		fixture.Rewrite(w.t, fmt.Sprintf("%s/%d/stat", w.Observer.Procfs, pid), fmt.Sprint(pid, " ", text))
	}
	fixture.Rewrite(w.t, w.Observer.Procfs+"/1000/io", fmt.Sprintf("rchar: 1\nread_bytes: %d\n", w.bytes))
	w.told = ""
	for _, h := range w.seen() {
		w.told = h.Reason
	}
}

// seen returns the hangs once servers have been looked at, if it is time for that.
func (h *host) seen() []wire.HangStats {
	_, hangs := h.look()
	if views := h.Observer.serving.views; views != nil {
		views <- <-views
	}
	return hangs
}

// asks is ask until it has an answer: on a busy machine the child is late.
func asks(procfs, whose string, pids []int) (s sockets, err error) {
	for began := time.Now(); time.Since(began) < time.Minute; {
		if s, err = ask(procfs, whose, pids); err == nil {
			break
		}
	}
	return s, err
}

// hostOf returns a host on which a real process has launched a kernel.
func hostOf(t *testing.T, pid int) *host {
	h := newHost(t, 1)
	h.Observer.Procfs, h.Observer.sockets, h.ranks[0].pid = "/proc", asks, pid
	h.ranks[0].note(h.at, wire.EventLaunch, 7)
	return h
}

// passes lets so many seconds pass, and returns the hangs at their end.
func (h *host) passes(seconds int) (hangs []wire.HangStats) {
	for range seconds {
		h.at += 1e9
		hangs = h.seen()
	}
	return hangs
}

// serves lets the server be for so many seconds, and stops if a hang is told.
func (w *shop) serves(seconds int) (passed int) {
	for passed < seconds && w.told == "" {
		w.second()
		passed++
	}
	return passed
}

// TestStuckServers tells servers that are stuck within a minute from then on that a client waits.
func TestStuckServers(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		name   string
		style  int
		stuck  func(w *shop)
		reason string
	}{
		{"a lock", 0, func(w *shop) { w.stands = true }, "unread"},
		{"an await that never comes", 1, func(w *shop) { w.stands = true }, "unread"},
		{"a dead engine beside a live API", 2, func(w *shop) { w.stands, w.api = true, 40 }, "unread"},
		{"a kernel that does not end", 1, func(w *shop) {
			w.kernel = true
			w.ranks[0].by(1, w.at, wire.EventLaunch, 7)
			w.ranks[0].by(1, w.at, wire.EventWait, 0)
		}, "kernel"},
		{"a peer that does not answer", 3, func(w *shop) { w.stands = true }, "unread"},
	}
	within := 0
	for n := range *serverStuck {
		kind := kinds[n%len(kinds)]
		w := newShop(t, *serverSeed*1e6+uint64(n), trades[kind.style])
		if early := w.serves(200 + w.IntN(400)); w.told != "" {
			t.Fatalf("%s: %q is told after %d s of service", kind.name, w.told, early)
		}
		w.rate, w.leaves = []float64{0.1, 0.5, 2}[w.IntN(3)], []float64{20, 60}[w.IntN(2)]
		kind.stuck(w)
		for w.second(); len(w.requests) == 0; {
			w.second()
		}
		after := w.serves(120)
		if w.told == kind.reason && after <= 60 {
			within++
		}
		if w.told != kind.reason {
			t.Logf("%s: %q is told after %d s", kind.name, w.told, after)
		} else if w.told == "unread" && !regexp.MustCompile(`^(requests at port 8000 have no answer|connections at port 8000 are `+
			`not accepted|what clients sent to "/tmp/engine" is not read)$`).MatchString(w.placed()[0].Where) {
			t.Errorf("%s: it is told as %+v", kind.name, w.placed())
		}
	}
	t.Logf("%d of %d servers are told within 60 s", within, *serverStuck)
	fixture.AtLeast(t, within, *serverStuck*95/100, "servers told in time of %d:", *serverStuck)
}

// TestWhatAServerStillDoes: a little disk or GPU is no work, and after a pause of an hour another one is told after ten
// minutes.
func TestWhatAServerStillDoes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		style, disk int
		gpu         float64
		told        string
	}{{1, 1_258_000, 0, ""}, {1, 838_000, 0, "unread"}, {3, 0, 0.006, ""}, {3, 0, 0.004, "unread"}} {
		w := newShop(t, 5, trades[c.style])
		w.serves(100)
		w.stands, w.disk, w.gpu = true, c.disk, c.gpu
		w.serves(120)
		fixture.Equal(t, w.told, c.told, "%+v: it is told as", c)
	}
	w := newShop(t, 6, trades[1])
	w.serves(100)
	w.stands = true
	for range 3600 {
		w.second()
	}
	w.stands = false
	w.second()
	for w.told != "" {
		w.second()
	}
	w.serves(100)
	w.stands = true
	fixture.Equal(t, w.serves(300), 300, "seconds without a word in another pause")
	w.serves(400)
	fixture.Equal(t, w.told, "unread", "after ten minutes of it is told")
}

// TestPausesOfServersAreUsual lets a server pause for longer once it has paused, and gone on.
func TestPausesOfServersAreUsual(t *testing.T) {
	t.Parallel()
	w := newShop(t, 3, trades[1])
	w.stands = true
	w.serves(300)
	fixture.Equal(t, w.told, "", "before it has ever worked:")
	w.stands = false
	for _, pause := range []struct {
		seconds int
		told    string
	}{{28, ""}, {50, ""}, {200, "unread"}} {
		w.serves(100)
		w.stands = true
		w.serves(pause.seconds)
		w.stands = false
		fixture.Equal(t, w.told, pause.told, "in a pause of %d s:", pause.seconds)
	}
	w = newShop(t, 4, trades[1])
	w.serves(100)
	for w.rate, w.leaves, w.stands, w.requests = 0, 22, true, nil; w.now < 250 && w.told == ""; w.serves(30) {
		w.next++
		w.requests = append(w.requests, request{w.next, w.now, 1, true})
	}
	fixture.Equal(t, w.told, "unread", "while clients give up, and come back later:")
}

// TestHealthyServers tells nothing of servers that wait, load, compile, pause, or are made to stand still. Each life
// does something at times, for up to a while, while clients wait.
func TestHealthyServers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rate  float64
		lasts int // s, at most
		does  func(w *shop, now bool)
		odd   []input
	}{
		"is idle":                     {0, 0, nil, nil},
		"serves":                      {0.5, 0, nil, nil},
		"has too much":                {9, 0, nil, nil},
		"is idle at times":            {0.3, 900, func(w *shop, now bool) { w.rate = 0.3 * float64(1-truth(now)) }, nil},
		"has long prompts":            {0.5, 400, func(w *shop, now bool) { w.kernel = now }, nil},
		"compiles":                    {0.5, 400, func(w *shop, now bool) { w.stands, w.work = now, 50*truth(now) }, nil},
		"loads weights":               {0.5, 400, func(w *shop, now bool) { w.stands, w.disk = now, 50<<20*truth(now) }, nil},
		"waits for a disk":            {0.5, 400, func(w *shop, now bool) { w.is('D', now) }, nil},
		"is debugged":                 {0.5, 400, func(w *shop, now bool) { w.is('t', now) }, nil},
		"is stopped":                  {0.5, 400, func(w *shop, now bool) { w.is('T', now) }, nil},
		"is paused by us":             {0.5, 400, func(w *shop, now bool) { w.stands = now; w.Observer.Held = func(string, string) bool { return now } }, nil},
		"is held by its quota":        {0.5, 400, func(w *shop, now bool) { w.noted(now, wire.EventHeld) }, nil},
		"waits for its GPU":           {0.5, 400, func(w *shop, now bool) { w.noted(now, wire.EventWait) }, nil},
		"pauses":                      {0.5, 25, func(w *shop, now bool) { w.stands = now }, nil},
		"has connections for one way": {0.05, 0, nil, []input{{900, 4002, unread, "port 8000"}, {1000, 4004, unanswered, "port 7"}}},
		"is restarted": {0.5, 300, func(w *shop, now bool) {
			if w.stands != now && now {
				w.start++
			}
			w.stands, w.disk = now, 50<<20*truth(now)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for i, s := range trades {
				w := newShop(t, *serverSeed*1e6+uint64(i), s)
				w.serves(100)
				w.odd = c.odd
				w.serves(100)
				w.rate = c.rate
				for from := w.now; w.now-from < *serverHours*3600/float64(len(trades)); {
					if w.serves(60 + w.IntN(300)); c.does != nil {
						c.does(w, true)
						w.serves(1 + w.IntN(c.lasts))
						c.does(w, false)
					}
					if w.told != "" {
						t.Fatalf("style %d after %.0f s: %+v", i, w.now, w.placed())
					}
				}
			}
		})
	}
}

func (w *shop) is(state byte, now bool) {
	if w.state = 'S'; now {
		w.state = state
	}
}

// noted lets a thread begin or end to be held by the gate, or to wait for its GPU, if the server is under the hook.
func (w *shop) noted(now bool, begin wire.EventKind) {
	if w.hook {
		w.stands = now
		w.ranks[0].by(2, w.at, begin+wire.EventKind(1-truth(now)), 0) // a kind that ends follows the one that begins
	}
}

const serveHere = "serve-for-a-test"

// A process that was started so listens at a port and at a path. It answers each message with its length until it is
// told not to answer, or not to read.
func init() {
	worker.Register(serveHere, func(args []string) error {
		_ = unix.Prctl(unix.PR_SET_PTRACER, ^uintptr(0), 0, 0, 0) // as root may look at others
		var mode atomic.Value
		mode.Store("")
		for _, at := range []string{"tcp 127.0.0.1:0", "unix " + args[0]} {
			network, address, _ := strings.Cut(at, " ")
			l, err := net.Listen(network, address)
			if err != nil {
				return err
			}
			fmt.Println(l.Addr())
			go func() {
				for kept := []net.Conn{}; ; {
					c, _ := l.Accept()
					kept = append(kept, c)
					if text := make([]byte, 64); mode.Load() != "deaf" {
						if n, _ := c.Read(text); mode.Load() == "" {
							fmt.Fprintln(c, n)
						}
					} else {
						runtime.KeepAlive(kept)
						select {}
					}
				}
			}()
		}
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			mode.Store(lines.Text())
			fmt.Println("it is")
		}
		return nil
	})
}

// TestARealServer asks the kernel what waits at the sockets of a process, and tells that it is stuck.
func TestARealServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(fixture.ShortDir(t), "s")
	c := exec.CommandContext(t.Context(), "/proc/self/exe", append(worker.Begins(serveHere), path)...)
	in, out := fixture.Value(c.StdinPipe())(t), fixture.Value(c.StdoutPipe())(t)
	fixture.Must(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
	lines := bufio.NewScanner(out)
	says := func() string { lines.Scan(); return lines.Text() }
	address, pid := says(), c.Process.Pid
	says()
	port := address[strings.LastIndex(address, ":")+1:]
	be := func(mode string) { fmt.Fprintln(in, mode); says() }
	send := func(network, address string) net.Conn {
		conn := fixture.Value(net.Dial(network, address))(t)
		t.Cleanup(func() { _ = conn.Close() })
		fmt.Fprint(conn, "hello")
		return conn
	}
	waits := func(want ...string) {
		t.Helper()
		fixture.Eventually(t, fmt.Sprintf("%q wait", want), func() bool {
			s, err := asks("/proc", procs.Whose("/proc", pid), []int{os.Getpid(), pid})
			fixture.Must(t, err)
			var got []string
			for _, in := range s.Inputs {
				fixture.Equal(t, in.PID, pid, "the process of %+v", in)
				got = append(got, in.says())
			}
			slices.Sort(got)
			return slices.Contains(s.Listeners, pid) && slices.Equal(got, want)
		})
	}
	h := hostOf(t, pid)
	idle := send("tcp", address)
	fixture.Must(t, fixture.Error(idle.Read(make([]byte, 9))))
	waits()
	fixture.Equal(t, len(h.passes(60)), 0, "hangs while it answers:")
	be("silent")
	first := send("tcp", address)
	send("unix", path)
	waits("requests at port " + port + " have no answer")
	h.passes(60)
	if told := h.placed(); len(told) != 1 || told[0].PID != pid || told[0].Reason != "unread" || !strings.Contains(told[0].Where, "requests at port "+port+" have no answer") {
		t.Errorf("it is told as %+v", told)
	}
	seconds := h.Observer.Unread()
	if len(seconds) != 1 || seconds[0].Workload != "job" || seconds[0].Seconds < 40 {
		t.Errorf("input has waited %+v", seconds)
	}
	h.ranks[0].note(h.at, wire.EventLaunch, 8)
	fixture.Equal(t, len(h.passes(31)), 0, "hangs once it went on:")
	be("deaf")
	_ = first.Close()
	for range 2 {
		send("tcp", address)
		send("unix", path)
	}
	waits("connections at \""+path+"\" are not accepted", "connections at port "+port+" are not accepted",
		"what clients sent to \""+path+"\" is not read", "what clients sent to port "+port+" is not read")
}

// TestAServerInAContainer looks at the sockets of another user's process in a network namespace of its own.
func TestAServerInAContainer(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root starts such a process")
	}
	c := exec.CommandContext(t.Context(), "/proc/self/exe", append(worker.Begins(serveHere), "@serve")...)
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	in, out := fixture.Value(c.StdinPipe())(t), fixture.Value(c.StdoutPipe())(t)
	fixture.Must(t, c.Start())
	t.Cleanup(func() { _ = in.Close(); _ = c.Wait() })
	fixture.Must(t, fixture.Error(fmt.Fscan(out, new(string), new(string))))
	s, err := asks("/proc", procs.Whose("/proc", c.Process.Pid), []int{c.Process.Pid})
	fixture.Must(t, err)
	fixture.EqualSlices(t, s.Listeners, []int{c.Process.Pid, c.Process.Pid}, "it listens:")
}

// TestServersOfAllUsers lets a user have more servers than are looked at, in many workloads: another user's is looked at.
func TestServersOfAllUsers(t *testing.T) {
	h := newHost(t, 0)
	var on []GPUProcess
	for i := range 2 * mostServers {
		pid, uid := 2000+i, 1001+i/(2*mostServers-1)
		fixture.Rewrite(t, fmt.Sprintf("%s/%d/stat", h.Observer.Procfs, pid), fmt.Sprintf("%d (s) S 1 %d 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 100\n", pid, pid))
		fixture.Rewrite(t, fmt.Sprintf("%s/%d/status", h.Observer.Procfs, pid), fmt.Sprintf("Uid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid))
		on = append(on, GPUProcess{PID: pid, Workload: fmt.Sprint(i / 4)})
	}
	groups := h.Observer.processGroups(on)
	fixture.If(t, groups[0].left != serverFiles/mostServers || groups[1].left != serverFiles, "files of a server of many, and of one: %d, %d", groups[0].left, groups[1].left)
	views, last := h.Observer.view(on), on[len(on)-1].PID
	fixture.If(t, len(views) != mostServers || !slices.ContainsFunc(views, func(v view) bool { return v.pid == last }), "%d are looked at", len(views))
}
