// Package broker shares GPUs among processes that run under the hook. Each has
// a session: a connection to the broker's Unix socket, over which it asks for
// time and memory, and a quota page that it reads and only the broker writes,
// which says what it may launch. Who a process is the kernel says, and never
// the process; what it may use a policy says that is handed in.
package broker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gpusteward/internal/wire"
)

// Facts are what the kernel says of a process.
type Facts struct {
	PID      int
	UID, GID uint32
	Groups   []uint32 // beside GID
	Cgroup   string   // the content of /proc/PID/cgroup
	Exe      string   // where /proc/PID/exe points; empty where it cannot be read
}

// Options are what a broker is made with.
type Options struct {
	Socket   string            // path; a stale socket there is replaced
	Listener *net.UnixListener // of SOCK_SEQPACKET, instead of Socket; the broker closes it
	Policy   Policy
	// Holds returns how many bytes of the GPU's memory NVML lists for the
	// process, when it was asked, zero where that is not known, and whether it
	// lists it at all: no more is believed of what a session says that it had
	// before, and what a dead process had is not given away before the driver has
	// it back. It must not block, and may be nil.
	Holds func(uuid string, pid int) (bytes uint64, at time.Time, listed bool)
	// Known reports whether the host has a GPU of that UUID, written
	// GPU-12345678-..., or a MIG device, written MIG-12345678-...; nil is that all
	// are GPUs that it has. Others are not governed, so that a process
	// cannot use up the broker's GPUs with invented ones: it is told, and the log
	// and the statistics say so. A session that has one which becomes known is
	// ended, so that its process begins another. It must not block.
	Known func(uuid string) bool
	// Capacity returns how many bytes of a GPU's memory all tenants together can
	// have, what they have included; 0 is unknown, and then no memory is kept
	// for anybody. It is asked when a GPU begins to be shared, and by Refresh. It
	// must not block, and may be nil.
	Capacity func(uuid string) uint64
	// Observer reports whether a user may ask for the statistics, beside root
	// and the broker's own. It must not block, and may be nil: nobody else may.
	Observer func(uid uint32) bool
	// Enforcer returns the part of the statistics that is not the broker's. It
	// may be nil, and must not call the broker.
	Enforcer   func() *wire.EnforcerStats
	InFlight   time.Duration // of work that a process may queue beside one whose launches must not wait; 0 is 750 us
	Turn       time.Duration // of one of two equal tenants, and of work that a process may queue otherwise; 0 is 10 ms
	FailClosed bool          // without a broker, and on GPUs that are not governed, launches wait
	Doubt      time.Duration // for how long after it starved, was away or refused a process that is held in favour of whoever it concerns; 0 is a minute

	// Owner names whoever a process belongs to: all processes of one owner share
	// what one may have of the broker. It is given what the kernel says at the
	// connection: ids and cgroup. nil: all of a user in a cgroup belong together.
	// It may be called concurrently and must not block.
	Owner func(f Facts) string

	MaxSessions int    // those that have not read to their end included; 0 is 12000, or as many as the limit of descriptors allows
	MaxPerPID   int    // 0 is 16
	ProcFS      string // empty is /proc
	Logger      *slog.Logger
}

// timing are the protocol's time limits and rates.
type timing struct {
	hello, heartbeat, stale, flood, release, poll, behind time.Duration

	perSession, perOwner         int // messages a second
	callsOfProcess, callsOfOwner int // connections a second
	asks                         int // for statistics, of an owner, a second
	maxGPUs                      int
}

var defaults = timing{
	hello: 2 * time.Second, heartbeat: 250 * time.Millisecond, stale: 3 * time.Second, flood: 10 * time.Second,
	release: 2 * time.Second, poll: 100 * time.Millisecond, behind: time.Second,
	perSession: 2000, perOwner: 20_000, callsOfProcess: 32, callsOfOwner: 256, asks: 20, maxGPUs: 64,
}

// pingInterval is how often a process is to send PING.
const pingInterval = time.Second

// A Broker serves sessions. All its methods are safe for concurrent use.
type Broker struct {
	options  Options
	timing   timing
	log      *slog.Logger
	listener *net.UnixListener
	door     *os.File // the listener's, to accept on: that one makes more of a connection than most are worth
	policy   atomic.Pointer[Policy]
	clock    clock
	counters counters
	exits    *exits
	times    *timetable
	ended    chan struct{} // closed when Run ends
	tasks    sync.WaitGroup
	pidfd    func(fd, pid int) (int, error)
	starved  atomic.Int64 // clock: when it last could not serve somebody for want of something; 0 never
	said     atomic.Int64 // clock: when that was last told
	met      atomic.Int64 // clock: when it was last told that somebody has a GPU that is not governed
	back     atomic.Int64 // clock: when it last came, or came round again after it stood still
	reloads  sync.Mutex   // so that sessions are judged one policy after the other

	mu       sync.Mutex
	sessions map[uint64]*session   // connected, or gone with memory that is still charged, or with something unread
	silent   map[*session]struct{} // stale and without memory
	callers  map[int]*caller
	owners   map[string]*owner
	gpus     map[[16]byte]*gpu
	last     uint64 // session's number
}

// New listens. The broker answers once Run runs; without it Close must be
// called.
func New(o Options) (*Broker, error) {
	if o.Policy == nil {
		return nil, errors.New("make broker: no policy")
	}
	o.Turn = orElse(o.Turn, 10*time.Millisecond)
	o.InFlight, o.ProcFS = orElse(o.InFlight, 750*time.Microsecond), orElse(o.ProcFS, "/proc")
	o.Doubt = orElse(o.Doubt, time.Minute)
	o.MaxSessions, o.MaxPerPID = mostOf(orElse(o.MaxSessions, 12000)), orElse(o.MaxPerPID, 16)
	if o.Owner == nil {
		o.Owner = inNameOf
	}
	b := &Broker{
		options: o, timing: defaults, log: orElse(o.Logger, slog.New(slog.DiscardHandler)), listener: o.Listener,
		clock: newClock(), ended: make(chan struct{}), pidfd: peerPidfd,
		sessions: map[uint64]*session{}, silent: map[*session]struct{}{}, callers: map[int]*caller{}, owners: map[string]*owner{}, gpus: map[[16]byte]*gpu{},
	}
	b.policy.Store(&o.Policy)
	// Numbers of sessions differ from those of the broker before, so that a
	// RESUME cannot mean another's by chance.
	b.last = random() >> 16
	var err error
	if b.listener == nil {
		if b.listener, err = listen(o.Socket); err != nil {
			return nil, err
		}
	}
	if b.door, err = b.listener.File(); err != nil {
		_ = b.listener.Close()
		return nil, fmt.Errorf("prepare broker socket: %w", err)
	}
	if b.exits, err = newExits(); err != nil {
		_ = b.listener.Close()
		_ = b.door.Close()
		return nil, err
	}
	if b.times, err = newTimetable(b); err != nil {
		_ = b.listener.Close()
		_ = b.door.Close()
		_ = b.exits.Close()
		return nil, err
	}
	if raw, err := b.listener.SyscallConn(); err == nil {
		// Each message says which process sent it. What is accepted inherits
		// that, unless it waited from before on: see admit.
		err = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
		if err != nil {
			b.Close()
			return nil, fmt.Errorf("prepare broker socket: %w", err)
		}
	}
	return b, nil
}

// listen makes the socket, which any process may connect to.
func listen(path string) (*net.UnixListener, error) {
	address := &net.UnixAddr{Name: path, Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", address)
	if errors.Is(err, unix.EADDRINUSE) {
		conn, dialed := net.DialUnix("unixpacket", nil, address)
		if dialed == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("open broker socket %s: another broker answers there", path)
		}
		st, missing := os.Lstat(path)
		if missing == nil && st.Mode().Type() != os.ModeSocket {
			dialed = errors.New("there is a file that is no socket")
		}
		if !errors.Is(dialed, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("open broker socket %s: %w", path, dialed)
		}
		if err = os.Remove(path); err == nil {
			l, err = net.ListenUnix("unixpacket", address)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open broker socket: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open broker socket: %w", err)
	}
	return l, nil
}

// Close gives up a broker that is not going to Run.
func (b *Broker) Close() {
	_ = b.listener.Close()
	_ = b.door.Close()
	_ = b.exits.Close()
	_ = b.times.alarm.Close()
}

// Run serves until ctx ends (nil) or the socket fails. It runs once.
func (b *Broker) Run(ctx context.Context) error {
	b.tasks.Add(1)
	go b.times.run()
	group, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, b.Close)
	defer stop()
	group.Go(func() error { return b.accept(ctx) })
	group.Go(func() error { return b.exits.run(ctx, b.exited) })
	group.Go(func() error { return b.pinged(ctx) })
	err := group.Wait()
	close(b.ended)
	b.mu.Lock()
	for _, s := range b.sessions {
		_ = s.conn.Close()
	}
	b.mu.Unlock()
	b.tasks.Wait()
	b.mu.Lock()
	for _, s := range b.sessions {
		b.exits.drop(s)
	}
	b.mu.Unlock()
	return err
}

// over reports whether Run has ended.
func (b *Broker) over() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// accept takes connections until ctx ends. Who connects too often costs no
// more than the look at who that is.
func (b *Broker) accept(ctx context.Context) error {
	raw, err := b.door.SyscallConn()
	if err != nil {
		return fmt.Errorf("accept on broker socket: %w", err)
	}
	begun := b.clock.now() // with those who wait
	for {
		var fd uintptr
		var errno syscall.Errno
		err := raw.Read(func(l uintptr) bool {
			fd, _, errno = unix.RawSyscall6(unix.SYS_ACCEPT4, l, 0, 0, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0, 0)
			if errno == unix.EAGAIN {
				begun = 0
				return false
			}
			return true
		})
		now := b.clock.now()
		if begun == 0 {
			begun = now
		}
		switch {
		case ctx.Err() != nil:
			if err == nil && errno == 0 {
				_ = unix.Close(int(fd))
			}
			return nil
		case err != nil:
			return fmt.Errorf("accept on broker socket: %w", err)
		case starving(errno):
			// Who waits stays in the kernel's queue until a descriptor is free.
			b.starve(fmt.Errorf("accept on broker socket: %w", errno))
			select {
			case <-ctx.Done():
			case <-time.After(b.timing.poll):
			}
			continue
		case errno == unix.ECONNABORTED || errno == unix.EINTR:
			continue
		case errno != 0:
			return fmt.Errorf("accept on broker socket: %w", errno)
		}
		if now-begun > b.timing.behind {
			begun = now
			b.starve(errBehind)
		}
		b.meet(int(fd), now)
	}
}

// meet begins to serve a connection.
func (b *Broker) meet(fd int, now time.Duration) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		b.turnAway(fd, refuse(wire.CodeDenied, fmt.Errorf("ask who connected: %w", err)))
	case !b.calls(int(cred.Pid), now):
		b.counters.count(0, int(wire.CodeLimit)) // and no answer, which would cost as much as all the rest
	default:
		b.tasks.Add(1)
		go b.serve(fd, cred)
		return
	}
	_ = unix.Close(fd)
}

// heartbeats tells all quota pages that the broker lives, and finds who fell
// silent.
func (b *Broker) pinged(ctx context.Context) error {
	ticker := time.NewTicker(b.timing.heartbeat)
	defer ticker.Stop()
	var all []*session
	var last, swept time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		b.mu.Lock()
		all = all[:0]
		for _, s := range b.sessions {
			all = append(all, s)
		}
		b.mu.Unlock()
		now := b.clock.now()
		if now-last > b.timing.stale { // it begins, or stood still: processes took it for dead
			b.back.Store(int64(now))
		}
		if last = now; now-swept > b.timing.flood {
			swept = now
			b.sweep(now)
		}
		for _, s := range all {
			s.pinged(now)
		}
		clear(all)
	}
}

// A clock tells CLOCK_MONOTONIC, which processes see in their pages.
type clock struct {
	start time.Time
	zero  time.Duration
}

func newClock() clock {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail on Linux
	return clock{time.Now(), time.Duration(now.Nano())}
}

func (c clock) now() time.Duration { return c.zero + time.Since(c.start) }

func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // does not fail
	return binary.LittleEndian.Uint64(b[:])
}

// orElse returns v, or a default where v is zero.
func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}
