package exporter

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"time"

	"github.com/gdamore/tcell/v3"
	"github.com/gdamore/tcell/v3/tty"
)

// watch shows the state on a terminal, and asks for it each second, until the
// reader or ctx ends it. It restores the terminal whatever happens.
func (o StatusOptions) watch(ctx context.Context, terminal *os.File, first State, colour bool) error {
	tcell.SetEncodingFallback(tcell.EncodingFallbackUTF8) // as the status without --watch
	device, err := tty.NewDevTtyFromDev(fmt.Sprintf("/proc/self/fd/%d", terminal.Fd()))
	if err != nil { // another user's terminal, after su
		device, err = tty.NewDevTty()
	}
	if err != nil {
		return fmt.Errorf("no keys can be read from this terminal: %w; gpusteward status --watch | cat needs none", err)
	}
	sized := newSizedTTY(device)
	// Serial consoles do not answer questions about themselves.
	screen, err := tcell.NewTerminfoScreenFromTty(sized, tcell.OptNegotiation(false))
	if err != nil {
		return fmt.Errorf("use the terminal: %w", err)
	}
	return newView(first, style{width: minWidth, colour: colour}).run(ctx, screen, sized.told,
		func(ctx context.Context) (State, error) {
			state, _, err := o.ask(ctx)
			return state, err
		})
}

// A sizedTTY reports its size, at first and when it changes. The screen itself
// would follow it at any moment: in the midst of a drawing, and after its end, where
// it panics.
type sizedTTY struct {
	tty.Tty
	told chan bool // has room for one
}

func newSizedTTY(t tty.Tty) sizedTTY {
	told := make(chan bool, 1)
	told <- true
	return sizedTTY{t, told}
}

// NotifyResize begins to report new sizes; nil: it ends.
func (t sizedTTY) NotifyResize(screen chan<- bool) {
	if screen != nil {
		screen = t.told
	}
	t.Tty.NotifyResize(screen)
}

// An answer is what the agent answered.
type answer struct {
	state    State
	err      error
	panicked any // what asking panicked with
}

// run shows v on the screen of a sizedTTY, and asks for the next state
// each second.
func (v *view) run(ctx context.Context, screen tcell.Screen, sized <-chan bool,
	ask func(context.Context) (State, error)) error {
	if err := screen.Init(); err != nil {
		return fmt.Errorf("use the terminal: %w", err)
	}
	defer screen.Fini()
	for from, to := range substitutes {
		screen.RegisterRuneFallback(from, to)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer)
	go follow(ctx, cmp.Or(v.every, time.Second), ask, answers)
	for {
		v.resize(screen.Size())
		draw(screen, v)
		select {
		case <-ctx.Done():
			return nil
		case <-sized:
			screen.Sync()
		case a := <-answers:
			if a.panicked != nil {
				panic(a.panicked) // here, where the terminal is restored
			}
			v.tell(a.state, a.err)
		case event := <-screen.EventQ():
			switch e := event.(type) {
			case *tcell.EventKey:
				if v.press(keyName(e)) {
					return nil
				}
			case nil: // the terminal is gone
				return nil
			}
		}
	}
}

// follow asks at an interval and hands the answers over, until ctx ends.
func follow(ctx context.Context, every time.Duration, ask func(context.Context) (State, error), answers chan<- answer) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	hand := func(a answer) {
		select {
		case <-ctx.Done():
		case answers <- a:
		}
	}
	defer func() {
		if p := recover(); p != nil {
			hand(answer{panicked: p})
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		state, err := ask(ctx)
		hand(answer{state: state, err: err})
	}
}

// keyName returns the name of a key as bindings have it.
func keyName(e *tcell.EventKey) string {
	switch e.Key() {
	case tcell.KeyRune:
		return e.Str()
	case tcell.KeyBackspace, tcell.KeyDEL:
		return "Backspace"
	}
	return tcell.KeyNames[e.Key()]
}

// substitutes replace characters on terminals without UTF-8.
var substitutes = map[rune]string{'…': "~", '█': "#", '░': ".", '×': "x", '°': "'", '≤': "<", '\uFFFD': "?"}

// pens are the looks of paints.
var pens = map[string]func(tcell.Style) tcell.Style{
	bold:   func(s tcell.Style) tcell.Style { return s.Bold(true) },
	dim:    func(s tcell.Style) tcell.Style { return s.Dim(true) },
	red:    func(s tcell.Style) tcell.Style { return s.Foreground(tcell.PaletteColor(1)) },
	yellow: func(s tcell.Style) tcell.Style { return s.Foreground(tcell.PaletteColor(3)) },
}

// draw draws the view.
func draw(screen tcell.Screen, v *view) {
	screen.Clear()
	wide, _ := screen.Size()
	lines, cursor := v.screen()
	for y, line := range lines {
		base := tcell.StyleDefault
		if y == cursor {
			base = base.Reverse(true)
			for x := range wide {
				screen.Put(x, y, " ", base)
			}
		}
		x := 0
		for paint, text := range pieces(line) {
			look := base
			if pen := pens[paint]; pen != nil {
				look = pen(base)
			}
			for width := 1; text != "" && width > 0; x += width { // it is 0 outside the screen
				text, width = screen.Put(x, y, text, look)
			}
		}
	}
	screen.Show()
}
