package gemini

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/ledger"
)

const (
	batch = 24 // frames per read
	memos = 16 // answers remembered for a connection
)

// waiting bounds the requests for time of a connection that wait: a hook has
// one at a time, a pod manager one for each of its hooks.
var waiters = [...]int{PodManager: 1, Scheduler: 64}

var errFull = errors.New("the client does not read its answers")

// A conn is one connection. It belongs to its goroutine, except for the fields
// that the server's mutex guards.
type conn struct {
	s             *Server
	tcp           *net.TCPConn
	raw           syscall.RawConn
	local, remote netip.AddrPort
	from          origin

	name    string
	sought  bool // the process was searched for
	peer    peer
	epoch   uint64 // of the table that the next three are from
	served  bool
	session uint64
	limit   uint64 // bytes
	net     int64  // bytes taken and not given back

	client   *client       // guarded by the server's mutex
	pending  int           // requests for time that wait; guarded by it too
	answered int32         // the last one answered; guarded by it too
	over     time.Duration // when its quota ends; 0: it has asked since, or was reminded often enough
	reminded int           // times since then
	used     atomic.Int64  // when the last frame came, since the server began

	memory [memos]memo
	next   int
	in     [batch * RequestSize]byte
	out    []byte
	sent   int
	err    error
	write  func(fd uintptr) bool
}

// A memo is an answer to a change of memory: a client that does not see it in
// time asks again with the same number.
type memo struct {
	known    bool
	id       int32
	bytes    uint64
	allocate bool
	granted  bool
}

func newConn(s *Server, tcp *net.TCPConn) (*conn, error) {
	raw, err := tcp.SyscallConn()
	if err != nil {
		return nil, err
	}
	c := &conn{s: s, tcp: tcp, raw: raw, out: make([]byte, 0, batch*ResponseSize)}
	c.local = unmap(tcp.LocalAddr())
	c.remote = unmap(tcp.RemoteAddr())
	if c.peer.socket, err = lookup(c.remote, c.local); err == nil {
		c.from.cgroup = c.peer.cgroup
	} else {
		c.from.host = c.remote.Addr()
	}
	c.used.Store(int64(s.now()))
	c.write = func(fd uintptr) bool {
		c.sent, c.err = unix.Write(int(fd), c.out)
		return true
	}
	return c, nil
}

func unmap(a net.Addr) netip.AddrPort {
	p := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}

// serve answers until the connection ends.
func (c *conn) serve() {
	err := c.read()
	c.s.mu.Lock()
	c.s.drop(c, true)
	c.peer.close()
	c.s.mu.Unlock()
	if errors.Is(err, errFrame) {
		c.s.counts.malformed.Add(1)
		c.s.log.Debug("a connection is closed", "address", c.remote, "err", err)
	}
}

// read reads frames. A client may take its time between frames, but not within
// one, nor before the first.
func (c *conn) read() error {
	have, hurried := 0, true
	if err := c.tcp.SetReadDeadline(time.Now().Add(c.s.options.Deadline)); err != nil {
		return err
	}
	for {
		n, err := c.tcp.Read(c.in[have:])
		if have += n; err != nil {
			return err
		}
		at := 0
		for ; have-at >= RequestSize; at += RequestSize {
			if err := c.handle((*[RequestSize]byte)(c.in[at:])); err != nil {
				return err
			}
		}
		if err := c.flush(); err != nil {
			return err
		}
		have = copy(c.in[:], c.in[at:have])
		if hurry := have > 0; hurry != hurried || hurry && at > 0 {
			var deadline time.Time
			if hurry {
				deadline = time.Now().Add(c.s.options.Deadline)
			}
			if err := c.tcp.SetReadDeadline(deadline); err != nil {
				return err
			}
			hurried = hurry
		}
	}
}

// handle answers one frame, or lets it wait.
func (c *conn) handle(frame *[RequestSize]byte) error {
	r, err := decode(frame)
	if err != nil {
		return err
	}
	if c.name == "" {
		c.name = string(r.Name)
	} else if c.name != string(r.Name) {
		return errFrame // a connection has one name
	}
	now := c.s.now()
	c.used.Store(int64(now))
	c.s.counts.requests[r.Kind].Add(1)
	if epoch := c.s.epoch.Load(); c.epoch != epoch && c.s.resolve(c) {
		c.epoch = epoch
	}
	if r.Kind == Quota {
		return c.s.ask(c, now, &r)
	}
	c.reply(&r)
	return nil
}

// reply answers a request about memory.
func (c *conn) reply(r *Request) {
	a := Response{ID: r.ID, Kind: r.Kind}
	switch {
	case !c.served:
		c.s.counts.unknown.Add(1)
		if c.s.options.Unknown == Silence {
			return
		}
	case r.Kind == MemoryLimit:
		// A scheduler has no books: a pod manager gets 0, which it insists on.
		u := c.s.memory.Usage(c.name)
		a.Used, a.Limit = u.Committed+u.Reserved+u.Dead, c.limit
	case c.s.options.Role == Scheduler:
		a.Granted = true // the pod manager keeps these books
	default:
		a.Granted = c.update(r)
	}
	c.out = a.Append(c.out)
}

// update books memory that the client takes or gave back. A repeated request
// gets the same answer again.
func (c *conn) update(r *Request) bool {
	for i := range c.memory {
		if m := &c.memory[i]; m.known && m.id == r.ID && m.bytes == r.Bytes && m.allocate == r.Allocate {
			c.s.counts.duplicates.Add(1)
			return m.granted
		}
	}
	granted := true
	if r.Allocate {
		granted = c.take(r.Bytes)
	} else if err := c.s.memory.Free(c.session, r.Bytes); err != nil {
		c.s.counts.overfreed.Add(1)
	} else {
		c.net -= int64(r.Bytes)
	}
	c.memory[c.next] = memo{true, r.ID, r.Bytes, r.Allocate, granted}
	c.next = (c.next + 1) % memos
	return granted
}

func (c *conn) take(bytes uint64) bool {
	if c.limit == 0 { // to the ledger, 0 is no cap
		return false
	}
	reservation, ok, _ := c.s.memory.ReserveUnless(c.name, c.session, bytes, false,
		func(ledger.Lack) bool { return true })
	if !ok && c.s.bury(c) {
		reservation, ok, _ = c.s.memory.Reserve(c.name, c.session, bytes)
	}
	if !ok {
		return false
	}
	if err := c.s.memory.Commit(c.session, reservation, bytes); err != nil {
		return false
	}
	c.net += int64(bytes)
	return true
}

// flush sends the answers. It never waits: a client that reads its answers
// always leaves room for them.
func (c *conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	err := c.raw.Write(c.write)
	if err == nil {
		err = c.err
	}
	if err == nil && c.sent < len(c.out) {
		err = errFull
	}
	c.out = c.out[:0]
	return err
}

// give answers a request for time. The server's mutex is held.
func (c *conn) give(id int32, quota time.Duration) {
	r := Response{ID: id, Kind: Quota, Quota: float64(quota) / float64(time.Millisecond)}
	if err := c.send(r.Append(nil)); err != nil {
		_ = c.tcp.Close() // its goroutine does the rest
	}
}

// reminders bound the answers that are repeated, each after twice as long: for 2
// minutes with ticks of a second.
const reminders = 7

// remind repeats the answer to a pod manager that had its turn some ticks ago and
// does not ask for another: it may have nothing to do, or it lost the answer, and
// on a busy host the next one too. The quota is less than a turn, so that it asks
// for one. The server's mutex is held.
func (c *conn) remind(now time.Duration) {
	if c.s.options.Role != Scheduler || c.over == 0 || now <= c.over+c.s.options.tick<<c.reminded {
		return
	}
	if c.reminded++; c.reminded == reminders {
		c.over = 0
	}
	c.s.counts.reminded.Add(1)
	c.give(c.answered, crumb)
}

// send sends an answer from another goroutine, also without waiting.
func (c *conn) send(frame []byte) error {
	var sent int
	var err error
	e := c.raw.Write(func(fd uintptr) bool {
		sent, err = unix.Write(int(fd), frame)
		return true
	})
	switch {
	case e != nil:
		return e
	case err != nil:
		return err
	case sent < len(frame):
		return errFull
	}
	return nil
}
