package exporter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/vt"

	"gpusteward/internal/fixture"
)

// faulty is a host with 16 GPUs, each with faults, and with some of everything else.
func faulty() State {
	var s samples
	s.host(16, 16)
	for i := range 16 {
		gpu := fmt.Sprint(i)
		switch i {
		case 6:
			s.down(gpu, "nvmlDeviceGetTemperature")
		case 12:
			s.down(gpu, "gpu_is_lost")
		default:
			s.h100(gpu)
		}
	}
	s.workload("slurm:4711.0", "0", 60, .25)
	s.workload("slurm:4711.0", "1", 60, .25)
	s.workload("unit:train.service", "2", 8, .9)
	s.job("unit:train.service", "2", 1, 0.0482)
	s.job("slurm:4711.0", "0", 1, 1.5)
	s.began("slurm:4711.0", "slurm", 51*time.Hour)
	s.tenant("0", "serving", 0.7, 0.699, 40, 38.5)
	s.tenant("2", "students", 0.3, 0.301, 0, 12)
	s.quota("0", "serving", .3, "hook", "hook", "kernel")
	s.stands("students", "unit:jupyter-bob.service", "throttle", false, map[string]float64{"compute": 12})
	return s.state(func(s *State) {
		s.Host.Note = "This host is simulated (--demo=faults)."
		text, err := os.ReadFile("testdata/faulty.json")
		var all []Fault
		if err = errors.Join(err, json.Unmarshal(text, &all)); err != nil {
			panic(err)
		}
		s.find(all)
	})
}

func TestScreenGolden(t *testing.T) {
	t.Parallel()
	v := newView(faulty(), style{width: minWidth})
	v.resize(80, 24)
	show := func(name string) {
		t.Helper()
		lines, _ := v.screen()
		text := strings.Join(lines, "\n") + "\n"
		fits(t, 80, text)
		fixture.Equal(t, len(lines), 24, "%s: lines on 24", name)
		fixture.Golden(t, "testdata/watch_"+name+".txt", text)
	}
	show("gpus")
	for gpu := range 16 {
		if text, _ := v.screen(); !strings.Contains(strings.Join(text, "\n"), fmt.Sprintf("\n%2d ", gpu)) {
			t.Errorf("GPU %d is not on the first screen", gpu)
		}
	}
	v.press("End")
	v.press("Enter")
	v.press("Down")
	show("unfolded")
	for _, name := range []string{"workloads", "tenants", "faults", "jobs"} {
		v.press("Tab")
		v.press("Enter")
		show(name)
	}
	v.press("?")
	show("keys")
}

// A terminal runs a watched status on an emulated terminal.
type terminal struct {
	t      *testing.T
	mock   vt.MockTerm
	answer atomic.Pointer[func() (State, error)] // of the agent from now on
	ended  chan error
	end    context.CancelFunc
}

// says has the agent answer so.
func (w *terminal) says(answer func() (State, error)) { w.answer.Store(&answer) }

// watched begins a watched status of faulty on a terminal of 80 columns and 24 rows.
func watched(t *testing.T, colour bool) *terminal {
	t.Helper()
	w := &terminal{t: t, mock: vt.NewMockTerm(vt.MockOptSize{X: 80, Y: 24}), ended: make(chan error, 1)}
	w.says(func() (State, error) { return faulty(), nil })
	sized := newSizedTTY(w.mock)
	screen, err := tcell.NewTerminfoScreenFromTty(sized, tcell.OptNegotiation(false), tcell.OptTerm("xterm-256color"))
	fixture.Must(t, err)
	var ctx context.Context
	ctx, w.end = context.WithCancel(t.Context())
	go func() {
		defer func() {
			if p := recover(); p != nil {
				w.ended <- fmt.Errorf("panic: %v", p)
			}
		}()
		v := newView(faulty(), style{width: minWidth, colour: colour})
		v.every = 20 * time.Millisecond
		w.ended <- v.run(ctx, screen, sized.told, func(context.Context) (State, error) { return (*w.answer.Load())() })
	}()
	t.Cleanup(w.end)
	return w
}

// text returns what the terminal shows.
func (w *terminal) text() string {
	size := fixture.Value(w.mock.WindowSize())(w.t)
	var b strings.Builder
	for y := range size.Height {
		line := ""
		for x := range size.Width {
			line += cmp.Or(w.mock.GetCell(vt.Coord{X: vt.Col(x), Y: vt.Row(y)}).C, " ") // "" after a clear
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// absent returns the index of the first wanted text that is not in text, or of the
// first one with an exclamation mark that is; -1: there is none.
func absent(text string, want []string) int {
	return slices.IndexFunc(want, func(one string) bool {
		unwanted, not := strings.CutPrefix(one, "!")
		return strings.Contains(text, unwanted) == not
	})
}

// await waits until is, whose failure says what was wanted.
func (w *terminal) await(is func() bool, failure func() string) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !is(); {
		select {
		case err := <-w.ended:
			w.t.Fatalf("it ended, with %v: %s", err, failure())
		case <-time.After(5 * time.Millisecond):
		}
		if time.Now().After(end) {
			w.t.Fatalf("%s:\n%s", failure(), w.text())
		}
	}
}

// shows waits until the terminal shows all of want, and none of those that begin with an exclamation mark.
func (w *terminal) shows(want ...string) (text string) {
	w.t.Helper()
	w.await(func() bool { text = w.text(); return absent(text, want) < 0 },
		func() string { return fmt.Sprintf("%q is not as wanted", want[absent(text, want)]) })
	return text
}

// resize gives the terminal another size, and waits until it shows what is wanted, as shows does.
func (w *terminal) resize(size vt.Coord, want ...string) {
	w.t.Helper()
	w.mock.SetSize(size)
	w.shows(want...)
}

// reversed returns the line under the cursor.
func (w *terminal) reversed() string {
	for y, line := range strings.Split(strings.TrimSpace(w.text()), "\n") {
		if w.mock.GetCell(vt.Coord{Y: vt.Row(y)}).S.Attr()&vt.Reverse != 0 {
			return line
		}
	}
	return ""
}

// at waits until the cursor is on a line that begins with want.
func (w *terminal) at(want string) {
	w.t.Helper()
	w.await(func() bool { return strings.HasPrefix(w.reversed(), want) },
		func() string { return fmt.Sprintf("the cursor is on %q, want %q", w.reversed(), want) })
}

// TestWatchKeys types every key as a terminal sends it, after which the cursor is on a line, and texts are shown.
func TestWatchKeys(t *testing.T) {
	t.Parallel()
	w := watched(t, true)
	pressed := map[string]bool{}
	for _, row := range fixture.Rows(t, "testdata/watch_keys.tsv") {
		w.mock.SendRaw([]byte(fixture.Value(strconv.Unquote(row[1]))(t)))
		pressed[row[0]] = true
		w.shows(row[3:]...)
		w.at(row[2])
	}
	for _, b := range bindings {
		for _, key := range b.keys {
			fixture.Equal(t, pressed[key], true, "the key %q is not tested", key)
		}
	}
}

// TestWatchWhileTheAgentIsAway: the screen says so and shows nothing old, and
// goes on where the reader was. The cursor is visible without colours.
func TestWatchWhileTheAgentIsAway(t *testing.T) {
	t.Parallel()
	w := watched(t, false)
	w.shows("[GPUs 16]")
	w.mock.SendRaw([]byte("\tj"))
	w.at("unit:train.service")
	w.says(func() (State, error) { return State{}, errors.New("no agent answers: \x1b[2Jrefused") })
	w.shows("no agent answers: \ufffd[2Jrefused", "Last answer: 12:00:00 UTC. Still asking.", "!unit:train.service",
		"!driver 580")
	w.mock.SendRaw([]byte("?"))
	w.shows("any key hides this")
	w.mock.SendRaw([]byte("?"))
	w.says(func() (State, error) { return faulty(), nil })
	w.shows("unit:train.service", "driver 580", "!refused")
	w.at("unit:train.service")
	w.says(func() (State, error) { return samples{}.state(nil), nil })
	w.shows("[Workloads 0]", "No process uses a GPU.", "0/0")
	w.mock.SendRaw([]byte("jG\r\x1b[5~"))
	w.says(func() (State, error) { return faulty(), nil })
	w.shows("slurm:4711.0")
}

func TestWatchFollowsTheSize(t *testing.T) {
	t.Parallel()
	w := watched(t, true)
	w.shows("critical ×2 uncorrected_ecc\n")
	w.resize(vt.Coord{X: 140, Y: 11}, "critical ×2 nvlink_down: NVLink 7 of the GPU is down.\n", "! 6 GPU-6")
	w.mock.SendRaw([]byte("G"))
	w.at("15 H100")
	for _, size := range []vt.Coord{{X: 20, Y: 3}, {X: 1, Y: 1}, {X: 80, Y: 2}} {
		w.resize(size)
		w.mock.SendRaw([]byte("\x1b[5~\x1b[6~\r"))
	}
	w.resize(vt.Coord{X: 80, Y: 24}, "[GPUs 16]", "15 H100")
}

// TestDrawBeyondTheScreen: a terminal may shrink after a drawing began.
func TestDrawBeyondTheScreen(t *testing.T) {
	t.Parallel()
	screen := fixture.Value(tcell.NewTerminfoScreenFromTty(vt.NewMockTerm(vt.MockOptSize{X: 40, Y: 2}),
		tcell.OptNegotiation(false), tcell.OptTerm("xterm-256color")))(t)
	fixture.Must(t, screen.Init())
	v := newView(faulty(), style{width: minWidth})
	v.resize(80, 24)
	drawn := make(chan bool)
	go func() { draw(screen, v); close(drawn) }()
	select {
	case <-drawn:
		screen.Fini()
	case <-time.After(time.Minute):
		t.Fatal("the drawing never ends")
	}
}

// TestWatchRestoresTheTerminal, whatever ends it.
func TestWatchRestoresTheTerminal(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends func(w *terminal)
		want string
	}{
		"q":                      {func(w *terminal) { w.mock.SendRaw([]byte("q")) }, ""},
		"Ctrl-C":                 {func(w *terminal) { w.mock.SendRaw([]byte("\x03")) }, ""},
		"Ctrl-C in a filter":     {func(w *terminal) { w.mock.SendRaw([]byte("/\x03")) }, ""},
		"the end of the context": {func(w *terminal) { w.end() }, ""},
		"a panic":                {func(w *terminal) { w.says(func() (State, error) { panic("a bug") }) }, "panic: a bug"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := watched(t, true)
			w.shows("[GPUs 16]")
			c.ends(w)
			err := <-w.ended
			fixture.If(t, err != nil && fmt.Sprint(err) != c.want || err == nil && c.want != "",
				"it ended with %v, want %q", err, c.want)
			fixture.Equal(t, strings.TrimSpace(w.text()), "", "it leaves\n")
		})
	}
}

// TestWatchWithoutUTF8 draws what it can with ASCII.
func TestWatchWithoutUTF8(t *testing.T) {
	t.Setenv("LC_ALL", "C")
	watched(t, true).shows("critical x2 uncorrected_ecc")
}
