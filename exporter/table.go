package exporter

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// minWidth is the minimum width of a status, in columns.
const minWidth = 80

// shownWorkloads is the most workloads that a status shows.
const shownWorkloads = 20

// table returns s as text. No line is wider than the style, and names are
// printable, whatever they contain.
func (st style) table(s State) string {
	var b strings.Builder
	st.host(&b, s)
	st.faults(&b, "", s.Faults, s.Time)
	if len(s.GPUs) > 0 {
		b.WriteByte('\n')
		st.gpus(&b, s)
		st.blind(&b, s.GPUs)
	}
	if len(s.GPUs)+len(s.Workloads) > 0 {
		b.WriteByte('\n')
		if g := st.workloads(s); len(g.rows) > 0 {
			st.grid(&b, g, shownWorkloads)
		} else if slices.ContainsFunc(s.GPUs, func(g GPU) bool { return g.Up }) { // otherwise unknown
			b.WriteString(st.line(cell{text: g.empty, paint: dim}))
		}
	}
	if len(s.Tenants) > 0 {
		b.WriteByte('\n')
		st.grid(&b, st.tenants(s.Tenants, nil), shownTenants)
	}
	if len(s.Escalation) > 0 {
		b.WriteByte('\n')
		st.grid(&b, st.escalation(s.Escalation), shownEscalated)
	}
	return b.String()
}

// host writes the part that belongs to no GPU.
func (st style) host(b *strings.Builder, s State) {
	h, driver := s.Host, "no driver"
	if h.DriverUp {
		driver = "driver " + cmp.Or(h.DriverVersion, "?") + ", CUDA " + cmp.Or(h.CUDAVersion, "?")
	}
	gpus := cell{text: plural(h.GPUsExpected, "GPU") + " expected,"}
	if h.GPUs != nil {
		gpus.text = fmt.Sprintf("%d of %s,", *h.GPUs, plural(h.GPUsExpected, "GPU"))
		if *h.GPUs < h.GPUsExpected {
			gpus.paint = red
		}
	}
	b.WriteString(st.line(cell{text: cut(cmp.Or(h.Name, "this host"), 20) + ":", paint: bold},
		cell{text: cut(driver, 32) + ","}, gpus,
		cell{text: s.Time.UTC().Format("15:04:05 UTC"), paint: dim}))
	if h.Note != "" {
		b.WriteString(st.line(cell{text: h.Note, paint: dim}))
	}
	if h.Drained {
		b.WriteString(st.line(cell{text: "Drained: the agent has released the driver until gpusteward resume.",
			paint: yellow}))
	} else if h.NotReady != "" {
		b.WriteString(st.wrapped(red, "", "Not ready: "+h.NotReady))
	}
	if h.BrokerUp != nil && !*h.BrokerUp {
		b.WriteString(st.line(cell{text: "The broker does not answer.", paint: red}))
	}
}

// blind writes which GPUs have no GPM, and what is unknown of them.
func (st style) blind(b *strings.Builder, gpus []GPU) {
	var without []string
	for _, g := range gpus {
		if g.NoGPM {
			without = append(without, strconv.Itoa(g.Index))
		}
	}
	if without != nil {
		b.WriteString(st.wrapped(dim, "", "GPUs without GPM: "+strings.Join(without, ", ")+". What their pipes and links do "+
			"is unknown to the driver (docs/migration.md)."))
	}
}

// gpus writes a line or two for each GPU, and one for each of its MIG devices.
func (st style) gpus(b *strings.Builder, s State) {
	st.gpuLine(b, dim, "", "", "GPU", "LOAD", "MEMORY GiB", "TEMP °C", "POWER W", "SM GHz")
	for _, g := range s.GPUs {
		index := strconv.Itoa(g.Index)
		if !g.Up {
			b.WriteString(st.line(cell{index, -2, red}, cell{g.model(), 21, red}, cell{text: down(g.Reason), paint: red}))
			st.faults(b, "   ", g.Faults, s.Time)
			continue
		}
		st.gpuLine(b, g.paint(), g.heat(), index, g.model(), load(g.Utilization.of("gpu"), st.bar()),
			memory(g.Memory.of("used"), known(g.MemoryTotal), st.bar()), g.celsius(), g.watts(),
			show("%.2f", g.Clocks.of("sm")/1e9))
		st.details(b, g, s.Time)
	}
}

// bar returns the width of a bar.
func (st style) bar() int { return 6 + min((st.width-minWidth)/2, 14) }

// gpuLine writes the line of a GPU or of a MIG device. A temperature near its
// limit has a colour of its own.
func (st style) gpuLine(b *strings.Builder, paint, hot, index, name, load, memory, temperature, power, clock string) {
	b.WriteString(st.line(cell{index, -2, paint}, cell{name, 21, paint}, cell{load, st.bar() + 5, paint},
		cell{memory, st.bar() + 12, paint}, cell{temperature, 7, cmp.Or(hot, paint)}, cell{power, -9, paint},
		cell{clock, -6, paint}))
}

// details writes the faults of a GPU, why its clocks are held, and its MIG
// devices.
func (st style) details(b *strings.Builder, g GPU, now time.Time) {
	st.faults(b, "   ", g.Faults, now)
	if held := g.held(); held != "" {
		b.WriteString(st.wrapped(yellow, "   ", "Its clocks are held by "+held+"."))
	}
	for _, m := range g.MIG {
		st.gpuLine(b, "", "", "", m.Profile+" "+m.GI+"/"+m.CI, load(known(m.SMActivity), st.bar()),
			memory(known(m.MemoryUsed), known(m.MemoryTotal), st.bar()), "", "", "")
	}
}

// model returns the name of the GPU's product; its UUID if that is unknown.
func (g GPU) model() string { return strings.TrimPrefix(cmp.Or(g.Name, g.UUID), "NVIDIA ") }

// paint is the colour of the GPU's line.
func (g GPU) paint() string {
	switch {
	case !g.Up:
		return red
	case g.Utilization.of("gpu") == 0:
		return dim
	}
	return ""
}

// heat is the colour of a temperature near its limit.
func (g GPU) heat() string {
	if known(g.Margin) < nearLimit {
		return yellow
	}
	return ""
}

// celsius writes the temperature and the margin to its limit.
func (g GPU) celsius() string {
	return show("%.0f", g.Temperature.of("gpu")) + show(" %+.0f", known(g.Margin))
}

// watts writes the power and its limit.
func (g GPU) watts() string { return show("%.0f", known(g.Power)) + show("/%.0f", known(g.PowerLimit)) }

// workloads returns a row for each workload.
func (st style) workloads(s State) grid {
	g := grid{title: "Workloads", empty: "No process uses a GPU.", columns: []column{{"WORKLOAD", st.width - 34},
		{"GPUS", 7}, {"GiB", -6}, {"SM", -5}, {"PROCS", -5}, {"SINCE", -6}}}
	for _, w := range s.Workloads {
		var gpus []int
		first := math.NaN()
		sm, processes := math.NaN(), math.NaN()
		for _, g := range w.GPUs {
			gpus = append(gpus, g.Index)
			if g.Processes != nil {
				processes = plus(processes, g.Processes.total())
			}
			sm = plus(sm, g.Utilization.of("sm"))
		}
		if len(gpus) > 0 {
			first = float64(slices.Min(gpus))
		}
		since := words("")
		if w.Since != nil {
			since = field{text: age(s.Time.Sub(*w.Since)), by: s.Time.Sub(*w.Since).Seconds()}
		}
		var more strings.Builder
		st.suspended(&more, w)
		st.job(&more, w)
		g.rows = append(g.rows, row{w.Name, []field{words(w.who()), {ranges(gpus), -first, ""},
			figure("%.1f", w.memory()/(1<<30)), figure("%.0f%%", 100*sm), figure("%.0f", processes), since},
			more.String()})
	}
	return g
}

// plus adds the known values.
func plus(a, b float64) float64 {
	switch {
	case math.IsNaN(a):
		return b
	case math.IsNaN(b):
		return a
	}
	return a + b
}

// nearLimit is the margin to its limit below which a GPU's temperature is
// marked, in degrees Celsius.
const nearLimit = 5

// holds are the reasons for held clocks, in words.
var holds = map[string]string{
	"sw_power_cap": "power limit", "sw_thermal": "heat", "hw_thermal": "heat (hardware)",
	"hw_power_brake": "power brake",
	"hw_slowdown":    "hardware slowdown", "sync_boost": "sync boost", "app_clocks": "application clocks",
	"display_clocks": "display clocks",
}

// held says in words what holds the GPU's clocks. A GPU at its power limit, and at
// no other, does what it can.
func (g GPU) held() string {
	if slices.Equal(g.Throttled, []string{"sw_power_cap"}) {
		return ""
	}
	all := make([]string, len(g.Throttled))
	for i, h := range g.Throttled {
		all[i] = cmp.Or(holds[h], h)
	}
	return strings.Join(all, ", ")
}

// faultPaints are the colours of severities.
var faultPaints = map[string]string{"info": dim, "warning": yellow, "critical": red, "emergency": red}

// faults writes the findings of health, one line each in the colour of the
// severity, and the counted XIDs on one more line.
func (st style) faults(b *strings.Builder, indent string, all []Fault, now time.Time) {
	var xids []string
	for _, f := range all {
		if f.Check == "" {
			xids = append(xids, f.words(now))
			continue
		}
		b.WriteString(st.wrapped(faultPaints[f.Severity], indent, f.words(now)))
	}
	if xids != nil {
		b.WriteString(st.wrapped(dim, indent, strings.Join(xids, "; ")))
	}
}

// words says what the fault is or was, how often it occurred and how long ago.
func (f Fault) words(now time.Time) string {
	if f.Check != "" {
		since := "for " + age(now.Sub(f.when()))
		if f.Recovered != nil && f.Clears != nil {
			since = "recovered " + f.Recovered.UTC().Format("15:04") + ", clears " + f.Clears.UTC().Format("15:04 UTC")
		}
		return capital(f.Severity) + ", " + since + ": " + f.What
	}
	text := f.What
	if f.Count > 1 {
		text += fmt.Sprintf(" ×%.0f", f.Count)
	}
	if f.Last != nil {
		text += " " + age(now.Sub(*f.Last)) + " ago"
	}
	return text
}

// plural writes a number of things: "1 GPU", "2 GPUs".
func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// capital returns text with a capital letter.
func capital(text string) string {
	return strings.ToUpper(text[:min(1, len(text))]) + text[min(1, len(text)):]
}

// downs are the reasons of gpusteward_worker_stuck in words.
var downs = map[string]string{
	"gpu_is_lost": "lost: ", "reset_required": "needs a reset: ", "not_listed": "gone: ", "late": "late: ",
	"driver_closed": "no driver: ",
}

// down says why a GPU does not answer.
func down(reason string) string {
	if strings.HasPrefix(reason, "nvml") {
		return "hangs in " + reason
	}
	return cmp.Or(downs[reason], "down: ") + cmp.Or(reason, "unknown reason")
}

// load draws a utilization.
func load(ratio float64, wide int) string {
	if math.IsNaN(ratio) {
		return ""
	}
	return fmt.Sprintf("%s %3.0f%%", bar(ratio, wide), 100*ratio)
}

// memory draws the used memory.
func memory(used, total float64, wide int) string {
	if math.IsNaN(used / total) {
		return ""
	}
	return fmt.Sprintf("%s %.1f/%.1f", bar(used/total, wide), used/(1<<30), total/(1<<30))
}

// bar draws a ratio; a ratio above 0 is visible.
func bar(ratio float64, wide int) string {
	full := int(math.Round(float64(wide) * min(max(ratio, 0), 1)))
	if ratio > 0 {
		full = max(full, 1)
	}
	return strings.Repeat("█", full) + strings.Repeat("░", wide-full)
}

// known returns the value; NaN if there is none.
func known(v *float64) float64 {
	if v == nil {
		return math.NaN()
	}
	return *v
}

// show writes a value if it is known.
func show(format string, v float64) string {
	if math.IsNaN(v) {
		return ""
	}
	return fmt.Sprintf(format, v)
}

// ranges writes numbers as 0-3,5.
func ranges(n []int) string {
	slices.Sort(n)
	var parts []string
	for i := 0; i < len(n); i++ {
		part, first := strconv.Itoa(n[i]), i
		for i+1 < len(n) && n[i+1] <= n[i]+1 {
			i++
		}
		if n[i] > n[first] {
			part += "-" + strconv.Itoa(n[i])
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ",")
}

// age writes a duration in at most six characters.
func age(d time.Duration) string {
	switch d = max(0, d); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%02dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}
