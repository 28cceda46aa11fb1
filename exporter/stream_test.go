package exporter

import (
	"bufio"
	"compress/gzip"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// A watcher is a client of the stream within the process, with everything that it was sent.
type watcher struct {
	http.ResponseWriter // nil; header and body are below
	header              http.Header
	body                fixture.Transcript
	status              int
	stuck               chan struct{} // if not nil, writes wait until it is closed
	left, ended         chan struct{}
}

func (w *watcher) Header() http.Header { return w.header }
func (w *watcher) WriteHeader(s int)   { w.status = s }
func (w *watcher) Flush()              {}
func (w *watcher) Write(b []byte) (int, error) {
	if w.stuck != nil {
		<-w.stuck
	}
	return w.body.Write(b)
}

// states returns the states that the watcher got.
func (w *watcher) states(t *testing.T) (all []State) {
	t.Helper()
	for _, message := range strings.SplitAfter(w.body.String(), "\n\n") {
		if message == "" {
			continue
		}
		data, ok := strings.CutPrefix(message, "event: state\nretry: 1000\ndata: ")
		var s State
		err := json.Unmarshal([]byte(data), &s)
		fixture.Stop(t, !ok || err != nil, "not a state: %q, %v", message, err)
		all = append(all, s)
	}
	return all
}

// watch follows the stream until leave, or until it ends.
func watch(t *testing.T, s *Server, stuck chan struct{}) *watcher {
	w := &watcher{header: http.Header{}, stuck: stuck, left: make(chan struct{}), ended: make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/live", nil)
	go func() { defer close(w.ended); s.ServeHTTP(w, r) }()
	go func() {
		select {
		case <-w.left:
		case <-w.ended:
		}
		cancel()
	}()
	return w
}

// leave ends the watcher.
func (w *watcher) leave() { close(w.left); <-w.ended }

func TestStreamSendsAStateEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rendered atomic.Int32
		s := server(t, func(o *Options) {
			o.Samples = func() []collectors.Sample { rendered.Add(1); return twoGPUs }
		})
		fixture.Running(t, s.live.run)
		synctest.Wait()
		all := []*watcher{watch(t, s, nil), watch(t, s, nil), watch(t, s, nil)}
		synctest.Wait()
		for _, w := range all {
			got := w.states(t)
			fixture.If(t, len(got) != 1 || len(got[0].GPUs) != 2, "at once, a viewer is told %d states", len(got))
		}
		fixture.Equal(t, rendered.Load(), 1, "three viewers made … renderings")
		time.Sleep(10*liveInterval + liveInterval/2)
		synctest.Wait()
		for _, w := range all {
			got := w.states(t)
			fixture.If(t, len(got) < 11 || len(got) > 12, "in ten seconds, a viewer was told %d states", len(got))
			fixture.Equal(t, w.header.Get("Content-Type"), "text/event-stream", "the stream is")
		}
		n := rendered.Load()
		fixture.If(t, n < 11 || n > 12, "three viewers made %d renderings in ten seconds", n)
		for _, w := range all {
			w.leave()
		}
		before := rendered.Load()
		time.Sleep(20 * liveInterval)
		synctest.Wait()
		if more := rendered.Load() - before; more > 5 { // for the history
			t.Errorf("without clients there were %d renderings in 20 s, want at most 5", more)
		}
	})
}

func TestStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server(t, nil)
		fixture.Running(t, s.live.run)
		var all []*watcher
		for range maxViewers {
			all = append(all, watch(t, s, nil))
		}
		synctest.Wait()
		w := request(s, http.MethodGet, "/api/v1/live")
		wantAnswer(t, w, http.StatusServiceUnavailable, "32 clients follow")
		fixture.Equal(t, w.Header().Get("Retry-After") == "", false, "it does not say when to come again")
		all[0].leave()
		again := watch(t, s, nil)
		synctest.Wait()
		got := again.states(t)
		fixture.If(t, len(got) != 1, "a viewer left, and the next is told %d states", len(got))
		for _, w := range append(all[1:], again) {
			w.leave()
		}
		fixture.Equal(t, len(s.live.viewers), 0, "all left, and there are … viewers")
	})
}

// TestNoClientTakesAllStreams: who has most gives way, the last one first, to who has fewer even then.
func TestNoClientTakesAllStreams(t *testing.T) {
	for _, path := range []string{"/api/v1/live", "/api/v1/events"} {
		synctest.Test(t, func(t *testing.T) {
			s, open := server(t, func(o *Options) {
				o.Events = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
			}), [4]atomic.Int32{}
			for i := range 4*maxViewers + 1 {
				client := 1 + i/(2*maxViewers)
				r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", client)
				go func() {
					open[client].Add(1)
					s.ServeHTTP(httptest.NewRecorder(), r)
					open[client].Add(-1)
				}()
				synctest.Wait()
			}
			fixture.Equal(t, fmt.Sprint(open[1].Load(), open[2].Load(), open[3].Load()), "16 15 1", "%s: streams of the clients", path)
		})
	}
}

// A viewer that does not read costs a few frames, then its place.
func TestSlowViewerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := server(t, nil)
		fixture.Running(t, s.live.run)
		stuck := make(chan struct{})
		slow, quick := watch(t, s, stuck), watch(t, s, nil)
		time.Sleep((viewerBehind + 3) * liveInterval)
		synctest.Wait()
		fixture.Equal(t, len(s.live.viewers), 1, "there are … viewers")
		close(stuck)
		<-slow.ended
		before := len(quick.states(t))
		time.Sleep(2 * liveInterval)
		synctest.Wait()
		fixture.Equal(t, len(quick.states(t)), before+2, "in two seconds beside a slow one, the quick viewer was told")
		quick.leave()
	})
}

func TestStreamsEndWithTheServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine stays
		s := server(t, nil)
		stop := fixture.Running(t, s.live.run)
		w := watch(t, s, nil)
		synctest.Wait()
		stop()
		<-w.ended
		wantAnswer(t, request(s, http.MethodGet, "/api/v1/live"), http.StatusServiceUnavailable, "shutting down")
	})
}

// A compressed stream is one gzip file, whenever the viewer joins, and can be read as it arrives.
func TestStreamIsCompressedOnce(t *testing.T) {
	t.Parallel()
	s := server(t, nil)
	stop := fixture.Running(t, s.live.run)
	live := httptest.NewServer(s)
	defer live.Close()
	for _, encoding := range []string{"gzip, deflate, br, zstd", "identity", "gzip;q=0"} {
		r := fixture.Value(http.NewRequestWithContext(t.Context(), http.MethodGet, live.URL+"/api/v1/live", nil))(t)
		r.Header.Set("Accept-Encoding", encoding)
		answer := fixture.Value(http.DefaultClient.Do(r))(t)
		defer answer.Body.Close()
		var body io.Reader = answer.Body
		if packed := answer.Header.Get("Content-Encoding") == "gzip"; packed != strings.HasPrefix(encoding, "gzip,") {
			t.Errorf("for %q the stream is compressed: %v", encoding, packed)
		} else if packed {
			body = fixture.Value(gzip.NewReader(answer.Body))(t)
		}
		lines := bufio.NewReader(body)
		for states := 0; states < 2; {
			line := fixture.Value(lines.ReadString('\n'))(t)
			if strings.HasPrefix(line, "data: ") {
				states++
			}
		}
		if encoding == "gzip;q=0" { // the last case
			stop()
		} else {
			defer func() {
				if _, err := io.Copy(io.Discard, lines); err != nil { // checks the checksum and the length
					t.Errorf("the end of a stream as %q: %v", encoding, err)
				}
			}()
		}
	}
}
