package broker

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"gpusteward/internal/span"
	"gpusteward/internal/wire"
)

// Facts are the kernel's facts about a process.
type Facts struct {
	PID      int
	UID, GID uint32
	Groups   []uint32 // beside GID
	Cgroup   string   // the content of /proc/PID/cgroup
	Exe      string   // where /proc/PID/exe points; empty where it cannot be read
}

// Options configure a broker.
type Options struct {
	Socket   string            // path; a stale socket there is replaced
	Listener *net.UnixListener // of SOCK_SEQPACKET, instead of Socket; the broker closes it
	Policy   Policy
	// Holds returns the bytes of the GPU's memory that NVML lists for the
	// process, the time of the listing, zero if that is unknown, and whether it
	// lists the process at all. It bounds a session's claims of earlier memory,
	// and a dead process's memory is not given away before the driver has it
	// back. It must not block, and may be nil.
	Holds func(uuid string, pid int) (bytes uint64, at time.Time, listed bool)
	// Known reports whether the host has a GPU of that UUID, written
	// GPU-12345678-..., or a MIG device, written MIG-12345678-...; nil: it has
	// them all. Other GPUs are not governed, so that a process cannot exhaust
	// the broker's GPUs with invented ones: the process gets an error, and the log
	// and the statistics show it. If a session's GPU becomes known, the session
	// ends, so that its process begins another. It must not block.
	Known func(uuid string) bool
	// Capacity returns how many bytes of a GPU's memory all tenants together
	// can have, including what they have; 0 is unknown, and guarantees no memory to
	// any tenant. Refresh asks it, and so does the first session on a GPU. It must
	// not block, and may be nil.
	Capacity func(uuid string) uint64
	// Later returns when an allocation within its tenant's cap, for which the
	// GPU has no room, should be asked for again, because room is being made; 0:
	// it fails. It must not block, and may be nil: all fail.
	Later func(Request) time.Duration
	// Stays reports whether memory of a kind, which a process wants of a GPU, can
	// never give way to others there that are entitled to that: the process gets
	// only what its tenant is guaranteed. It must not block, and may be nil.
	Stays func(uuid string, pid int, kind wire.Kind) bool
	// Granted is called for each granted allocation, except those from a
	// lease. It must not block, and may be nil.
	Granted func(Request)
	// Observer reports whether a user may ask for the statistics; root and the
	// broker's own user always may. It must not block. If it is nil, no other
	// user may.
	Observer func(uid uint32) bool
	// Enforcer returns the enforcer's part of the statistics. It may be nil,
	// and must not call the broker.
	Enforcer   func() *wire.EnforcerStats
	InFlight   time.Duration // of work that a process may queue beside one whose launches must not wait; 0 is 750 us
	Turn       time.Duration // of one of two equal tenants, and of work that a process may queue otherwise; 0 is 10 ms
	Slices     bool          // the time slices of contexts may be set
	Concurrent bool          // programs on a GPU run at once, as clients of CUDA MPS
	FailClosed bool          // without a broker, and on GPUs that are not governed, launches wait
	// how long a process gets the benefit of the doubt after the broker
	// starved, was away or refused it; 0 is a minute
	Doubt time.Duration

	// Observe gets each session with a trace every 100 ms, and once more when
	// the session ends. It must not wait, nor use the trace afterwards. It is
	// called concurrently for different sessions. nil: no process writes a
	// trace.
	Observe func(Traced)

	// Owner names the owner of a process: those of a job have one owner, and no process has a part in the gangs and
	// communicators of another owner. It receives the kernel's facts at the
	// connection: ids and cgroup. nil: all processes of a user in a cgroup have
	// one owner. It may be called concurrently and must not block.
	Owner func(f Facts) string

	// including those that have unread data; 0 is maxSessions, or as many as the
	// limit of descriptors allows
	MaxSessions int
	MaxPerPID   int            // 0 is maxPerPID
	ProcFS      string         // empty is /proc
	Spans       *span.Recorder // nil: there are none
	Logger      *slog.Logger
}

// A Request is an allocation for which a GPU has no room now.
type Request struct {
	PID    int
	Tenant string
	GPU    string // UUID
	Bytes  uint64
}

// timing are the protocol's time limits and rates.
type timing struct {
	hello, heartbeat, stale, flood, release, poll, again, unlisted, behind time.Duration

	perSession, perUser         int // messages a second
	callsOfProcess, callsOfUser int // connections a second
	asks                        int // for statistics, of a user, a second
	pages, pagesAtOnce          int // that a user's sessions get: a second in the long run, and at once
	maxGPUs                     int
}

// Bounds, each by default.
const (
	maxSessions = 12000
	maxPerPID   = 16 // sessions, and those that have unread data
	maxGPUs     = 64

	messagesOfSession = 2000 // a second
	messagesOfUser    = 20_000
	callsOfProcess    = 32 // connections a second
	callsOfUser       = 256
	asksOfUser        = 20 // for statistics, a second
	pagesOfUser       = 16 // that their sessions get, a second in the long run,
	pagesAtOnce       = 4096

	// A session has its connection, its process and its leases. Two more descriptors of it are in flight, which the
	// kernel limits to the same number.
	sessionDescriptors = 3
	otherDescriptors   = 256 // of the process
)

var defaults = timing{
	hello: 2 * time.Second, heartbeat: 250 * time.Millisecond, stale: 3 * time.Second, flood: 10 * time.Second,
	release: 2 * time.Second, poll: 100 * time.Millisecond, again: 25 * time.Millisecond, unlisted: 3 * time.Second,
	behind:     time.Second,
	perSession: messagesOfSession, perUser: messagesOfUser, callsOfProcess: callsOfProcess,
	callsOfUser: callsOfUser, asks: asksOfUser, maxGPUs: maxGPUs,
	pages: pagesOfUser, pagesAtOnce: pagesAtOnce,
}

// pingInterval is how often a process should send PING.
const pingInterval = time.Second

// common is what all parts of a broker use, and nobody changes while it runs.
type common struct {
	options  Options
	timing   timing
	clock    clock
	log      *slog.Logger
	counters counters
	ended    chan struct{} // closed when Run is about to end
}

// over reports whether Run ends.
func (c *common) over() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// lately reports whether something happened so recently that the processes it
// may concern get the benefit of the doubt.
func (c *common) lately(at, now time.Duration) bool { return at != 0 && now-at < c.options.Doubt }

// turnAway sends the reason that a connection gets no session.
func (c *common) turnAway(fd int, r *refusal) {
	c.counters.count(0, int(r.code))
	m := mails.Get().(*mail)
	_ = send(fd, m.refuse(wire.Header{}, r))
	mails.Put(m)
}

// A Broker serves sessions. All its methods are safe for concurrent use.
type Broker struct {
	common
	door     door
	identity identifier
	doubt    doubt
	roll     roll
	gpus     gpus
	traces   traces
	absent   absent
	exits    *exits
	loop     *loop
	times    *timetable
	tasks    sync.WaitGroup
	policy   atomic.Pointer[Policy]
	reloads  sync.Mutex   // so that sessions are judged one policy after the other
	parted   atomic.Int64 // clock: when a session last ended whose process did not; 0 never
	taken    seldom       // by a process that gave itself a time slice
}

// New listens. The broker answers while Run runs; without Run, call Close.
func New(o Options) (*Broker, error) {
	if o.Policy == nil {
		return nil, errors.New("make broker: no policy")
	}
	o.Turn = orElse(o.Turn, 10*time.Millisecond)
	o.InFlight, o.ProcFS = orElse(o.InFlight, 750*time.Microsecond), orElse(o.ProcFS, "/proc")
	o.Doubt = orElse(o.Doubt, time.Minute)
	o.MaxSessions, o.MaxPerPID = mostOf(orElse(o.MaxSessions, maxSessions)), orElse(o.MaxPerPID, maxPerPID)
	if o.Owner == nil {
		o.Owner = inNameOf
	}
	b := &Broker{common: common{options: o, timing: defaults, log: orElse(o.Logger, slog.New(slog.DiscardHandler)),
		clock: newClock(), ended: make(chan struct{})}, identity: identifier{o.ProcFS, peerPidfd}}
	b.doubt.common = &b.common
	b.door = door{common: &b.common, doubt: &b.doubt, listener: o.Listener}
	// Session numbers differ from those of the previous broker, so that a
	// RESUME cannot match another session by chance.
	b.roll = roll{common: &b.common, doubt: &b.doubt, sessions: map[uint64]*session{}, silent: map[*session]struct{}{},
		callers: map[int]*caller{}, users: map[string]*user{}, whose: whoseOf, last: random() >> 16}
	b.gpus = gpus{common: &b.common, by: map[[16]byte]*gpu{}}
	b.traces = traces{common: &b.common, roll: &b.roll}
	b.policy.Store(&o.Policy)
	var err error
	if b.door.listener == nil {
		if b.door.listener, err = listen(o.Socket); err != nil {
			return nil, err
		}
	}
	if b.door.file, err = b.door.listener.File(); err != nil {
		_ = b.door.listener.Close()
		return nil, fmt.Errorf("prepare broker socket: %w", err)
	}
	if b.exits, err = newExits(); err != nil {
		b.door.close()
		return nil, err
	}
	if b.loop, err = newLoop(b); err != nil {
		b.door.close()
		_ = b.exits.Close()
		return nil, err
	}
	b.times = newTimetable(b, &b.loop.alarm)
	b.gpus.times = b.times
	if raw, err := b.door.listener.SyscallConn(); err == nil {
		// Each message names the process that sent it. Accepted connections
		// inherit this, except those that waited from before: see admit.
		err = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
		if err != nil {
			b.Close()
			return nil, fmt.Errorf("prepare broker socket: %w", err)
		}
	}
	return b, nil
}

// Close gives up a broker that will not Run.
func (b *Broker) Close() {
	b.door.close()
	_ = b.exits.Close()
	_ = b.loop.epoll.Close()
	b.times.end()
}

// Run serves until ctx ends (nil) or the socket fails. It runs once.
func (b *Broker) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() {
		close(b.ended)
		b.Close()
	})
	defer stop()
	group.Go(func() error { return b.door.accept(ctx, b.meet) })
	group.Go(b.loop.run)
	group.Go(func() error { return b.exits.run(ctx, b.exited) })
	group.Go(func() error { return b.pinged(ctx) })
	group.Go(func() error { return b.traces.run(ctx) })
	err := group.Wait()
	b.roll.mu.Lock()
	for _, s := range b.roll.sessions {
		s.hangUp() // Close would wait for a message that is being handled, which may need the mutex
	}
	b.roll.mu.Unlock()
	b.tasks.Wait()
	for _, s := range b.loop.sessions {
		b.leave(s)
	}
	b.roll.mu.Lock()
	for _, s := range b.roll.sessions {
		s.close()
		b.exits.drop(s)
	}
	b.roll.mu.Unlock()
	return err
}

// meet begins to serve a connection.
func (b *Broker) meet(fd int, now time.Duration) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		b.turnAway(fd, refuse(wire.CodeDenied, fmt.Errorf("identify the client: %w", err)))
	case !b.roll.calls(int(cred.Pid), now):
		b.counters.count(0, int(wire.CodeLimit)) // and no answer, which would cost as much as all the rest
	default:
		b.tasks.Add(1)
		go b.serve(fd, cred)
		return
	}
	_ = unix.Close(fd)
}

// pinged shows all quota pages that the broker lives, and finds the
// sessions that fell silent.
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
		b.roll.mu.Lock()
		all = all[:0]
		for _, s := range b.roll.sessions {
			all = append(all, s)
		}
		b.roll.mu.Unlock()
		now := b.clock.now()
		if now-last > b.timing.stale { // it begins, or stood still: processes took it for dead
			b.doubt.back.Store(int64(now))
		}
		if last = now; now-swept > b.timing.flood {
			swept = now
			b.roll.sweep(now)
		}
		for _, s := range all {
			s.pinged(now)
		}
		clear(all)
		b.recountParted(now)
	}
}

// A clock reads CLOCK_MONOTONIC, which processes see in their pages.
type clock func() time.Duration

// newClock reads the runtime's clock, which costs less than the kernel's, and is never behind
// that one: an alarm would seem to ring early. Of several tries one is not interrupted.
func newClock() clock {
	var at time.Duration
	var start time.Time
	least := time.Hour
	for range 10 {
		before := time.Now()
		now := wire.Monotonic()
		if took := time.Since(before); took < least {
			least, at, start = took, time.Duration(now), before
		}
	}
	return func() time.Duration { return at + time.Since(start) }
}

func (c clock) now() time.Duration { return c() }

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
