package exporter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultURL is the address of an agent with default flags.
const DefaultURL = "http://localhost:9836"

// StatusOptions select the agent and what Status shows.
type StatusOptions struct {
	RuntimeDir string // has the control socket, which is tried first
	URL        string // of the agent to ask instead
	Else       string // URL of the agent to ask if the socket does not answer; empty: none
	Watch      bool   // refresh every second until the context ends
	JSON       bool   // the JSON of /api/v1/state instead of a table
}

// Status writes the state that a running agent reports. Its errors say what an
// operator can do.
func Status(ctx context.Context, o StatusOptions, stdout io.Writer) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	frames := 0
	for {
		s := screenOf(stdout)
		text, err := o.text(ctx, s.style)
		switch {
		case o.Watch && ctx.Err() != nil:
			return nil
		case err != nil && frames == 0:
			return err
		case err != nil:
			text = s.wrapped(red, "", err.Error()) // the agent may be back soon
		}
		if o.Watch && s.terminal {
			text = s.frame(text)
			if frames == 0 {
				text = hideCursor + clearScreen + text
				defer func() { _, _ = io.WriteString(stdout, showCursor) }()
			}
		}
		if _, err := io.WriteString(stdout, text); err != nil || !o.Watch {
			return err
		}
		frames++
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// text asks the agent, and returns the answer as it is shown.
func (o StatusOptions) text(ctx context.Context, st style) (string, error) {
	answer, err := o.ask(ctx)
	if err != nil {
		return "", err
	}
	var state State
	if err := json.Unmarshal(answer, &state); err != nil || state.Time.IsZero() {
		return "", fmt.Errorf("the answer is not the state of a host (%w): is that gpusteward?",
			cmp.Or(err, errors.New("it has no timestamp")))
	}
	if !o.JSON {
		return st.table(state), nil
	}
	var text bytes.Buffer
	if o.Watch { // a line a second
		err = json.Compact(&text, answer)
	} else {
		err = json.Indent(&text, bytes.TrimSpace(answer), "", "  ")
	}
	return escaped(text.String()) + "\n", err
}

// ask returns /api/v1/state of the agent.
func (o StatusOptions) ask(ctx context.Context) ([]byte, error) {
	url, where := o.URL, o.URL
	if url == "" {
		socket := filepath.Join(o.RuntimeDir, ControlSocket)
		text, err := Ask(ctx, o.RuntimeDir, "", statePath)
		switch {
		case err == nil:
			return text, nil
		case errors.Is(err, context.DeadlineExceeded):
			return nil, fmt.Errorf("the agent at %s does not answer: %w", socket, err)
		case o.Else == "" && errors.Is(err, errRefused):
			return nil, err
		case o.Else == "":
			return nil, fmt.Errorf("no agent answers at %s: is gpusteward running, with this --runtime.dir? --url "+
				"takes the address of another one (%w)", socket, err)
		}
		url, where = o.Else, socket+" or "+o.Else
	}
	text, err := Ask(ctx, o.RuntimeDir, url, statePath)
	if err != nil && !errors.Is(err, errRefused) {
		return nil, fmt.Errorf("no agent answers at %s: is gpusteward running? --url takes another address (%w)",
			where, err)
	}
	return text, err
}

// statePath is the path of the State.
const statePath = "/api/v1/state"

// Ask returns the answer of the agent at url to a GET of path. If url is empty,
// it asks the agent of the runtime directory dir, which nobody else can
// impersonate. It waits for at most 3 s. Its errors are shown to operators.
func Ask(ctx context.Context, dir, url, path string) ([]byte, error) {
	if url == "" {
		return get(ctx, overSocket(filepath.Join(dir, ControlSocket)), "http://agent"+path)
	}
	return get(ctx, http.DefaultClient, strings.TrimSuffix(url, "/")+path)
}

// errRefused is an answer other than the requested one.
var errRefused = errors.New("refused")

// maxAnswer is the most that is read of an answer, in bytes.
const maxAnswer = 16 << 20

// patience is the time that an agent has to answer from memory.
const patience = 3 * time.Second

func get(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	switch answer.StatusCode {
	case http.StatusOK:
		return text, err
	case http.StatusUnauthorized, http.StatusForbidden:
		return nil, fmt.Errorf("%w by %s, which requires authentication: as root the command uses the control socket "+
			"instead, or give --url=http://USER:PASSWORD@HOST:PORT", errRefused, r.URL.Redacted())
	}
	return nil, fmt.Errorf("%w by %s: %s: %.200s", errRefused, r.URL.Redacted(), printable(answer.Status),
		printable(string(bytes.TrimSpace(text))))
}

// Control sequences of terminals (ECMA-48).
const (
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	clearScreen = "\x1b[2J"
	home        = "\x1b[H"
	clearLine   = "\x1b[K" // from the cursor on
	clearBelow  = "\x1b[J"
)

// A screen is the output that shows the status.
type screen struct {
	style
	terminal bool
	rows     int
}

// screenOf returns the screen of w; a terminal has a size.
func screenOf(w io.Writer) screen {
	s := screen{style: style{width: minWidth}}
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			s.terminal, s.rows, s.width = true, int(size.Row), max(minWidth, int(size.Col))
			s.colour = os.Getenv("NO_COLOR") == ""
		}
	}
	return s
}

// frame returns text in the form that replaces the previous frame without
// flicker, with at most as many lines as there are rows.
func (s screen) frame(text string) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if shown := s.rows - 2; shown > 0 && len(lines) > shown+1 {
		lines = append(lines[:shown], strings.TrimSuffix(s.line(cell{text: fmt.Sprintf("and %d lines more",
			len(lines)-shown), paint: dim}), "\n"))
	}
	return home + strings.Join(lines, clearLine+"\n") + clearLine + "\n" + clearBelow
}
