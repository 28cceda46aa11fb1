package journal

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

func TestEventsOverHTTP(t *testing.T) {
	j, _, err := Open(Options{})
	fixture.Must(t, err)
	get := func(query string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		j.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/api/v1/events"+query, nil))
		return w
	}
	if w := get(""); w.Body.String() != `{"events":[],"lost":0}`+"\n" ||
		w.Header().Get("Content-Type") != "application/json" || w.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("without events the answer is %q, %v", w.Body, w.Header())
	}
	for n := range 5 {
		j.Append(happened(n))
	}
	j.lost["io"] = 7
	w := get("?limit=2&severity=warning&follow=0")
	var answer struct {
		Events []incident.Event
		Lost   int
	}
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || len(answer.Events) != 2 ||
		answer.Events[0].Code != 4 || answer.Lost != 7 {
		t.Errorf("%s, %v", w.Body, err)
	}
	for query, want := range map[string]string{
		"?severity=bad":       `severity: "bad" is not one of none, `,
		"?sevrity=warning":    `there is no parameter "sevrity"`,
		"?follow=always":      `follow: "always" is not 1 or 0`,
		"?follow=1&until=15m": "until: a stream has no end",
		"?follow=1&limit=0":   "limit:",
		"?follow=1&follow=0":  `follow: "1, 0" is not 1 or 0`,
	} {
		if w := get(query); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d %q, want 400 with %q", query, w.Code, w.Body, want)
		}
	}
}

// A client is a ResponseWriter that a test can read while it is written.
type client struct {
	mu     sync.Mutex
	text   strings.Builder
	header http.Header
	status int
	stall  chan struct{} // not nil: writes wait until it is closed
	until  time.Time     // deadline of the writes
}

func (c *client) Header() http.Header                    { return c.header }
func (c *client) WriteHeader(status int)                 { c.status = status }
func (c *client) Flush()                                 {}
func (c *client) SetWriteDeadline(until time.Time) error { c.until = until; return nil }

func (c *client) Write(p []byte) (int, error) {
	if c.stall != nil {
		<-c.stall
	}
	if !c.until.After(time.Now()) && c.status == 0 {
		return 0, errors.New("no time to write is set")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.text.Write(p)
}

// read returns the text written since the last call.
func (c *client) read() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	defer c.text.Reset()
	return c.text.String()
}

// follow lets a client follow j until leave is called; ended is closed after its handler returns.
func follow(t *testing.T, j *Journal, query, lastID string, stall chan struct{}) (c *client, leave func(),
	ended chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/events?"+query, nil)
	r.Header.Set("Accept", "text/event-stream")
	if lastID != "" {
		r.Header.Set("Last-Event-ID", lastID)
	}
	c, ended = &client{header: http.Header{}, stall: stall}, make(chan struct{})
	go func() { defer close(ended); j.ServeHTTP(c, r) }()
	t.Cleanup(cancel)
	synctest.Wait()
	return c, cancel, ended
}

// ids returns the ids of server-sent events.
func ids(text string) (ids []string) {
	for l := range strings.Lines(text) {
		if id, ok := strings.CutPrefix(l, "id: "); ok {
			ids = append(ids, strings.TrimSpace(id))
		}
	}
	return ids
}

func TestStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, _, _, _ := testJournal(t, Options{})
		j.Append(happened(0))
		c, leave, ended := follow(t, j, "severity=warning", "", nil)
		if got := c.read(); got != "retry: 3000\n\n" || c.header.Get("Content-Type") != "text/event-stream" {
			t.Errorf("a stream begins with %q, %v", got, c.header)
		}
		quiet := happened(1)
		quiet.Severity = incident.Info
		j.Append(quiet)
		j.Append(happened(2))
		want := "id: i2\nevent: incident\ndata: " + strings.TrimSpace(journalText(t, j.Events(Filter{Limit: 1})...)) +
			"\n\n"
		fixture.Equal(t, c.read(), want, "read")
		time.Sleep(2*heartbeat + time.Second)
		fixture.Equal(t, c.read(), ": nothing new\n\n: nothing new\n\n", "in 31 s")
		j.Append(incident.Event{ID: "a\nid: b", Kind: "x\ny", Severity: incident.Warning, Message: "two\nlines"})
		if got := c.read(); !strings.HasPrefix(got, "id: a id: b\nevent: x y\ndata: {") ||
			strings.Count(got, "\n") != 4 {
			t.Errorf("an event with line ends is sent as %q", got)
		}
		fixture.Equal(t, journalSample(t, j, Streams), 1, "streams")
		leave()
		<-ended
		fixture.Equal(t, journalSample(t, j, Streams), 0, "streams after the client left")
	})
}

func TestStreamsResumeWhereTheyBroke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, _, _, _ := testJournal(t, Options{})
		for n := range 5 {
			j.Append(happened(n))
		}
		j.Append(happened(2)) // the client may have seen it or not
		for _, c := range []struct{ query, last, want string }{
			{"", "", "[]"},
			{"", "i3", "[i4 i2]"},
			{"", "i2", "[i3 i4 i2]"},
			{"", "unknown", "[i0 i1 i3 i4 i2]"},
			{"limit=2", "unknown", "[i4 i2]"},
			{"since=1000000003", "", "[i3 i4]"},
			{"severity=critical", "i0", "[]"},
		} {
			client, leave, ended := follow(t, j, c.query, c.last, nil)
			fixture.Equal(t, fmt.Sprint(ids(client.read())), c.want, "%q after %q", c.query, c.last)
			leave()
			<-ended
		}
		for n := range 2 * defaultLimit {
			j.Append(happened(100 + n))
		}
		client, _, _ := follow(t, j, "", "i3", nil)
		fixture.Equal(t, len(ids(client.read())), 2*defaultLimit+2, "… events after a long break, want all")
	})
}

func TestSlowClientIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, _, _, _ := testJournal(t, Options{})
		stall := make(chan struct{})
		slow, _, ended := follow(t, j, "", "", stall)
		quick, _, _ := follow(t, j, "", "", nil)
		for n := range maxBehind + 10 {
			j.Append(happened(n))
			synctest.Wait()
		}
		fixture.Equal(t, journalSample(t, j, Streams), 1, "streams")
		fixture.Equal(t, len(ids(quick.read())), maxBehind+10, "the quick client got")
		close(stall)
		<-ended
		got := ids(slow.read())
		fixture.If(t, len(got) == 0 || len(got) > maxBehind+1 || got[len(got)-1] != fmt.Sprint("i", len(got)-1),
			"the slow client got %d, the last %v", len(got), got)
	})
}

func TestStreamsEndWithTheJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j, _, _, end := testJournal(t, Options{})
		_, _, first := follow(t, j, "", "", nil)
		end()
		<-first // otherwise synctest reports a deadlock
		late, _, ended := follow(t, j, "", "", nil)
		<-ended
		fixture.Equal(t, late.status, http.StatusServiceUnavailable, "after the end")
	})
}

// A stream outlives the server's time limit for answers, and ends with the agent.
func TestStreamsOverARealConnection(t *testing.T) {
	t.Parallel()
	j, _, _, end := testJournal(t, Options{})
	live := httptest.NewUnstartedServer(j)
	live.Config.WriteTimeout = 50 * time.Millisecond // the control socket has one
	live.Start()
	defer live.Close()
	answer := fixture.Value(http.Get(live.URL + "?follow=1"))(t)
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	next := func() string {
		for {
			l, err := lines.ReadString('\n')
			if err != nil {
				return err.Error()
			}
			if strings.HasPrefix(l, "id: ") {
				return l
			}
		}
	}
	for n := range 3 {
		<-time.After(40 * time.Millisecond)
		j.Append(happened(n))
		fixture.Need(t, next(), fmt.Sprintf("id: i%d\n", n), "the stream broke")
	}
	end()
	fixture.Equal(t, next(), "EOF", "at the end of the agent")
}

// TestQuietStreamsContinue lets minutes pass without events: a stream of either
// protocol continues, even from a server that limits the duration of answers.
func TestQuietStreamsContinue(t *testing.T) {
	for _, version := range []int{1, 2} {
		synctest.Test(t, func(t *testing.T) {
			j, _, _, _ := testJournal(t, Options{})
			var protocols http.Protocols
			protocols.SetHTTP1(version == 1)
			protocols.SetUnencryptedHTTP2(version == 2)
			at, server := fixture.NewPipes(), &http.Server{Handler: j, WriteTimeout: eventsTimeout, Protocols: &protocols}
			ended := make(chan error)
			go func() { ended <- server.Serve(at) }()
			dial := func(context.Context, string, string) (net.Conn, error) { return at.Dial(&net.TCPAddr{}), nil }
			client := &http.Client{Transport: &http.Transport{DialContext: dial, Protocols: &protocols}}
			r := fixture.Value(http.NewRequestWithContext(t.Context(), http.MethodGet,
				"http://agent/api/v1/events?follow=1", nil))(t)
			answer := fixture.Value(client.Do(r))(t)
			defer answer.Body.Close()
			fixture.Equal(t, answer.ProtoMajor, version, "answered by %s", answer.Proto)
			var told []string
			read := make(chan error)
			go func(lines *bufio.Scanner) {
				for lines.Scan() {
					told = append(told, ids(lines.Text())...)
				}
				read <- lines.Err()
			}(bufio.NewScanner(answer.Body))
			for n := range 3 {
				time.Sleep(4*heartbeat - time.Second)
				j.Append(happened(n))
				synctest.Wait()
			}
			answer.Body.Close()
			if err := <-read; !slices.Equal(told, []string{"i0", "i1", "i2"}) {
				t.Errorf("HTTP/%d: a stream of events a minute apart told %q, and ended with %v", version, told, err)
			}
			client.CloseIdleConnections()
			server.Close()
			<-ended
		})
	}
}

// A timeless answer does not support deadlines for writes.
type timeless struct{ *httptest.ResponseRecorder }

func (timeless) SetWriteDeadline(time.Time) error { return errors.New("no deadlines") }

// TestUnboundedStreamEnds holds that there is no stream to a client that could block it for ever.
func TestUnboundedStreamEnds(t *testing.T) {
	j, _, err := Open(Options{})
	fixture.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	w := timeless{httptest.NewRecorder()}
	j.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/events?follow=1", nil))
	if ctx.Err() != nil || w.Body.Len() > 0 {
		t.Errorf("it ended with %v, after %q", ctx.Err(), w.Body)
	}
}

// A broken answer fails in one of the ways in which a client can vanish.
type broken struct {
	client
	writing, flushing error
	writes            int
}

func (b *broken) FlushError() error { return b.flushing }

func (b *broken) Write(p []byte) (int, error) {
	b.writes++
	return len(p), b.writing
}

// TestStreamEndsWithItsClient holds that the first failure ends a stream, so that a vanished client occupies no place.
func TestStreamEndsWithItsClient(t *testing.T) {
	gone := errors.New("the client is gone")
	for name, c := range map[string]struct {
		writing, flushing error
		ends              bool
	}{"it is there": {}, "it takes nothing": {writing: gone, ends: true},
		"nothing reaches it": {flushing: gone, ends: true}} {
		synctest.Test(t, func(t *testing.T) {
			j, _, _, _ := testJournal(t, Options{})
			b := &broken{client: client{header: http.Header{}}, writing: c.writing, flushing: c.flushing}
			ctx, leave := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				j.ServeHTTP(b, httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/events?follow=1", nil))
			}()
			synctest.Wait()
			n := journalSample(t, j, Streams)
			fixture.If(t, b.writes != 1 || (n == 0) != c.ends, "%s: %v streams after %d writes", name, n, b.writes)
			leave()
			<-ended
		})
	}
}
