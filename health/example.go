package health

import (
	"math"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// An Example is a series around the moment at which a signal reaches a certain
// value. The tests of Prometheus's rules and of the engine share them.
type Example struct {
	Metric        *collectors.Metric
	Labels        []string      // in a Sample's order
	Before, After float64       // the moment; NaN: there is no such series
	Again         time.Duration // after which a counter rises by the same amount again; 0 for a gauge
}

// At returns the example's value at a time after the moment, or before it if
// passed is negative; NaN for none.
func (x Example) At(passed time.Duration) float64 {
	switch {
	case passed < 0:
		return x.Before
	case x.Again == 0:
		return x.After
	}
	return x.Before + (x.After-x.Before)*float64(passed/x.Again+1)
}

// Example returns series that give the signal the value before, and then after,
// for the entity. A count is 0 before, whatever the caller asks for.
func (g *Signal) Example(e incident.Entity, before, after float64) []Example {
	return g.example(e, before, after)
}

// someBase is the number that examples subtract, or divide by, if that is exact.
const someBase = 1000

// baseOf returns a number y such that f(back(v, y), y) is v to the last bit: an
// example at a threshold must not miss it by rounding.
func baseOf(v float64, f func(x, y float64) (float64, bool), back func(v, y float64) float64) float64 {
	for _, y := range []float64{someBase, 1024, v} { // 2v - v is exact, and so is a multiple of a power of 2
		if got, ok := f(back(v, y), y); ok && got == v {
			return y
		}
	}
	return someBase
}

// labels returns an example's labels for an entity.
func (src source) labels(e incident.Entity) []string {
	labels := make([]string, len(src.metric.Labels))
	for i, name := range src.metric.Labels {
		labels[i] = "some"
		if name == "gpu" || name == "uuid" || slices.Contains(src.by, name) {
			labels[i] = *e.Part(name)
		}
	}
	for _, m := range src.matches {
		labels[m.at] = strings.TrimSuffix(m.values[0], ".*")
	}
	return labels
}

// gauge is the example of a gauge.
func (src source) gauge(e incident.Entity, before, after float64) []Example {
	return []Example{{Metric: src.metric, Labels: src.labels(e), Before: before, After: after}}
}

// counter returns the example of a counter that rises within a window, in units
// of so much.
func (src source) counter(window time.Duration, unit float64) func(incident.Entity, float64, float64) []Example {
	return func(e incident.Entity, _, after float64) []Example {
		return []Example{{Metric: src.metric, Labels: src.labels(e), After: after * unit, Again: window}}
	}
}

// loss is the example of a reading that is lost, if after is 1.
func (src source) loss(e incident.Entity, _, after float64) []Example {
	gone := someBase * (1 - after)
	if after == 1 {
		gone = math.NaN()
	}
	return append(src.gauge(e, someBase, gone), from(collectors.Up, nil).gauge(e, 1, 1)...)
}

// noLoss are the examples of absent readings that were not lost: the GPU never
// had them, or the driver says that it has none.
func (src source) noLoss(e incident.Entity) [][]Example {
	never := append(src.gauge(e, math.NaN(), math.NaN()), from(collectors.Up, nil).gauge(e, 1, 1)...)
	unsupported := append(src.loss(e, 0, 1),
		from(collectors.Unsupported, []string{"feature", src.metric.Name}).gauge(e, math.NaN(), 1)...)
	return [][]Example{never, unsupported}
}

// Example returns series that meet the condition for the entity, from the
// moment on.
func (c Condition) Example(e incident.Entity) []Example {
	holds, fails := c.sides()
	return c.example(e, fails, holds, nil)
}

// Counterexamples returns series that never meet the condition. There is one
// set for each part of the condition: that part fails, and all others hold.
// Each set belongs to the next entity.
func (c Condition) Counterexamples(next func() incident.Entity) (all [][]Example) {
	holds, fails := c.sides()
	all = append(all, c.example(next(), fails, fails, nil))
	for i := range c.While {
		all = append(all, c.example(next(), fails, holds, &c.While[i]))
	}
	if c.Signal.excused != nil {
		for i := range c.Signal.excused(incident.Entity{}) {
			all = append(all, c.Signal.excused(next())[i])
		}
	}
	return all
}

// example returns series that give the signal the value before, and then after.
// All other conditions hold, except failing if it is one of them.
func (c Condition) example(e incident.Entity, before, after float64, failing *Condition) []Example {
	all := c.Signal.Example(e, before, after)
	for i := range c.While {
		w := &c.While[i]
		v, fails := w.sides()
		if w == failing {
			v = fails
		}
		for _, x := range w.example(e, v, v, nil) {
			all = joined(all, x, w == failing)
		}
	}
	return all
}

// joined adds x, an example of a condition beside the signal's, to all. If all
// has the same series as a counter, x may say where it ends. Or x counts that
// series too, and its rise meets x; for x to fail, all rise by less.
func joined(all []Example, x Example, fails bool) []Example {
	i := slices.IndexFunc(all, func(y Example) bool { return y.Metric == x.Metric && slices.Equal(y.Labels, x.Labels) })
	switch {
	case i < 0:
		return append(all, x)
	case x.Again == 0:
		all[i].Before, all[i].After = x.After-(all[i].After-all[i].Before), x.After
	case fails:
		scale := x.After / all[i].After
		for n := range all {
			all[n].Before, all[n].After = scale*all[n].Before, scale*all[n].After
		}
	}
	return all
}

// sides returns two values of the signal next to the threshold: the first meets
// the condition, the second does not.
func (c Condition) sides() (holds, fails float64) {
	t, apart := c.Threshold, 1.
	if t != math.Trunc(t) {
		apart = math.Abs(t) / 10
	}
	switch c.Op {
	case ">":
		return t + apart, t
	case ">=":
		return t, t - apart
	case "<":
		return t - apart, t
	case "<=":
		return t, t + apart
	case "!=":
		return t + apart, t
	}
	if t == 0 {
		return 0, 1
	}
	return t, 0
}
