package derived

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// An eventful host is a rig whose GPUs change in every way that statistics look at: regimes that begin and end, trends,
// errors, resets, readings that are not there. What happens is drawn from a seed.
type eventful struct {
	*rig
	rnd     *rand.Rand
	steps   int
	regimes []regime // by GPU
	tenants [][tenantInputs]float64
	links   [][]float64 // bytes and errors of each link, by GPU
	jobs    []float64   // memory of workloads, two per GPU
}

// A regime is a GPU's behaviour for a while.
type regime struct {
	left                  int // steps
	load, clock           float64
	hotter, grows, denied float64
	shift                 [power + 1]float64
	errors, slowLink      int
	blind                 int // an input without readings
}

func newEventful(gpus int, seed uint64) *eventful {
	h := &eventful{rig: newRig(gpus), rnd: rand.New(rand.NewPCG(seed, 1))}
	h.regimes, h.jobs = make([]regime, gpus), make([]float64, 2*gpus)
	for range gpus {
		h.tenants = append(h.tenants, [tenantInputs]float64{tenantUsed: 8e9, tenantCap: 20e9, tenantKept: 12e9,
			tenantGuarantee: .25, tenantShare: .5, tenantTarget: .5})
		h.links = append(h.links, make([]float64, 2*6))
	}
	return h
}

// begin draws GPU i's next regime, which is mostly that of all GPUs.
func (h *eventful) begin(i int) {
	f, rnd := &h.regimes[i], h.rnd
	*f = regime{left: 30 + rnd.IntN(400), load: .95, clock: 1980e6, blind: -1, slowLink: -1}
	odd := rnd.IntN(16)
	size := math.Exp2(3 * rnd.Float64()) // 1 to 8
	switch odd {
	case 0:
		f.load = rnd.Float64()
	case 1:
		f.load = 0
	case 2:
		f.hotter = 2 * size
	case 3:
		f.grows = size * 8e6 // bytes per step
	case 4:
		f.shift[rnd.IntN(power+1)] = size * .1
	case 5:
		f.errors = int(size)
	case 6:
		f.slowLink = rnd.IntN(6)
	case 7:
		f.denied = size / 3000
	case 8:
		f.clock *= 1 - size/20
	case 9:
		f.blind = rnd.IntN(inputCount)
	}
}

// pass advances the host by a step.
func (h *eventful) pass() {
	h.steps++
	h.extra = nil
	for i, g := range h.rig.gpus {
		f := &h.regimes[i]
		if f.left--; f.left < 0 {
			h.begin(i)
		}
		h.move(i, g, f)
	}
	h.step(step, nil)
}

// move sets the values of GPU i.
func (h *eventful) move(i int, g *rigGPU, f *regime) {
	rnd, at := h.rnd, func(base float64, input int) float64 { return base * (1 + f.shift[min(input, power)]) }
	noisy := func(v, by float64) float64 { return v + by*rnd.NormFloat64() }
	v := &g.values
	keep := *v
	v[utilization] = min(max(noisy(f.load, .01), 0), 1)
	v[memoryUtilization], v[smActivity], v[tensorActivity], v[memoryActivity] = f.load*.4, f.load*.8,
		f.load*.4, f.load*.3
	v[capped] = float64(rnd.IntN(16) / 15)
	v[power] = at(noisy(80+440*f.load, 3), power)
	v[powerLimit] = 700
	if i == 0 && h.steps > 3000 {
		v[powerLimit] = 500
	}
	v[smClock] = at(15e6*math.Round(noisy(f.clock*(.4+.6*f.load), 5e6)/15e6), smClock)
	v[coreTemperature] = at(math.Round(noisy(35+25*f.load+f.hotter, .6)), coreTemperature)
	v[memoryTemperature] = at(math.Round(noisy(40+15*f.load+f.hotter, .6)), memoryTemperature)
	v[margin] = 27 - f.hotter*float64(400-min(f.left, 400))/100
	v[memoryUsed] = at(noisy(40e9, 1e7)+h.jobs[2*i], memoryUsed)
	v[memoryFree] = max(85e9-v[memoryUsed], 0)
	v[pcieGeneration], v[pcieLanes] = float64(1+4*int(math.Ceil(f.load))), 16
	for _, in := range []int{pcieRX, pcieTX, nvlinkRX, nvlinkTX} {
		v[in] = keep[in] + max(at(noisy(1e9*f.load, 1e7), in), 0)
		if !usable(v[in]) || rnd.IntN(2000) == 0 {
			v[in] = 0 // it was reset
		}
	}
	for in, often := range map[int]float64{pcieReplays: .1, pcieCorrectable: .3, eccCorrected: .05} {
		v[in] = keep[in]
		if often *= float64(1 + 30*f.errors); !usable(v[in]) {
			v[in] = 0
		}
		v[in] += math.Floor(often + rndOf(h.steps, i, in))
	}
	v[remappedRows] = float64(i*h.steps/900) + 400
	if f.blind >= 0 {
		v[f.blind] = math.NaN()
	}
	h.around(i, g, f)
}

// rndOf returns a number between 0 and 1 that depends only on its arguments,
// and so not on the iteration order of a map.
func rndOf(steps, gpu, input int) float64 {
	return rand.New(rand.NewPCG(uint64(steps), uint64(100*gpu+input))).Float64()
}

// around sets the things on and beside GPU i: workloads, tenants, links.
func (h *eventful) around(i int, g *rigGPU, f *regime) {
	rnd := h.rnd
	show := func(m *collectors.Metric, v float64, labels ...string) {
		h.extra = append(h.extra, collectors.Sample{Metric: m, Labels: append([]string{g.gpu, g.uuid}, labels...),
			Value: v})
	}
	for n := range 2 {
		job := &h.jobs[2*i+n]
		if *job += f.grows * (1 + rnd.Float64()/5); *job > 45e9 || rnd.IntN(1500) == 0 {
			*job = 0
		}
		name, gi := fmt.Sprintf("pod:%d", n), []string{"", "7"}[n]
		show(workloads.WorkloadMemory, 1e9+*job, name, gi)
		show(workloads.WorkloadUse, f.load/float64(1+n), fmt.Sprintf("pod:%d", (i+n)%3), "sm")
	}
	show(device.MIGMemory, max(30e9-h.jobs[2*i+1], 0), "7", "free")
	t := &h.tenants[i]
	t[tenantUsed] = 8e9 + h.jobs[2*i]/4
	t[tenantShare] = max(t[tenantShare]-f.denied, 0)
	if f.denied == 0 {
		t[tenantShare] = .5 + .01*rnd.NormFloat64()
	}
	for in, of := range ofTenants {
		labels := []string{"ml"}
		if of.window != "" {
			labels = append(labels, of.window)
		}
		show(of.metric, t[in], labels...)
	}
	for n := range 6 {
		b, e := &h.links[i][2*n], &h.links[i][2*n+1]
		*b += 1e9 * f.load * (1 + .02*rnd.NormFloat64())
		if n == f.slowLink {
			*b -= .7e9 * f.load
			*e += float64(rnd.IntN(3))
		}
		*e += float64(rnd.IntN(40) / 39)
	}
	for n := range 6 {
		h.extra = append(h.extra, onLink(links.NVLinkInfo, g, n, 1),
			onLink(links.NVLinkBytes, g, n, h.links[i][2*n]), onLink(links.NVLinkErrors, g, n, h.links[i][2*n+1]))
	}
}

// onLink returns a sample of a link. Four links lead to a switch, and two to another GPU.
func onLink(m *collectors.Metric, g *rigGPU, link int, v float64) collectors.Sample {
	labels := slices.Repeat([]string{""}, len(m.Labels))
	for i, name := range m.Labels {
		switch name {
		case "gpu":
			labels[i] = g.gpu
		case "uuid":
			labels[i] = g.uuid
		case "link":
			labels[i] = fmt.Sprint(link)
		}
	}
	switch m {
	case links.NVLinkInfo:
		labels[4] = []string{"switch", "gpu"}[link/4]
	case links.NVLinkBytes:
		labels[3] = "data"
	case links.NVLinkErrors:
		labels[2] = []string{"replay", "symbol"}[link/5]
	}
	return collectors.Sample{Metric: m, Labels: labels, Value: v}
}

// TestStatisticsOfAnEventfulDay compares the metrics derived on an eventful host with testdata/derived.tsv: for each
// metric and two hours, the number of values, their sum, and their sum weighted by time and place. The difference names
// the changed metrics. Write the table with go test ./health/derived -run TestStatisticsOfAnEventfulDay -update.
func TestStatisticsOfAnEventfulDay(t *testing.T) {
	t.Parallel()
	type digest struct {
		n             int
		sum, weighted float64
	}
	h := newEventful(6, 7)
	var out strings.Builder
	out.WriteString("metric\thours\tvalues\tsum\tweighted\n")
	for part := range 5 {
		all := map[*collectors.Metric]*digest{}
		for n := range 720 {
			switch rnd := h.rnd.IntN(600); {
			case rnd == 0:
				h.now = h.now.Add(-7 * time.Minute) // the clock is set back
			case rnd < 4:
				i := h.rnd.IntN(len(h.rig.gpus))
				class := incident.Classes[h.rnd.IntN(len(incident.Classes))]
				h.Fault(incident.Event{Kind: incident.KindIncident, ID: fmt.Sprint(h.steps), Class: class,
					Severity: incident.Severity(1 + h.rnd.IntN(4)), Entity: incident.Entity{GPU: h.rig.gpus[i].gpu,
						UUID: h.rig.gpus[i].uuid}}, h.now)
			}
			if h.pass(); n%12 == 0 {
				whole(t, h.last)
			}
			for _, m := range families {
				d := all[m]
				if d == nil {
					d = &digest{}
					all[m] = d
				}
				for i, s := range h.last.Of(m) {
					if d.n++; math.Abs(s.Value) > 1e12 {
						continue
					}
					d.sum += s.Value
					d.weighted += s.Value * float64(1+(7*n+i)%101)
				}
			}
		}
		for _, m := range families {
			fmt.Fprintf(&out, "%s\t%d\t%d\t%.6g\t%.6g\n", m.Name, 2*part, all[m].n, all[m].sum, all[m].weighted)
		}
		text := fixture.Value(json.Marshal(h.Save(h.now)))(t)
		h.Metrics = New()
		fixture.Must(t, h.Restore(text, asItIs))
	}
	fixture.Golden(t, "testdata/derived.tsv", out.String())
}
