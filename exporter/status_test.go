package exporter

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// nowhere is an address where nobody answers.
func nowhere(t *testing.T) string {
	s := httptest.NewServer(nil)
	s.Close()
	return s.URL
}

// answering is the address of a server with one answer.
func answering(t *testing.T, status int, body string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestStatusAsksTheSocketFirst(t *testing.T) {
	dir := withSocketDir(t)
	l := fixture.Value(net.Listen("unix", filepath.Join(dir, ControlSocket)))(t)
	agent := &httptest.Server{Listener: l, Config: &http.Server{Handler: server(t,
		func(o *Options) { o.Hostname = "by-socket" })}}
	agent.Start()
	defer agent.Close()
	var out bytes.Buffer
	if err := Status(t.Context(), StatusOptions{RuntimeDir: dir}, &out); err != nil ||
		!strings.HasPrefix(out.String(), "by-socket:") {
		t.Errorf("over the socket: %v\n%s", err, &out)
	}
	other := httptest.NewServer(server(t, func(o *Options) { o.Hostname = "by-url" }))
	defer other.Close()
	out.Reset()
	if err := Status(t.Context(), StatusOptions{RuntimeDir: dir, URL: other.URL + "/"}, &out); err != nil ||
		!strings.HasPrefix(out.String(), "by-url:") {
		t.Errorf("over the URL: %v\n%s", err, &out)
	}
}

func TestStatusAsJSON(t *testing.T) {
	agent := httptest.NewServer(server(t, func(o *Options) { o.Hostname, o.Note = "node17", hostile }))
	defer agent.Close()
	var out bytes.Buffer
	fixture.Must(t, Status(t.Context(), StatusOptions{URL: agent.URL, JSON: true}, &out))
	fits(t, 1000, out.String())
	var s State
	err := json.Unmarshal(out.Bytes(), &s)
	fixture.If(t, err != nil || s.Host.Name != "node17" ||
		s.Host.Note != strings.ToValidUTF8(hostile, "\uFFFD") || len(s.GPUs) != 2, "%v: %+v\n%s", err, s, &out)
}

func TestStatusErrorsNameTheRemedy(t *testing.T) {
	secret := strings.Replace(answering(t, 401, ""), "http://", "http://me:secret@", 1)
	for _, c := range []struct {
		url  string
		want []string
	}{
		{nowhere(t), []string{"no agent answers at http://127.0.0.1:",
			"is gpusteward running? --url takes another address", "refused"}},
		{"node7:9836", []string{"no agent answers at node7:9836", "lacks http:// or https://, as in http://node7:9836"}},
		{"http://[::1", []string{"no agent answers at http://[::1", "missing ']'"}},
		{secret, []string{"requires authentication", "as root", "me:xxxxx@"}},
		{answering(t, 403, ""), []string{"requires authentication"}},
		{answering(t, 404, "404 page not found\n"), []string{"refused by http://", "404 Not Found: 404 page not found: is --url the"}},
		{answering(t, 503, "as many scrapes as may wait (8) are waiting"), []string{"503", "as many scrapes as may wait"}},
		{answering(t, 200, "<html>"), []string{"is not the state", "is that gpusteward?"}},
		{answering(t, 200, ""), []string{"is not the state"}},
		{answering(t, 200, "null"), []string{"is not the state", "is that gpusteward?"}},
		{answering(t, 200, `{"status":"ok"}`), []string{"is not the state", "is that gpusteward?"}},
		{answering(t, 500, "\x1b[2J"), []string{"500", "\ufffd[2J"}},
	} {
		var out bytes.Buffer
		err := Status(t.Context(), StatusOptions{RuntimeDir: t.TempDir(), URL: c.url, Watch: true}, &out)
		if err == nil || out.Len() > 0 {
			t.Errorf("%s: no error, but\n%s", c.url, &out)
			continue
		}
		for _, want := range c.want {
			fixture.Contains(t, err.Error(), want, "%s: %q", c.url, err)
		}
		fixture.Equal(t, strings.ContainsRune(err.Error(), '\x1b'), false, "the error %q moves the cursor", err)
		fixture.Equal(t, strings.Contains(err.Error(), "secret"), false, "the password is in the error")
	}
}

// A socket that hangs is not passed over: the user wants that agent.
func TestStatusOfAHungAgent(t *testing.T) {
	t.Parallel()
	dir := withSocketDir(t)
	l := fixture.Value(net.Listen("unix", filepath.Join(dir, ControlSocket)))(t)
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err := Status(ctx, StatusOptions{RuntimeDir: dir}, new(bytes.Buffer))
	fixture.Fails(t, err, ControlSocket+" does not answer", "of a hung agent")
}

// With any answer of an agent, the status ends or is shown, and stays printable.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"gpus":[null,{"up":true,"faults":[{}],"mig_devices":[{}],"memory_bytes":{"used":1e308},` +
		`"memory_total_bytes":0}],"workloads":[null,{"gpus":[{"index":-1}]}]}`)
	f.Add(`{"host":{"gpus":-1},"gpus":[{"up":true,"utilization_ratio":{"gpu":-1e308},"power_watts":1e308}]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		var s State
		if json.Unmarshal([]byte(answer), &s) == nil {
			fits(t, minWidth, style{width: minWidth}.table(s))
			fitsWatched(t, s)
		}
	})
}

// fitsWatched fails if a section of the watched status is too wide, or moves the
// cursor, whatever is unfolded and in whatever order.
func fitsWatched(t *testing.T, s State) {
	t.Helper()
	v := newView(s, style{width: minWidth})
	v.resize(minWidth, 24)
	for range v.grids {
		for range v.grids[v.section].columns {
			v.press("s")
			v.press("Enter")
			lines, _ := v.screen()
			fits(t, minWidth, strings.Join(lines, "\n"))
		}
		v.press("Tab")
	}
}

// A pipeline is the output of a watched status that is not a terminal.
type pipeline struct {
	text   strings.Builder
	frames int
	last   func() error // called at the third frame
}

func (p *pipeline) Write(b []byte) (int, error) {
	if p.frames++; p.frames == 3 {
		if err := p.last(); err != nil {
			return 0, err
		}
	}
	return p.text.Write(b)
}

func TestWatchOutlivesARestartOfTheAgent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int32
	h := server(t, nil)
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 2 {
			http.Error(w, "restarting\x1b[2J", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	}))
	defer agent.Close()
	out := &pipeline{last: func() error { cancel(); return nil }}
	fixture.Must(t, Status(ctx, StatusOptions{URL: agent.URL, Watch: true, every: time.Millisecond}, out))
	if text := out.text.String(); strings.Count(text, "0 GPUs expected") != 2 ||
		!strings.Contains(strings.Join(strings.Fields(text), " "), "503 Service Unavailable: restarting\ufffd[2J") {
		t.Errorf("two frames and an error are\n%q", text)
	}
	broken := errors.New("broken pipe")
	err := Status(t.Context(), StatusOptions{URL: agent.URL, Watch: true, every: time.Millisecond},
		&pipeline{last: func() error { return broken }})
	fixture.If(t, !errors.Is(err, broken), "without a reader, status returned %v", err)
}
