package health

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/health/incident"
)

// A promise is a row of the runbook: the conditions for entering and leaving a
// level of a check.
type promise struct {
	severity incident.Severity
	words    []string // of its signal, and of its additional signals
	often    string
	Condition
	Persistence
}

var (
	inWords    = regexp.MustCompile(`^(.+) (above|at least|below|at most|is not|is) (\S+)$`)
	frequency  = regexp.MustCompile(`^(\d+) of (\d+) in (\d+)([dhms])$`)
	comparison = map[string]string{"above": ">", "at least": ">=", "below": "<", "at most": "<=",
		"is": "==", "is not": "!="}
	units = map[string]time.Duration{"d": 24 * time.Hour, "h": time.Hour, "m": time.Minute, "s": time.Second}
)

// promises returns the runbook's statements about each alert, and its section.
// The signals are not in there: words stand for them.
func promises(t *testing.T) (all map[string][]promise, sections map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../alerts/RUNBOOK.md")
	if err != nil {
		t.Fatal(err)
	}
	all, sections = map[string][]promise{}, map[string]string{}
	alert := ""
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			alert = strings.TrimSpace(heading)
		}
		sections[alert] += line
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "| \n"), `\|`, "\x00"), " | ")
		if len(cells) == 4 && new(incident.Severity).UnmarshalText([]byte(cells[0])) == nil {
			p, err := readPromise(cells)
			if err != nil {
				t.Fatalf("%s: %q: %v", alert, line, err)
			}
			all[alert] = append(all[alert], p)
		}
	}
	return all, sections
}

// readPromise parses the cells of a row: severity, when, how often, over.
func readPromise(cells []string) (p promise, err error) {
	if err := p.severity.UnmarshalText([]byte(cells[0])); err != nil {
		return p, err
	}
	for i, part := range strings.Split(strings.ReplaceAll(cells[1], "\x00", "|"), ", while ") {
		f := inWords.FindStringSubmatch(part)
		if f == nil {
			return p, fmt.Errorf("%q is no condition", part)
		}
		v, err := strconv.ParseFloat(f[3], 64)
		if err != nil {
			return p, err
		}
		c := Condition{Op: comparison[f[2]], Threshold: v, Clear: v}
		p.words = append(p.words, f[1])
		if i == 0 {
			p.Condition = c
		} else {
			p.While = append(p.While, c)
		}
	}
	if text, ok := strings.CutPrefix(cells[3], "at "); ok {
		if p.Clear, err = strconv.ParseFloat(text, 64); err != nil {
			return p, err
		}
	}
	p.often = cells[2]
	if p.K, p.N = 1, 1; p.often != "at once" {
		f := frequency.FindStringSubmatch(p.often)
		if f == nil {
			return p, fmt.Errorf("%q is not how often", p.often)
		}
		p.K, _ = strconv.Atoi(f[1])
		p.N, _ = strconv.Atoi(f[2])
		long, _ := strconv.Atoi(f[3])
		p.Every = time.Duration(long) * units[f[4]] / time.Duration(p.N)
	}
	return p, nil
}

// meant replaces a promise's words by their signals; false if these are not the
// condition's.
func (p *promise) meant(c Condition) bool {
	signals := []*Signal{c.Signal}
	for _, w := range c.While {
		signals = append(signals, w.Signal)
	}
	same := slices.EqualFunc(p.words, signals, func(words string, g *Signal) bool { return words == g.Words() })
	for i := range min(len(signals)-1, len(p.While)) {
		p.While[i].Signal = signals[i+1]
	}
	p.Signal = c.Signal
	return same
}

// A row is a level of a check, alone on a test's host.
type row struct {
	promise
	engine *Engine
	now    time.Time
	shown  map[string]float64 // counters do not restart
}

func (p promise) row(c *Check, l Level) *row {
	alone := *c
	alone.Levels = []Level{l}
	return &row{promise: p, engine: NewEngine([]*Check{&alone}, birth), now: birth, shown: map[string]float64{}}
}

// apart returns the minimum time between two passes: two for each sample,
// except for a level that is judged in every pass.
func (r *row) apart() time.Duration {
	if r.Every == 0 {
		return max(step, r.Signal.window/64)
	}
	return r.Every / 2
}

// show shows examples, before the moment or from it on, for a duration, and
// returns the final state. Unless until is OK, it stops at that state and
// returns the time until then.
func (r *row) show(examples []Example, before bool, long time.Duration,
	until incident.State) (incident.State, time.Duration) {
	j, apart := r.engine.judges[0], max(r.apart(), long/256)
	base := map[string]float64{}
	for passed := time.Duration(0); passed < long; passed += apart {
		now := slices.Clone(examples)
		for i := range now {
			x := &now[i]
			id := x.Metric.Name + fmt.Sprint(x.Labels)
			if passed == 0 {
				base[id] = max(r.shown[id], x.Before)
			}
			switch {
			case x.Again != 0 && before:
				x.After = base[id]
			case x.Again != 0:
				x.After = base[id] + x.At(passed) - x.Before
				r.shown[id] = x.After
			case before:
				x.After = x.Before
			}
			x.Again = 0
		}
		s := shownBy(now, passed)
		r.engine.memory.now, r.engine.latest = r.now, s
		r.engine.judge(j, s)
		r.now = r.now.Add(apart)
		if r.state() == until && until != incident.OK {
			return until, passed
		}
	}
	return r.state(), long
}

func (r *row) state() incident.State {
	worst := incident.OK
	for _, st := range r.engine.judges[0].order {
		worst = max(worst, st.state)
	}
	return worst
}

// ever returns the time for which a level that must not be entered is observed:
// as long as an entry takes, and until a counter rises again.
func (r *row) ever() time.Duration { return max(r.Signal.window, r.soon()) }

// soon returns the time to enter a level, or to see that it is clear.
func (r *row) soon() time.Duration { return time.Duration(r.N+1)*r.spelled().Every + 2*r.apart() }

// aWhile returns the time for which a level that must be left is observed.
func (r *row) aWhile() time.Duration { return r.Signal.window*5/4 + holdFirst + r.soon() }

// enter enters the level.
func (r *row) enter(e incident.Entity) (after time.Duration) {
	r.show(r.Example(e), true, r.soon(), incident.OK)
	_, after = r.show(r.Example(e), false, r.soon(), r.severity.State())
	return after
}

// TestRowsAreAsTheRunbookSays compares each level of each check with its
// documentation: on either side of each threshold, with the required number of
// samples and one fewer, and without its additional conditions.
func TestRowsAreAsTheRunbookSays(t *testing.T) {
	t.Parallel()
	said, sections := promises(t)
	for _, c := range Checks() {
		if len(said[c.Alert]) != len(c.Levels) {
			t.Errorf("%s has %d levels, and the runbook %d: make generate writes it", c.ID, len(c.Levels),
				len(said[c.Alert]))
			continue
		}
		for i, l := range c.Levels {
			t.Run(fmt.Sprintf("%s/%d", c.ID, i+1), func(t *testing.T) {
				t.Parallel()
				p := said[c.Alert][i]
				if !p.meant(l.When) || p.often != l.For.String() {
					t.Fatalf("it is %q, %s, and the runbook has %q, %s: make generate writes it", l.When.Words(),
						l.For, p.words, p.often)
				}
				if expr := l.Expr(); !strings.Contains(sections[c.Alert], expr) {
					t.Errorf("for Prometheus it is %s, which the runbook does not have: make generate writes it", expr)
				}
				p.test(t, c, l)
			})
		}
	}
}

func (p promise) test(t *testing.T, c *Check, l Level) {
	e := someone(p.Signal)
	r := p.row(c, l)
	if after, want := r.enter(e), time.Duration(p.K-1)*p.Every; after != want || r.state() != p.severity.State() {
		t.Fatalf("%v after %v, want %v after %v", r.state(), after, p.severity.State(), want)
	}
	p.gaps(t, c, l, e)
	if p.Clear != p.Threshold {
		held, over := Condition{Op: p.Op, Threshold: p.Clear}.sides()
		if got, _ := r.show(p.example(e, held, held, nil), false, r.aWhile(), incident.OK); got != p.severity.State() {
			t.Errorf("held at %g: %v", held, got)
		}
		if got, _ := r.show(p.example(e, over, over, nil), false, r.aWhile(), incident.OK); got != incident.OK &&
			!c.Latched {
			t.Errorf("cleared at %g: %v", over, got)
		}
	} else if got, _ := r.show(p.Example(e), true, r.aWhile(), incident.OK); (got == incident.OK) == c.Latched {
		t.Errorf("no longer so: %v, and it is latched: %v", got, c.Latched)
	}
	for n, examples := range p.Counterexamples(func() incident.Entity { return e }) {
		r := p.row(c, l)
		r.show(examples, true, r.apart(), incident.OK)
		if got, _ := r.show(examples, false, r.ever(), p.severity.State()); got != incident.OK &&
			got != incident.Unknown {
			t.Errorf("where %d is not so: %v, with %v", n, got, examples)
		}
	}
	for n, w := range p.While {
		less := p.Condition
		less.While = slices.Delete(slices.Clone(p.While), n, n+1)
		examples := less.Example(e)
		if len(readings(w.Signal, newMemory(birth), shownBy(examples, 0))) > 0 {
			continue // its signal is of the same series
		}
		r := p.row(c, l)
		r.show(examples, true, r.apart(), incident.OK)
		if got, _ := r.show(examples, false, r.ever(), p.severity.State()); got != incident.OK &&
			got != incident.Unknown {
			t.Errorf("without %s: %v", w.Signal, got)
		}
	}
}

// gaps interrupts bad samples: K of the last N enter the level, and K-1 of them
// do not.
func (p promise) gaps(t *testing.T, c *Check, l Level, e incident.Entity) {
	bad := p.Example(e)
	if p.K == 1 || slices.ContainsFunc(bad, func(x Example) bool { return x.Again != 0 }) {
		return // a counter's window has gaps of its own
	}
	for more := range 2 {
		r := p.row(c, l)
		r.show(bad, true, r.soon(), incident.OK)
		r.show(bad, false, time.Duration(p.K-1)*p.Every, incident.OK)
		r.show(bad, true, time.Duration(p.N-p.K+more)*p.Every, incident.OK)
		got, _ := r.show(bad, false, p.Every, incident.OK)
		if want := []incident.State{p.severity.State(), incident.OK}[more]; got != want {
			t.Errorf("bad again after %d samples: %v, want %v", p.N-p.K+more, got, want)
		}
	}
}
