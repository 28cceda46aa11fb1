package health

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// someone returns an entity of a signal's kind.
func someone(g *Signal) (e incident.Entity) {
	for _, l := range g.Labels() {
		*e.Part(l) = "1"
	}
	return e
}

// shownBy returns a snapshot of examples at a time after the moment.
func shownBy(examples []Example, passed time.Duration) *derived.Snapshot {
	var samples []collectors.Sample
	for _, x := range examples {
		if v := x.At(passed); !math.IsNaN(v) {
			samples = append(samples, collectors.Sample{Metric: x.Metric, Labels: x.Labels, Value: v})
		}
	}
	slices.SortStableFunc(samples,
		func(a, b collectors.Sample) int { return strings.Compare(a.Metric.Name, b.Metric.Name) })
	return derived.NewSnapshot(samples)
}

// signals returns all signals of all checks, by their input.
func signals() map[string]Condition {
	all := map[string]Condition{}
	var add func(Condition)
	add = func(c Condition) {
		all[c.Signal.String()] = c
		for _, w := range c.While {
			add(w)
		}
	}
	for _, c := range Checks() {
		for _, l := range c.Levels {
			add(l.When)
		}
	}
	return all
}

// TestExamplesAreReadBack reads each signal's value back from its examples, so
// that every kind of signal must have some.
func TestExamplesAreReadBack(t *testing.T) {
	t.Parallel()
	for query, c := range signals() {
		holds, fails := c.sides()
		fixture.If(t, !c.holds(holds, c.Threshold) || c.holds(fails, c.Threshold),
			"%s: %g should hold and %g should not", c, holds, fails)
		for _, want := range []float64{holds, fails} {
			examples := c.Signal.Example(someone(c.Signal), fails, want)
			for _, x := range examples {
				for i, l := range x.Metric.Labels {
					if x.Labels[i] == "" && l != "gpu" && l != "uuid" { // the node has neither
						t.Errorf("%s: the example has no label %s, for it is empty: %q", query, l, x.Labels)
					}
				}
			}
			m := newMemory(time.Unix(0, 0))
			readings(c.Signal, m, shownBy(examples, -step))
			m.now = m.now.Add(step)
			got := readings(c.Signal, m, shownBy(examples, 0))
			if v, ok := got.of(someone(c.Signal)); !ok || len(got) != 1 || math.Abs(v-want) > 1e-9*math.Abs(want) {
				t.Errorf("%s: the example of %g for %v reads as %v", query, want, someone(c.Signal), got)
			}
		}
		if c.Signal.Words() == "" || strings.Count(c.Signal.Words(), "`")%2 != 0 {
			t.Errorf("%s: in words it is %q", query, c.Signal.Words())
		}
	}
}

// TestExamplesOfConditions compares each level's examples with the condition,
// read as the engine does.
func TestExamplesOfConditions(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		for i, l := range c.Levels {
			e := someone(l.When.Signal)
			holds := func(examples []Example, passed time.Duration) bool {
				m := newMemory(time.Unix(0, 0))
				for at := -step; at <= passed; at += step {
					m.now = m.now.Add(step)
					s, met := shownBy(examples, at), false
					open := m.gates(l.When, s)
					l.When.Signal.read(m, s, func(read incident.Entity, v float64) {
						met = met || read == e && l.When.holds(v, l.When.Threshold) && open(e)
					})
					if at == passed {
						return met
					}
				}
				return false
			}
			name := fmt.Sprintf("%s, level %d", c.ID, i+1)
			if examples := l.When.Example(e); holds(examples, -step) || !holds(examples, 0) {
				t.Errorf("%s: its example holds before, or not after: %v", name, examples)
			}
			counter := l.When.Counterexamples(func() incident.Entity { return e })
			fixture.AtLeast(t, len(counter), 1+len(l.When.While), "%s: counterexamples", name)
			for n, examples := range counter {
				fixture.If(t, holds(examples, -step) || holds(examples, 0),
					"%s: counterexample %d holds: %v", name, n, examples)
			}
		}
	}
}

func TestExampleRisesAgain(t *testing.T) {
	x := Example{Before: 3, After: 5, Again: time.Minute}
	for passed, want := range map[time.Duration]float64{-time.Second: 3, 0: 5, 59 * time.Second: 5,
		time.Minute: 7, 3 * time.Minute: 11} {
		fixture.Equal(t, x.At(passed), want, "%v", passed)
	}
}
