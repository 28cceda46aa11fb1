package exporter

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

const (
	maxConnections = 512
	maxStreams     = 16        // of HTTP/2, on one connection
	maxUnsent      = 128 << 10 // bytes that the kernel may hold for one connection
	maxViewers     = 32        // at a time, of a path that streams
)

// connections bounds the connections of a server. If there are too many, the
// client with the most loses the one that has been quiet for the longest. A
// client that opens many is in nobody else's way, and a new connection is
// always accepted.
type connections struct {
	mu   sync.Mutex
	step uint64 // counts the changes
	open map[net.Conn]connection
}

// A connection is what the server knows about one connection.
type connection struct {
	client netip.Prefix
	step   uint64 // of the last change on it
}

// clientOf returns the addresses that a peer at an address and port may own: an
// IPv4 address, a network of IPv6, or this host. The result is invalid if the
// peer has no IP address.
func clientOf(peer string) netip.Prefix {
	at, err := netip.ParseAddrPort(peer)
	if err != nil {
		return netip.Prefix{}
	}
	address, bits := at.Addr().Unmap().WithZone(""), 32
	switch {
	case address.IsLoopback():
		address = netip.IPv6Loopback()
		bits = 128
	case address.Is6():
		bits = 64
	}
	client, _ := address.Prefix(bits) // as long as an address at most
	return client
}

// changed is the server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.step++
	switch state {
	case http.StateClosed, http.StateHijacked:
		delete(c.open, conn)
		return
	case http.StateNew:
		if tcp, ok := underTLS(conn).(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(maxUnsent) // as large as it is, then
		}
		c.open[conn] = connection{clientOf(conn.RemoteAddr().String()), c.step}
		if len(c.open) > maxConnections {
			c.drop()
		}
	default:
		if known, ok := c.open[conn]; ok { // not dropped meanwhile
			known.step = c.step
			c.open[conn] = known
		}
	}
}

// drop closes one connection: of the client that has the most, the one that has
// been quiet for the longest. Callers hold mu.
func (c *connections) drop() {
	counts := map[netip.Prefix]int{}
	for _, known := range c.open {
		counts[known.client]++
	}
	var quietest net.Conn
	for conn, known := range c.open {
		than := c.open[quietest]
		if n, most := counts[known.client], counts[than.client]; quietest == nil || n > most ||
			n == most && known.step < than.step {
			quietest = conn
		}
	}
	delete(c.open, quietest)
	raw := underTLS(quietest)
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // unread data is dropped with it
	}
	_ = raw.Close() // its handler gets an error
}

// viewers bound the requests of a path that are answered at a time. If there are
// too many, the client with the most loses the last one to a client that has
// fewer, even then.
type viewers struct {
	mu   sync.Mutex
	open []*follower // the oldest first
}

// A follower is a request that is answered.
type follower struct {
	client netip.Prefix
	end    context.CancelFunc
}

// bound answers with next, which returns when a request's context ends.
func (v *viewers) bound(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := context.WithCancel(r.Context())
		defer end()
		one := &follower{clientOf(r.RemoteAddr), end}
		if !v.join(one) {
			w.Header().Set("Retry-After", "5")
			http.Error(w, fmt.Sprintf("%d clients follow %s already", maxViewers, r.URL.Path), http.StatusServiceUnavailable)
			return
		}
		defer v.leave(one)
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (v *viewers) join(one *follower) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.open) >= maxViewers {
		counts := map[netip.Prefix]int{}
		last := 0
		for _, a := range v.open {
			counts[a.client]++
		}
		for i, a := range v.open {
			if counts[a.client] >= counts[v.open[last].client] {
				last = i
			}
		}
		if counts[v.open[last].client] < counts[one.client]+2 {
			return false
		}
		v.open[last].end()
		v.open = slices.Delete(v.open, last, last+1)
	}
	v.open = append(v.open, one)
	return true
}

func (v *viewers) leave(one *follower) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = slices.DeleteFunc(v.open, func(a *follower) bool { return a == one })
}

// underTLS returns the connection under c. Closing the TLS connection itself
// may block.
func underTLS(c net.Conn) net.Conn {
	if secure, ok := c.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return c
}
