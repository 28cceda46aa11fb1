package gemini

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestAHookHasOneRequestAtATime(t *testing.T) {
	s := start(t, two, Options{Turn: time.Second})
	b := dial(t, s, "b")
	b.call(take(1)) // its process is searched for before a's turn begins
	dial(t, s, "a").call(Request{Kind: Quota})
	b.send(Request{Kind: Quota})
	b.send(Request{Kind: Quota})
	b.ended()
	until(t, s, "it is counted", func(st Stats) bool { return st.Malformed == 1 })
}

func TestHostileBytes(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	fixture.Value(h.conn.Write([]byte(strings.Repeat("GET / HTTP/1.1\r\n", 5))))(t)
	h.ended()
	h = dial(t, s, "a") // a connection keeps its name
	h.call(take(1))
	h.name = "b"
	h.send(take(1))
	h.ended()
	until(t, s, "both are counted", func(st Stats) bool { return st.Malformed == 2 })
}

func TestSlowClientsAreClosed(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Deadline: 300 * time.Millisecond})
	dial(t, s, "a").ended() // sends nothing
	h := dial(t, s, "a")
	h.call(take(1))
	fixture.Value(h.conn.Write([]byte{1, 0, 0}))(t)
	h.ended() // sends a part of a request only
	idle := dial(t, s, "a")
	idle.call(take(1))
	dial(t, s, "a").ended() // by then idle has exceeded the deadline
	idle.call(take(1))
}

func TestNonReadingClientIsClosed(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{})
	h := dial(t, s, "a")
	h.out, _ = Request{Name: []byte("a"), Kind: MemoryLimit}.Append(nil)
	many := []byte(strings.Repeat(string(h.out), 1000))
	for end := time.Now().Add(soon); time.Now().Before(end); {
		_ = h.conn.SetWriteDeadline(end)
		if _, err := h.conn.Write(many); err != nil {
			until(t, s, "it is gone", func(st Stats) bool { return st.Connections == 0 })
			return
		}
	}
	t.Error("a client may write for ever without reading")
}

func TestManyConnectionsOfOneClient(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Turn: 5 * time.Millisecond})
	first := dial(t, s, "a")
	first.call(take(10))
	for range perClient + 20 { // a new connection for each request, and none is closed
		dial(t, s, "a").call(take(1))
	}
	dial(t, s, "a").call(Request{Kind: Quota})
	st := s.Stats()
	if st.Connections != perClient || st.Evicted != 22 || st.Clients != 1 || st.Tenants[0].Used != perClient+30 {
		t.Errorf("%+v", st)
	}
	first.ended() // the least recently used connection
}

func TestFullHouse(t *testing.T) {
	t.Parallel()
	s := start(t, two, Options{Connections: 3})
	a, b := dial(t, s, "a"), dial(t, s, "b")
	a.call(take(1))
	b.call(take(1))
	again := dial(t, s, "b")
	again.call(take(1))
	third := dial(t, s, "a") // takes the place of b's first connection
	third.call(take(1))
	b.ended()
	again.call(take(1))
	a.call(take(1))
	if st := s.Stats(); st.Evicted != 1 || st.Refused != 0 || st.Connections != 3 {
		t.Errorf("%+v", st)
	}
	_ = third.conn.Close()
	until(t, s, "one has gone", func(st Stats) bool { return st.Connections == 2 })
	silent := dial(t, s, "")
	until(t, s, "one has come", func(st Stats) bool { return st.Connections == 3 })
	dial(t, s, "a").ended() // no client has two connections to give up
	_ = silent
	fixture.Equal(t, s.Stats().Refused, 1, "Refused")
}

func TestIdleConnectionsOfACgroupDoNotLockOthersOut(t *testing.T) {
	t.Parallel()
	const idle, most = 300, 200
	s := start(t, two, Options{Connections: most})
	spawnIn(t, realGroup(t, "idle"), s.address().String(), "GEMINI_TEST_IDLE="+strconv.Itoa(idle))
	until(t, s, "the house is full", func(st Stats) bool { return st.Connections == most && st.Refused > 50 })
	for range 10 {
		h := dial(t, s, "a")
		fixture.Stop(t, !h.call(take(1)).Granted, "refused: %+v", s.Stats())
		defer h.call(take(1)) // it keeps its place
	}
}
