package exporter

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// DefaultURL is the address of an agent with default flags.
const DefaultURL = "http://localhost:9836"

// StatusOptions select the agent and what Status shows.
type StatusOptions struct {
	RuntimeDir string        // has the control socket, which is tried first
	URL        string        // of the agent to ask instead
	Else       string        // URL of the agent to ask if the socket does not answer; empty: none
	Watch      bool          // refresh every second until the context ends
	Client     *http.Client  // for the URLs; nil: one without a certificate or a password
	JSON       bool          // the JSON of /api/v1/state instead of a table
	every      time.Duration // between refreshes; 0 is a second
}

// Status writes the state that a running agent reports. Its errors say what an
// operator can do.
func Status(ctx context.Context, o StatusOptions, stdout io.Writer) error {
	st, terminal := styleOf(stdout)
	state, answer, err := o.ask(ctx)
	switch {
	case err != nil && o.Watch && ctx.Err() != nil:
		return nil
	case err != nil:
		return err
	case o.Watch && !o.JSON && terminal != nil:
		return o.watch(ctx, terminal, state, st.colour)
	}
	tick := time.NewTicker(cmp.Or(o.every, time.Second))
	defer tick.Stop()
	for {
		text := ""
		if err == nil {
			text, err = o.text(state, answer, st)
		}
		if err != nil {
			text = st.wrapped(red, "", err.Error()) // the agent may be back soon
		}
		if _, err := io.WriteString(stdout, text); err != nil || !o.Watch {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if state, answer, err = o.ask(ctx); ctx.Err() != nil {
			return nil
		}
	}
}

// text returns an answer as it is shown.
func (o StatusOptions) text(state State, answer []byte, st style) (string, error) {
	if !o.JSON {
		return st.table(state), nil
	}
	var text bytes.Buffer
	var err error
	if o.Watch { // a line a second
		err = json.Compact(&text, answer)
	} else {
		err = json.Indent(&text, bytes.TrimSpace(answer), "", "  ")
	}
	return escaped(text.String()) + "\n", err
}

// ask returns the state that the agent reports, and its answer.
func (o StatusOptions) ask(ctx context.Context) (state State, answer []byte, err error) {
	if answer, err = o.get(ctx); err != nil {
		return state, nil, err
	}
	if err := json.Unmarshal(answer, &state); err != nil || state.Time.IsZero() {
		return state, nil, fmt.Errorf("the answer is not the state of a host (%w): is that gpusteward?",
			cmp.Or(err, errors.New("it has no timestamp")))
	}
	return state, answer, nil
}

// get returns /api/v1/state of the agent.
func (o StatusOptions) get(ctx context.Context) ([]byte, error) {
	url, where := o.URL, o.URL
	if url == "" {
		text, err := Agent{RuntimeDir: o.RuntimeDir}.Ask(ctx, statePath)
		switch {
		case err == nil || errors.Is(err, context.DeadlineExceeded):
			return text, err
		case o.Else == "" && (errors.Is(err, errRefused) || errors.Is(err, fs.ErrPermission)):
			return nil, err
		case o.Else == "":
			return nil, fmt.Errorf("%w --url takes the address of another one", err)
		}
		url, where = o.Else, filepath.Join(o.RuntimeDir, ControlSocket)+" or "+o.Else
	}
	text, err := Agent{URL: url, Client: o.Client}.Ask(ctx, statePath)
	if err != nil && !errors.Is(err, errRefused) {
		return nil, fmt.Errorf("no agent answers at %s: is gpusteward running? --url takes another address (%w)",
			where, err)
	}
	return text, err
}

// statePath is the path of the State.
const statePath = "/api/v1/state"

// styleOf returns the style of w and, if w is a terminal that can move its
// cursor, w as that terminal.
func styleOf(w io.Writer) (style, *os.File) {
	st := style{width: minWidth}
	f, ok := w.(*os.File)
	if !ok {
		return st, nil
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return st, nil
	}
	st.width, st.colour = max(minWidth, int(size.Col)), os.Getenv("NO_COLOR") == ""
	if kind := os.Getenv("TERM"); kind == "" || kind == "dumb" {
		return st, nil
	}
	return st, f
}
