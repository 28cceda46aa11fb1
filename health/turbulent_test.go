package health

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/links"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A turbulence makes everything go wrong on a host of two GPUs that can: each level of each check begins and ends, the
// kernel and the driver say all that they know to say, operators acknowledge, the agent and the host are restarted.
// What happens is drawn from a seed.
type turbulence struct {
	*monitored
	rnd      *rand.Rand
	levels   []rough
	lines    []string // of the kernel
	kinds    []string // of the driver's events
	codes    []int    // of XIDs
	sequence uint64
	digests  map[string]*digest
}

// A rough level begins and ends independently of the others.
type rough struct {
	examples []Example
	rnd      *rand.Rand
	left     int // evaluations for which it holds; negative: since it ended
}

// A digest summarises the reports under one name, regardless of their order within a moment.
type digest struct {
	n    int
	hash uint32
}

func (u *turbulence) note(name string, what ...any) {
	d := u.digests[name]
	if d == nil {
		d = &digest{}
		u.digests[name] = d
	}
	h := fnv.New32a()
	fmt.Fprint(h, what...)
	d.n, d.hash = d.n+1, d.hash+h.Sum32()
}

func newTurbulence(t *testing.T, seed uint64) *turbulence {
	u := &turbulence{rnd: rand.New(rand.NewPCG(seed, 2)), digests: map[string]*digest{},
		codes: slices.Sorted(maps.Keys(incident.XIDs()))}
	for _, c := range Checks() {
		for i, l := range c.Levels {
			if l.When.Signal.counts != nil {
				continue // it counts the events
			}
			for _, gpu := range []string{"0", "1"} {
				e := someone(l.When.Signal)
				if e.GPU != "" {
					e.GPU, e.UUID = gpu, "GPU-"+gpu
				}
				h := fnv.New64a()
				fmt.Fprint(h, c.ID, i, gpu)
				u.levels = append(u.levels, rough{l.When.Example(e), rand.New(rand.NewPCG(seed, h.Sum64())), -3})
			}
		}
	}
	logged := fixture.Value(os.ReadFile("incident/testdata/kernel-lines.tsv"))(t)
	for l := range strings.Lines(string(logged)) {
		u.lines = append(u.lines, strings.ReplaceAll(strings.Split(l, "\t")[1], `\x0a`, "\n"))
	}
	incident.ReadTable(os.DirFS("incident"), "data/events.tsv", func(row map[string]string) error {
		u.kinds = append(u.kinds, row["name"])
		return nil
	})
	slices.Sort(u.kinds)
	return u
}

// show sets the host's samples for the next evaluation.
func (u *turbulence) show(look int) {
	var all []collectors.Sample
	seen := map[string]int{}
	put := func(s collectors.Sample) {
		id := s.Metric.Name + fmt.Sprint(s.Labels)
		if at, twice := seen[id]; twice {
			all[at] = s
			return
		}
		seen[id] = len(all)
		all = append(all, s)
	}
	for _, gpu := range []string{"0", "1"} {
		put(on(gpu, collectors.Up, 1))
		put(on(gpu, links.PCIDevicePresent, 1, "0000:9"+gpu+":00.0", "gpu"))
		put(on(gpu, device.Energy, float64(100+look), "gpu"))
	}
	for i := range u.levels {
		l, passed := &u.levels[i], -step
		if l.left--; l.left < -3 && l.rnd.IntN(8) == 0 {
			l.left = 1 + l.rnd.IntN(12)
		}
		if l.left >= 0 {
			passed = time.Duration(look) * step
		}
		for _, x := range l.examples {
			v := x.At(passed)
			if x.Again != 0 && l.left >= 0 { // a counter continues from its value
				v = x.Before + (x.After-x.Before)*float64(look/4)
			}
			if !math.IsNaN(v) {
				put(collectors.Sample{Metric: x.Metric, Labels: x.Labels, Value: v})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b collectors.Sample) int { return strings.Compare(a.Metric.Name, b.Metric.Name) })
	u.is(all...)
}

// happen sends a log line or an event, or nothing.
func (u *turbulence) happen() {
	bus := u.rnd.IntN(2)
	id := gpu.ID{Index: bus, UUID: fmt.Sprintf("GPU-%d", bus)}
	code := u.codes[u.rnd.IntN(len(u.codes))]
	if u.rnd.IntN(2) == 0 {
		code = []int{13, 31, 45, 48, 63, 64, 74, 79, 94, 95, 154, 998}[u.rnd.IntN(12)]
	}
	line := fmt.Sprintf("NVRM: Xid (PCI:0000:9%d:00): %d, pid=%d, name=python3, Ch 0000000%d", bus, code,
		100+u.rnd.IntN(3), u.rnd.IntN(9))
	switch u.rnd.IntN(12) {
	case 0, 1, 2:
		u.sequence++
		u.logs(u.sequence, line)
	case 3:
		u.Event(collectors.Event{Time: time.Now(), GPU: id, Type: "xid", Code: uint64(code)})
		u.pass(time.Duration(u.rnd.IntN(8)) * time.Second)
		u.sequence++
		u.logs(u.sequence, line)
	case 4:
		u.Event(collectors.Event{Time: time.Now(), GPU: id, Type: u.kinds[u.rnd.IntN(len(u.kinds))],
			Code: uint64(u.rnd.IntN(4))})
	case 5:
		u.sequence++
		u.logs(u.sequence, u.lines[u.rnd.IntN(len(u.lines))])
	case 6:
		for _, f := range u.Verdict().Findings {
			if f.Latched {
				u.note("ack", time.Now().Unix(), f.Check, f.Entity, u.Ack(u.t.Context(), f.Check, f.Entity, "uid 0") == nil)
				break
			}
		}
	}
}

// take records the monitor's current reports.
func (u *turbulence) take() {
	v := u.Verdict()
	u.note("verdict", v.Status, v.GPUs, v.Reason)
	for _, f := range v.Findings {
		u.note("finding "+f.Check, v.Time.Unix(), f.Entity, f.Severity, f.State, f.Since.Unix(), f.Latched,
			f.Shadow, rounded(f.Value))
	}
	for _, s := range u.Samples() {
		if strings.HasPrefix(s.Metric.Name, "nvgpu") {
			u.note("metric "+s.Metric.Name, v.Time.Unix(), s.Labels, rounded(s.Value))
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, e := range u.events {
		what := []any{e.Time.Unix(), e.Entity, e.Code, e.Severity, e.From, e.To, e.Latched, e.Follows != "", e.Sources,
			e.Count, e.First.Unix(), rounded(e.Value), e.Threshold, e.PID, e.Comm, e.Workload, e.Owner, e.Class}
		if e.Kind == incident.KindIncident {
			what = append(what, e.Check, e.Action, e.Last.Unix())
		}
		u.note(string(e.Kind)+" "+e.Check+" "+e.What, what...)
	}
	for _, a := range u.told {
		u.note("alert "+a.Labels["alertname"]+" "+a.Labels["severity"], a.Labels, a.Starts.Unix(), a.Ends.Unix(),
			a.Annotations["pid"], a.Annotations["sources"], a.Annotations["value"])
	}
	u.events, u.told = nil, nil
}

func rounded(v float64) string { return fmt.Sprintf("%.6g", v) }

// TestGoldenTurbulentTime compares a monitor's reports with testdata/turbulent.tsv: their number, and a sum of hashes
// of their contents without the texts. The difference shows which judgements changed. make generate writes the table.
func TestGoldenTurbulentTime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		u := newTurbulence(t, 3)
		settings := Settings{EnableAlerts: []string{"temp_outlier"}, Labels: map[string]string{"cluster": "a"}}
		u.monitored = monitor(t, dir, settings)
		for look := range 40 {
			u.show(look)
			u.happen()
			u.pass(step)
			if look%4 == 0 {
				u.take()
			}
			if look == 25 {
				u.stop()
				u.take()
				u.monitored = monitor(t, dir, settings)
			}
		}
		u.stop()
		var out strings.Builder
		out.WriteString("what\ttimes\thash\n")
		for _, name := range slices.Sorted(maps.Keys(u.digests)) {
			fmt.Fprintf(&out, "%s\t%d\t%08x\n", name, u.digests[name].n, u.digests[name].hash)
		}
		fixture.Golden(t, "testdata/turbulent.tsv", out.String())
	})
}
