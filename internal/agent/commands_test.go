package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/prometheus/exporter-toolkit/web"

	"gpusteward/internal/fixture"
)

// TestBareProgramSaysWhatItStarts: on a terminal, to somebody who named no command.
func TestBareProgramSaysWhatItStarts(t *testing.T) {
	screen, terminal := openTerminal(t)
	root := t.TempDir()
	over, end := context.WithCancel(t.Context())
	end()
	Run(over, root, []string{"--web.listen-address=127.0.0.1:0"}, io.Discard, terminal)
	first := fixture.Value(screen.ReadString('\n'))(t)
	fixture.Contains(t, first, "this is the agent. It reads the GPUs of this host and serves their metrics and a live page at "+
		"127.0.0.1:0, until Ctrl-C.", "the first line")
	f := flags{config: fixture.Config(t, ""), web: &web.FlagConfig{WebListenAddresses: new([]string)}}
	fixture.Equal(t, strings.Count(introduction(f, 0), "\n"), 3, "lines for root with a configuration")
	fixture.Contains(t, introduction(f, 1), "Without root", "for a user")
	f.config = root + "/none.yml"
	fixture.Contains(t, introduction(f, 0), "none.yml) it only observes", "without a configuration")
	f.demoGiven = true
	fixture.Equal(t, introduction(f, 0), "", "of a simulated host")
}

// TestFleetIsListedByItsScheme lists hosts over TLS with the scheme https.
func TestFleetIsListedByItsScheme(t *testing.T) {
	r, w := httptest.NewRequest(http.MethodGet, "https://fleet.example:9836/sd", nil), httptest.NewRecorder()
	fleet{{hostConfig: &hostConfig{name: "node-001"}}}.targets(w, r)
	want := `[{"targets":["fleet.example:9836"],` +
		`"labels":{"__metrics_path__":"/hosts/node-001/metrics","__scheme__":"https",` +
		`"cluster":"cluster-1","instance":"node-001","rack":"rack-01"}}]` + "\n"
	got := w.Body.String()
	fixture.If(t, got != want || w.Header().Get("Content-Type") != "application/json", "%s, want %s", got, want)
}

func TestLogLevelHidesLowerLevels(t *testing.T) {
	levels := []string{"debug", "info", "warn", "error"}
	for i, least := range levels {
		var out bytes.Buffer
		log := newLogger(&out, least, "json")
		log.Debug("debug")
		log.Info("info")
		log.Warn("warn")
		log.Error("error", "err", os.ErrNotExist)
		for k, level := range levels {
			fixture.Equal(t, strings.Contains(out.String(), `"message":"`+level+`"`), k >= i,
				"--log.level=%s: %s is shown", least, level)
		}
		fixture.Contains(t, out.String(), `"err":"file does not exist"`, "an error is not its text")
	}
}

func TestConsoleFormatIsForTerminals(t *testing.T) {
	line := func(w *os.File, r *bufio.Reader, format string) string {
		newLogger(w, "info", format).Info("here I am")
		text := fixture.Value(r.ReadString('\n'))(t)
		return strings.TrimSpace(text)
	}
	reader, pipe, err := os.Pipe()
	fixture.Must(t, err)
	defer reader.Close()
	defer pipe.Close()
	screen, terminal := openTerminal(t)
	for _, c := range []struct {
		where  string
		w      *os.File
		r      *bufio.Reader
		format string
		json   bool
	}{
		{"a pipe", pipe, bufio.NewReader(reader), "auto", true},
		{"a pipe", pipe, bufio.NewReader(reader), "console", false},
		{"a terminal", terminal, screen, "auto", false},
		{"a terminal", terminal, screen, "json", true},
	} {
		text := line(c.w, c.r, c.format)
		if got := json.Valid([]byte(text)); got != c.json || !strings.Contains(text, "here I am") {
			t.Errorf("--log.format=%s on %s is JSON: %v, want %v: %q", c.format, c.where, got, c.json, text)
		}
	}
}

// openTerminal returns the program's end of a new terminal, and its output.
func openTerminal(t *testing.T) (*bufio.Reader, *os.File) {
	t.Helper()
	screen := fixture.Value(os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { screen.Close() })
	var locked, number int32
	for request, p := range map[uintptr]*int32{syscall.TIOCSPTLCK: &locked, syscall.TIOCGPTN: &number} {
		_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, screen.Fd(), request, uintptr(unsafe.Pointer(p)))
		fixture.Stop(t, errno != 0, "%v", errno)
	}
	terminal := fixture.Value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	return bufio.NewReader(screen), terminal
}
