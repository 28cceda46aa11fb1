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
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// nowhere is an address where nobody answers.
func nowhere(t *testing.T) string {
	s := httptest.NewServer(nil)
	s.Close()
	return s.URL
}

func TestStatusAsksTheSocketFirst(t *testing.T) {
	dir := withSocketDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := Status(t.Context(), StatusOptions{URL: agent.URL, JSON: true}, &out); err != nil {
		t.Fatal(err)
	}
	fits(t, 1000, out.String())
	var s State
	if err := json.Unmarshal(out.Bytes(), &s); err != nil || s.Host.Name != "node17" ||
		s.Host.Note != strings.ToValidUTF8(hostile, "\uFFFD") || len(s.GPUs) != 2 {
		t.Errorf("%v: %+v\n%s", err, s, &out)
	}
}

func TestStatusErrorsNameTheRemedy(t *testing.T) {
	answers := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL
	}
	secret := strings.Replace(answers(401, ""), "http://", "http://me:secret@", 1)
	for _, c := range []struct {
		url  string
		want []string
	}{
		{nowhere(t), []string{"no agent answers at http://127.0.0.1:",
			"is gpusteward running? --url takes another address", "refused"}},
		{"http://[::1", []string{"no agent answers at http://[::1", "missing ']'"}},
		{secret, []string{"requires authentication", "as root", "me:xxxxx@"}},
		{answers(403, ""), []string{"requires authentication"}},
		{answers(404, "404 page not found\n"), []string{"refused by http://", "404 Not Found: 404 page not found"}},
		{answers(503, "as many scrapes as may wait (8) are waiting"), []string{"503", "as many scrapes as may wait"}},
		{answers(200, "<html>"), []string{"is not the state", "is that gpusteward?"}},
		{answers(200, ""), []string{"is not the state"}},
		{answers(200, "null"), []string{"is not the state", "is that gpusteward?"}},
		{answers(200, `{"status":"ok"}`), []string{"is not the state", "is that gpusteward?"}},
		{answers(500, "\x1b[2J"), []string{"500", "\ufffd[2J"}},
	} {
		var out bytes.Buffer
		err := Status(t.Context(), StatusOptions{RuntimeDir: t.TempDir(), URL: c.url, Watch: true}, &out)
		if err == nil || out.Len() > 0 {
			t.Errorf("%s: no error, but\n%s", c.url, &out)
			continue
		}
		for _, want := range c.want {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q lacks %q", c.url, err, want)
			}
		}
		if strings.ContainsRune(err.Error(), '\x1b') {
			t.Errorf("an error that moves the cursor: %q", err)
		}
		if strings.Contains(err.Error(), "secret") {
			t.Errorf("the password is in the error: %v", err)
		}
	}
}

// A socket that hangs is not passed over: the user wants that agent.
func TestStatusOfAHungAgent(t *testing.T) {
	dir := withSocketDir(t)
	l, err := net.Listen("unix", filepath.Join(dir, ControlSocket))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	err = Status(ctx, StatusOptions{RuntimeDir: dir}, new(bytes.Buffer))
	if err == nil || !strings.Contains(err.Error(), ControlSocket+" does not answer") {
		t.Errorf("%v, want an error that names the socket", err)
	}
}

// With any answer of an agent, the status ends or is shown, and stays
// printable.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"gpus":[null,{"up":true,"faults":[{}],"mig_devices":[{}],"memory_bytes":{"used":1e308},` +
		`"memory_total_bytes":0}],"workloads":[null,{"gpus":[{"index":-1}]}]}`)
	f.Add(`{"host":{"gpus":-1},"gpus":[{"up":true,"utilization_ratio":{"gpu":-1e308},"power_watts":1e308}]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		var s State
		if json.Unmarshal([]byte(answer), &s) == nil {
			fits(t, minWidth, style{width: minWidth}.table(s))
		}
	})
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

func TestWatchGoesOn(t *testing.T) {
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
	if err := Status(ctx, StatusOptions{URL: agent.URL, Watch: true}, out); err != nil {
		t.Errorf("told to end: %v", err)
	}
	if text := out.text.String(); strings.Count(text, "0 GPUs expected") != 2 ||
		!strings.Contains(strings.Join(strings.Fields(text), " "), "503 Service Unavailable: restarting\ufffd[2J") {
		t.Errorf("two frames and an error are\n%q", text)
	}
	broken := errors.New("broken pipe")
	if err := Status(t.Context(), StatusOptions{URL: agent.URL, Watch: true},
		&pipeline{last: func() error { return broken }}); !errors.Is(err, broken) {
		t.Errorf("without a reader, status returned %v", err)
	}
}

// openTerminal returns the two ends of a terminal of 100 columns and 6 rows.
func openTerminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	t.Cleanup(func() { master.Close() })
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 6, Col: 100}); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

func TestWatchOnATerminal(t *testing.T) {
	for _, plain := range []bool{false, true} {
		t.Run(fmt.Sprintf("NO_COLOR %v", plain), func(t *testing.T) {
			t.Setenv("NO_COLOR", map[bool]string{true: "1"}[plain])
			master, slave := openTerminal(t)
			agent := httptest.NewServer(server(t, func(o *Options) {
				o.Hostname, o.Note = "node17", strings.Repeat("wide", 50)
			}))
			defer agent.Close()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- Status(ctx, StatusOptions{URL: agent.URL, Watch: true}, slave) }()
			var seen bytes.Buffer
			buffer := make([]byte, 4096)
			if err := master.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
				t.Log("no deadline:", err)
			}
			for !strings.HasSuffix(seen.String(), showCursor) {
				n, err := master.Read(buffer)
				if err != nil {
					t.Fatalf("%v after %q", err, seen.String())
				}
				seen.Write(buffer[:n])
				if strings.Count(seen.String(), clearBelow) == 2 {
					cancel()
				}
			}
			if err := <-ended; err != nil {
				t.Error(err)
			}
			checkFrames(t, seen.String(), plain)
		})
	}
}

// checkFrames checks two frames on a terminal of 100 columns and 6 rows.
func checkFrames(t *testing.T, text string, plain bool) {
	t.Helper()
	if !strings.HasPrefix(text, hideCursor+clearScreen+home) || strings.Count(text, clearScreen) != 1 {
		t.Errorf("it does not begin with a clear screen, or clears it again: %q", text)
	}
	if coloured := paints.MatchString(text); coloured == plain {
		t.Errorf("coloured: %v", coloured)
	}
	frames := strings.Split(strings.TrimSuffix(text, showCursor), home)
	if len(frames) != 3 {
		t.Fatalf("%d frames in %q", len(frames)-1, text)
	}
	for _, frame := range frames[1:] {
		frame = paints.ReplaceAllString(strings.TrimSuffix(frame, clearBelow), "")
		if n := strings.Count(frame, "\n"); n != 5 || strings.Count(frame, clearLine+"\r\n") != n {
			t.Errorf("%d lines on six rows, or one is not cleared: %q", n, frame)
		}
		fits(t, 100, strings.ReplaceAll(frame, clearLine+"\r\n", "\n"))
		if !strings.Contains(frame, strings.Repeat("wide", 24)) {
			t.Errorf("the width is not used: %q", frame)
		}
	}
}
