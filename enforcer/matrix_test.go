package enforcer_test

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The matrix runs real programs beside each other. This file has its cells, the
// goals of each, and the table. matrix_gpu_test.go runs them on a GPU.

// onOne are the cells for one GPU. A number is a tenant's weight.
var onOne = []string{
	// Cells with earlier measurements.
	"steps 70 + steps 30",
	"steps 70 + jax 30",
	"steps 30 + jax 70",
	"jax 30 + cupy 70",
	"streams 70 + loader 30",
	"gpt2 70 + decode 30",
	"queue 70 + tick 30",
	"steps 70 + tick 30",
	"gpt2 50 + silent 50",
	// These programs queue ahead.
	"queue 70 + queue 30",
	"queue 90 + queue 10",
	"queue 50 + queue 50",
	"graph 70 + queue 30",
	"graph10 30 + steps 70",
	"compiled 70 + jax 30",
	"small 50 + small 50",
	// These programs wait, beside programs that do not, and beside each other.
	"triton 70 + steps 30",
	"triton 30 + cupy 70",
	"cupy 50 + queue 50",
	"gpt2 70 + queue 30",
	"loader 70 + steps 30",
	"steps 90 + jax 10",
	"jax 90 + queue 10",
	// A user waits for each token.
	"decode realtime 30 + queue 70",
	"decode realtime 30 + gpt2 70",
	"decode realtime 30 + cupy 70",
	"decode 30 + cupy 70",
	"decode 30 + steps 70",
	"queue 50 + steps 30 + jax 20",
	"gpt2 50 + steps 30 + decode 20",
	"cupy 50 + jax 30 + triton 20",
	"queue 50 + streams 30 + loader 20",
}

// onTwo are the cells for two GPUs. A gang is on both; another program is on
// the first one, or on the second with @1.
var onTwo = []string{
	"ddp 70 + queue 30",
	"ddp 70 + steps 30 + steps@1 30",
	"ddp 50 + silent 50 + silent@1 50",
	"ddp 50 + ddp 50",
	"bcast 50 + steps@1 50",
}

// Known facts about kinds; their programs are in hook/bench.
var (
	gangs   = []string{"ddp", "bcast"}                          // a process on each GPU
	ahead   = []string{"queue", "graph", "graph10", "compiled"} // they queue ahead and fill a GPU
	ticking = []string{"tick", "bcast", "silent"}               // they want next to nothing
	// A step is this many kernels, each longer than half a millisecond.
	long = map[string]float64{"cupy": 5}
)

// A member is one program of a cell: a tenant with a worker of its own.
type member struct {
	Kind     string  `json:"kind"`
	Tenant   string  `json:"tenant"`
	Weight   float64 `json:"weight"`
	Realtime bool    `json:"realtime,omitempty"`
	GPUs     []int   `json:"gpus"`
}

func (m member) gang() bool { return slices.Contains(gangs, m.Kind) }

// silent reports whether a member has no throughput.
func (m member) silent() bool { return m.Kind == "silent" }

// parseCell parses a cell in the notation of onOne.
func parseCell(spec string) (members []member, err error) {
	seen := map[string]int{}
	for words := range strings.SplitSeq(spec, " + ") {
		f := strings.Fields(words)
		m := member{GPUs: []int{0}}
		if len(f) == 3 && f[1] == "realtime" {
			m.Realtime, f = true, []string{f[0], f[2]}
		}
		if len(f) != 2 {
			return nil, fmt.Errorf("%q: want KIND[@GPU] [realtime] WEIGHT", words)
		}
		kind, gpu, placed := strings.Cut(f[0], "@")
		m.Kind, m.Tenant = kind, strings.ReplaceAll(f[0], "@", "-gpu")
		if placed {
			if m.GPUs[0], err = strconv.Atoi(gpu); err != nil {
				return nil, fmt.Errorf("%q: %w", words, err)
			}
		}
		if m.gang() {
			m.GPUs = []int{0, 1}
		}
		if m.Weight, err = strconv.ParseFloat(f[1], 64); err != nil {
			return nil, fmt.Errorf("%q: %w", words, err)
		}
		if seen[f[0]]++; seen[f[0]] > 1 {
			m.Tenant += fmt.Sprint("-", seen[f[0]])
		}
		members = append(members, m)
	}
	return members, nil
}

// A course is the result of a program in one run.
type course struct {
	Rate  float64 `json:"rate"`     // steps per second
	Worst float64 `json:"worst_1s"` // the lowest rate of any second
	P50   float64 `json:"p50_ms"`   // of a step
	P99   float64 `json:"p99_ms"`
}

// courseOf returns the rates of the steps completed within [from, to). A run
// shorter than a second has no worst second.
func courseOf(s *series, from, to int64) course {
	c := course{Rate: s.work(from, to) / (float64(to-from) / 1e9)}
	c.Worst = c.Rate
	for at := from; at+int64(time.Second) <= to; at += int64(100 * time.Millisecond) {
		c.Worst = min(c.Worst, s.work(at, at+int64(time.Second)))
	}
	return c
}

// A subject is a member's results: alone under the hook, beside the others
// without it, and beside them with it.
type subject struct {
	member
	Guarantee float64            `json:"guarantee"`
	Lone      course             `json:"lone"`
	Plain     course             `json:"plain"`
	Hooked    course             `json:"hooked"`
	Charged   map[string]float64 `json:"charged"` // part of a GPU's time, by its UUID, in the broker's books
}

// plain and hooked are relative to the lone throughput.
func (s *subject) plain() float64  { return s.Plain.Rate / s.Lone.Rate }
func (s *subject) hooked() float64 { return s.Hooked.Rate / s.Lone.Rate }
func (s *subject) worst() float64  { return s.Hooked.Worst / s.Lone.Rate }

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

func (g goal) met() bool { return g.margin() >= 0 } // false without a measurement

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
	Seconds  float64    `json:"seconds"`
	Skipped  string     `json:"skipped,omitempty"` // why it cannot be measured on this machine
	Failed   string     `json:"failed,omitempty"`  // why the measurement failed: a program hung, or ended
	Subjects []*subject `json:"subjects"`
	Goals    []goal     `json:"goals"`
}

// tightest returns the goal with the smallest margin.
func (v *verdict) tightest() goal {
	switch {
	case v.Skipped != "":
		return goal{What: "skipped", Got: math.Inf(1)}
	case v.Failed != "":
		return goal{What: "failed", Got: math.Inf(-1)}
	}
	return slices.MinFunc(v.Goals, func(a, b goal) int { return cmp.Compare(a.margin(), b.margin()) })
}

// judge sets guarantees and goals.
func judge(s []*subject) (goals []goal) {
	for _, a := range s {
		a.Guarantee = guarantee(s, a)
	}
	for _, a := range s {
		if !a.silent() {
			goals = append(goals, owed(s, a)...)
		}
	}
	if !slices.ContainsFunc(s, func(a *subject) bool { return a.Realtime }) {
		goals = append(goals, total(s))
	}
	return goals
}

// beside returns the members that share a GPU with a member.
func beside(s []*subject, a *subject, gpu int) (others []*subject) {
	for _, b := range s {
		if a != b && slices.Contains(b.GPUs, gpu) {
			others = append(others, b)
		}
	}
	return others
}

// guarantee returns a member's part by weight, on the GPU where that part is
// smallest.
func guarantee(s []*subject, a *subject) float64 {
	least := 1.0
	for _, gpu := range a.GPUs {
		sum := a.Weight
		for _, b := range beside(s, a, gpu) {
			sum += b.Weight
		}
		least = min(least, a.Weight/sum)
	}
	return least
}

// needs estimates the part of a GPU's time that a member uses alone, from the
// time that it left to the others in plain slicing.
func needs(s []*subject, a *subject) float64 {
	most := 0.0
	for _, gpu := range a.GPUs {
		left := 1.0
		for _, b := range beside(s, a, gpu) {
			if !b.silent() {
				left -= b.plain()
			}
		}
		most = max(most, left/a.plain())
	}
	return min(most, 1)
}

// modest reports whether a member needs less than its guarantee. Plain slicing
// alone decides. The member must cost the others no more than the guarantee. It
// must also have nearly its lone throughput, unless every member has at least
// its guarantee.
func modest(s []*subject, a *subject) bool {
	short := func(b *subject) bool { return !b.silent() && b.plain() < min(0.9, b.Guarantee) }
	return needs(s, a) <= a.Guarantee && (a.plain() >= 0.9 || !slices.ContainsFunc(s, short))
}

// owed returns the goals of one member.
func owed(s []*subject, a *subject) []goal {
	others := slices.DeleteFunc(slices.Clone(s), func(b *subject) bool { return a == b })
	every := func(is func(*subject) bool) bool {
		return !slices.ContainsFunc(others, func(b *subject) bool { return !is(b) })
	}
	floor := func(part float64) goal { return goal{What: a.Tenant, Got: a.hooked(), Want: part} }
	second := func(part float64) goal {
		// The neighbours are not to blame for a second in which it does less
		// even alone.
		return goal{What: a.Tenant + " in 1 s", Got: a.worst(), Want: part * min(1, a.Lone.Worst/a.Lone.Rate)}
	}
	switch {
	case a.Realtime:
		return []goal{floor(a.Guarantee - 0.02), latency(others, a)}
	case slices.ContainsFunc(others, func(b *subject) bool { return b.Realtime }):
		return []goal{floor(0.6 * a.plain())} // part of the throughput that plain slicing leaves it beside the first
	case every((*subject).silent):
		return []goal{floor(0.995)}
	case every(func(b *subject) bool { return slices.Contains(ticking, b.Kind) }):
		return []goal{floor(a.plain() - 0.01)}
	case modest(s, a):
		part := 0.97
		if a.plain() < part {
			part = a.plain() - 0.02 // it waits for its turn, also in plain slicing
		}
		return []goal{floor(part), second(part - 0.03)}
	}
	return []goal{floor(a.Guarantee - 0.02), second(a.Guarantee - 0.05)}
}

// latency requires that a step's 99th percentile is at most 1.25 times its lone
// value, and one kernel of a neighbour with long kernels.
func latency(others []*subject, a *subject) goal {
	kernel := 0.0 // ms
	for _, b := range others {
		if n := long[b.Kind]; n > 0 {
			kernel = max(kernel, b.Lone.P50/n)
		}
	}
	return goal{What: a.Tenant + "'s p99 of alone", Got: a.Hooked.P99 / a.Lone.P99, Want: 1.25 + kernel/a.Lone.P99,
		Most: true}
}

// total returns the goal for the sum of parts.
func total(s []*subject) goal {
	hooked, plain := 0.0, 0.0
	only := func(kinds []string) bool {
		return !slices.ContainsFunc(s, func(a *subject) bool { return !slices.Contains(kinds, a.Kind) })
	}
	for _, a := range s {
		if !a.silent() {
			hooked, plain = hooked+a.hooked(), plain+a.plain()
		}
	}
	want := 0.98 * plain
	switch enforced, any := moved(s); {
	case only(ahead):
		want = 1.05 * plain
	case only(gangs):
		want = 0.95 * plain
	case any:
		want = 0.97 * enforced
	}
	return goal{What: "sum", Got: hooked, Want: want}
}

// moved returns the sum that plain slicing would have at the split that the
// guarantees enforce, and whether they enforce any. A member below its
// guarantee in plain slicing gets its guarantee. The members above theirs pay
// for it, and their parts fall with their GPU time. A member that needs little
// keeps its part.
func moved(s []*subject) (sum float64, any bool) {
	had, has, kept, rest := 0.0, 0.0, 0.0, 0.0
	for _, a := range s {
		switch {
		case a.silent():
		case modest(s, a):
			sum += a.plain()
			kept += needs(s, a) * a.plain()
		case a.plain() < a.Guarantee:
			any = true
			had, has = had+a.plain(), has+a.Guarantee
		default:
			rest += a.plain()
		}
	}
	scale := 1.0
	if before := 1 - had - kept; before > 0 {
		scale = min(1, max(0, (1-has-kept)/before))
	}
	return sum + has + rest*scale, any
}

// each formats figures of all members with a throughput.
func (v *verdict) each(format string, figures ...func(*subject) float64) string {
	var all []string
	for _, a := range v.Subjects {
		if a.silent() {
			continue
		}
		var one []any
		for _, figure := range figures {
			one = append(one, figure(a))
		}
		all = append(all, fmt.Sprintf(format, one...))
	}
	return strings.Join(all, " + ")
}

func (v *verdict) sum(part func(*subject) float64) (sum float64) {
	for _, a := range v.Subjects {
		if !a.silent() {
			sum += part(a)
		}
	}
	return sum
}

func (v *verdict) word() string {
	switch {
	case v.Skipped != "":
		return "SKIPPED " + v.Skipped
	case v.Failed != "":
		return "FAILED " + v.Failed
	case v.tightest().met():
		return "PASS"
	}
	return "FALL SHORT"
}

// columns returns the verdict as a row of the table.
func (v *verdict) columns() []string {
	if v.Goals == nil {
		return append(append([]string{v.Cell}, make([]string, len(titles)-2)...), v.word())
	}
	steps := func(c func(*subject) course) string {
		return v.each("%.2f/%.2f", func(a *subject) float64 { return c(a).P50 },
			func(a *subject) float64 { return c(a).P99 })
	}
	books := v.each("%.2f", func(a *subject) float64 {
		most := 0.0
		for _, part := range a.Charged {
			most = max(most, part)
		}
		return most
	})
	return []string{
		v.Cell,
		v.each("%.3f", (*subject).plain), fmt.Sprintf("%.3f", v.sum((*subject).plain)),
		v.each("%.3f", (*subject).hooked), fmt.Sprintf("%.3f", v.sum((*subject).hooked)),
		v.each("%.2f", (*subject).worst),
		steps(func(a *subject) course { return a.Lone }), steps(func(a *subject) course { return a.Plain }),
		steps(func(a *subject) course { return a.Hooked }),
		books,
		v.word() + ": " + v.tightest().String(),
	}
}

var titles = []string{"cell", "plain", "sum", "hooked", "sum", "worst 1 s", "step ms p50/p99: alone", "plain", "hooked",
	"books", "verdict"}

// markdown formats the table of all cells, the worst one first.
func markdown(verdicts []*verdict) string {
	all := slices.Clone(verdicts)
	slices.SortStableFunc(all, func(a, b *verdict) int {
		return cmp.Compare(a.tightest().margin(), b.tightest().margin())
	})
	var b strings.Builder
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(titles, " | "), strings.Repeat("---|", len(titles)))
	for _, v := range all {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(v.columns(), " | "))
	}
	return b.String()
}

func TestMatrixCells(t *testing.T) {
	kinds, err := os.ReadFile("hook/bench/kinds.py")
	if err != nil {
		t.Fatal(err)
	}
	sizes, seen := map[int]int{}, map[string]bool{}
	for _, spec := range slices.Concat(onOne, onTwo) {
		members, err := parseCell(spec)
		if err != nil {
			t.Fatal(err)
		}
		tenants := map[string]bool{}
		for _, m := range members {
			tenants[m.Tenant], seen[m.Kind] = true, true
			if !strings.Contains(string(kinds), fmt.Sprintf("    %q: ", m.Kind)) {
				t.Errorf("%s: kinds.py has no %s", spec, m.Kind)
			}
		}
		if len(tenants) != len(members) {
			t.Errorf("%s: tenants %v", spec, tenants)
		}
		if slices.Contains(onOne, spec) {
			sizes[len(members)]++
		}
	}
	if sizes[2] < 24 || sizes[3] < 4 || len(seen) < 17 {
		t.Errorf("%d pairs, %d triples and %d kinds; want 24, 4 and 17", sizes[2], sizes[3], len(seen))
	}
	for _, bad := range []string{"steps", "steps much", "steps@x 50", "steps idle 50"} {
		if _, err := parseCell(bad); err == nil {
			t.Errorf("%q is taken for a cell", bad)
		}
	}
}

func TestCourse(t *testing.T) {
	s := &series{cost: 1}
	for i := range int64(51) { // ten steps per second, and none in the third
		s.add(i*int64(time.Second)/10, float64(i)-min(10, max(0, float64(i)-20)))
	}
	if c := courseOf(s, 0, 5*int64(time.Second)); math.Abs(c.Rate-8) > 1e-9 || c.Worst > 1e-9 {
		t.Errorf("course = %+v, want 8 steps a second, and 0 in the worst one", c)
	}
	if c := courseOf(s, 0, int64(time.Second)/2); math.Abs(c.Worst-10) > 1e-9 {
		t.Errorf("course of half a second = %+v", c)
	}
}

// went returns a cell with the given plain and hooked parts, in which a program
// alone does a step of 1 ms each ms.
func went(t *testing.T, spec string, plain, hooked []float64) *verdict {
	t.Helper()
	members, err := parseCell(spec)
	if err != nil {
		t.Fatal(err)
	}
	v := &verdict{Cell: spec}
	for i, m := range members {
		at := func(part float64) course { return course{1000 * part, 1000 * part, 1, 1 / part} }
		v.Subjects = append(v.Subjects, &subject{member: m, Lone: at(1), Plain: at(plain[i]), Hooked: at(hooked[i])})
	}
	v.Goals = judge(v.Subjects)
	return v
}

// TestJudge compares verdicts on cells with known outcomes.
func TestJudge(t *testing.T) {
	type parts = []float64
	for _, c := range []struct {
		spec          string
		plain, hooked parts
		missed        string // names of goals, separated by commas
	}{
		{"steps 70 + jax 30", parts{.37, .69}, parts{.53, .44}, "steps,steps in 1 s,sum"},
		{"steps 70 + jax 30", parts{.37, .69}, parts{.70, .30}, ""},
		{"steps 30 + jax 70", parts{.37, .69}, parts{.34, .65}, "jax,sum"},
		{"streams 70 + loader 30", parts{.51, .97}, parts{.60, .41}, "streams,streams in 1 s,sum"},
		{"streams 70 + loader 30", parts{.51, .97}, parts{.70, .57}, ""},
		{"gpt2 70 + decode 30", parts{.87, 1}, parts{.76, .59}, "gpt2,gpt2 in 1 s,decode,decode in 1 s,sum"},
		{"gpt2 70 + decode 30", parts{.87, 1}, parts{.87, .98}, ""},
		{"decode 30 + steps 70", parts{.8, .86}, parts{.66, .98}, "decode,decode in 1 s"},
		{"queue 70 + tick 30", parts{.975, .95}, parts{.95, .74}, "queue,tick,tick in 1 s,sum"},
		{"queue 70 + tick 30", parts{.975, .95}, parts{.966, .945}, ""},
		{"gpt2 50 + silent 50", parts{1, 1}, parts{.99, 1}, "gpt2"},
		{"gpt2 50 + silent 50", parts{1, 1}, parts{.996, 1}, ""},
		{"queue 70 + queue 30", parts{.49, .49}, parts{.69, .31}, "sum"},
		{"queue 70 + queue 30", parts{.46, .46}, parts{.685, .295}, ""},
		{"decode realtime 30 + gpt2 70", parts{1, .87}, parts{.7, .51}, "decode's p99 of alone,gpt2"},
		{"decode realtime 30 + gpt2 70", parts{1, .87}, parts{.9, .6}, ""},
		{"decode realtime 30 + cupy 70", parts{.5, .9}, parts{.7, .6}, ""}, // the neighbour's kernel is 0.2 ms longer
		{"ddp 70 + steps 30 + steps@1 30", parts{.6, .35, .35}, parts{.28, .34, .38}, "ddp,ddp in 1 s,sum"},
		{"ddp 70 + steps 30 + steps@1 30", parts{.6, .35, .35}, parts{.7, .29, .29}, ""},
		{"ddp 50 + silent 50 + silent@1 50", parts{1, 1, 1}, parts{.91, 1, 1}, "ddp,sum"},
		{"ddp 50 + ddp 50", parts{.5, .5}, parts{.49, .48}, ""},
		{"bcast 50 + steps@1 50", parts{.9, .98}, parts{.9, .44}, "steps-gpu1,sum"},
		{"queue 50 + steps 30 + jax 20", parts{.33, .33, .33}, parts{.5, .3, .2}, ""},
		{"queue 50 + steps 30 + jax 20", parts{.33, .33, .33}, parts{.5, .3, math.NaN()}, "jax,jax in 1 s,sum"},
	} {
		v := went(t, c.spec, c.plain, c.hooked)
		var missed []string
		for _, g := range v.Goals {
			if !g.met() {
				missed = append(missed, g.What)
			}
		}
		if got := strings.Join(missed, ","); got != c.missed {
			t.Errorf("%s, plain %v, hooked %v: missed %q, want %q\n%v", c.spec, c.plain, c.hooked, got, c.missed,
				v.Goals)
		}
		if v.tightest().met() != (c.missed == "") {
			t.Errorf("%s: the tightest goal is %v of %v", c.spec, v.tightest(), v.Goals)
		}
	}
}

func TestMarkdown(t *testing.T) {
	good := went(t, "steps 70 + jax 30", []float64{.37, .69}, []float64{.7, .3})
	bad := went(t, "gpt2 50 + silent 50", []float64{1, 1}, []float64{.89, 1})
	none := &verdict{Cell: "ddp 50 + ddp 50", Skipped: "no GPU"}
	hung := &verdict{Cell: "bcast 50 + steps@1 50", Failed: "it hangs"}
	rows := strings.Split(markdown([]*verdict{none, good, hung, bad}), "\n")
	for i, want := range []string{"| cell |", "|---|", "| bcast 50 + steps@1 50 |",
		"| gpt2 50 + silent 50 | 1.000 | 1.000 | 0.890 |",
		"| steps 70 + jax 30 | 0.370 + 0.690 | 1.060 | 0.700 + 0.300 | 1.000 |", "| ddp 50 + ddp 50 |"} {
		if !strings.HasPrefix(rows[i], want) || strings.Count(rows[i], "|") != len(titles)+1 {
			t.Errorf("row %d is %q, want %q", i, rows[i], want)
		}
	}
}
