package gemini

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// An origin is the source of connections: a cgroup of this host, or another
// host.
type origin struct {
	cgroup uint64
	host   netip.Addr // if the kernel does not list the socket
}

// A key identifies the client of a connection: by its process or, if the kernel
// does not know that, by its origin.
type key struct {
	name string
	pid  int
	origin
}

// A client is a process under a hook. Its connections come and go: some clients
// open one for each request. The server's mutex guards it.
type client struct {
	key
	peer    peer
	session uint64  // of the ledger
	tenant  *tenant // nil: the name is no longer in the file
	conns   []*conn
	token   uint64        // turn that it may launch in
	late    time.Duration // how late it came back from its last one
	carry   int64         // bytes: see refund
}

// resolve finds the client of a connection, and its terms. It returns false if
// the name is unknown, or another cgroup's.
func (s *Server) resolve(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.served = false
	if s.tokens.find(c.name) != nil && !c.sought {
		c.sought = true
		s.mu.Unlock()
		c.peer = s.seek(c)
		s.mu.Lock()
	}
	n := s.tokens.find(c.name)
	if n == nil {
		s.tell(c, "it is not in the file")
		return false
	}
	if c.client == nil && !s.join(c, n) {
		return false
	}
	c.served, c.session, c.limit = true, c.client.session, n.Memory
	return true
}

// join adds a connection to its client. The mutex is held.
func (s *Server) join(c *conn, n *tenant) bool {
	if _, there := s.conns[c]; !there {
		return false // dropped meanwhile
	}
	id := key{name: c.name, pid: c.peer.pid}
	if id.pid == 0 {
		id.origin = c.from
	}
	k := s.clients[id]
	if k != nil && id.pid != 0 && k.peer.gone() {
		s.end(k) // another process has its number now
		k = nil
	}
	if k == nil {
		if why := s.objection(c); why != "" {
			s.tell(c, why)
			return false
		}
		s.next++
		k = &client{key: id, session: s.next, tenant: n, peer: c.peer}
		s.clients[id] = k
	} else {
		c.peer.close()
	}
	c.peer = peer{socket: c.peer.socket} // the client owns it now
	c.client = k
	k.conns = append(k.conns, c)
	if len(k.conns) > perClient {
		s.evict(func(o *conn) bool { return o.client == k && o != c && o.pending == 0 })
	}
	return true
}

// objection returns the reason against a new client.
func (s *Server) objection(c *conn) string {
	if len(s.clients) >= s.options.Connections {
		return "there are too many clients"
	}
	for _, o := range s.clients {
		if o.name == c.name && o.peer.known() && !o.peer.beside(c.peer) {
			return "it is bound to another cgroup"
		}
	}
	return ""
}

// seek returns the process at the other end, if this host can find it.
func (s *Server) seek(c *conn) peer {
	if c.peer.socket == (socket{}) {
		return c.peer
	}
	defer s.finder.begin(c.peer.cgroup)()
	var first []int
	s.mu.Lock()
	if _, there := s.conns[c]; !there || s.closed {
		s.mu.Unlock()
		return c.peer
	}
	for k := range s.clients {
		if k.name == c.name && k.pid != 0 {
			first = append(first, k.pid)
		}
	}
	s.mu.Unlock()
	slices.Sort(first)
	p, err := s.finder.find(c.peer.socket, first)
	if err != nil {
		s.counts.unseen.Add(1)
		s.log.Debug("the process of a connection is unknown", "name", c.name, "err", err)
	}
	return p
}

// tell counts a name that gets nothing, and logs one now and then. The mutex is
// held.
func (s *Server) tell(c *conn, why string) {
	if now := s.now(); s.told == 0 || now-s.told > tellTime {
		s.told = now
		s.log.Warn("a client is not served", "name", c.name, "why", why, "pid", c.peer.pid, "address", c.remote)
	}
}

// drop forgets a connection. If its client ended the last one and is gone, the
// client goes too. The mutex is held.
func (s *Server) drop(c *conn, byClient bool) {
	if _, there := s.conns[c]; !there {
		return
	}
	delete(s.conns, c)
	if s.origins[c.from]--; s.origins[c.from] == 0 {
		delete(s.origins, c.from)
	}
	_ = c.tcp.Close()
	k := c.client
	if k == nil {
		return
	}
	k.conns = slices.DeleteFunc(k.conns, func(o *conn) bool { return o == c })
	if k.tenant != nil {
		s.tokens.forget(k.tenant, c)
	}
	if !byClient {
		return
	}
	if k.pid == 0 { // presumably the connection's memory ended with it
		s.refund(k, c.net)
	}
	if s.gone(k) {
		s.end(k)
	} else if len(k.conns) == 0 {
		s.left[k] = struct{}{}
	}
	s.step(s.now())
}

// gone reports whether a client will not come back: it has no connection, and
// its process has ended. If the process is unknown, the client goes with its
// turn: some open a connection for each request, and have kernels on the GPU in
// between.
func (s *Server) gone(k *client) bool {
	return len(k.conns) == 0 && k.peer.gone() && (k.pid != 0 || !s.tokens.holds(k))
}

// look ends clients that are gone. It returns the time of the next call; 0: not
// before a client leaves. The mutex is held.
func (s *Server) look(now time.Duration) time.Duration {
	for k := range s.left {
		switch {
		case s.gone(k):
			s.end(k)
		case len(k.conns) > 0 || !s.tokens.holds(k):
			delete(s.left, k) // sweep handles clients without a turn
		}
	}
	if len(s.left) == 0 {
		return 0
	}
	return now + lookTime
}

// refund frees what a connection took. If it gave back memory that another
// connection of the client took, that counts against the next one.
func (s *Server) refund(k *client, net int64) {
	k.carry += net
	if k.carry > 0 {
		_ = s.memory.Free(k.session, uint64(k.carry))
		k.carry = 0
	}
}

// ask lets a request for time wait for its turn. No answer means no: an unknown
// client waits for ever.
func (s *Server) ask(c *conn, now time.Duration, r *Request) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := c.client
	switch {
	case !c.served || k == nil || k.tenant == nil:
		s.counts.unknown.Add(1)
		return nil
	case c.pending >= waiters[s.options.Role]:
		return errFrame
	}
	c.pending++
	c.over = 0
	s.tokens.ask(now, waiter{client: k, conn: c, id: r.ID, burst: duration(r.Burst)}, duration(r.Overuse))
	s.step(now)
	return nil
}

// end forgets a client with an ended process. The mutex is held.
func (s *Server) end(k *client) {
	for _, c := range slices.Clone(k.conns) {
		s.drop(c, false) // a child has them, and is another process
	}
	s.tokens.release(k)
	delete(s.left, k)
	s.memory.End(k.session)
	s.memory.Release(k.session)
	k.peer.close()
	delete(s.clients, k.key)
}

// bury ends the clients of a connection's name whose process has ended, though a
// child may have their connections: the driver has their memory back. It returns
// false if the connection's own was among them.
func (s *Server) bury(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.clients {
		if k.name == c.name && k.pid != 0 && k.peer.gone() {
			s.end(k)
		}
	}
	_, there := s.conns[c]
	return there
}

// sweep ends clients whose process ended while they had no connection, and
// reminds silent ones, until ctx ends.
func (s *Server) sweep(ctx context.Context) {
	tick := time.NewTicker(s.options.tick)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.mu.Lock()
		for _, k := range s.clients {
			if s.gone(k) {
				s.end(k)
			}
		}
		for c := range s.conns {
			c.remind(s.now())
		}
		s.step(s.now())
		s.mu.Unlock()
	}
}
