package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// A pty is a terminal, and the program that runs on it.
type pty struct {
	t             *testing.T
	master, slave *os.File
	cmd           *exec.Cmd
	before        unix.Termios // the terminal's settings before the program began
	mu            sync.Mutex
	seen          bytes.Buffer
	gone          chan struct{} // closed when all has been read
}

// onTerminal runs gpusteward with args on a terminal of 80 columns and 24 rows.
func onTerminal(t *testing.T, environment []string, args ...string) *pty {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip("no pseudo terminals here:", err)
	}
	p := &pty{t: t, master: master, gone: make(chan struct{})}
	t.Cleanup(func() { master.Close() })
	p.control(func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 80}); err != nil {
			return err
		}
		n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
		if err == nil {
			p.slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
		}
		return err
	})
	t.Cleanup(func() { p.slave.Close() })
	p.before = p.settings()
	p.cmd = process(append([]string{"TERM=xterm", "NO_COLOR=", "LC_ALL="}, environment...), args...)
	p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = p.slave, p.slave, p.slave
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	fixture.Must(t, p.cmd.Start())
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	go p.read()
	return p
}

// control calls do with the terminal's descriptor.
func (p *pty) control(do func(fd int) error) {
	p.t.Helper()
	raw, err := p.master.SyscallConn()
	if err == nil {
		err = errors.Join(raw.Control(func(fd uintptr) { err = do(int(fd)) }), err)
	}
	fixture.Must(p.t, err)
}

func (p *pty) settings() (s unix.Termios) {
	p.t.Helper()
	p.control(func(fd int) error {
		now, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err == nil {
			s = *now
		}
		return err
	})
	return s
}

func (p *pty) read() {
	defer close(p.gone)
	buffer := make([]byte, 4096)
	for {
		n, err := p.master.Read(buffer)
		p.mu.Lock()
		p.seen.Write(buffer[:n])
		p.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// shows waits until the program has written want since from.
func (p *pty) shows(from int, want string) {
	p.t.Helper()
	eventually(p.t, fmt.Sprintf("the terminal shows %q", want), func() bool {
		return strings.Contains(p.text()[from:], want)
	})
}

// ends waits for the program, and checks that the terminal is as before it.
func (p *pty) ends() {
	p.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- p.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			p.t.Errorf("it ended with %v:\n%s", err, p.text())
		}
	case <-time.After(ending):
		p.t.Fatalf("it did not end:\n%q", p.text())
	}
	now := p.settings()
	fixture.If(p.t, now != p.before, "the terminal's settings are %+v, and were %+v", now, p.before)
	const mainScreen, cursorShown = "\x1b[?1049l", "\x1b[?25h"
	eventually(p.t, "the terminal is on its main screen, with its cursor", func() bool {
		text := p.text()
		return strings.LastIndex(text, mainScreen) > strings.LastIndex(text, "\x1b[?1049h") &&
			strings.LastIndex(text, cursorShown) > strings.LastIndex(text, "\x1b[?25l")
	})
}

func TestWatchOnATerminal(t *testing.T) {
	t.Parallel()
	a := start(t, "--demo").ready()
	for name, end := range map[string]func(p *pty){
		"q":       func(p *pty) { p.master.WriteString("q") },
		"Ctrl-C":  func(p *pty) { p.master.WriteString("\x03") },
		"SIGINT":  func(p *pty) { p.cmd.Process.Signal(syscall.SIGINT) },
		"SIGTERM": func(p *pty) { p.cmd.Process.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := onTerminal(t, nil, "status", "--watch", "--url="+a.url)
			p.shows(0, "[GPUs 8]")
			fixture.If(t, p.settings() == p.before, "the terminal is not in raw mode")
			p.master.WriteString("\t")
			p.shows(0, "[Workloads")
			at := len(p.text())
			p.control(func(fd int) error {
				return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 120})
			})
			p.shows(at, "all keys")
			end(p)
			p.ends()
		})
	}
}

// colours are the sequences that choose one.
var colours = regexp.MustCompile("\x1b\\[[0-9;]*3[0-9;]*m")

// TestWatchInColour: a GPU that is lost is red, unless NO_COLOR is set.
func TestWatchInColour(t *testing.T) {
	t.Parallel()
	a := start(t, "--demo="+fixture.Config(t, healthy+"faults: [{at: 0s, kind: lost, gpu: 3}]")).ready()
	a.sees("the GPU is lost", func(s series) bool { return s.down("gpu_is_lost", 3) })
	for _, plain := range []string{"", "1"} {
		p := onTerminal(t, []string{"NO_COLOR=" + plain}, "status", "--watch", "--url="+a.url)
		p.shows(0, "all keys")
		p.master.WriteString("q")
		p.ends()
		fixture.Equal(t, colours.MatchString(p.text()), plain == "", "NO_COLOR=%s: colours", plain)
	}
}

// TestWatchOfAPlainTerminal: a terminal that cannot move its cursor gets the
// text of gpusteward status, again and again.
func TestWatchOfAPlainTerminal(t *testing.T) {
	t.Parallel()
	a := start(t, "--demo=h100").ready()
	p := onTerminal(t, []string{"TERM=dumb", "NO_COLOR=1"}, "status", "--watch", "--url="+a.url)
	eventually(t, "there are two statuses", func() bool { return strings.Count(p.text(), "SM GHz") >= 2 })
	text := p.text()
	fixture.If(t, strings.Contains(text, "\x1b") || p.settings() != p.before, "it moves the cursor: %q", text)
}
