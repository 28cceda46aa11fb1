package exporter

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
)

const (
	maxConnections = 512
	maxStreams     = 16        // of HTTP/2, on one connection
	maxUnsent      = 128 << 10 // bytes that the kernel is given to hold for one connection
)

// connections bounds those of a server. Where there are too many, the client
// that has the most loses the one on which nothing has begun or ended for
// longest: so whoever opens many is in nobody else's way, and the new one is
// always let in.
type connections struct {
	mu   sync.Mutex
	step uint64 // counts what begins and ends
	open map[net.Conn]connection
}

// A connection is what is known of one.
type connection struct {
	client netip.Prefix
	step   uint64 // at which something last began or ended on it
}

// clientOf returns the addresses that whoever is at the other end of c can be
// taken to have: an IPv4 address, a network of IPv6, this host; none where c
// has no IP address.
func clientOf(c net.Conn) netip.Prefix {
	at, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	address, bits := at.AddrPort().Addr().Unmap().WithZone(""), 32
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

// changed is a server's ConnState.
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
		c.open[conn] = connection{clientOf(conn), c.step}
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

// drop closes a connection: the client's who has the most, and of those the
// one that was quiet for longest. Callers hold mu.
func (c *connections) drop() {
	counts := map[netip.Prefix]int{}
	for _, known := range c.open {
		counts[known.client]++
	}
	var quietest net.Conn
	for conn, known := range c.open {
		than := c.open[quietest]
		if n, most := counts[known.client], counts[than.client]; quietest == nil || n > most || n == most && known.step < than.step {
			quietest = conn
		}
	}
	delete(c.open, quietest)
	raw := underTLS(quietest)
	if tcp, ok := raw.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // what it did not read is forgotten with it
	}
	_ = raw.Close() // its handler learns of it
}

// underTLS returns the connection that c is spoken over: what closes TLS may wait.
func underTLS(c net.Conn) net.Conn {
	if secure, ok := c.(*tls.Conn); ok {
		return secure.NetConn()
	}
	return c
}
