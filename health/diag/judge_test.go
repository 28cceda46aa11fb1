package diag

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// well returns a test of n healthy GPUs, with each value at the lowest that passes.
func well(n int) *test {
	t := &test{Options: Options{Level: 2, Node: "node7"}, begun: time.Now()}
	for i := range n {
		c := &card{GPU: GPU{Index: i, UUID: fmt.Sprint("GPU-", i), PCI: fmt.Sprint("pci", i), Name: "NVIDIA H200"}}
		link := &Vitals{Generation: 5, MostGeneration: 5, Width: 16, MostWidth: 16}
		record := &Record{Counters: map[string]uint64{}, Links: []Link{{Rate: 100e9}}}
		c.readings = map[Step]Reading{
			Open:      {Facts: &Facts{SMs: 2, Capability: 90}, Record: record},
			Memory:    {Memory: &memoryReading{Bytes: 3 << 29, Passes: 6}},
			Compute:   {Units: map[string]*unitTally{}},
			Load:      {Load: under(8, Vitals{Clock: 1800e6, MostClock: 2000e6, Power: 600, Limit: 700, Celsius: 55})},
			Bandwidth: {Rates: map[Way]Rate{Within: rate(1680e9)}},
			Copies:    {Rates: map[Way]Rate{FromHost: rate(50e9), ToHost: rate(51e9)}, Link: link},
			Close:     {Record: &Record{Counters: map[string]uint64{}}},
		}
		for _, u := range Units {
			c.readings[Compute].Units[u.Name] = &unitTally{
				Took: 2 * time.Second, Operations: 3e12, Of: map[int]Sums{0: {Tiles: 1}, 1: {Tiles: 1}},
			}
		}
		t.cards = append(t.cards, c)
	}
	return t
}

// under returns n readings of the same vitals.
func under(n int, v Vitals) []Vitals { return slices.Repeat([]Vitals{v}, n) }

// read changes a reading of a step.
func (c *card) read(s Step, change func(*Reading)) {
	r := c.readings[s]
	change(&r)
	c.readings[s] = r
}

// row formats a result in one line.
func (r Result) row() string {
	gpu := r.GPU
	if r.Peer != "" {
		gpu += ">" + r.Peer
	}
	return fmt.Sprintf("%s %s %s %v %.12g/%.12g %s: %s",
		gpu, r.Test, r.Verdict, r.Severity, r.Value, r.Least, r.Unit, r.Detail)
}

// rowsOf formats results, one per line.
func rowsOf(all []Result) string {
	var text []string
	for _, r := range all {
		text = append(text, r.row())
	}
	return strings.Join(text, "\n")
}

// unlike formats the number of results, and those that are not among usual ones.
func unlike(all, usual []Result) string {
	n := len(all)
	all = slices.DeleteFunc(all, func(r Result) bool {
		return slices.ContainsFunc(usual, func(u Result) bool { return r.row() == u.row() })
	})
	return strings.TrimSuffix(fmt.Sprintf("%d rows\n%s", n, rowsOf(all)), "\n")
}

// judged compares how the cases of a test were judged, by name, with testdata/judged_NAME.txt.
func judged(t *testing.T, name string, cases map[string]string) {
	t.Helper()
	var text strings.Builder
	for _, c := range slices.Sorted(maps.Keys(cases)) {
		fmt.Fprintf(&text, "%s:\n", c)
		for line := range strings.Lines(cases[c]) {
			fmt.Fprintf(&text, "  %s\n", strings.TrimSuffix(line, "\n"))
		}
	}
	fixture.Golden(t, "testdata/judged_"+name+".txt", text.String())
}

func TestMemoryIsJudged(t *testing.T) {
	bad, got := badWord{Address: 0x10, Want: 0xf0, Got: 0x0f}, map[string]string{}
	for name, reading := range map[string]*memoryReading{
		"no reading": nil,
		"no pass":    {Bytes: 1 << 30},
		"well":       {Bytes: 3 << 29, Passes: 1},
		"one word":   {Passes: 2, Errors: 1, First: []badWord{bad}},
		"many words": {Passes: 2, Errors: 9, First: []badWord{bad, bad, bad, {Address: 0x99}}},
	} {
		o := well(1).cards[0]
		o.read(Memory, func(r *Reading) { r.Memory = reading })
		got[name] = rowsOf(o.memory())
	}
	judged(t, "memory", got)
}

func TestArithmeticIsJudged(t *testing.T) {
	wrong := Sums{Tiles: 5, Wrong: 2, Got: 0x11, Want: 0x12}
	tally := func(c *card) *unitTally { return c.readings[Compute].Units["fma_f64"] }
	got := map[string]string{} // of fma_f64
	for name, change := range map[string]func(*card){
		"well":                  func(*card) {},
		"capability":            func(c *card) { c.readings[Open].Facts.Capability = 61 },
		"capability of the row": func(c *card) { c.readings[Open].Facts.Capability = 70 },
		"no tally":              func(c *card) { delete(c.readings[Compute].Units, "fma_f64") },
		"no facts":              func(c *card) { c.read(Open, func(r *Reading) { r.Facts = nil }) },
		"no time":               func(c *card) { tally(c).Took = 0 },
		"a fraction":            func(c *card) { tally(c).Operations = 5.4 },
		"unreached":             func(c *card) { delete(tally(c).Of, 0) },
		"one SM":                func(c *card) { tally(c).Of[1] = wrong },
		"three SMs":             func(c *card) { maps.Copy(tally(c).Of, map[int]Sums{1: wrong, 7: wrong, 9: wrong}) },
		"four SMs": func(c *card) {
			maps.Copy(tally(c).Of, map[int]Sums{1: wrong, 7: wrong, 9: wrong, 3: wrong})
		},
		"more under load": func(c *card) {
			c.read(Load, func(r *Reading) {
				r.Units = map[string]*unitTally{"fma_f64": {Took: time.Second, Operations: 1.5e12,
					Of: map[int]Sums{0: wrong}}}
			})
		},
	} {
		o := well(1).cards[0]
		change(o)
		got[name] = rowsOf(slices.DeleteFunc(o.arithmetic(), func(r Result) bool { return r.Test != "fma_f64" }))
	}
	judged(t, "arithmetic", got)
	var order []string
	for _, r := range well(1).cards[0].arithmetic() {
		order = append(order, r.Test)
	}
	fixture.Equal(t, strings.Join(order, " "), "tensor_f16 tensor_bf16 tensor_s8 tensor_f64 fma_f64 fma_f32",
		"the units are")
}

func TestTalliesAdd(t *testing.T) {
	first := &unitTally{Took: 1, Operations: 2, Of: map[int]Sums{
		0: {Tiles: 10, Wrong: 1, Got: 5, Want: 6},
		1: {Tiles: 10, Got: 7, Want: 8},
		2: {Tiles: 3},
	}}
	second := &unitTally{Took: 10, Operations: 20, Of: map[int]Sums{
		0: {Tiles: 100, Wrong: 20, Got: 50, Want: 60},
		1: {Tiles: 100, Wrong: 20, Got: 70, Want: 80},
		3: {Tiles: 4},
	}}
	want := unitTally{Took: 11, Operations: 22, Of: map[int]Sums{
		0: {Tiles: 110, Wrong: 21, Got: 5, Want: 6},
		1: {Tiles: 110, Wrong: 20, Got: 70, Want: 80},
		2: {Tiles: 3},
		3: {Tiles: 4},
	}}
	got := first.and(second)
	if got.Took != want.Took || got.Operations != want.Operations || !maps.Equal(got.Of, want.Of) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if len(first.Of) != 3 || first.Of[0].Tiles != 10 {
		t.Errorf("the sum changed the first tally: %+v", *first)
	}
	fixture.Equal(t, (*unitTally)(nil).and(second), second, "nothing and a tally is not that tally")
}

func TestLoadIsJudged(t *testing.T) {
	const capped = nvml.ClocksEventReasonSwPowerCap
	low := Vitals{Clock: 1799e6, MostClock: 2000e6, Power: 600, Limit: 700, Celsius: 55}
	// some returns readings with the reasons, and others without.
	some := func(v Vitals, with, without int, reasons uint64) []Vitals {
		held := v
		held.Reasons = reasons
		return slices.Concat(under(2, v), under(with, held), under(without, v))
	}
	at := func(clock, power, limit float64, reasons uint64) []Vitals {
		return under(8, Vitals{Clock: clock, MostClock: 2000e6, Power: power, Limit: limit, Celsius: 55,
			Reasons: reasons})
	}
	rising := make([]Vitals, 8)
	for i := range rising {
		rising[i] = Vitals{
			Clock: 1e8 * float64(i+1), MostClock: 1e9, Power: 100 * float64(8-i), Limit: 800, Celsius: float64(i),
		}
	}
	got := map[string]string{} // of clock
	for name, load := range map[string][]Vitals{
		"too few looks":    under(3, low),
		"enough looks":     under(4, low),
		"the least":        at(1800e6, 600, 700, 0),
		"below it":         under(8, low),
		"nothing known":    under(8, Vitals{Clock: 1e9}),
		"limited":          at(1700e6, 595, 700, capped),
		"limited too much": at(1700e6, 594, 700, capped),
		"of no limit":      at(1700e6, 0, 0, capped),
		"limited at half":  some(low, 3, 3, capped),
		"limited for more": some(low, 4, 2, capped),
		"hot at half":      some(low, 3, 3, nvml.ClocksEventReasonSwThermalSlowdown),
		"hot and limited":  at(1700e6, 690, 700, capped|nvml.ClocksEventReasonSwThermalSlowdown),
		"hot and set": at(1700e6, 600, 700,
			nvml.ClocksEventReasonApplicationsClocksSetting|nvml.ClocksEventReasonSwThermalSlowdown),
		"rising": rising,
	} {
		o := well(1)
		o.cards[0].read(Load, func(r *Reading) { r.Load = load })
		all := o.load(o.cards[0])
		got[name] = rowsOf(all[:min(1, len(all))])
	}
	judged(t, "load", got)
	for bit, want := range map[uint64]string{
		0x8: "fail warning hardware slowdown", 0x40: "fail warning hardware thermal slowdown",
		0x80: "fail warning power brake", 0x20: "fail warning heat", 0x2: "pass none clocks that a user set",
		0x10: "pass none another GPU's clocks", 0x100: "pass none a display's clocks",
	} {
		o := well(1)
		o.cards[0].read(Load, func(r *Reading) { r.Load = at(1700e6, 600, 700, bit) })
		r := o.load(o.cards[0])[0]
		_, why, _ := strings.Cut(r.Detail, "1700 of 2000 MHz under load: held by ")
		fixture.Equal(t, fmt.Sprint(r.Verdict, " ", r.Severity, " ", why), want, "reason %#x", bit)
	}
	o := well(1)
	o.cards[0].read(Load, func(r *Reading) { r.Load = rising })
	fixture.Equal(t, o.load(o.cards[0])[1].row(), "0 power measured none 600/0 W: limit 800 W", "power")
}

// TestClocksOfPeers expects a clock to be compared with those of other GPUs of the model.
func TestClocksOfPeers(t *testing.T) {
	got := map[string]string{}
	for name, c := range map[string]struct {
		change func(*test)
		reason uint64
		clock  float64
	}{
		"the least":     {func(*test) {}, 0, 1900e6},
		"below it":      {func(*test) {}, 0, 1899e6},
		"limited":       {func(*test) {}, nvml.ClocksEventReasonSwPowerCap, 1899e6},
		"one peer":      {func(t *test) { t.cards = t.cards[:2] }, 0, 1899e6},
		"another model": {func(t *test) { t.cards[2].Name = "other" }, 0, 1899e6},
		"one untested":  {func(t *test) { t.cards[1].readings[Load] = Reading{} }, 0, 1899e6},
		"failed anyway": {func(*test) {}, 0, 1799e6},
	} {
		o := well(3)
		for _, peer := range o.cards[1:] {
			peer.read(Load, func(r *Reading) { r.Load = under(4, Vitals{Clock: 2000e6, MostClock: 2000e6}) })
		}
		o.cards[0].read(Load, func(r *Reading) {
			r.Load = under(8, Vitals{Clock: c.clock, MostClock: 2000e6, Power: 690, Limit: 700, Reasons: c.reason})
		})
		c.change(o)
		got[name] = o.load(o.cards[0])[0].row()
	}
	judged(t, "peers", got)
}

func TestMedianAndSteady(t *testing.T) {
	o := well(6)
	for i, c := range o.cards {
		c.Taken = map[int]uint64{0: 900, 1: 5, 2: 1, 3: 3, 4: 4, 5: 0}[i]
	}
	taken := func(c *card) float64 { return float64(c.Taken) }
	if got := o.median(o.cards[0], taken); got != 4 { // of 1, 3, 4, 5
		t.Errorf("the median is %v", got)
	}
	if got := o.median(o.cards[5], taken); got != 4 { // of 1, 3, 4, 5, 900
		t.Errorf("the median is %v", got)
	}
	for _, c := range o.cards[1:4] {
		c.Name = "other"
	}
	if got := o.median(o.cards[0], taken); got != 0 { // of 4 alone
		t.Errorf("the median is %v", got)
	}
	o.cards[0].Taken = 0
	o.cards[1].Taken, o.cards[2].Taken = 1, 1
	fixture.Equal(t, o.median(o.cards[3], taken), 1, "the median is")
	c := o.cards[0]
	for looks, want := range map[int]float64{3: 0, 4: 3, 8: 6} { // 4: 2 3 4; 8: 3 4 5 6 7 8
		seen := make([]Vitals, looks)
		for i := range seen {
			seen[i].Clock = float64(i + 1)
		}
		slices.Reverse(seen[looks/4:])
		c.read(Load, func(r *Reading) { r.Load = seen })
		fixture.Equal(t, c.steady(), want, "the clock of %d looks is", looks)
	}
}

func TestCopiesAreJudged(t *testing.T) {
	usual := well(1).copies(well(1).cards[0])
	got := map[string]string{"(usual)": rowsOf(usual)} // of the others the number of rows, and those unlike the usual ones
	link := func(change func(*Vitals)) func(*test) {
		return func(t *test) { change(t.cards[0].readings[Copies].Link) }
	}
	for name, change := range map[string]func(*test){
		"no link": func(t *test) { t.cards[0].read(Copies, func(r *Reading) { r.Link = nil }) },
		"slow": func(t *test) {
			t.cards[0].readings[Bandwidth].Rates[Within] = rate(1679e9)
			t.cards[0].readings[Copies].Rates[FromHost] = rate(34e9)
		},
		"unknown model": func(t *test) { t.cards[0].Name = "new" },
		"nameless":      func(t *test) { t.cards[0].Name = "" },
		"peers": func(t *test) {
			t.cards = append(t.cards, well(3).cards[1:]...)
			for _, peer := range t.cards[1:] {
				peer.readings[Bandwidth].Rates[Within] = rate(2000e9)
				peer.readings[Copies].Rates[FromHost] = rate(60e9)
				peer.readings[Copies].Rates[ToHost] = rate(60e9)
			}
			t.cards[0].readings[Bandwidth].Rates[Within] = rate(1700e9)
		},
		"narrow":                link(func(l *Vitals) { l.Width = 8 }),
		"old link":              link(func(l *Vitals) { l.Generation = 4 }),
		"no generation":         link(func(l *Vitals) { l.Generation = 0 }),
		"narrow, no generation": link(func(l *Vitals) { l.Generation, l.Width = 0, 15 }),
		"no width":              link(func(l *Vitals) { l.Width = 0 }),
		"one lane":              link(func(l *Vitals) { *l = Vitals{Generation: 1, MostGeneration: 1, Width: 1, MostWidth: 1} }),
		"no most width":         link(func(l *Vitals) { l.MostWidth = 0 }),
		"beyond its own":        link(func(l *Vitals) { l.Generation = 6 }),
	} {
		o := well(1)
		change(o)
		got[name] = unlike(o.copies(o.cards[0]), usual)
	}
	judged(t, "copies", got)
}

func TestErrorsAreJudged(t *testing.T) {
	counts := func(name string, n uint64) Record { return Record{Counters: map[string]uint64{name: n}} }
	got := map[string]string{}
	for name, c := range map[string]struct{ before, after Record }{
		"none":             {},
		"as before":        {counts("retired pages", 3), counts("retired pages", 3)},
		"fewer":            {counts("retired pages", 3), counts("retired pages", 2)},
		"XIDs":             {Record{}, Record{XIDs: []uint64{94, 13}}},
		"XIDs, deaf":       {Record{}, Record{XIDs: []uint64{94}, Deaf: true}},
		"deaf":             {Record{}, Record{Deaf: true}},
		"few":              {counts("corrected ECC errors", 5), Record{Counters: map[string]uint64{"corrected ECC errors": 14, "PCIe replays": 999}}},
		"few, deaf":        {Record{}, Record{Deaf: true, Counters: map[string]uint64{"PCIe replays": 999}}},
		"many":             {counts("corrected ECC errors", 5), Record{Counters: map[string]uint64{"corrected ECC errors": 15, "PCIe replays": 999}}},
		"the worst counts": {Record{}, Record{Counters: map[string]uint64{"failed row remaps": 1, "remapped rows": 2}}},
	} {
		o := well(1).cards[0]
		o.readings[Open], o.readings[Close] = Reading{Record: &c.before}, Reading{Record: &c.after}
		got[name] = rowsOf(o.errors())
	}
	judged(t, "errors", got)
	for name, c := range map[string]struct {
		least uint64
		want  incident.Severity
	}{
		"uncorrected ECC errors": {1, incident.Critical}, "failed row remaps": {1, incident.Critical},
		"pending row remaps": {1, incident.Warning}, "remapped rows": {1, incident.Warning},
		"retired pages": {1, incident.Warning}, "corrected ECC errors": {10, incident.Warning},
		"PCIe replays": {1000, incident.Warning},
	} {
		o := well(1).cards[0]
		after := o.readings[Close].Record.Counters
		after[name] = c.least
		if r := o.errors()[0]; r.Verdict != Fail || r.Severity != c.want {
			t.Errorf("%d %s: %s", c.least, name, r.row())
		}
		after[name]--
		fixture.Equal(t, o.errors()[0].Verdict, Pass, "%d %s", c.least-1, name)
	}
	for _, s := range []Step{Open, Close} {
		o := well(1).cards[0]
		delete(o.readings, s)
		fixture.Equal(t, rowsOf(o.errors()), rowsOf(nil), "without the record of %s", s)
	}
}

func TestPairsAreJudged(t *testing.T) {
	got := map[string]string{}
	unlinked := func(t *test) { t.cards[0].readings[Open].Record.Links = nil }
	for name, c := range map[string]struct {
		speeds []float64 // GB/s of 0 to 1, 1 to 0, and 0 to 1 again
		change func(*test)
	}{
		"the least":   {[]float64{65}, nil},
		"below it":    {[]float64{64.9}, nil},
		"no links":    {[]float64{1}, unlinked},
		"other pairs": {[]float64{84, 100, 101}, nil},
		"two pairs":   {[]float64{84, 100}, nil},
		"differently linked": {[]float64{84, 100, 100}, func(t *test) {
			t.cards = append(t.cards, well(1).cards...)
			t.cards[2].readings[Open].Record.Links[0].Rate = 101e9
			t.cards[1].readings[Open].Record.Links[0].Rate = 101e9
			t.pairs[2].from, t.pairs[2].to = t.cards[2], t.cards[1]
		}},
		"ended":  {[]float64{65}, func(t *test) { t.pairs[0].err = fmt.Errorf("copy: %w", errEnded) }},
		"failed": {[]float64{65}, func(t *test) { t.pairs[0].err = errors.New("no") }},
		"skipped": {[]float64{84, 100, 100, 100}, func(t *test) {
			t.pairs[1].Reading = Reading{Skipped: "not now"}
			t.pairs[2].err = errors.New("no")
		}},
		"standing still":        {[]float64{90, 100, 0, 84}, nil},
		"one of three standing": {[]float64{90, 0, 84}, nil},
		"five pairs":            {[]float64{80, 100, 101, 102, 103}, nil},
		"standing still alone":  {[]float64{0}, nil},
		"unlinked among many":   {[]float64{84, 100, 100}, unlinked},
	} {
		o := well(2)
		for i, s := range c.speeds {
			r := rate(s * 1e9)
			o.pairs = append(o.pairs, pair{from: o.cards[i%2], to: o.cards[1-i%2], Reading: Reading{Between: &r}})
		}
		if c.change != nil {
			c.change(o)
		}
		got[name] = rowsOf(o.between())
	}
	judged(t, "pairs", got)
}

func TestLinksBetween(t *testing.T) {
	o := well(2)
	a, b := o.cards[0], o.cards[1]
	a.readings[Open].Record.Links = []Link{{"pci1", 1}, {"", 2}, {"pci9", 4}, {"pci1", 8}}
	b.readings[Open].Record.Links = []Link{{"pci0", 100}, {"pci1", 200}}
	there, back := a.linksTo(b), b.linksTo(a)
	fixture.If(t, there != 11 || back != 11, "the links carry %v and %v, want 11", there, back)
	b.readings[Open].Record.Links = []Link{{"pci0", 10}}
	fixture.Equal(t, a.linksTo(b), 10, "the links carry")
	delete(b.readings, Open)
	there, back = a.linksTo(b), b.linksTo(a)
	fixture.If(t, there != 0 || back != 0, "the links to a GPU without a record carry %v and %v", there, back)
}

// TestReportOfAHost expects the states of GPUs and host to follow from the results.
func TestReportOfAHost(t *testing.T) {
	warns := func(c *card) { c.readings[Copies].Link.Width = 8 }
	fails := func(c *card) { c.readings[Memory].Memory.Errors = 1 }
	stops := func(c *card) { c.failed, c.in = errors.New("gone"), Copies }
	ends := func(c *card) { c.failed, c.in = errEnded, Copies }
	skips := func(c *card) { c.skipped = "busy" }
	judgements := map[string]string{}
	for name, changes := range map[string][]func(*card){
		"well":              {nil, nil},
		"a warning":         {nil, warns},
		"a fault":           {warns, fails},
		"stopped":           {nil, stops},
		"ended":             {nil, ends},
		"ended with faults": {func(c *card) { ends(c); fails(c) }, nil},
		"skipped":           {skips, nil},
		"two skipped":       {skips, ends},
		"skipped, warning":  {skips, warns},
	} {
		o := well(2)
		for i, change := range changes {
			if change != nil {
				change(o.cards[i])
			}
		}
		r := o.report()
		got := fmt.Sprintf("%v (%s)", r.Status, r.Reason)
		for _, g := range r.GPUs {
			got += fmt.Sprintf("\nGPU %s %s %v (%s)", g.GPU, g.UUID, g.Status, g.Reason)
		}
		for _, f := range r.Findings {
			got += fmt.Sprintf("\n%s %s", f.Check, f.Entity.GPU)
		}
		judgements[name] = got
		fixture.If(t, r.Source != "diag" || r.Level != 2 || r.Node != "node7" || r.Time.Before(o.begun),
			"%s: %+v", name, r)
	}
	judged(t, "report", judgements)
}

// TestReportOrder expects a host's results in their order, and its time.
func TestReportOrder(t *testing.T) {
	o := well(3)
	o.begun = o.begun.Add(-12345 * time.Millisecond)
	o.cards[0].failed, o.cards[0].in = errors.New("gone"), Copies
	o.cards[2].skipped = "busy"
	r := o.report()
	fixture.Equal(t, r.Results[len(r.Results)-1].row(), "2 all skipped none 0/0 : busy", "the last result is")
	fixture.If(t, r.Seconds < 12.3 || math.Abs(r.Seconds*10-math.Round(r.Seconds*10)) > 1e-6,
		"the test took %v s", r.Seconds)
	var names []string
	for _, one := range r.Results {
		names = append(names, one.GPU+one.Test)
	}
	got, want := strings.Join(names, " "), ""+
		"0memory 0tensor_f16 0tensor_bf16 0tensor_s8 0tensor_f64 0fma_f64 0fma_f32 0clock 0power "+
		"0memory_bandwidth 0from_host 0to_host 0pcie_link 0errors 0copies 1memory 1tensor_f16 "+
		"1tensor_bf16 1tensor_s8 1tensor_f64 1fma_f64 1fma_f32 1clock 1power 1memory_bandwidth "+
		"1from_host 1to_host 1pcie_link 1errors 2all"
	fixture.If(t, got != want, "got\n%s\nwant\n%s", got, want)
}

func TestFindings(t *testing.T) {
	since := time.Unix(1e9, 0)
	r := Result{Test: "clock", GPU: "3", UUID: "GPU-3", Value: 7}.fails(incident.Warning, "%s it is", "slow")
	want := health.Finding{
		Check: "diag_clock", Entity: incident.Entity{GPU: "3", UUID: "GPU-3"}, Severity: incident.Warning,
		State: incident.Warning.State(), Since: since, Value: 7, Worst: 7, WorstAt: since,
		Message: "slow it is", Action: actions["clock"],
	}
	got := r.finding(since)
	fixture.If(t, fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want), "got %+v, want %+v", got, want)
	r.Test = "memory"
	fixture.Equal(t, r.finding(since).Action, replace, "the action is")
}

func TestModels(t *testing.T) {
	for name, want := range map[string]model{
		"NVIDIA H200":               {"NVIDIA H200", 4.8e12, 450e9},
		"NVIDIA H200 NVL":           {"NVIDIA H200 NVL", 4.8e12, 450e9},
		"NVIDIA L40S":               {"NVIDIA L40S", 864e9, 0},
		"NVIDIA L40":                {"NVIDIA L40", 864e9, 0},
		"NVIDIA A100-SXM4-80GB MIG": {"NVIDIA A100-SXM4-80GB", 2039e9, 300e9},
		"NVIDIA A40-8Q":             {"NVIDIA A40", 696e9, 56.25e9},
		"NVIDIA H2":                 {},
		"":                          {},
	} {
		got, ok := modelOf(name)
		fixture.If(t, got != want || ok != (want.name != ""), "%q is %+v, %v", name, got, ok)
	}
	if len(models) != strings.Count(modelTable, "\n")-1 || len(floors) != strings.Count(floorTable, "\n")-1 {
		t.Errorf("%d models and %d floors", len(models), len(floors))
	}
	for name, share := range floors {
		fixture.Equal(t, share <= 0 || share >= 1, false, "the share of %s is %v", name, share)
	}
}

func TestLanes(t *testing.T) {
	for generation, want := range []float64{0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563, 15.125, 0} { // GB/s
		fixture.Near(t, lane(generation)/1e9, want, 0.0005, "a lane of generation %d carries … GB/s", generation)
	}
}

// TestTables expects a wrong table to be found when the program starts.
func TestTables(t *testing.T) {
	fixture.Equal(t, fmt.Sprint(rows("a\tb\n1\t2\n3\t4", 2)), "[[1 2] [3 4]]", "it is")
	for says, wrong := range map[string]func(){
		`"1\t2\n" has 2 columns instead of 3`: func() { rows("a\tb\tc\n1\t2\n", 3) },
		`parsing "x": invalid syntax`:         func() { float("x") },
	} {
		func() {
			defer func() {
				got := fmt.Sprint(recover())
				fixture.If(t, !strings.Contains(got, says), "%s, want %s", got, says)
			}()
			wrong()
		}()
	}
}
