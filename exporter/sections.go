package exporter

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// sections returns the grids of a watched status.
func (st style) sections(s State) []grid {
	return []grid{st.glance(s), st.workloads(s), st.tenants(s.Tenants, s.Escalation), st.findings(s), st.jobs(s)}
}

// severities are the severities of checks, the lowest first.
var severities = []string{"info", "warning", "critical", "emergency"}

// glance returns a row for each GPU with its worst fault. The row is explained
// by all faults of the GPU, by what holds its clocks, and by its MIG devices.
func (st style) glance(s State) grid {
	g := grid{title: "GPUs", empty: "There are no GPUs.", columns: []column{{"", -2}, {"GPU", 14}, {"LOAD", -4},
		{"GiB", -11}, {"TEMP", -6}, {"POWER", -9}, {"FAULTS", st.width - 52}}}
	for _, p := range s.GPUs {
		memory := figure("%.1f", p.Memory.of("used")/(1<<30))
		if memory.text != "" {
			memory.text += show("/%.1f", known(p.MemoryTotal)/(1<<30))
		}
		r := row{key: p.UUID, fields: []field{{strconv.Itoa(p.Index), -float64(p.Index), ""}, words(p.model()),
			figure("%.0f%%", 100*p.Utilization.of("gpu")), memory, {p.celsius(), p.Temperature.of("gpu"), p.heat()},
			{p.watts(), known(p.Power), ""}, p.worst(s.Time, st.width > minWidth)}}
		for i := range r.fields {
			r.fields[i].paint = cmp.Or(r.fields[i].paint, p.paint())
		}
		var more strings.Builder
		st.details(&more, p, s.Time)
		r.more = more.String()
		g.rows = append(g.rows, r)
	}
	return g
}

// worst says in a few words what is wrong with the GPU: why it does not answer,
// or its worst finding (in full if there is room) and the number of all, or its
// last XID, or what holds its clocks.
func (g GPU) worst(now time.Time, wide bool) field {
	findings := 0
	for _, f := range g.Faults {
		if f.Check != "" {
			findings++
		}
	}
	switch {
	case !g.Up:
		return field{down(g.Reason), float64(len(severities)), red}
	case findings > 0:
		f := g.Faults[0]
		text := f.Severity
		if findings > 1 {
			text += fmt.Sprintf(" ×%d", findings)
		}
		if text += " " + f.Check; wide {
			text += ": " + f.What
		}
		return field{text, float64(slices.Index(severities, f.Severity)), faultPaints[f.Severity]}
	case len(g.Faults) > 0:
		return field{g.Faults[0].words(now), -1, ""}
	case g.held() != "":
		return field{"held by " + g.held(), -2, yellow}
	}
	return words("")
}

// findings returns a row for each fault of the node and of its GPUs, the worst
// first.
func (st style) findings(s State) grid {
	g := grid{title: "Faults", empty: "There are no faults.", columns: []column{{"SEVERITY", 9}, {"WHERE", 6},
		{"SINCE", -6}, {"FAULT", st.width - 24}}}
	add := func(where string, index int, all []Fault) {
		for _, f := range all {
			since := words("")
			if f.Recovered != nil {
				since = field{"over", s.Time.Sub(*f.Recovered).Seconds(), dim}
			} else if f.Last != nil {
				since = field{text: age(s.Time.Sub(*f.Last)), by: s.Time.Sub(*f.Last).Seconds()}
			}
			what := f.What
			if f.Count > 1 {
				what += fmt.Sprintf(" ×%.0f", f.Count)
			}
			paint := faultPaints[f.Severity]
			g.rows = append(g.rows, row{where + " " + f.Check + " " + f.What, []field{
				{f.Severity, float64(slices.Index(severities, f.Severity)), paint},
				{where, -float64(index), paint}, since, {what, known(nil), paint}},
				st.wrapped(paint, "   ", strings.TrimPrefix(f.Check+": "+what, ": "))})
		}
	}
	add("node", -1, s.Faults)
	for _, p := range s.GPUs {
		add(fmt.Sprint("GPU ", p.Index), p.Index, p.Faults)
	}
	g.rows = g.sorted(0, false)
	return g
}

// jobs returns a row for each workload with programs under the hook.
func (st style) jobs(s State) grid {
	g := grid{title: "Jobs", empty: "No program runs under the hook.", columns: []column{{"WORKLOAD", st.width - 46},
		{"GPUS", 7}, {"STEP", -8}, {"STATE", 28}}}
	for _, w := range s.Workloads {
		var gpus []int
		var step float64
		state, found := words("no steps yet"), false
		worse := func(than field) {
			if !(state.by >= than.by) { // NaN is less
				state = than
			}
		}
		for _, p := range w.GPUs {
			gpus = append(gpus, p.Index)
			j := p.Job
			if j == nil {
				continue
			}
			found = true
			if j.Stepping {
				step = max(step, j.Step)
				worse(field{"steps", 0, ""})
			}
			if j.Slow != nil {
				worse(field{fmt.Sprintf("slow, ×%.3g", j.Slow.times()), 1, yellow})
			}
			if j.Straggler != nil {
				worse(field{fmt.Sprintf("waits %.0f%% for rank %s", 100*j.Straggler.Ratio, j.Straggler.Rank), 2, yellow})
			}
			if j.Hang != nil {
				worse(field{"hung for " + age(time.Duration(j.Hang.Seconds*float64(time.Second))), 3, red})
			}
		}
		if !found {
			continue
		}
		takes := words("")
		if step > 0 {
			takes = field{stepTime(step), step, ""}
		}
		var more strings.Builder
		st.job(&more, w)
		g.rows = append(g.rows, row{w.Name, []field{words(w.who()), {ranges(gpus), -float64(slices.Min(gpus)), ""}, takes,
			state}, more.String()})
	}
	return g
}
