package gemini

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"gpusteward/enforcer/ledger"
)

// Fixed bounds.
const (
	perClient = 64                   // connections
	lookTime  = 5 * time.Millisecond // from one look for ended processes to the next, for clients that hold up others
	tellTime  = 10 * time.Second     // between two lines on unknown names
)

// delays are the minimal times from a request for time to its answer. A pod
// manager sends, and then waits on a condition without checking for answers: it
// loses an answer that came before, and its hooks wait for ever. That takes it
// 100 us. With answers at once, a program with its threads lost 2 of 1,000 on a
// machine of two processors; after 1 ms, 1 of 11,000 while others kept the
// processors busy; after 2 ms none of 13,000. The delay costs a lone client 2 %
// of the GPU's time. conn.remind is for what is lost all the same.
var delays = [...]time.Duration{PodManager: 0, Scheduler: 2 * time.Millisecond}

// A Server serves one GPU. New creates it, Run runs it.
type Server struct {
	options Options
	log     *slog.Logger
	listen  *net.TCPListener
	start   time.Time
	finder  finder
	memory  ledger.Ledger
	epoch   atomic.Uint64 // of the table: earlier look-ups are void
	counts  counts
	text    []byte // of the table in force; reload's own
	bad     string // the fault of the file's text since then

	mu       sync.Mutex
	tokens   *tokens
	timer    *time.Timer
	clients  map[key]*client
	conns    map[*conn]struct{}
	origins  map[origin]int       // connections
	left     map[*client]struct{} // clients with a turn and no connection
	closed   bool
	next     uint64        // session of the ledger
	badLines int           // of the table in force
	told     time.Duration // of unknown names
}

// New reads the file and listens; both may fail. Run must be called, to serve
// and to release the address.
func New(o Options) (*Server, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	s := &Server{options: o, log: o.Logger, start: time.Now(), finder: finder{procFS: o.ProcFS, cgroupFS: o.CgroupFS,
		most: o.descriptors}, clients: map[key]*client{}, conns: map[*conn]struct{}{}, origins: map[origin]int{},
		left: map[*client]struct{}{}}
	s.tokens = newTokens(o.Turn, s.grant)
	s.tokens.delay = delays[o.Role]
	s.timer = time.AfterFunc(time.Hour, s.wake)
	s.timer.Stop()
	if err := s.reload(); err != nil {
		return nil, fmt.Errorf("read table of clients: %w", err)
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for clients: %w", err)
	}
	s.listen = l.(*net.TCPListener)
	if _, err := lookup(s.address(), netip.AddrPort{}); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("find the processes of connections (under systemd, RestrictAddressFamilies= must have "+
			"AF_NETLINK): %w", err)
	}
	s.log.Info("programs under Gemini's hook are served", "address", s.address().String(), "file", o.File)
	if !s.address().Addr().IsLoopback() {
		s.log.Warn("clients of other hosts may claim any name: this protocol has no authentication", "address",
			s.address())
	}
	return s, nil
}

// address returns where the server listens.
func (s *Server) address() netip.AddrPort {
	a := s.listen.Addr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func (s *Server) now() time.Duration { return time.Since(s.start) }

// Run serves until ctx ends; then it closes all connections and returns nil.
func (s *Server) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	group.Go(func() error { return s.accept(ctx, group) })
	group.Go(func() error {
		if err := watch(ctx, s.options.File, s.options.tick, s.refresh); err != nil {
			s.log.Error("the table of clients is not read again when it changes", "err", err)
		}
		return nil
	})
	group.Go(func() error { s.sweep(ctx); return nil })
	err := group.Wait()
	for _, c := range s.clients { // no goroutine is left
		c.peer.close()
	}
	all := s.Stats()
	s.log.Info("programs under Gemini's hook are no longer served", "requests", all.Requests, "accepted", all.Accepted,
		"refused", all.Refused,
		"unknown", all.Unknown, "malformed", all.Malformed, "expired", all.Expired)
	return err
}

// close ends everything that waits.
func (s *Server) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.timer.Stop()
	_ = s.listen.Close()
	for c := range s.conns {
		_ = c.tcp.Close()
	}
}

// accept takes connections.
func (s *Server) accept(ctx context.Context, group *errgroup.Group) error {
	for {
		tcp, err := s.listen.AcceptTCP()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = tcp.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		case err != nil: // such as out of descriptors
			s.log.Warn("a connection cannot be accepted", "err", err)
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
			continue
		}
		if c := s.admit(tcp); c != nil {
			group.Go(func() error { c.serve(); return nil })
		}
	}
}

// admit finds a place for a connection, nil where there is none.
func (s *Server) admit(tcp *net.TCPConn) *conn {
	c, err := newConn(s, tcp)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil || s.closed || len(s.conns) >= s.options.Connections && !s.makePlace(c.from) {
		s.counts.refused.Add(1)
		_ = tcp.Close()
		return nil
	}
	s.counts.accepted.Add(1)
	s.conns[c] = struct{}{}
	s.origins[c.from]++
	return c
}

// makePlace ends a connection of the origin with the most, for one with fewer.
// It prefers a client's spare connections: some clients open one for each
// request and never close any. The mutex is held.
func (s *Server) makePlace(from origin) bool {
	most := from
	for o, n := range s.origins {
		if n > max(s.origins[most], s.origins[from]+1) {
			most = o
		}
	}
	return s.evict(func(o *conn) bool {
		return o.from == most && (most != from || o.pending == 0 && o.client != nil && len(o.client.conns) > 1)
	})
}

// evict ends the connection that was idle for longest; those that wait for
// their turn come last. The mutex is held.
func (s *Server) evict(may func(*conn) bool) bool {
	var oldest *conn
	for c := range s.conns {
		if may(c) && (oldest == nil || c.pending == 0 && oldest.pending > 0 ||
			(c.pending == 0) == (oldest.pending == 0) && c.used.Load() < oldest.used.Load()) {
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	s.counts.evicted.Add(1)
	s.drop(oldest, false)
	return true
}

// refresh reads the file again if its text changed; a bad text changes nothing,
// and is logged once.
func (s *Server) refresh() {
	err := s.reload()
	if err == nil {
		s.bad = ""
	} else if err.Error() != s.bad {
		s.bad = err.Error()
		s.counts.badReloads.Add(1)
		s.log.Error("table of clients is refused, and the previous one stays in force", "err", err)
	}
}

func (s *Server) reload() error {
	text, err := readText(s.options.File)
	if err != nil {
		return err
	}
	if s.text != nil && bytes.Equal(text, s.text) {
		return nil
	}
	table, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", s.options.File, err)
	}
	s.text = text
	for _, w := range table.Warnings {
		s.log.Warn("table of clients has an irregular line", "file", s.options.File, "what", w)
	}
	for _, b := range table.Bad {
		s.log.Error("a line of the table of clients is refused: the previous quota of its client stays in force",
			"file", s.options.File,
			"err", b.Err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	entries := table.Entries
	for _, b := range table.Bad {
		n := s.tokens.find(b.Name)
		if n != nil && !slices.ContainsFunc(entries, func(e Entry) bool { return e.Name == b.Name }) {
			entries = append(entries, n.Entry)
		}
	}
	s.badLines = len(table.Bad)
	gone := s.tokens.replace(now, entries)
	for _, n := range gone {
		for _, w := range n.waiting {
			w.conn.pending--
		}
		s.memory.SetCap(n.Name, 0)
	}
	for _, e := range entries {
		s.memory.SetCap(e.Name, e.Memory)
	}
	for _, c := range s.clients {
		c.tenant = s.tokens.find(c.name)
	}
	s.epoch.Add(1)
	s.counts.reloads.Add(1)
	s.step(now)
	return nil
}

// wake advances turns when they are due.
func (s *Server) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step(s.now())
}

// step advances turns and sets the timer. The mutex is held.
func (s *Server) step(now time.Duration) {
	if s.closed {
		return
	}
	at := s.look(now)
	if wake := s.tokens.step(now); wake != 0 && (at == 0 || wake < at) {
		at = wake
	}
	if at != 0 {
		s.timer.Reset(max(at-s.now(), 0))
	}
}

// grant answers a request for time. The mutex is held.
func (s *Server) grant(w waiter, quota time.Duration) {
	w.conn.pending--
	w.conn.answered, w.conn.over, w.conn.reminded = w.id, s.now()+quota, 0
	w.conn.give(w.id, quota)
}
