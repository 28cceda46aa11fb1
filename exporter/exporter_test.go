package exporter

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/internal/fixture"
)

// server returns a server with two GPUs, unless change says otherwise.
func server(t testing.TB, change func(o *Options)) *Server {
	t.Helper()
	o := Options{
		Samples: func() []collectors.Sample { return twoGPUs },
		Ready:   func() error { return nil },
		Log:     slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&o)
	}
	return fixture.Value(New(o))(t)
}

var twoGPUs = []collectors.Sample{
	{Metric: collectors.Up, Labels: []string{"0", "GPU-a"}, Value: 1},
	{Metric: device.MemoryBytes, Labels: []string{"0", "GPU-a", "used"}, Value: 1 << 30},
	{Metric: collectors.Up, Labels: []string{"1", "GPU-b"}, Value: 0},
	{Metric: device.Energy, Labels: []string{"0", "GPU-a", "gpu"}, Value: 87.704},
}

// request sends a request to s and returns the whole answer. The headers are names and values.
func request(s http.Handler, method, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, nil)
	for h := range slices.Chunk(headers, 2) {
		r.Header.Set(h[0], h[1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

// wantAnswer fails unless the answer has this status and contains text.
func wantAnswer(t *testing.T, w *httptest.ResponseRecorder, status int, text string) {
	t.Helper()
	fixture.If(t, w.Code != status || !strings.Contains(w.Body.String(), text),
		"answer %d %q, want %d with %q", w.Code, w.Body, status, text)
}

func TestEventsAreServedAsTheyCome(t *testing.T) {
	s := server(t, nil)
	wantAnswer(t, request(s, http.MethodGet, "/api/v1/events"), http.StatusNotFound, "not found")
	fixture.If(t, strings.Contains(request(s, http.MethodGet, "/").Body.String(), "api/v1/events"),
		"the page links to events that are not served")
	more := make(chan string)
	s = server(t, func(o *Options) {
		o.Events = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for text := range more {
				io.WriteString(w, r.URL.RawQuery+" "+text+"\n")
				err := http.NewResponseController(w).Flush()
				fixture.If(t, err != nil, "%v", err)
			}
		})
	})
	wantAnswer(t, request(s, http.MethodGet, "/"), http.StatusOK, `href="api/v1/events"`)
	wantAnswer(t, request(s, http.MethodPost, "/api/v1/events"), http.StatusMethodNotAllowed, "")
	live := httptest.NewServer(s)
	defer live.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, live.URL+"/api/v1/events?follow=1", nil)
	fixture.Must(t, err)
	r.Header.Set("Accept-Encoding", "gzip") // a compressed stream would arrive late
	go func() { more <- "first" }()
	answer := fixture.Value(http.DefaultClient.Do(r))(t)
	defer answer.Body.Close()
	lines := bufio.NewReader(answer.Body)
	for _, text := range []string{"first", "second"} { // each is read before the next is written
		fixture.Equal(t, fixture.Value(lines.ReadString('\n'))(t), "follow=1 "+text+"\n", "read")
		if text == "first" {
			more <- "second"
		}
	}
	close(more)
}

func TestOnlyReads(t *testing.T) {
	s := server(t, nil)
	for _, path := range []string{"/", "/metrics", "/metrics/dcgm", "/api/v1/state", "/api/v1/history", "/api/v1/live",
		"/-/healthy", "/-/ready"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete} {
			wantAnswer(t, request(s, method, path), http.StatusMethodNotAllowed, "Method Not Allowed")
		}
		wantAnswer(t, request(s, http.MethodHead, path), http.StatusOK, "")
	}
}

func TestProbes(t *testing.T) {
	why := errors.New("gpu 3 has not been read yet")
	s := server(t, func(o *Options) { o.Ready = func() error { return why } })
	wantAnswer(t, request(s, http.MethodGet, "/-/healthy"), http.StatusOK, "healthy")
	wantAnswer(t, request(s, http.MethodGet, "/-/ready"), http.StatusServiceUnavailable, "gpu 3 has not been read yet")
	why = nil
	wantAnswer(t, request(s, http.MethodGet, "/-/ready"), http.StatusOK, "is ready")
}

// Values from /proc change with the timer: a scrape shows the last gathering, and the next tick brings a new one.
func TestProcessMetricsComeFromTheTimer(t *testing.T) {
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Fatal(err) // the process collector would have no values
	}
	synctest.Test(t, func(t *testing.T) {
		gathered := 0
		s := server(t, func(o *Options) {
			o.Samples = func() []collectors.Sample { gathered++; return twoGPUs }
		})
		const name = "process_cpu_seconds_total"
		body := request(s, http.MethodGet, "/metrics").Body.String()
		fixture.If(t, strings.Contains(body, name) ||
			strings.Contains(body, "go_goroutines"), "a scrape gathered what only the timer may")
		s.self.gather()
		fixture.Running(t, s.self.run)
		synctest.Wait()
		first := s.self.latest.Load()
		one, two := request(s, http.MethodGet, "/metrics"), request(s, http.MethodGet, "/metrics")
		wantAnswer(t, one, http.StatusOK, name)
		wantAnswer(t, one, http.StatusOK, "go_goroutines")
		fixture.If(t, one.Body.String() != two.Body.String() || s.self.latest.Load() != first,
			"a second scrape before the next tick says something else")
		fixture.Equal(t, gathered, 3, "three scrapes asked for samples … times")
		time.Sleep(selfInterval + time.Second)
		synctest.Wait()
		fixture.Equal(t, s.self.latest.Load() == first, false, "nothing new after %v", selfInterval)
	})
}

// TestChosenNames chooses each family of each format by itself: together they are the whole response.
func TestChosenNames(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	samples := newHost(t, "mixed").Samples()
	s := server(t, func(o *Options) { o.Samples = func() []collectors.Sample { return samples } })
	for path, offered := range formats {
		for _, format := range offered {
			all := request(s, http.MethodGet, path, "Accept", string(format))
			whole, kind := all.Body.String(), all.Header().Get("Content-Type")
			end, found := "", 0
			if strings.HasSuffix(whole, "# EOF\n") {
				end = "# EOF\n"
			}
			left := strings.TrimSuffix(whole, end)
			for name := range parse(t, request(s, http.MethodGet, path).Body) {
				w := request(s, http.MethodGet, path+"?name[]="+name, "Accept", string(format), "Accept-Encoding", "gzip")
				one, ended := strings.CutSuffix(w.Body.String(), end)
				if got := w.Header().Get("Content-Type"); got != kind || w.Header().Get("Content-Encoding") != "" ||
					!ended {
					t.Errorf("%s as %s is answered as %s, and its end is there: %v", name, format, got, ended)
				}
				if strings.Count(left, one) != 1 || one == "" {
					t.Errorf("%s of %s as %s: %q", name, path, format, one)
					continue
				}
				left = strings.Replace(left, one, "", 1)
				found++
			}
			fixture.If(t, left != "" || found < 15, "%d names of %s as %s do not choose %q", found, path, format, left)
			if none := request(s, http.MethodGet, path+"?name[]=none", "Accept",
				string(format)).Body.String(); none != end {
				t.Errorf("a name that is not there chooses %q of %s as %s", none, path, format)
			}
		}
	}
}

// TestPageURL checks that the URL can be opened on the host.
func TestPageURL(t *testing.T) {
	for address, host := range map[string]string{":0": "localhost", "0.0.0.0:0": "localhost", "127.0.0.1:0": "127.0.0.1"} {
		l := fixture.Value(net.Listen("tcp", address))(t)
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		fixture.Equal(t, pageURL(l), fmt.Sprintf("http://%s:%d", host, port), "a listener at %s is told as", address)
		fixture.Equal(t, pageURL(tls.NewListener(l, nil)), fmt.Sprintf("https://%s:%d", host, port),
			"a listener of TLS at %s is told as", address)
	}
}
