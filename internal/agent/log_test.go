package agent

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"gpusteward/internal/fixture"
)

func TestLogLevelHidesLowerLevels(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
		if _, _, errno := syscall.Syscall(syscall.SYS_IOCTL, screen.Fd(), request,
			uintptr(unsafe.Pointer(p))); errno != 0 {
			t.Fatal(errno)
		}
	}
	terminal := fixture.Value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0))(t)
	t.Cleanup(func() { terminal.Close() })
	return bufio.NewReader(screen), terminal
}
