package broker

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// TestProcess is not a test but a process under the hook: the test binary runs itself with GS_PROCESS set to
// a socket. It opens sessions, takes some memory, reports that, and speaks until its stdin ends.
func TestProcess(t *testing.T) {
	path := os.Getenv("GS_PROCESS")
	if path == "" {
		t.Skip("run by the other tests")
	}
	n, _ := strconv.Atoi(os.Getenv("GS_SESSIONS"))
	bytes, _ := strconv.ParseUint(os.Getenv("GS_BYTES"), 10, 64)
	var first *client
	for i := range n {
		c := connect(t, path)
		c.send(wire.TypeHello, hello(os.Getenv("GS_TENANT"), 1))
		if h, p := c.receive(); h.Type != wire.TypeWelcome {
			t.Fatalf("%s %q", h.Type, p)
		} else {
			c.session = h.Session
		}
		c.send(wire.TypeUsage, &wire.Usage{})
		_ = unix.Close(c.fd) // this process needs no page
		c.fd = -1
		if i == 0 {
			first = c
		}
	}
	if bytes > 0 {
		first.take(bytes)
	}
	if inherited := os.Getenv("GS_CHILD"); inherited != "" {
		// A child inherits the connection, and outlives its parent.
		file := fixture.Value(first.conn.File())(t)
		child := exec.Command("sleep", inherited)
		child.ExtraFiles = []*os.File{file}
		fixture.Must(t, child.Start())
	}
	fmt.Println("ready")
	ended := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); close(ended) }()
	tick := time.NewTicker(20 * time.Millisecond)
	for {
		select {
		case <-ended:
			return
		case <-tick.C:
			if n == 1 {
				first.sync()
			}
		}
	}
}

// A process is one that runs a test of this package.
type process struct {
	*exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// again runs a test of this package in a process of its own, until this test ends.
func again(t testing.TB, test string, as *syscall.SysProcAttr, env ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+test+"$") // a path that other users may run
	as.Pdeathsig = unix.SIGKILL
	cmd.Env, cmd.SysProcAttr, cmd.Stderr = append(os.Environ(), env...), as, os.Stderr
	in := fixture.Value(cmd.StdinPipe())(t)
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	p := &process{cmd, in, bufio.NewScanner(out)}
	t.Cleanup(p.kill)
	return p
}

// says returns the next line of its output.
func (p *process) says(t testing.TB) string {
	t.Helper()
	fixture.Need(t, p.out.Scan(), true, "it ended: %v", p.out.Err())
	return p.out.Text()
}

func (p *process) kill() {
	_ = p.Process.Kill()
	_ = p.Wait()
}

func run(t *testing.T, b *Broker, tenant string, sessions int, bytes uint64, env ...string) *process {
	t.Helper()
	p := again(t, "TestProcess", &syscall.SysProcAttr{}, append(env, "GS_PROCESS="+b.options.Socket, "GS_TENANT="+tenant,
		fmt.Sprintf("GS_SESSIONS=%d", sessions), fmt.Sprintf("GS_BYTES=%d", bytes))...)
	fixture.Need(t, p.says(t), "ready", "the process says")
	return p
}

// TestKill kills a process that has the turn and memory, while NVML still lists it and a child holds its connection.
func TestKill(t *testing.T) {
	t.Parallel()
	var listed atomic.Bool
	listed.Store(true)
	b := start(t, Options{Holds: func(uuid string, pid int) (uint64, time.Time, bool) {
		return 0, time.Time{}, listed.Load() && strings.HasSuffix(uuid, "01") && pid > 1
	}, Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}})}, func(b *Broker) {
		b.timing.poll, b.timing.release = 5*time.Millisecond, time.Hour
	})
	p := run(t, b, "a", 1, 70, "GS_CHILD=5")
	d := dial(t, b, "b", 1)
	d.queue(0)
	drain(t, "the other one runs after the drain's deadline", place{d, 0}.runs, place{d, 0})
	began := time.Now()
	fixture.Must(t, p.Process.Kill())
	d.mode(0, wire.ModeOpen)
	t.Logf("the GPU passed on %v after the kill", time.Since(began))
	eventually(t, "the session is closing", func() bool { return b.Stats().Sessions["closing"] == 1 })
	fixture.Equal(t, b.tenant("a").MemoryUsed, 70, "the driver has memory still, and the books say …")
	mate := look(t, b, "a", 1)
	for _, c := range []struct {
		what   string
		bytes  uint64
		waited time.Duration
		waits  bool
	}{
		{"all that the dead one had", 100, 0, true}, {"a part of it", 40, time.Minute, true},
		{"more than there is without it", 101, 0, false}, {"it has waited for as long as the dead are charged", 40, 2 * time.Hour, false},
	} {
		typ, payload := mate.ask(wire.TypeReserve, &wire.Memory{Bytes: c.bytes, Wait: uint32(c.waited.Milliseconds())})
		var m wire.Memory
		if m.Decode(payload); typ != wire.TypeDeny || m.Bytes != 30 || (m.Wait > 0) != c.waits {
			t.Errorf("a successor wants %s: %s %+v", c.what, typ, m)
		}
	}
	fixture.Equal(t, b.tenant("a").MemoryDenied, 2, "… refusals")
	listed.Store(false)
	eventually(t, "its memory is free", func() bool { return b.tenant("a").MemoryUsed == 0 })
	mate.take(100)
	eventually(t, "the session is gone", func() bool { return b.Stats().Sessions["closing"] == 0 })
}

// TestProcessExitIsSeenAtOnce has a process end of which nobody else has heard yet.
func TestProcessExitIsSeenAtOnce(t *testing.T) {
	e := fixture.Value(newExits())(t)
	defer e.Close()
	cmd := exec.Command("sleep", "600")
	fixture.Must(t, cmd.Start())
	s := &session{id: 1<<40 | 7, pidfd: fixture.Value(unix.PidfdOpen(cmd.Process.Pid, 0))(t)}
	defer e.drop(s)
	fixture.Must(t, e.add(s))
	var ended []uint64
	look := func() { e.look(func(id uint64) { ended = append(ended, id) }) }
	look()
	fixture.EqualSlices(t, ended, nil, "while it lives")
	(&process{Cmd: cmd}).kill()
	look()
	look()
	fixture.EqualSlices(t, ended, []uint64{s.id}, "once it has ended")
}

// TestReleaseDeadline returns a dead process's memory though NVML lists it for ever.
func TestReleaseDeadline(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Holds: func(string, int) (uint64, time.Time, bool) { return 0, time.Time{}, true }},
		func(b *Broker) { b.timing.release = 300 * time.Millisecond })
	run(t, b, "a", 1, 70).kill()
	took := eventually(t, "its memory is free", func() bool { return b.tenant("a").MemoryUsed == 0 })
	fixture.If(t, took < 100*time.Millisecond, "after %v", took)
}

// TestStop stops a process. No turn waits for it, it keeps its memory, and it continues where it was.
func TestStop(t *testing.T) {
	t.Parallel()
	b := start(t, Options{}, func(b *Broker) {
		b.timing.heartbeat, b.timing.stale = 5*time.Millisecond, 300*time.Millisecond
	})
	p := run(t, b, "a", 1, 70)
	fixture.Must(t, p.Process.Signal(unix.SIGSTOP))
	eventually(t, "it is stale", func() bool { return b.Stats().Sessions["stale"] == 1 })
	fixture.Equal(t, b.tenant("a").MemoryUsed, 70, "its memory is gone")
	fixture.Must(t, p.Process.Signal(unix.SIGCONT))
	eventually(t, "it is back", func() bool { return b.Stats().Sessions["active"] == 1 })
}

// TestConnectionLost keeps charging the memory of a living process until it resumes.
func TestConnectionLost(t *testing.T) {
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}})}, nil)
	c := dial(t, b, "a", 1)
	c.take(70)
	c.close()
	eventually(t, "the session is closing", func() bool { return b.Stats().Sessions["closing"] == 1 })
	fixture.Equal(t, b.tenant("a").MemoryUsed, 70, "the process lives, and its memory is not charged")
	wrong := connect(t, b.options.Socket)
	h := hello("a", 1)
	h.Old, h.Token, h.Committed[0] = c.session, c.token+1, 7
	wrong.hello(wire.TypeResume, h)
	wrong.sync()
	fixture.Equal(t, b.tenant("a").MemoryUsed, 77, "with a wrong token: … bytes")
	d := connect(t, b.options.Socket)
	h.Token, h.Committed[0] = c.token, 65
	d.hello(wire.TypeResume, h)
	if used := b.tenant("a").MemoryUsed; used != 72 || b.Stats().Sessions["closing"] != 0 {
		t.Errorf("resumed: %d bytes, %v", used, b.Stats().Sessions)
	}
	used, _ := d.page.Memory(0)
	fixture.If(t, used < 65, "the page says %d bytes", used)
	// RESUME also ends a session that the broker takes to be alive.
	e := connect(t, b.options.Socket)
	h.Old, h.Token = d.session, d.token
	e.hello(wire.TypeResume, h)
	d.gone()
	eventually(t, "it is charged once", func() bool { return b.tenant("a").MemoryUsed == 72 })
}

// TestALateWelcomeIsChargedOnce has a process give up two RESUMEs before it has their WELCOMEs, as on a busy host: it
// cannot name those sessions. What it declares at last is charged once, and until then. A RESUME that it gave up may be
// served even later: that charges neither the memory again, nor what the driver itself needs for the process.
func TestALateWelcomeIsChargedOnce(t *testing.T) {
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 200}}),
		Holds: func(string, int) (uint64, time.Time, bool) { return 70 + 20, time.Now(), true }}, nil)
	dial(t, b, "a", 1) // another one of its tenant
	h := hello("a", 1)
	h.Old, h.Token, h.Committed[0] = 7, 7, 70 // of the last broker
	for range 2 {
		c := connect(t, b.options.Socket)
		c.hello(wire.TypeResume, h)
		c.close()
		eventually(t, "only that session is closing", func() bool {
			s := b.Stats().Sessions
			return s["closing"] == 1 && s["authenticated"] == 0
		})
		fixture.Equal(t, b.tenant("a").MemoryUsed, 70, "… bytes after a RESUME in vain")
	}
	d := connect(t, b.options.Socket)
	d.hello(wire.TypeResume, h)
	d.sync()
	if s, used := b.Stats().Sessions, b.tenant("a").MemoryUsed; used != 70 || s["closing"] != 0 || s["active"] != 2 {
		t.Errorf("%d bytes, sessions %v", used, s)
	}
	late := connect(t, b.options.Socket)
	late.hello(wire.TypeResume, h)
	for _, what := range []string{"after a late RESUME", "after its end"} {
		b.Refresh()
		fixture.Equal(t, b.tenant("a").MemoryUsed, 70, "… bytes %s", what)
		late.close()
		eventually(t, "it is gone", func() bool { s := b.Stats().Sessions; return s["active"] == 2 && s["authenticated"] == 0 })
	}
	d.sync()
}

// TestTracesAreShownWhenAskedFor does not wait for the next look at them.
func TestTracesAreShownWhenAskedFor(t *testing.T) {
	var shown atomic.Int64
	b := start(t, Options{Observe: func(one Traced) {
		if one.PID == os.Getpid() && one.Trace.There() {
			shown.Add(1)
		}
	}}, nil)
	h := hello("a", 1)
	h.Leases, h.Trace = 1, 1
	connect(t, b.options.Socket).hello(wire.TypeHello, h)
	for range 50 { // within a few microseconds
		before := shown.Load()
		b.ShowTraces()
		fixture.Stop(t, shown.Load() == before, "its trace was not shown")
	}
}

// TestTracesAreShownInTurn has twenty users, each with three jobs, have a look at one of their traces take 55 ms. An
// honest one's is looked at in each round that begins when the first ones are over, no round takes long, and each
// session has its turn.
func TestTracesAreShownInTurn(t *testing.T) {
	const users, looks, cost = 20, 400, 55 * time.Millisecond
	var jump func(time.Duration)
	var jobs atomic.Int64
	seen, first, over := map[uint64]int{}, uint64(0), false
	b := start(t, Options{Observe: func(one Traced) {
		if one.Ends || over {
			return
		}
		if seen[one.Session]++; one.Session != first {
			jump(cost)
		}
	}, Owner: newJob}, func(b *Broker) {
		jump = b.clockThatJumps()
		b.roll.whose = func(Facts) string { return fmt.Sprint((jobs.Add(1) + 1) / 3) }
	})
	b.traces.mu.Lock() // nobody else looks
	defer b.traces.mu.Unlock()
	h := hello("a", 1)
	h.Leases, h.Trace = 1, 1
	for range 1 + 3*users {
		c := connect(t, b.options.Socket)
		c.hello(wire.TypeHello, h)
		first = cmp.Or(first, c.session)
	}
	for i := range looks {
		before := b.clock.now()
		b.traces.show()
		fixture.AtMost(t, b.clock.now()-before, roundTime+2*cost, "a round takes")
		if jump(observeInterval); i == users {
			seen[first] = 0
		}
	}
	over = true
	honest := seen[first]
	delete(seen, first)
	fixture.AtLeast(t, honest, (looks-users)*9/10, "rounds in which the honest one's trace is looked at, of %d", looks-users)
	fixture.Equal(t, len(seen), 3*users, "others are looked at:")
	fixture.AtLeast(t, slices.Min(slices.Collect(maps.Values(seen))), 2, "times")
}

// TestLastLooksComeOneByOne: sessions of two users that end at once, in many jobs, have others who look wait for one of them at most. A
// broker that ends waits for none.
func TestLastLooksComeOneByOne(t *testing.T) {
	var looks, most, ended atomic.Int64
	b, h := fixture.Value(New(Options{Socket: socket(t), Policy: book{}, MaxPerPID: 99, Observe: func(one Traced) {
		if one.Ends {
			most.Store(max(most.Load(), looks.Add(1)))
			for began := time.Now(); time.Since(began) < lookTime; {
			}
			ended.Add(1)
			looks.Add(-1)
		}
	}, Owner: newJob}))(t), hello("a", 1)
	b.roll.whose = func(Facts) string { return fmt.Sprint(random() % 2) }
	end := fixture.Running(t, b.Run)
	h.Leases, h.Trace = 1, 1
	for i := range 8 {
		c := connect(t, b.options.Socket)
		if c.hello(wire.TypeHello, h); i < 6 {
			c.close()
		}
	}
	fixture.Eventually(t, "six last looks", func() bool { return ended.Load() == 6 })
	end()
	fixture.If(t, most.Load() != 1 || ended.Load() != 6, "%d last looks, %d at once", ended.Load(), most.Load())
}

// A process leaves its trace empty, and says that it is full: to look takes no page, and none stays when the session ends.
func TestHolesOfATraceCostNothing(t *testing.T) {
	seen := make(chan int, 100)
	b := start(t, Options{Observe: func(one Traced) {
		c, _ := one.Trace.Clock()
		events, _ := new(wire.TraceReader).Read(one.Trace, c, wire.Monotonic(), nil)
		seen <- len(events) + len(one.Crash.Allocations()) + len(one.Crash.Kernel(1, 1))
	}}, nil)
	h := hello("a", 1)
	h.Leases, h.Trace, h.Crash = 1, 1, 1
	c := connect(t, b.options.Socket)
	c.hello(wire.TypeHello, h)
	one := b.roll.begun()[0]
	one.trace.mu.Lock()
	own := fixture.Value(unix.Dup(int(one.file.Fd())))(t)
	one.trace.mu.Unlock()
	defer unix.Close(own)
	blocks := func() int64 {
		var is unix.Stat_t
		fixture.Must(t, unix.Fstat(own, &is))
		return is.Blocks * 512
	}
	fixture.Value(unix.Pwrite(own, binary.NativeEndian.AppendUint64(nil, wire.EventsKept), wire.TraceAt))(t)
	b.ShowTraces()
	fixture.Equal(t, <-seen, 0, "it has noted:")
	fixture.AtMost(t, int(blocks()), wire.TraceAt+2*4096, "bytes of pages")
	c.close()
	eventually(t, "its pages are free", func() bool { return blocks() == 0 })
}

// TestRestart resumes sessions at the next broker, even beyond the cap.
func TestRestart(t *testing.T) {
	path := socket(t)
	policy := everybody(Quota{Quota: quota.Quota{Memory: 100}})
	var h *wire.Hello
	t.Run("before", func(t *testing.T) {
		c := dial(t, start(t, Options{Socket: path, Policy: policy}, nil), "a", 1)
		c.take(70)
		h = hello("a", 1)
		h.Old, h.Token, h.Committed[0] = c.session, c.token, 170
	})
	b := start(t, Options{Socket: path, Policy: policy}, nil)
	c := connect(t, path)
	c.hello(wire.TypeResume, h)
	c.send(wire.TypeUsage, &wire.Usage{})
	fixture.Equal(t, c.session == h.Old, false, "the number of a session came again")
	typ, m := c.reserve(1)
	fixture.If(t, typ != wire.TypeDeny || m.Bytes != 0, "above the cap: %s %+v", typ, m)
	c.send(wire.TypeFree, &wire.Memory{Bytes: 90})
	c.take(20)
	fixture.Equal(t, b.tenant("a").MemoryUsed, 100, "… bytes")
	h.Committed[0] = 1 << 63
	liar := connect(t, path)
	liar.hello(wire.TypeResume, h)
	liar.sync()
}

// TestHangUpOfALivingProcess has a process with memory hang up. The driver's
// later list of processes decides how much memory stays charged.
func TestHangUpOfALivingProcess(t *testing.T) {
	t.Parallel()
	const own = 20 // the driver's own need
	var listed, asked atomic.Int64
	listed.Store(70 + own)
	asked.Store(time.Now().UnixNano())
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}}),
		Holds: func(string, int) (uint64, time.Time, bool) {
			return uint64(listed.Load()), time.Unix(0, asked.Load()), listed.Load() > 0
		}}, nil)
	c := dial(t, b, "a", 1)
	c.take(70)
	closed := time.Now()
	c.close()
	eventually(t, "the session is closing", func() bool { return b.Stats().Sessions["closing"] == 1 })
	d := dial(t, b, "a", 1)
	if _, m := d.reserve(40); m.Wait == 0 && time.Since(closed) < b.timing.release {
		t.Errorf("it may have begun another program, which does not wait: %+v", m)
	}
	eventually(t, "its memory stays, and nobody waits for that", func() bool { _, m := d.reserve(40); return m.Wait == 0 })
	for _, step := range []struct {
		what   string
		after  time.Duration
		listed int64
		want   uint64
	}{
		{"asked before it hung up", -time.Hour, 0, 70},
		{"it has all still", time.Hour, 70 + own, 70},
		{"it gave some back", time.Hour, 40 + own, 40},
		{"another session's", time.Hour, 90 + own, 40},
		{"nothing is left but what the driver needs", time.Hour, own, 0},
	} {
		asked.Store(time.Now().Add(step.after).UnixNano())
		listed.Store(step.listed)
		b.Refresh()
		fixture.Equal(t, b.tenant("a").MemoryUsed, step.want, "%s: … bytes", step.what)
	}
	fixture.Equal(t, b.Stats().Sessions["closing"], 0, "… sessions are closing")
	d.take(100)
}

// TestHangUpAfterTheDriverWasAsked has a process take or free memory after the driver was asked, and then hang up: what
// the driver needs for the process is known from an earlier listing. Later the driver lists only what is left.
func TestHangUpAfterTheDriverWasAsked(t *testing.T) {
	const own = 20 // that the driver needs itself
	for what, change := range map[string]func(*client){
		"took":  func(c *client) { c.take(15) },
		"freed": func(c *client) { c.send(wire.TypeFree, &wire.Memory{Bytes: 30}); c.sync() },
	} {
		var listed, asked atomic.Int64
		list := func(bytes int64) { listed.Store(bytes); asked.Store(time.Now().UnixNano()) }
		b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}}),
			Holds: func(string, int) (uint64, time.Time, bool) {
				return uint64(listed.Load()), time.Unix(0, asked.Load()), true
			}}, nil)
		c := dial(t, b, "a", 1)
		list(own) // before it took any
		c.take(60)
		b.Refresh()
		list(60 + own)
		b.Refresh()
		change(c)
		b.Refresh()
		held := int64(b.tenant("a").MemoryUsed)
		c.close()
		eventually(t, "the session is abandoned", func() bool {
			b.roll.mu.Lock()
			defer b.roll.mu.Unlock()
			s := b.roll.sessions[c.session]
			return s != nil && !s.left.IsZero()
		})
		dial(t, b, "a", 1) // otherwise the tenant has no books
		for _, left := range []int64{held, 10, 0} {
			list(left + own)
			b.Refresh()
			fixture.Equal(t, b.tenant("a").MemoryUsed, uint64(left), "%s: … bytes are charged, it has %d", what, left)
		}
		fixture.Equal(t, b.Stats().Sessions["closing"], 0, "%s: … sessions are closing", what)
	}
}

// TestAProcessThatResumedBeginsAnew has a process lose its session, resume, and begin another program, which the driver
// lists before the session has ended. The broker remembers what the driver needs for it: nothing stays charged.
func TestAProcessThatResumedBeginsAnew(t *testing.T) {
	const own = 20 // the driver's own need
	var listed, asked atomic.Int64
	listed.Store(70 + own)
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}}),
		Holds: func(string, int) (uint64, time.Time, bool) {
			return uint64(listed.Load()), time.Unix(0, asked.Load()), true
		}}, nil)
	looks := func(after time.Duration) {
		asked.Store(time.Now().Add(after).UnixNano())
		b.Refresh()
	}
	c := dial(t, b, "a", 1)
	c.take(70)
	looks(time.Hour)
	looks(time.Hour)
	h := hello("a", 1)
	h.Old, h.Token, h.Committed[0] = c.session, c.token, 70
	d := connect(t, b.options.Socket)
	d.hello(wire.TypeResume, h)
	d.sync()
	c.gone()
	is := func(state string, n int) func() bool { return func() bool { return b.Stats().Sessions[state] == n } }
	eventually(t, "the lost session is over", is("closing", 0))
	listed.Store(own)
	looks(2 * time.Hour)
	looks(2 * time.Hour)
	looks(2 * time.Hour)
	d.close()
	eventually(t, "the session is over", is("active", 0))
	looks(3 * time.Hour)
	eventually(t, "nothing is charged any more", is("closing", 0))
}

// TestResumeIsHeldAgainstTheDriver resumes with more than the driver lists for
// the process, which it lists from the first second on.
func TestResumeIsHeldAgainstTheDriver(t *testing.T) {
	var listed atomic.Uint64
	listed.Store(70)
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 60}}),
		Holds: func(uuid string, pid int) (bytes uint64, at time.Time, there bool) {
			if pid == os.Getpid() {
				at = time.Now()
			}
			return listed.Load(), at, true
		}}, nil)
	h := hello("a", 1)
	h.Committed[0] = 1 << 63
	used := func(what string, want uint64) {
		t.Helper()
		fixture.Equal(t, b.tenant("a").MemoryUsed, want, "%s: … bytes", what)
	}
	c := connect(t, b.options.Socket)
	c.hello(wire.TypeResume, h)
	c.send(wire.TypeUsage, &wire.Usage{})
	c.sync()
	used("at once", 70)
	listed.Store(50)
	b.Refresh()
	used("when the driver lists less", 50)
	again := connect(t, b.options.Socket)
	again.hello(wire.TypeResume, h)
	b.Refresh()
	used("with another session", 50)
	listed.Store(0)
	b.Refresh()
	typ, m := c.reserve(61)
	fixture.If(t, typ != wire.TypeDeny || m.Bytes != 60, "61 of 60: %s %+v", typ, m)
}

// TestChild lets a forked child speak over its parent's connection.
func TestChild(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	c.take(70)
	file := fixture.Value(c.conn.File())(t)
	defer file.Close()
	free := c.frame(wire.TypeFree, &wire.Memory{Bytes: 70})
	child := exec.Command("sh", "-c", "dd bs=4096 count=1 status=none >&3")
	child.Stdin, child.ExtraFiles = strings.NewReader(string(free)), []*os.File{file}
	if out, err := child.CombinedOutput(); err != nil {
		t.Skipf("no dd: %v %s", err, out)
	}
	c.refused(wire.CodeDenied)
	fixture.Equal(t, b.tenant("a").MemoryUsed, 70, "the child freed its parent's memory: … bytes")
	c.sync()
}

// TestOldKernel identifies clients without SO_PEERPIDFD.
func TestOldKernel(t *testing.T) {
	b := start(t, Options{}, func(b *Broker) { b.identity.pidfd = func(int, int) (int, error) { return -1, unix.ENOPROTOOPT } })
	run(t, b, "a", 1, 70).kill()
	eventually(t, "its memory is free", func() bool { return b.tenant("a").MemoryUsed == 0 })

	proc := t.TempDir()
	other := start(t, Options{ProcFS: proc}, func(b *Broker) {
		b.identity.pidfd = func(int, int) (int, error) { return -1, unix.ENOPROTOOPT }
	})
	c := connect(t, other.options.Socket)
	c.refused(wire.CodeDenied) // there is no process of that number
	c.gone()
}

func TestPageSeals(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	for name, future := range map[string]int{"page": unix.F_SEAL_FUTURE_WRITE, "page of an old kernel": 0} {
		fd := c.fd
		if future == 0 {
			var err error
			fd, _, err = makePage(0)
			fixture.Stop(t, err != nil, "%v", err)
			defer unix.Close(fd)
		}
		fixture.Fails(t, fixture.Error(unix.Mmap(fd, 0, wire.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)), "", "mapping a %s", name)
		fixture.Fails(t, fixture.Error(unix.Pwrite(fd, []byte{1}, 0)), "", "writing a %s", name)
		fixture.If(t, unix.Ftruncate(fd, 0) == nil || unix.Ftruncate(fd, 1<<20) == nil, "a %s can be resized", name)
		if seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0); err != nil || seals&unix.F_SEAL_SHRINK == 0 {
			t.Errorf("a %s has seals %x, %v", name, seals, err)
		}
	}
	fixture.Fails(t, unix.Mprotect(c.page, unix.PROT_READ|unix.PROT_WRITE), "", "writing by a mapping for reading")
}
