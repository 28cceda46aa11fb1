package exporter

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// pipes is a listener within this process, so that tests control the time.
type pipes struct{ *fixture.Pipes }

// dial returns the client's end of a connection from an address.
func (p pipes) dial(from string) net.Conn { return p.Dial(port(from)) }

// port is a port at an address.
func port(at string) net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(at), 4711))
}

// overPipes serves h over pipes until the test ends.
func overPipes(t *testing.T, h http.Handler) pipes {
	p := pipes{fixture.NewPipes()}
	server := newHTTPServer(h, slog.New(slog.DiscardHandler))
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(p) }()
	t.Cleanup(func() { server.Close(); <-ended })
	return p
}

// asked requests metrics on c, and returns the status of the answer.
func asked(t *testing.T, c net.Conn, path string) int {
	t.Helper()
	fixture.Must(t, fixture.Error(io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n")))
	answer := fixture.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
	defer answer.Body.Close()
	fixture.Must(t, fixture.Error(io.Copy(io.Discard, answer.Body)))
	return answer.StatusCode
}

// cutOff reports whether the server has closed the pipe c.
func cutOff(c net.Conn) bool {
	return errors.Is(c.SetReadDeadline(time.Time{}), io.ErrClosedPipe)
}

func TestNonReadingClientIsDisconnected(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/metrics", "/metrics?name[]=nvgpu_up", "/api/v1/state", "/", "/none"} {
		synctest.Test(t, func(t *testing.T) {
			s := server(t, nil)
			p := overPipes(t, s)
			deaf := p.dial("192.0.2.1")
			fixture.Must(t, fixture.Error(io.WriteString(deaf, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n")))
			synctest.Wait()
			if began, status := time.Now(), asked(t, p.dial("192.0.2.2"), path); time.Since(began) > 0 ||
				status/100 == 5 {
				t.Errorf("beside who does not read %s, another is answered %d after %v", path, status, time.Since(began))
			}
			time.Sleep(sendTimeout)
			synctest.Wait()
			fixture.Equal(t, cutOff(deaf), true, "a client that does not read %s is cut off after %v", path, sendTimeout)
		})
	}
}

// A scrape that had to wait still has the full time to be sent.
func TestSendingHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		p := overPipes(t, server(t, func(o *Options) { o.Samples = g.samples }))
		c := p.dial("192.0.2.1")
		fixture.Must(t, fixture.Error(io.WriteString(c,
			"GET /metrics HTTP/1.1\r\nHost: a\r\n"+scrapeTimeout+": 60\r\n\r\n")))
		time.Sleep(2 * sendTimeout)
		close(g.opened)
		time.Sleep(sendTimeout / 2)
		answer := fixture.Value(http.ReadResponse(bufio.NewReader(c), nil))(t)
		defer answer.Body.Close()
		fixture.Equal(t, answer.StatusCode, http.StatusOK,
			"a scrape that waited %v, and was read %v later: %v", 2*sendTimeout, sendTimeout/2, answer)
	})
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := overPipes(t, server(t, nil))
		var others, many []net.Conn
		for i := range 5 {
			others = append(others, p.dial(netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}).String()))
		}
		for range maxConnections - len(others) {
			many = append(many, p.dial("198.51.100.7"))
		}
		busy := many[0]
		fixture.Equal(t, asked(t, busy, "/metrics"), http.StatusOK, "within the bound, a scrape is answered")
		for range 100 {
			many = append(many, p.dial("198.51.100.7"))
		}
		honest := p.dial("203.0.113.1")
		synctest.Wait()
		cut := 0
		for i, c := range many {
			if !cutOff(c) {
				continue
			}
			cut++
			fixture.AtMost(t, i, 101,
				"connection … of who has too many was cut off before those that were quiet for longer")
		}
		fixture.Equal(t, cut, 101, "… connections of who has too many were cut off")
		for _, c := range append(others, honest, busy) {
			fixture.Equal(t, asked(t, c, "/metrics"), http.StatusOK, "beside who has too many, a scrape is answered")
		}
	})
}

func TestClientsAreIdentifiedByAddress(t *testing.T) {
	for address, want := range map[string]string{
		"192.0.2.1": "192.0.2.1/32", "::ffff:192.0.2.1": "192.0.2.1/32", "127.0.0.1": "::1/128", "127.9.9.9": "::1/128",
		"::1":                  "::1/128",
		"2001:db8:1:2:3:4:5:6": "2001:db8:1:2::/64", "fe80::1%eth0": "fe80::/64",
	} {
		fixture.Equal(t, clientOf(port(address).String()).String(), want, "%s is of", address)
	}
	got := clientOf((&net.UnixAddr{}).String())
	fixture.If(t, got.IsValid(), "a Unix socket is of %s", got)
}

func TestStreamsOfAConnectionAreBounded(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	streams, most := map[string]int{}, 0
	s := httptest.NewUnstartedServer(nil)
	s.Config = newHTTPServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		streams[r.RemoteAddr]++
		most = max(most, streams[r.RemoteAddr])
		mu.Unlock()
		time.Sleep(10 * time.Millisecond) // so that there are several streams
		mu.Lock()
		streams[r.RemoteAddr]--
		mu.Unlock()
	}), slog.New(slog.DiscardHandler))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	ask := func() {
		answer, err := s.Client().Get(s.URL)
		if err != nil {
			t.Error(err)
			return
		}
		answer.Body.Close()
		fixture.Equal(t, answer.ProtoMajor, 2, "answered by %s", answer.Proto)
	}
	ask() // who asks at once before there is a connection makes one for each request, which are too many
	var asking sync.WaitGroup
	for range 3 * maxStreams { // net/http closes a connection with 5 times as many: its handlers may end late
		asking.Go(ask)
	}
	asking.Wait()
	fixture.AtMost(t, most, maxStreams, "… requests at a time on one connection")
}

func TestKernelBuffersLittleForANonReadingClient(t *testing.T) {
	t.Parallel()
	l := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	deaf := fixture.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer deaf.Close()
	fixture.Must(t, deaf.(*net.TCPConn).SetReadBuffer(4<<10))
	c := fixture.Value(l.Accept())(t)
	defer c.Close()
	(&connections{open: map[net.Conn]connection{}}).changed(c, http.StateNew)
	fixture.Must(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
	if n, err := c.Write(make([]byte, 32<<20)); err == nil || n > 4*maxUnsent {
		t.Errorf("the kernel took %d bytes for a client that reads none, %v; want no more than %d", n, err, 4*maxUnsent)
	}
}
