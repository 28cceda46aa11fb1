package diag

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/health"
	"gpusteward/health/incident"
)

// Source marks the Judgement of a test.
const Source = "diag"

// A Verdict is the outcome of one result.
type Verdict string

// The verdicts.
const (
	Pass     Verdict = "pass"
	Fail     Verdict = "fail"
	Measured Verdict = "measured" // without a value to compare it with
	Skipped  Verdict = "skipped"
)

// A Result is the result of one test on a GPU, or between two.
type Result struct {
	Test     string            `json:"test"`
	GPU      string            `json:"gpu"`
	UUID     string            `json:"uuid,omitempty"`
	Peer     string            `json:"peer,omitempty"` // the destination of copies
	Verdict  Verdict           `json:"verdict"`
	Severity incident.Severity `json:"severity"` // of a failure
	Value    float64           `json:"value"`
	Least    float64           `json:"least,omitempty"` // the least value that passes
	Unit     string            `json:"unit,omitempty"`
	Detail   string            `json:"detail,omitempty"`
}

// result returns a result of c that passes.
func (c *card) result(test string) Result {
	return Result{Test: test, GPU: strconv.Itoa(c.Index), UUID: c.UUID, Verdict: Pass}
}

// fails returns r as a failure.
func (r Result) fails(s incident.Severity, format string, args ...any) Result {
	r.Verdict, r.Severity, r.Detail = Fail, s, fmt.Sprintf(format, args...)
	return r
}

// measured returns r with a value that must be at least least. 0 means that no limit is known.
func (r Result) measured(value, least float64, unit string) Result {
	r.Value, r.Least, r.Unit = value, least, unit
	switch {
	case least == 0:
		r.Verdict = Measured
	case value < least:
		return r.fails(incident.Warning, "")
	}
	return r
}

// results judges all readings, GPU by GPU.
func (t *test) results() (all []Result) {
	for _, c := range t.cards {
		if c.skipped != "" {
			r := c.result("all")
			r.Verdict, r.Detail = Skipped, c.skipped
			all = append(all, r)
			continue
		}
		all = slices.Concat(all, c.memory(), c.arithmetic(), t.load(c), t.copies(c), c.errors())
		if c.failed != nil {
			all = append(all, c.stopped())
		}
	}
	return append(all, t.between()...)
}

// stopped returns the result of a step that was not completed.
func (c *card) stopped() Result {
	r := c.result(string(c.in)).fails(incident.Critical, "%v", c.failed)
	if errors.Is(c.failed, errEnded) {
		r.Verdict, r.Severity = Skipped, incident.None
	}
	return r
}

// memory judges the patterns.
func (c *card) memory() []Result {
	m := c.readings[Memory].Memory
	if m == nil || m.Passes == 0 {
		return nil
	}
	r := c.result("memory").measured(float64(m.Errors), 0, "wrong words")
	r.Verdict, r.Detail = Pass, fmt.Sprintf("%d passes over %.1f GiB", m.Passes, float64(m.Bytes)/(1<<30))
	if m.Errors == 0 {
		return []Result{r}
	}
	var where []string
	for _, w := range m.First[:min(3, len(m.First))] {
		where = append(where, fmt.Sprintf("%#x (%#x instead of %#x, %d bits)",
			w.Address, w.Got, w.Want, bits.OnesCount64(w.Got^w.Want)))
	}
	return []Result{r.fails(incident.Critical, "%d words in %d passes did not hold what was written, such as %s",
		m.Errors, m.Passes, strings.Join(where, ", "))}
}

// arithmetic judges the sums of each unit, SM by SM.
func (c *card) arithmetic() (all []Result) {
	facts := c.readings[Open].Facts
	if facts == nil {
		return nil
	}
	for _, u := range Units {
		r := c.result(u.Name)
		var tally *unitTally
		for _, s := range []Step{Compute, Load} {
			if more := c.readings[s].Units[u.Name]; more != nil {
				tally = tally.and(more)
			}
		}
		switch {
		case u.Capability > facts.Capability:
			r.Verdict, r.Detail = Skipped, fmt.Sprintf("a GPU of compute capability %d.%d has none",
				facts.Capability/10, facts.Capability%10)
		case tally == nil:
			continue
		default:
			r = tally.judge(r, u, facts.SMs)
		}
		all = append(all, r)
	}
	return all
}

// and returns the sum of two tallies.
func (t *unitTally) and(o *unitTally) *unitTally {
	if t == nil {
		return o
	}
	sum := &unitTally{Took: t.Took + o.Took, Operations: t.Operations + o.Operations, Of: maps.Clone(t.Of)}
	for sm, s := range o.Of {
		if before := sum.Of[sm]; before.Wrong > 0 {
			s.Got, s.Want = before.Got, before.Want
		}
		s.Tiles, s.Wrong = s.Tiles+sum.Of[sm].Tiles, s.Wrong+sum.Of[sm].Wrong
		sum.Of[sm] = s
	}
	return sum
}

// judge returns r with the SMs that computed wrong sums.
func (t *unitTally) judge(r Result, u Unit, sms int) Result {
	if t.Took > 0 {
		r.Value, r.Unit = math.Round(t.Operations/t.Took.Seconds()), "operations/s"
	}
	var wrong []string
	for _, sm := range slices.Sorted(maps.Keys(t.Of)) {
		if s := t.Of[sm]; s.Wrong > 0 {
			wrong = append(wrong,
				fmt.Sprintf("SM %d: %d sums are wrong, such as %#x instead of %#x", sm, s.Wrong, s.Got, s.Want))
		}
	}
	switch n := len(wrong); {
	case n > 3:
		return r.fails(incident.Critical, "%s: %s; and %d more SMs", u.Words, strings.Join(wrong[:3], "; "), n-3)
	case n > 0:
		return r.fails(incident.Critical, "%s: %s", u.Words, strings.Join(wrong, "; "))
	case len(t.Of) < sms:
		return r.fails(incident.Warning, "%s: only %d of %d SMs were reached", u.Words, len(t.Of), sms)
	}
	r.Detail = fmt.Sprintf("every sum right on %d SMs", sms)
	return r
}

// reasons lists NVML's reasons for low clocks. A reason is wrong if it is not a setting.
var reasons = []struct {
	bit   uint64
	words string
	wrong bool
}{
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown", true},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "hardware thermal slowdown", true},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake", true},
	{nvml.ClocksEventReasonSwThermalSlowdown, "heat", true},
	{nvml.ClocksEventReasonApplicationsClocksSetting, "clocks that a user set", false},
	{nvml.ClocksEventReasonSyncBoost, "another GPU's clocks", false},
	{nvml.ClocksEventReasonDisplayClockSetting, "a display's clocks", false},
}

// load judges the clock and the power under load.
func (t *test) load(c *card) []Result {
	seen := c.readings[Load].Load
	if len(seen) < glances/2 {
		return nil // it failed
	}
	seen = seen[len(seen)/4:] // it begins cold, and clocks rise
	clock, most := c.steady(), seen[0].MostClock
	power, limit := 0., seen[0].Limit
	for _, v := range seen {
		power = max(power, v.Power)
	}
	held := func(bit uint64) bool {
		n := 0
		for _, v := range seen {
			n += int(min(1, v.Reasons&bit))
		}
		return 2*n > len(seen)
	}
	r := c.result("clock").measured(clock, floors["clock"]*most, "Hz")
	r.Detail = fmt.Sprintf("at %.0f of %.0f W, %.0f °C", power, limit, seen[len(seen)-1].Celsius)
	if r.Verdict == Fail {
		low := fmt.Sprintf("%.0f of %.0f MHz under load", clock/1e6, most/1e6)
		r = r.fails(incident.Warning, "%s, without a reason from the driver (%.0f of %.0f W)", low, power, limit)
		if held(nvml.ClocksEventReasonSwPowerCap) && limit > 0 {
			r.Verdict, r.Severity = Pass, incident.None
			r.Detail = fmt.Sprintf("the power limit holds it: %.0f of %.0f W", power, limit)
			if power < floors["power"]*limit {
				r = r.fails(incident.Warning, "%s: the power limit holds it at %.0f of %.0f W", low, power, limit)
			}
		}
		for _, why := range reasons {
			if !held(why.bit) {
				continue
			}
			if r = r.fails(incident.Warning, "%s: held by %s", low, why.words); !why.wrong {
				r.Verdict, r.Severity = Pass, incident.None
			}
			break
		}
	}
	least := floors["peers_clock"] * t.median(c, (*card).steady)
	if r.Verdict == Pass && clock < least && !held(nvml.ClocksEventReasonSwPowerCap) {
		r = r.fails(incident.Warning, "%.0f MHz under load, its peers have %.0f", clock/1e6,
			least/floors["peers_clock"]/1e6)
		r.Least = least
	}
	p := c.result("power").measured(power, 0, "W")
	p.Detail = fmt.Sprintf("limit %.0f W", limit)
	return []Result{r, p}
}

// steady returns the median of the clocks under load.
func (c *card) steady() float64 {
	seen := c.readings[Load].Load
	if len(seen) < glances/2 {
		return 0
	}
	var all []float64
	for _, v := range seen[len(seen)/4:] {
		all = append(all, v.Clock)
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// median returns a value's median over the other GPUs of c's model. It is 0 if there are fewer than
// two.
func (t *test) median(c *card, of func(*card) float64) float64 {
	var all []float64
	for _, o := range t.cards {
		if v := of(o); o != c && o.Name == c.Name && v > 0 {
			all = append(all, v)
		}
	}
	if len(all) < 2 {
		return 0
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// copies judges the speed of copies, and the PCIe link under them.
func (t *test) copies(c *card) (all []Result) {
	link := c.readings[Copies].Link
	if link == nil {
		return nil
	}
	m, _ := modelOf(c.Name)
	pcie := lane(link.MostGeneration) * float64(link.MostWidth)
	for _, w := range []struct {
		step  Step
		way   Way
		test  string
		could float64
		floor string
		times float64 // a copy within memory reads and writes
	}{
		{Bandwidth, Within, "memory_bandwidth", m.memory, "memory", 2},
		{Copies, FromHost, "from_host", pcie, "pcie", 1},
		{Copies, ToHost, "to_host", pcie, "pcie", 1},
	} {
		speed := func(c *card) float64 { return w.times * c.readings[w.step].Rates[w.way].PerSecond() }
		least, than := floors[w.floor]*w.could, fmt.Sprintf("%.1f GB/s are possible", w.could/1e9)
		if median := floors["peers"] * t.median(c, speed); median > least {
			least, than = median, fmt.Sprintf("its peers have %.1f GB/s", median/floors["peers"]/1e9)
		}
		r := c.result(w.test).measured(speed(c), least, "B/s")
		switch r.Verdict {
		case Fail:
			r.Detail = fmt.Sprintf("%s: %.1f GB/s, where %s", w.way, r.Value/1e9, than)
		case Pass:
			r.Detail = than
		case Measured:
			r.Detail = "there is no expectation for " + cmp.Or(c.Name, "this model")
		}
		all = append(all, r)
	}
	if link.MostWidth == 0 || link.Width == 0 {
		return all
	}
	r := c.result("pcie_link").measured(float64(link.Width), float64(link.MostWidth), "lanes")
	r.Detail = fmt.Sprintf("%d of %d lanes", link.Width, link.MostWidth)
	if link.Generation != 0 {
		r.Detail = fmt.Sprintf("generation %d of %d, %s", link.Generation, link.MostGeneration, r.Detail)
	}
	if r.Verdict == Fail || link.Generation != 0 && link.Generation < link.MostGeneration {
		r = r.fails(incident.Warning, "the PCIe link under load has %s", r.Detail)
	}
	return append(all, r)
}

// counted lists the errors that the driver counts, with the least number that matters.
var counted = []struct {
	name     string
	least    uint64
	severity incident.Severity
}{
	{"uncorrected ECC errors", 1, incident.Critical},
	{"failed row remaps", 1, incident.Critical},
	{"pending row remaps", 1, incident.Warning},
	{"remapped rows", 1, incident.Warning},
	{"retired pages", 1, incident.Warning},
	{"corrected ECC errors", 10, incident.Warning},
	{"PCIe replays", 1000, incident.Warning},
}

// errors judges the errors that the driver counted during the test.
func (c *card) errors() []Result {
	before, after := c.readings[Open].Record, c.readings[Close].Record
	if before == nil || after == nil {
		return nil
	}
	r := c.result("errors").measured(float64(len(after.XIDs)), 0, "XIDs")
	r.Verdict = Pass
	var few, bad []string
	severity := incident.None
	for _, xid := range after.XIDs {
		bad, severity = append(bad, fmt.Sprintf("XID %d", xid)), incident.Critical
	}
	for _, k := range counted {
		n, ok := after.Counters[k.name]
		if !ok || n <= before.Counters[k.name] {
			continue
		}
		text := fmt.Sprintf("%d %s", n-before.Counters[k.name], k.name)
		if n-before.Counters[k.name] < k.least {
			few = append(few, text)
			continue
		}
		bad, severity = append(bad, text), max(severity, k.severity)
	}
	if bad != nil {
		return []Result{r.fails(severity, "the driver reported during the test: %s", strings.Join(bad, ", "))}
	}
	r.Detail = cmp.Or(strings.Join(few, ", "), "none new")
	if after.Deaf {
		r.Verdict, r.Detail = Skipped, "the driver reports no XIDs here; of the counted errors: "+r.Detail
	}
	return []Result{r}
}

// between judges copies from GPU to GPU.
func (t *test) between() (all []Result) {
	var speeds []float64
	for _, p := range t.pairs {
		if p.err == nil && p.Between != nil && p.Between.PerSecond() > 0 {
			speeds = append(speeds, p.Between.PerSecond())
		}
	}
	slices.Sort(speeds)
	var middle float64
	if len(speeds) > 2 && t.alike() {
		middle = speeds[len(speeds)/2]
	}
	for _, p := range t.pairs {
		r := p.from.result("peer")
		r.Peer = strconv.Itoa(p.to.Index)
		switch {
		case errors.Is(p.err, errEnded):
			r.Verdict, r.Detail = Skipped, p.err.Error()
		case p.err != nil:
			r = r.fails(incident.Critical, "%v", p.err)
		case p.Skipped != "":
			r.Verdict, r.Detail = Skipped, p.Skipped
		default:
			links := p.from.linksTo(p.to)
			least, than := floors["nvlink"]*links, fmt.Sprintf("NVLink could carry %.1f GB/s", links/1e9)
			if others := floors["peers"] * middle; links > 0 && others > least {
				least, than = others, fmt.Sprintf("other pairs have %.1f GB/s", middle/1e9)
			}
			r = r.measured(p.Between.PerSecond(), least, "B/s")
			switch r.Detail = than; r.Verdict {
			case Fail:
				r.Detail = fmt.Sprintf("copies to GPU %d reach %.1f GB/s, where %s", p.to.Index, r.Value/1e9, than)
			case Measured:
				r.Detail = "no NVLink between them"
			}
		}
		all = append(all, r)
	}
	return all
}

// alike reports whether all pairs have the same links.
func (t *test) alike() bool {
	for _, p := range t.pairs {
		if p.from.linksTo(p.to) != t.pairs[0].from.linksTo(t.pairs[0].to) {
			return false
		}
	}
	return true
}

// linksTo returns the bytes a second that the NVLinks from c to o carry. Links to switches, and
// links without a known end, count.
func (c *card) linksTo(o *card) float64 {
	a, b := c.readings[Open].Record, o.readings[Open].Record
	if a == nil || b == nil {
		return 0
	}
	return min(a.to(o.PCI), b.to(c.PCI))
}

func (r *Record) to(pci string) (sum float64) {
	for _, l := range r.Links {
		if l.Remote == "" || l.Remote == pci {
			sum += l.Rate
		}
	}
	return sum
}

// report returns the report on all results.
func (t *test) report() *Report {
	took := time.Since(t.begun).Round(100 * time.Millisecond)
	r := &Report{Level: t.Level, Seconds: took.Seconds(), Results: t.results()}
	r.Judgement = health.Judgement{Source: Source, Verdict: health.Verdict{
		Node: t.Node, Time: time.Now(), GPUs: []health.Health{}, Findings: []health.Finding{},
	}}
	for _, c := range t.cards {
		g := health.Health{GPU: strconv.Itoa(c.Index), UUID: c.UUID}
		worst := incident.None
		for _, one := range r.Results {
			if one.Verdict == Fail && one.GPU == g.GPU {
				worst = max(worst, one.Severity)
				r.Findings = append(r.Findings, one.finding(t.begun))
			}
		}
		if g.Status = worst.State(); worst == incident.None && (c.skipped != "" || c.failed != nil) {
			g.Status, g.Reason = incident.Unknown, cmp.Or(c.skipped, fmt.Sprint(c.failed))
		}
		r.GPUs = append(r.GPUs, g)
	}
	slices.SortStableFunc(r.Findings, func(a, b health.Finding) int { return -cmp.Compare(a.Severity, b.Severity) })
	for _, g := range r.GPUs {
		if g.Status == incident.Unknown && r.Status <= incident.OK {
			r.Status, r.Reason = incident.Unknown, fmt.Sprintf("GPU %s was not tested: %s", g.GPU, g.Reason)
		}
	}
	if len(r.Findings) > 0 {
		r.Status, r.Reason = r.Findings[0].Severity.State(), ""
	}
	return r
}

// finding returns a failure in the form of a check's finding.
func (r Result) finding(since time.Time) health.Finding {
	return health.Finding{
		Check: Source + "_" + r.Test, Entity: incident.Entity{GPU: r.GPU, UUID: r.UUID},
		Severity: r.Severity, State: r.Severity.State(), Since: since,
		Value: r.Value, Worst: r.Value, WorstAt: since,
		Message: r.Detail, Action: cmp.Or(actions[r.Test], replace),
	}
}

// replace is the action for failures that only the GPU can cause.
const replace = "Take the GPU out of service and reset it; test again, and replace it if it fails."

// actions are the actions for the other failures, by test.
var actions = map[string]string{
	"memory_bandwidth": "Look at the memory clock, and for other users of the GPU; test again.",
	"from_host":        "Look at the PCIe link, its slot and the host's memory.",
	"to_host":          "Look at the PCIe link, its slot and the host's memory.",
	"pcie_link":        "Reseat the board or its riser, and look at the firmware's settings.",
	"peer":             "Look at NVLink's state and errors, and at the fabric manager's log.",
	"clock": "Look at cooling and power supply, and at limits and clocks that are set " +
		"(nvidia-smi -rgc ends a lock).",
	"errors": "Look up the XID or the counter in the runbook.",
}
