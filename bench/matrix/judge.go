package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// A course is the result of a program in one mode, of all blocks.
type course struct {
	Rate  float64 `json:"rate"`     // steps per second
	Half  float64 `json:"half"`     // of the 95 % interval of Rate; 0 of one block
	Worst float64 `json:"worst_1s"` // the lowest rate of any second of any block
	P50   float64 `json:"p50_ms"`   // of a step
	P99   float64 `json:"p99_ms"`
}

// mean returns the course of all blocks.
func mean(blocks []course) (c course) {
	var rates []float64
	c.Worst = math.Inf(1)
	for _, one := range blocks {
		rates = append(rates, one.Rate)
		c.Worst = min(c.Worst, one.Worst)
		c.P50 += one.P50 / float64(len(blocks))
		c.P99 += one.P99 / float64(len(blocks))
	}
	if c.Rate, c.Half = confidence(rates); len(blocks) == 1 {
		c.Half = 0 // JSON has no NaN
	}
	return c
}

// A subject is a member's results: alone without the hook, and beside the others in each mode.
type subject struct {
	member
	Guarantee float64         `json:"guarantee"` // its part by weight, where that is smallest
	Lone      course          `json:"lone"`
	In        map[mode]course `json:"in"`
}

// part is the throughput in a mode, relative to the lone one.
func (a *subject) part(m mode) float64  { return a.In[m].Rate / a.Lone.Rate }
func (a *subject) worst(m mode) float64 { return a.In[m].Worst / a.Lone.Rate }

// figure formats a part with its interval.
func (a *subject) figure(m mode) string {
	if a.In[m].Half == 0 {
		return fmt.Sprintf("%.3f", a.part(m))
	}
	return fmt.Sprintf("%.3f±%.3f", a.part(m), a.In[m].Half/a.Lone.Rate)
}

// subjects sets the guarantees of members.
func subjects(members []member) (all []*subject) {
	for _, a := range members {
		s := &subject{member: a, Guarantee: 1, In: map[mode]course{}}
		for _, gpu := range a.GPUs {
			sum := 0.0
			for _, b := range members {
				if slices.Contains(b.GPUs, gpu) {
					sum += b.Weight
				}
			}
			s.Guarantee = min(s.Guarantee, a.Weight/sum)
		}
		all = append(all, s)
	}
	return all
}

// A goal is one requirement of a cell.
type goal struct {
	What string  `json:"what"`
	Got  float64 `json:"got"`
	Want float64 `json:"want"`
	Most bool    `json:"most,omitempty"` // Got is to be at most Want; otherwise at least
}

// margin is negative if the goal is missed.
func (g goal) margin() float64 {
	if g.Most {
		return g.Want - g.Got
	}
	return g.Got - g.Want
}

func (g goal) String() string {
	sign := "≥"
	if g.Most {
		sign = "≤"
	}
	return fmt.Sprintf("%s %.3f %s %.3f", g.What, g.Got, sign, g.Want)
}

// A verdict is the complete result of a cell.
type verdict struct {
	Cell     string     `json:"cell"`
	GPU      string     `json:"gpu"` // its product name
	Blocks   int        `json:"blocks"`
	Seconds  float64    `json:"seconds"`           // of each block
	Skipped  string     `json:"skipped,omitempty"` // why it cannot be measured on this machine
	Failed   string     `json:"failed,omitempty"`  // why the measurement failed: a program hung, or ended
	Subjects []*subject `json:"subjects"`
	Goals    []goal     `json:"goals"`
}

// active returns the subjects with a throughput.
func (v *verdict) active() []*subject {
	return slices.DeleteFunc(slices.Clone(v.Subjects), func(a *subject) bool { return a.silent() })
}

func (v *verdict) sum(m mode) (sum float64) {
	for _, a := range v.active() {
		sum += a.part(m)
	}
	return sum
}

// judge sets the goals of a hooked mode. The neighbours of a realtime program have what it leaves. If
// all programs have their guarantees without the hook, none is held back. Otherwise all have them
// under the hook, and together they do nearly as much as in the best of the other modes.
func (v *verdict) judge(m mode, others []mode) {
	all := v.active()
	add := func(what string, got, want float64) {
		v.Goals = append(v.Goals, goal{What: fmt.Sprintf("%s, %s", m, what), Got: got, Want: want})
	}
	short := func(a *subject) bool { return a.part(plain) < a.Guarantee }
	realtime := slices.ContainsFunc(all, func(a *subject) bool { return a.Realtime })
	for _, a := range all {
		switch {
		case len(all) == 1:
			add(a.Tenant, a.part(m), 0.997*a.part(plain))
		case a.Realtime:
			add(a.Tenant, a.part(m), a.Guarantee-0.02)
			v.Goals = append(v.Goals, goal{fmt.Sprintf("%s, %s's p99 of alone", m, a.Tenant), a.In[m].P99 / a.Lone.P99,
				1.25, true})
		case realtime:
			add(a.Tenant, a.part(m), 0.6*a.part(plain))
		case !slices.ContainsFunc(all, short):
			add(a.Tenant, a.part(m), 0.98*a.part(plain))
		default:
			add(a.Tenant, a.part(m), a.Guarantee-0.02)
			// The program may do less in a second even when it is alone.
			add(a.Tenant+" in 1 s", a.worst(m), (a.Guarantee-0.05)*min(1, a.Lone.Worst/a.Lone.Rate))
		}
	}
	best := 0.0
	for _, other := range others {
		best = max(best, v.sum(other))
	}
	if len(all) > 1 && !realtime {
		add("sum", v.sum(m), 0.97*best)
	}
}

// tightest returns the goal with the smallest margin.
func (v *verdict) tightest() goal {
	switch {
	case v.Failed != "":
		return goal{What: "failed: " + v.Failed, Got: math.Inf(-1)}
	case len(v.Goals) == 0:
		return goal{What: "no goal", Got: math.Inf(1)}
	}
	return slices.MinFunc(v.Goals, func(a, b goal) int { return cmp.Compare(a.margin(), b.margin()) })
}

func (v *verdict) word() string {
	switch g := v.tightest(); {
	case v.Skipped != "":
		return "skipped: " + v.Skipped
	case len(v.Goals) == 0:
		return g.What
	case g.margin() >= 0:
		return "holds: " + g.String()
	default:
		return "short: " + g.String()
	}
}

// each formats a figure of all that have a throughput.
func (v *verdict) each(figure func(*subject) string) string {
	var all []string
	for _, a := range v.active() {
		all = append(all, figure(a))
	}
	return strings.Join(all, " + ")
}

// markdown formats the table of all cells, the worst one first.
func markdown(verdicts []*verdict, modes []mode) string {
	all := slices.Clone(verdicts)
	slices.SortStableFunc(all, func(a, b *verdict) int { return cmp.Compare(a.tightest().margin(), b.tightest().margin()) })
	row := []string{"programs and weights"}
	for _, m := range modes {
		row = append(row, string(m), "sum", "worst second", "p99 ms")
	}
	row = append(row, "verdict")
	table := fmt.Sprintf("| %s |\n|%s\n", strings.Join(row, " | "), strings.Repeat("---|", len(row)))
	for _, v := range all {
		row = row[:0]
		for _, m := range modes {
			if v.Skipped != "" || v.Failed != "" {
				row = append(row, "", "", "", "")
				continue
			}
			row = append(row, v.each(func(a *subject) string { return a.figure(m) }), fmt.Sprintf("%.3f", v.sum(m)),
				v.each(func(a *subject) string { return fmt.Sprintf("%.2f", a.worst(m)) }),
				v.each(func(a *subject) string { return fmt.Sprintf("%.1f", a.In[m].P99) }))
		}
		table += fmt.Sprintf("| %s | %s | %s |\n", v.Cell, strings.Join(row, " | "), v.word())
	}
	return table
}
