package health

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// runbook returns the runbook's section of each alert.
func runbook(t *testing.T) map[string]string {
	t.Helper()
	text := fixture.Value(os.ReadFile("../alerts/RUNBOOK.md"))(t)
	sections, alert := map[string]string{}, ""
	for line := range strings.Lines(string(text)) {
		if heading, ok := strings.CutPrefix(line, "## "); ok {
			alert = strings.TrimSpace(heading)
		}
		sections[alert] += line
	}
	return sections
}

// A promise is a level of a check, with how often its condition must hold.
type promise struct {
	severity incident.Severity
	Condition
	Persistence
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

// show shows examples, before the moment or from it on, for a duration, and returns the final state. Unless until is
// OK, it stops at that state and returns the time until then.
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

// leveled matches the beginning of the runbook's row about a level.
var leveled = regexp.MustCompile(`(?m)^\| (info|warning|critical|emergency) \|`)

// TestRowsAreAsTheRunbookSays compares each level of each check with its documentation, and tries it: on either side of
// each threshold, with the required number of samples and one fewer, and without its additional conditions.
func TestRowsAreAsTheRunbookSays(t *testing.T) {
	t.Parallel()
	sections := runbook(t)
	for _, c := range Checks() {
		section := sections[c.Alert]
		fixture.Equal(t, len(leveled.FindAllString(section, -1)), len(c.Levels), "%s: levels in the runbook (make generate)", c.ID)
		for i, l := range c.Levels {
			t.Run(fmt.Sprintf("%s/%d", c.ID, i+1), func(t *testing.T) {
				t.Parallel()
				over := "when the condition ends"
				if l.When.Clear != l.When.Threshold {
					over = fmt.Sprintf("at %g", l.When.Clear)
				}
				said := fmt.Sprintf("| %s | %s | %s | %s |\n", l.Severity, strings.ReplaceAll(l.When.Words(), "|", `\|`),
					l.For, over)
				for _, want := range []string{said, l.Expr()} {
					fixture.Contains(t, section, want, "the runbook")
				}
				promise{l.Severity, l.When, l.For.spelled()}.test(t, c, l)
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
		got, _ := r.show(p.example(e, held, held, nil), false, r.aWhile(), incident.OK)
		fixture.If(t, got != p.severity.State(), "held at %g: %v", held, got)
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

// gaps interrupts bad samples: K of the last N enter the level, and K-1 of them do not.
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
		fixture.Equal(t, got, []incident.State{p.severity.State(), incident.OK}[more],
			"bad again after %d samples", p.N-p.K+more)
	}
}

// TestTextsDoNotRepeat holds that each sentence about a check says something
// new. A detail says the summary again with a value in it.
func TestTextsDoNotRepeat(t *testing.T) {
	for _, c := range Checks() {
		details := map[string]bool{c.Detail: true}
		for _, l := range c.Levels {
			details[l.Detail] = true
		}
		delete(details, "")
		texts := [][]string{{c.Summary, c.Action, c.Cause}}
		for d := range details {
			texts = append(texts, []string{d, c.Action, c.Cause})
			if !quantities.MatchString(d) && !strings.Contains(d, "{labels}") && !strings.Contains(d, "{xids}") &&
				!strings.Contains(d, "{event}") {
				texts = append(texts, []string{c.Summary, d})
			}
		}
		for _, together := range texts {
			for _, pair := range fixture.Repeats(together...) {
				t.Errorf("%s says twice: %q", c.ID, pair)
			}
		}
	}
}
