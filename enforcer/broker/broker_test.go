package broker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

func TestSession(t *testing.T) {
	b := start(t, Options{FailClosed: true, Policy: book{func(f Facts, wished string) (string, error) {
		fixture.If(t, f.PID != os.Getpid() || int(f.UID) != os.Getuid() || f.Cgroup == "" || f.Exe == "",
			"the facts are %+v", f)
		return wished, nil
	}, map[string]Quota{"a": {Quota: quota.Quota{Memory: 1000}, Weight: 2}}}}, nil)
	c := dial(t, b, "a", 1)
	w := c.welcome
	fixture.If(t, w.GPUs != 1 || w.Heartbeat != 1000 || w.FailClosed != 1 || wire.Text(w.Tenant[:]) != "a" ||
		w.Token == 0, "the welcome is %+v", w)
	turn := c.page.Turn(0)
	fixture.If(t, turn.Mode != wire.ModeOpen || turn.Share != 1000 || turn.InFlight != 10_000, "alone: %+v", turn)
	used, limit := c.page.Memory(0)
	fixture.If(t, used != 0 || limit != 1000, "memory: %d of %d", used, limit)
	c.sync()
	fixture.Equal(t, b.Stats().Sessions["active"], 1, "… active sessions")
	if h := b.Stats().Hooks; len(h) != 1 || h[0] != (wire.HookStats{Version: "0.1", ABI: "3.13", Sessions: 1,
		Unknown: 2}) {
		t.Errorf("hooks: %+v", h)
	}
	for _, later := range []uint32{5, 0} { // the PING of an older hook lacks them
		c.seq++
		c.write(wire.Header{Type: wire.TypePing, Flags: later, Seq: c.seq, Session: c.session}.Append(nil))
		h, _ := c.receive()
		fixture.If(t, h.Type != wire.TypePong || h.Flags != 0, "%+v instead of pong", h)
		hooks := b.Stats().Hooks
		fixture.If(t, len(hooks) != 1 || hooks[0].Unknown != 5,
			"hooks, after the program was given more entries: %+v", hooks)
	}
	c.send(wire.TypeBye, nil)
	c.gone()
	eventually(t, "no session", func() bool { n := b.Stats().Sessions; return n["active"] == 0 && n["closing"] == 0 })
}

func TestMemory(t *testing.T) {
	t.Parallel()
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}})}, nil)
	c, d := dial(t, b, "a", 1), dial(t, b, "a", 1)
	c.take(60)
	used, _ := c.page.Memory(0)
	fixture.Equal(t, used, 60, "the page says")
	if typ, m := d.reserve(41); typ != wire.TypeDeny || m.Bytes != 40 {
		t.Errorf("%s %+v", typ, m)
	}
	eventually(t, "the other session's page says it", func() bool { used, _ := d.page.Memory(0); return used == 60 })
	_, m := d.reserve(40)
	d.send(wire.TypeAbort, &m)
	d.take(40)
	c.send(wire.TypeFree, &wire.Memory{Bytes: 10})
	c.sync()
	s := b.tenant("a")
	fixture.If(t, s.MemoryUsed != 90 || s.MemoryReserved != 0 || s.MemoryPeak != 100 || s.MemoryDenied != 1 ||
		s.MemoryCap != 100, "books: %+v", s)
	c.send(wire.TypeFree, &wire.Memory{Bytes: 1000})
	c.refused(wire.CodeState) // though all its memory is freed
	fixture.Equal(t, b.tenant("a").MemoryUsed, 40, "it frees what another session has: … bytes")
	c.send(wire.TypeCommit, &wire.Memory{Reservation: 77})
	c.refused(wire.CodeState)
	c.send(wire.TypeReserve, &wire.Memory{GPU: 1, Bytes: 1})
	c.refused(wire.CodeGPU)
	if n := b.Stats().Admission; sum(n.Counts) != 4 || b.requests("reserve", "ok") != 3 ||
		b.requests("reserve", "denied") != 1 {
		t.Errorf("admissions %+v, requests %+v", n, b.Stats().Requests)
	}
}

func sum(counts []uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestWrongStates(t *testing.T) {
	b := start(t, Options{}, nil)
	for _, first := range []wire.Type{wire.TypePing, wire.TypeReserve, wire.TypeCommit, wire.TypeAcquire,
		wire.TypeYield} {
		c := connect(t, b.options.Socket)
		var m appender
		switch first {
		case wire.TypeReserve, wire.TypeCommit:
			m = &wire.Memory{}
		case wire.TypeAcquire:
			m = &wire.Acquire{}
		case wire.TypeYield:
			m = &wire.Usage{}
		}
		c.send(first, m)
		c.refused(wire.CodeState)
	}
	c := dial(t, b, "a", 1)
	c.send(wire.TypeHello, hello("a", 1))
	c.refused(wire.CodeState)
	c.send(wire.TypeGrant, &wire.Memory{})
	c.refused(wire.CodeState)
	c.session++
	c.send(wire.TypePing, nil)
	c.refused(wire.CodeState)
	c.session--
	c.send(wire.TypeAcquire, &wire.Acquire{GPU: 1 << 31})
	c.refused(wire.CodeGPU)
	c.send(wire.TypeUsage, &wire.Usage{GPU: 1})
	c.refused(wire.CodeGPU)
	for range 64 {
		typ, _ := c.reserve(1)
		fixture.Need(t, typ, wire.TypeGrant, "the answer to a byte")
	}
	c.send(wire.TypeReserve, &wire.Memory{Bytes: 1})
	c.refused(wire.CodeLimit)
	c.sync() // after all that it continues
}

func TestHostileFrames(t *testing.T) {
	b := start(t, Options{}, nil)
	c := dial(t, b, "a", 1)
	for _, frame := range [][]byte{{1}, make([]byte, 32), make([]byte, 4096), make([]byte, 9000)} {
		c.write(frame)
		c.refused(wire.CodeFrame)
	}
	c.write(append(c.frame(wire.TypePing, nil), 1))
	c.refused(wire.CodeFrame)
	unknown := c.frame(wire.TypePing, nil)
	unknown[6] = 99
	c.write(unknown)
	c.refused(wire.CodeFrame)
	// An unexpected descriptor is closed.
	fd := int(os.Stderr.Fd())
	_, _, err := c.conn.WriteMsgUnix(c.frame(wire.TypePing, nil), unix.UnixRights(fd, fd), nil)
	fixture.Must(t, err)
	c.hears(wire.TypePong)
	if b.requests("unknown", "frame") != 5 || b.requests("ping", "frame") != 1 || b.requests("ping", "ok") != 2 {
		t.Errorf("requests: %+v", b.Stats().Requests)
	}
	other := connect(t, b.options.Socket)
	hi := other.frame(wire.TypeHello, hello("a", 1))
	hi[4] = wire.Major + 1
	other.write(hi)
	other.refused(wire.CodeVersion)
	other.gone()
}

// TestSessionsBeginDuringARecount opens sessions while the books are compared
// with the driver's listing. The race detector judges it.
func TestSessionsBeginDuringARecount(t *testing.T) {
	b := start(t, Options{}, nil)
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-stop:
				return
			default:
				b.Refresh()
			}
		}
	}()
	for range 20 {
		look(t, b, "a", 1)
	}
	close(stop)
	<-ended
	fixture.Equal(t, len(b.Sessions()), 20, "… sessions of 20")
}

func TestRefusedHello(t *testing.T) {
	b := start(t, Options{}, nil)
	for code, h := range map[wire.Code]*wire.Hello{
		wire.CodeTenant: hello("nobody", 1),
		wire.CodeGPU:    hello("a", 1, 2, 1), // twice
	} {
		c := connect(t, b.options.Socket)
		c.send(wire.TypeHello, h)
		c.refused(code)
		c.gone()
		eventually(t, "it is gone", func() bool { return b.Stats().Sessions["connecting"] == 0 })
	}
}

// TestUngoverned has sessions with GPUs that no quota covers, because the broker does not know them or because they are
// too many. The log and the statistics report an unknown one. Each session counts once, and the log has one line.
func TestUngoverned(t *testing.T) {
	var said fixture.Transcript
	b := start(t, Options{Known: func(uuid string) bool { return !strings.HasSuffix(uuid, "02") },
		Logger: slog.New(slog.NewTextHandler(&said, nil))}, func(b *Broker) { b.timing.maxGPUs = 2 })
	dial(t, b, "a", 1)
	n := b.Stats().Faults["ungoverned"]
	fixture.If(t, n != 0 || said.String() != "", "a GPU that is known: %d, %s", n, said.String())
	c, d := dial(t, b, "a", 1, 2), dial(t, b, "b", 2)
	fixture.Equal(t, b.Stats().Faults["ungoverned"], 2, "… sessions are counted that have GPUs which are not governed")
	text := said.String()
	fixture.If(t, strings.Count(text, "no quota applies") != 1 || !strings.Contains(text, "00000002]") ||
		!strings.Contains(text, fmt.Sprintf("pid=%d", os.Getpid())) || !strings.Contains(text, "tenant=a"),
		"the log says: %s", text)
	c.send(wire.TypeAcquire, &wire.Acquire{GPU: 1})
	typ, payload := d.ask(wire.TypeReserve, &wire.Memory{Bytes: 1 << 50})
	fixture.If(t, typ != wire.TypeGrant, "%s %q", typ, payload)
	fixture.If(t, d.page.Turn(0).Mode != wire.ModeOpen || d.page.Gated(), "a GPU that is not governed is gated")
	fixture.Equal(t, dial(t, b, "a", 0, 1, 2, 3, 4).welcome.GPUs, 2, "… GPUs are governed")
}

// TestUngovernedClosed holds that a GPU that the broker does not know is closed
// if the broker fails closed: no launch passes there, and no memory is given.
func TestUngovernedClosed(t *testing.T) {
	b := start(t, Options{FailClosed: true, Known: func(uuid string) bool {
		return !strings.HasSuffix(uuid, "02")
	}}, nil)
	c := dial(t, b, "a", 1, 2)
	fixture.If(t, c.page.Turn(1).Mode != wire.ModePause || !c.page.Gated(), "a GPU that is not governed is open")
	c.send(wire.TypeAcquire, &wire.Acquire{GPU: 1})
	typ, payload := c.ask(wire.TypeReserve, &wire.Memory{GPU: 1, Bytes: 1 << 20})
	var m wire.Memory
	m.Decode(payload)
	fixture.If(t, typ != wire.TypeDeny || m.Bytes != 0, "it gives memory: %s, %d bytes", typ, m.Bytes)
	c.sync()
	fixture.Equal(t, c.page.Turn(1).Mode, wire.ModePause, "the broker opens it for a client that only asks")
	typ, _ = c.reserve(1 << 20)
	fixture.Equal(t, typ, wire.TypeGrant, "the answer on the GPU that is known")
}

// TestKnownLater has a GPU that appears after a session's begin, and a MIG device
// that was taken for a GPU because there was no driver to ask. Each is governed, under
// its own name, from the process's next session on, which begins at once.
func TestKnownLater(t *testing.T) {
	for prefix, known := range map[string]func(uuid string, later bool) bool{
		"GPU-": func(uuid string, later bool) bool { return uuid[:4] == "GPU-" && (later || uuid[len(uuid)-2:] != "02") },
		"MIG-": func(uuid string, later bool) bool {
			return (uuid[:4] == "MIG-") == (later && uuid[len(uuid)-2:] == "02")
		},
	} {
		var later atomic.Bool
		b := start(t, Options{Known: func(uuid string) bool { return known(uuid, later.Load()) }}, nil)
		c, d := dial(t, b, "a", 2), dial(t, b, "a", 1)
		b.Refresh()
		c.sync()
		later.Store(true)
		b.Refresh()
		c.gone()
		d.sync()
		e := dial(t, b, "a", 2)
		b.Refresh()
		e.sync()
		fixture.Equal(t, e.welcome.GPUs, 1, "it is not governed though it is known")
		if gpus := b.Stats().GPUs; len(gpus) != 2 || gpus[slices.IndexFunc(gpus, func(g wire.GPUStats) bool {
			return strings.HasSuffix(g.GPU, "02")
		})].GPU[:4] != prefix {
			t.Errorf("the GPUs are %+v", gpus)
		}
	}
}

// TestUnknownLater has a GPU that may be the host's while its GPUs are not known, and then is not: the process's next
// session, which begins at once, is not governed there, and the process is told so.
func TestUnknownLater(t *testing.T) {
	var later atomic.Bool
	b := start(t, Options{Known: func(uuid string) bool {
		return uuid[:4] == "GPU-" && (!later.Load() || uuid[len(uuid)-2:] != "02")
	}}, nil)
	c, d := dial(t, b, "a", 1, 2), dial(t, b, "a", 1)
	fixture.Equal(t, c.welcome.GPUs, 2, "GPUs that may be the host's")
	later.Store(true)
	b.Refresh()
	c.gone()
	d.sync()
	fixture.Equal(t, dial(t, b, "a", 1, 2).welcome.GPUs, 1, "GPUs of the host")
	fixture.Equal(t, len(b.Stats().GPUs), 1, "GPUs that are shared")
}

// TestMIG governs a MIG device as a GPU of its own, under its own name.
func TestMIG(t *testing.T) {
	known := func(uuid string) bool { return strings.HasPrefix(uuid, "MIG-") == strings.HasSuffix(uuid, "02") }
	b := start(t, Options{Known: known, Policy: everybody(Quota{Quota: quota.Quota{Memory: 100}})}, nil)
	c, d := dial(t, b, "a", 1, 2), dial(t, b, "a", 2)
	fixture.If(t, c.welcome.GPUs != 2 || d.welcome.GPUs != 1,
		"%d and %d GPUs are governed", c.welcome.GPUs, d.welcome.GPUs)
	c.take(100)
	d.take(60)
	typ, _ := d.reserve(50)
	fixture.Equal(t, typ, wire.TypeDeny, "the answer to 110 bytes of 100")
	var names []string
	for _, g := range b.Stats().GPUs {
		names = append(names, g.GPU)
	}
	fixture.If(t, !slices.Equal(names, []string{"GPU-00000000-0000-0000-0000-000000000001",
		"MIG-00000000-0000-0000-0000-000000000002"}), "the GPUs are %q", names)
	fixture.Equal(t, b.counters.ungoverned.Load(), 0, "a MIG device is said not to be known")
}

// TestSlowHello has a policy that takes long over a process: others are served
// meanwhile, and the process is not dropped, as one is that says nothing.
func TestSlowHello(t *testing.T) {
	handled, goOn := make(chan struct{}), make(chan struct{})
	var jump func(time.Duration)
	b := start(t, Options{Policy: book{who: func(_ Facts, wished string) (string, error) {
		if wished == "slow" {
			close(handled)
			<-goOn
		}
		return wished, nil
	}}}, func(b *Broker) {
		b.timing.heartbeat, b.timing.stale, jump = time.Millisecond, time.Hour, b.clockThatJumps()
	})
	c, silent, other := connect(t, b.options.Socket), connect(t, b.options.Socket), dial(t, b, "a", 1)
	c.send(wire.TypeHello, hello("slow", 1))
	<-handled
	jump(time.Minute)
	silent.gone()
	last := other.page.Heartbeat()
	eventually(t, "another heartbeat", func() bool { return other.page.Heartbeat() > last })
	other.sync()
	close(goOn)
	c.hears(wire.TypeWelcome)
}

func TestSlowClient(t *testing.T) {
	t.Parallel()
	b := start(t, Options{}, func(b *Broker) { b.timing.perSession, b.timing.perUser = 1e8, 1e8 })
	c := dial(t, b, "a", 1)
	eventually(t, "who reads nothing is dropped", func() bool {
		_, _ = c.conn.Write(c.frame(wire.TypePing, nil))
		return b.counters.slow.Load() == 1
	})
	dial(t, b, "b", 1).sync()
}

func TestFlood(t *testing.T) {
	t.Parallel()
	b := start(t, Options{}, func(b *Broker) { b.timing.perSession, b.timing.flood = 100, 300*time.Millisecond })
	c, other := dial(t, b, "a", 1), dial(t, b, "b", 1)
	limits, began := 0, time.Now()
	for {
		if _, err := c.conn.Write(c.frame(wire.TypePing, nil)); err != nil {
			break
		}
		h, payload, err := c.next(patience)
		if err != nil {
			break
		}
		var e wire.Err
		if h.Type == wire.TypeErr {
			if e.Decode(payload); e.Code == wire.CodeLimit {
				limits++
			}
		}
	}
	if limits == 0 || b.counters.floods.Load() != 1 || time.Since(began) < 300*time.Millisecond {
		t.Errorf("%d refusals, %d floods, %v", limits, b.counters.floods.Load(), time.Since(began))
	}
	other.sync()
}

// TestBooksAreNotLost sends FREE far beyond the rate: each one counts, though late.
func TestBooksAreNotLost(t *testing.T) {
	t.Parallel()
	b := start(t, Options{}, func(b *Broker) { b.timing.perSession = 100 })
	c := dial(t, b, "a", 1)
	c.take(200)
	for range 150 {
		c.send(wire.TypeFree, &wire.Memory{Bytes: 1})
	}
	eventually(t, "all is freed", func() bool { return b.tenant("a").MemoryUsed == 50 })
	fixture.AtLeast(t, b.counters.slowed.Load(), 1, "messages that were slowed down")
}

func TestLimitsOfSessions(t *testing.T) {
	b := start(t, Options{MaxPerPID: 2}, nil)
	first := dial(t, b, "a", 1)
	dial(t, b, "b", 1)
	c := connect(t, b.options.Socket)
	c.refused(wire.CodeLimit)
	c.gone()
	first.close()
	eventually(t, "there is room", func() bool { // after it is gone and forgotten
		b.roll.mu.Lock()
		defer b.roll.mu.Unlock()
		return len(b.roll.sessions) == 1
	})
	dial(t, b, "c", 1)
	fixture.Equal(t, b.requests("unknown", "limit"), 1, "requests: %+v", b.Stats().Requests)
}

func TestSocket(t *testing.T) {
	path := socket(t)
	b := start(t, Options{Socket: path}, nil)
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o666 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	fixture.Fails(t, fixture.Error(New(Options{Socket: path, Policy: book{}})), "another broker", "a second broker")
	dial(t, b, "a", 1).sync()

	stale := socket(t)
	l := fixture.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"}))(t)
	l.SetUnlinkOnClose(false)
	l.Close()
	dial(t, start(t, Options{Socket: stale}, nil), "a", 1).sync()

	handed := fixture.Value(net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket(t), Net: "unixpacket"}))(t)
	dial(t, start(t, Options{Socket: handed.Addr().String(), Listener: handed}, nil), "a", 1).sync()

	file := socket(t)
	fixture.Must(t, os.WriteFile(file, nil, 0o600))
	fixture.Fails(t, fixture.Error(New(Options{Socket: file, Policy: book{}})), "", "taking a plain file for a stale socket")
	fixture.Fails(t, fixture.Error(New(Options{Socket: path})), "", "a broker without a policy")
}

func TestStatsMessage(t *testing.T) {
	t.Parallel()
	names := &wire.EnforcerStats{Kernels: []wire.KernelStats{{Kernel: "a<b>"}}} // that programs chose, as they did versions
	b := start(t, Options{Enforcer: func() *wire.EnforcerStats { return names }}, func(b *Broker) { b.timing.hello = 500 * time.Millisecond })
	dial(t, b, "a", 1).take(5)
	for i := range 2 * mostVersions {
		h := hello("a", 1)
		copy(h.Hook[:], fmt.Sprint("1.", i))
		connect(t, b.options.Socket).hello(wire.TypeHello, h)
	}
	c := connect(t, b.options.Socket)
	for range 2 {
		typ, p := c.ask(wire.TypeStats, nil)
		fixture.Stop(t, typ != wire.TypeStatsReply, "%s %q", typ, p)
		file := os.NewFile(uintptr(c.fd), "stats")
		c.fd = -1
		var got wire.Stats
		text := fixture.Value(io.ReadAll(file))(t)
		file.Close()
		fixture.Must(t, json.Unmarshal(text, &got))
		fixture.Contains(t, string(text), "a<b>", "a name of a kernel")
		fixture.If(t, len(got.Hooks) != mostVersions+1 || got.Hooks[0].Sessions != mostVersions+1, "hooks: %+v", got.Hooks)
		fixture.If(t, len(got.Tenants) != 1 || got.Tenants[0].MemoryUsed != 5 || got.Sessions["observing"] != 1 ||
			got.GPUs[0].GPU != "GPU-00000000-0000-0000-0000-000000000001", "statistics: %+v", got)
	}
	// A client that only asks for statistics has no deadline for HELLO.
	connect(t, b.options.Socket).gone()
	if typ, p := c.ask(wire.TypeStats, nil); typ != wire.TypeStatsReply {
		t.Errorf("after the deadline of another one: %s %q", typ, p)
	}
}

// TestTheBrokersOwnDelayIsNotTheCallers lets the deadline of HELLO pass while a message waits.
func TestTheBrokersOwnDelayIsNotTheCallers(t *testing.T) {
	pair := fixture.Value(unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0))(t)
	s := &session{b: start(t, Options{}, nil), line: line{fd: pair[0]}}
	t.Cleanup(func() { s.close(); _ = unix.Close(pair[1]) })
	say := func() error { return unix.Send(pair[1], []byte("hello"), unix.MSG_NOSIGNAL) }
	s.due.Store(1)
	fixture.Must(t, say())
	s.pinged(time.Second)
	fixture.Must(t, say())
	for range 2 {
		fixture.Value(unix.Read(pair[0], make([]byte, 64)))(t)
	}
	s.pinged(time.Second)
	fixture.Equal(t, say(), error(unix.EPIPE), "who sends nothing is told …")
}

// TestAnAllocationIsPutOff asks again for an allocation without room: the refusals in between count as none.
// One beyond the tenant's own cap fails at once.
func TestAnAllocationIsPutOff(t *testing.T) {
	var room atomic.Uint64
	room.Store(100)
	asked, granted := make(chan Request, 8), make(chan Request, 8)
	var again atomic.Int64
	again.Store(int64(70 * time.Millisecond))
	b := start(t, Options{Policy: everybody(Quota{Quota: quota.Quota{Memory: 150}}),
		Capacity: func(string) uint64 { return room.Load() },
		Later:    func(r Request) time.Duration { asked <- r; return time.Duration(again.Load()) },
		Granted:  func(r Request) { granted <- r }}, nil)
	c := dial(t, b, "a", 1)
	c.take(60)
	if r := <-granted; r.PID != os.Getpid() || r.Bytes != 60 {
		t.Errorf("%+v is granted", r)
	}
	for range 2 {
		typ, m := c.reserve(80)
		fixture.If(t, typ != wire.TypeDeny || m.Wait != 70, "%s %+v", typ, m)
		r := <-asked
		fixture.If(t, r.PID != os.Getpid() || r.Tenant != "a" || r.Bytes != 80 || r.GPU == "", "%+v", r)
	}
	if typ, m := c.reserve(100); typ != wire.TypeDeny || m.Wait != 0 || len(asked) > 0 {
		t.Errorf("beyond its cap: %s %+v", typ, m)
	}
	fixture.Equal(t, b.tenant("a").MemoryDenied, 1, "… refusals")
	again.Store(0)
	if typ, m := c.reserve(80); typ != wire.TypeDeny || m.Wait != 0 || b.tenant("a").MemoryDenied != 2 {
		t.Errorf("at last: %s %+v", typ, m)
	}
	room.Store(200)
	b.Refresh()
	c.take(80)
	if r := <-granted; r.Bytes != 80 || len(granted) > 0 {
		t.Errorf("%+v is granted", r)
	}
}

// TestNothingIsLentThatStays lends to who takes memory that can give way.
func TestNothingIsLentThatStays(t *testing.T) {
	b := start(t, Options{Policy: book{quotas: map[string]Quota{"a": {Quota: quota.Quota{Reserved: 40}}}},
		Stays: func(_ string, _ int, kind wire.Kind) bool { return kind == wire.KindManaged }}, nil)
	h, c := hello("a", 1), connect(t, b.options.Socket)
	h.Leases = 1
	c.hello(wire.TypeHello, h)
	c.send(wire.TypeUsage, &wire.Usage{})
	for _, kind := range []wire.Kind{wire.KindManaged, wire.KindDevice} {
		c.ask(wire.TypeReserve, &wire.Memory{Bytes: 1, Kind: kind})
		fixture.Equal(t, b.tenant("a").MemoryReserved > 2, kind == wire.KindDevice, "kind %d is lent", kind)
	}
}

// TestUnlistedMemoryIsOthers has a tenant book memory that the driver does not list, in
// sessions that come and go. Another one has it after some listings, and no sooner.
func TestUnlistedMemoryIsOthers(t *testing.T) {
	var known, listed atomic.Int64
	b := start(t, Options{Policy: everybody(Quota{}), Capacity: func(string) uint64 { return 100 },
		Holds: func(string, int) (uint64, time.Time, bool) {
			if known.Load() == 0 {
				return 0, time.Time{}, false
			}
			return uint64(listed.Load()), time.Unix(known.Load(), 0), listed.Load() > 0
		}}, func(b *Broker) { b.timing.unlisted = 0 })
	c, d := dial(t, b, "a", 1), dial(t, b, "b", 1)
	c.take(90)
	looks := func(what string, n int, step int64, want uint64) {
		t.Helper()
		for range n {
			known.Add(step)
			b.Refresh()
		}
		_, m := d.reserve(1000)
		fixture.Equal(t, m.Bytes, want, "%s: bytes that another one may have", what)
	}
	looks("without a listing", 9, 0, 10)
	known.Store(1)
	looks("with one listing", 9, 0, 10)
	looks("with some", 2, 1, 10)
	for range 2 { // sessions
		c.send(wire.TypeFree, &wire.Memory{Bytes: 90})
		c = dial(t, b, "a", 1)
		c.take(90)
		looks("with more, and another session", 3, 1, 100)
	}
	fixture.Equal(t, b.tenant("a").MemoryUnlisted, 90, "MemoryUnlisted")
	listed.Store(90)
	looks("it is listed", 1, 1, 10)
	listed.Store(0)
	looks("and not any more", 8, 1, 100)
	known.Store(0)
	looks("the driver tells nothing any more", 1, 0, 10)
}

// TestRunEndsDuringAMessage ends the broker while it handles a message: it hangs up at once, and the rest of
// that message, which needs the roll's mutex, keeps nothing from its end.
func TestRunEndsDuringAMessage(t *testing.T) {
	handled, goOn := make(chan struct{}), make(chan struct{})
	b, err := New(Options{Socket: socket(t), Policy: book{who: func(Facts, string) (string, error) {
		close(handled)
		<-goOn
		return "a", nil
	}}})
	fixture.Must(t, err)
	end := fixture.Running(t, b.Run)
	c := connect(t, b.options.Socket)
	c.send(wire.TypeHello, hello("a", 1))
	<-handled
	go end()
	if h, _, err := c.next(patience); !errors.Is(err, io.EOF) {
		t.Errorf("%v, %v instead of the end of the connection", h.Type, err)
	}
	close(goOn)
	end()
}

// TestAlarm holds that an alarm rings at its time, though nobody reads it, does
// not ring after it was reset or closed, and that the wait ends with the broker.
func TestAlarm(t *testing.T) {
	l := fixture.Value(newLoop(nil))(t)
	clock := newClock()
	for _, after := range []time.Duration{5 * time.Millisecond, -time.Second} { // a time in the past rings at once
		at := clock.now() + after
		l.alarm.set(at)
		events, err := l.wait()
		fixture.AtLeast(t, clock.now(), at, "rang early")
		fixture.Equal(t, len(events), 1, "… events: %v", err)
	}
	l.alarm.set(clock.now() + 20*time.Millisecond)
	l.alarm.set(0)
	l.alarm.close()
	l.alarm.set(1) // the alarm is closed: nothing happens
	time.AfterFunc(time.Millisecond, func() { _ = l.epoll.Close() })
	events, err := l.wait()
	fixture.Equal(t, len(events), 0, "rings … times though it was taken back")
	fixture.Fails(t, err, "closed", "the wait of a closed loop")
}

func TestGroups(t *testing.T) {
	path := filepath.Join(t.TempDir(), "status")
	for text, want := range map[string][]uint32{
		"Name:\tGroups: 7\nUid:\t0\t0\t0\t0\nGroups:\t4 27 1000 \nNStgid:\t1\n": {4, 27, 1000},
		"Name:\tx\nGroups:\t \n": nil,
		"":                       nil,
	} {
		fixture.Must(t, os.WriteFile(path, []byte(text), 0o600))
		fixture.EqualSlices(t, groups(path), want, "the groups of %q", text)
	}
	var own []uint32
	ids, err := os.Getgroups()
	for _, id := range ids {
		own = append(own, uint32(id))
	}
	if got := groups("/proc/self/status"); err != nil ||
		!slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(own))) {
		t.Errorf("of this process: %v, want %v (%v)", got, own, err)
	}
}
