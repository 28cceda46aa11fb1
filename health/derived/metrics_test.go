package derived

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// far reports whether got is not a number, or differs from want by more than by.
func far(got, want, by float64) bool { return !(math.Abs(got-want) <= by) }

// birth is the beginning of time in tests of single values.
var birth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const step = Step

// A rig is an artificial host. A test changes its GPUs, and each step of 10 s is judged.
type rig struct {
	*Metrics
	now   time.Time
	gpus  []*rigGPU
	extra []collectors.Sample
	last  *Snapshot
}

// A rigGPU is the values of one GPU of a rig: an H100 under a steady load.
type rigGPU struct {
	gpu, uuid, model string
	values           [inputCount]float64 // NaN is not shown; for counters, their state
}

func newRig(n int) *rig {
	r := &rig{Metrics: New(), now: time.Date(2026, 1, 5, 8, 0, 0, 0, time.UTC)}
	for i := range n {
		g := &rigGPU{gpu: strconv.Itoa(i), uuid: fmt.Sprintf("GPU-%08d-7c62-4cd8-b17c-bd73eadb5819", i),
			model: "NVIDIA H100 80GB HBM3"}
		g.values = [inputCount]float64{
			smClock: 1980e6, coreTemperature: 60, memoryTemperature: 55, memoryUsed: 40e9, pcieRX: 1e12, pcieTX: 1e12,
			nvlinkRX: 1e12, nvlinkTX: 1e12,
			power: 500, utilization: .95, memoryUtilization: .4, smActivity: .8, tensorActivity: .4, memoryActivity: .3,
			memoryFree: 45e9, powerLimit: 700,
			margin: 27, pcieGeneration: 5, pcieLanes: 16, mostGeneration: 5, mostLanes: 16, memoryClock: 2619e6,
		}
		r.gpus = append(r.gpus, g)
	}
	return r
}

// samples returns the host's samples.
func (r *rig) samples() (all []collectors.Sample) {
	for _, g := range r.gpus {
		labels := append([]string{g.gpu, g.uuid, g.model}, make([]string, len(device.Info.Labels)-3)...)
		all = append(all, collectors.Sample{Metric: collectors.Up, Labels: labels[:2:2], Value: 1},
			collectors.Sample{Metric: device.Info, Labels: labels, Value: 1})
		for i, in := range inputs {
			if math.IsNaN(g.values[i]) {
				continue
			}
			labels := append([]string{g.gpu, g.uuid}, in.labels...)
			for len(labels) < len(in.metric.Labels) {
				labels = append(labels, "all")
			}
			all = append(all, collectors.Sample{Metric: in.metric, Labels: labels, Value: g.values[i]})
		}
	}
	return append(all, r.extra...)
}

// step advances in steps of 10 s for the duration; each is called before each step.
func (r *rig) step(d time.Duration, each func()) {
	for range d / step {
		r.now = r.now.Add(step)
		for _, g := range r.gpus {
			for _, i := range []int{pcieRX, pcieTX, nvlinkRX, nvlinkTX} {
				g.values[i] += 1e9 // 100 MB/s
			}
		}
		if each != nil {
			each()
		}
		r.last = NewSnapshot(r.samples())
		r.Derive(r.last, r.now)
	}
}

// get returns a derived value of a GPU, or NaN if there is none.
func (r *rig) get(m *collectors.Metric, gpu int, labels ...string) float64 {
	for _, s := range r.last.Of(m) {
		if s.Labels[0] == strconv.Itoa(gpu) && matches(s.Labels[2:], labels) {
			return s.Value
		}
	}
	return math.NaN()
}

// shake gives all GPUs the noise of sensors.
func (r *rig) shake(rnd *rand.Rand) func() {
	return func() {
		for _, g := range r.gpus {
			g.values[smClock] = 1980e6 + 15e6*math.Round(rnd.NormFloat64())
			g.values[coreTemperature] = math.Round(60 + rnd.NormFloat64())
			g.values[memoryTemperature] = math.Round(55 + rnd.NormFloat64())
			g.values[power] = 500 + 5*rnd.NormFloat64()
			g.values[utilization] = .95 + .02*rnd.Float64()
		}
	}
}

// asItIs leaves the times of a state that is read at once as they are.
func asItIs(t time.Time) time.Time { return t }

func noise() *rand.Rand { return rand.New(rand.NewPCG(11, 12)) }

func TestOnlyLastingAnomaliesCount(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	shake := r.shake(noise())
	r.step(4*time.Minute, shake)
	fixture.Equal(t, usable(r.get(AnomalyRobustZScore, 0, "sm_clock")), false, "after 4 minutes there is a score already:")
	r.step(6*time.Minute, shake)
	slow := func() { shake(); r.gpus[0].values[smClock] = 1500e6 }
	for i := range 6 {
		r.step(step, slow)
		z, simple := r.get(AnomalyRobustZScore, 0, "sm_clock"), r.get(AnomalyZScore, 0, "sm_clock")
		fixture.If(t, z > -15 || simple > -1.5, "a clock 25 %% lower has robust score %g and score %g", z, simple)
		fixture.Equal(t, r.get(AnomalyActive, 0, "sm_clock"), collectors.Bool(i >= 4),
			"after %d of 6 odd samples the flag is", i+1)
	}
	for _, w := range watches {
		fixture.Equal(t, r.get(AnomalyActive, 1, w.name), 0, "%s of the other GPU, where nothing happened", w.name)
	}
}

// TestAnomaliesMatter moves each watched input by slightly less, and slightly more, than the smallest relevant change.
// The standard deviation of an input without movement is its sensor's resolution.
func TestAnomaliesMatter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		input              int
		usual, odd, sensor float64 // for counters, per second
	}{
		{smClock, 1980e6, 198e6, 15e6}, {smClock, 600e6, 90e6, 15e6}, // six of the sensor's steps
		{coreTemperature, 60, 8, 1}, {memoryTemperature, 90, 8, 1},
		{memoryUsed, 40e9, 4e9, 1 << 26}, {memoryUsed, 5e9, 1 << 30, 1 << 26},
		{pcieRX, 1e8, 1e8, 1e6}, {pcieRX, 4e8, 2e8, 1e6}, {pcieTX, 1e8, 1e8, 1e6}, {pcieTX, 4e8, 2e8, 1e6},
		{nvlinkRX, 1e9, 1e9, 1e6}, {nvlinkRX, 4e9, 2e9, 1e6}, {nvlinkTX, 1e9, 1e9, 1e6}, {nvlinkTX, 4e9, 2e9, 1e6},
		{power, 500, 50, 2}, {power, 90, 12, 2}, // six of the sensor's steps
	} {
		name := watches[c.input].name
		for by, want := range map[float64]float64{.99: 0, 1.01: 1} {
			r := newRig(1)
			total := 0.
			show := func(v float64) func() {
				return func() {
					total += 10 * v
					if r.gpus[0].values[c.input] = v; inputs[c.input].metric.Type == collectors.CounterType {
						r.gpus[0].values[c.input] = total
					}
				}
			}
			r.step(10*time.Minute, show(c.usual))
			r.step(time.Minute, show(c.usual+by*c.odd))
			fixture.Equal(t, r.get(AnomalyActive, 0, name), want, "%s, %g after %g", name, c.usual+by*c.odd, c.usual)
			if got, want := r.get(AnomalyRobustZScore, 0, name), by*c.odd/c.sensor; far(got, want, 1e-3*want) {
				t.Errorf("%s, %g after %g: a score of %g, want %g", name, c.usual+by*c.odd, c.usual, got, want)
			}
		}
	}
}

func TestOtherLoadIsNotAnAnomaly(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	idle := func() {
		v := &r.gpus[0].values
		v[utilization], v[smClock], v[power], v[coreTemperature] = 0, 345e6, 77, 40
	}
	r.step(10*time.Minute, idle)
	far := 0.0
	r.step(20*time.Minute, func() {
		r.gpus[0].values = newRig(1).gpus[0].values
		if r.last != nil {
			far = max(far, r.get(AnomalyRobustZScore, 0, "sm_clock"))
			for _, w := range watches {
				fixture.Stop(t, r.get(AnomalyActive, 0, w.name) == 1,
					"%s is called an anomaly because a job began", w.name)
			}
		}
	})
	fixture.AtLeast(t, far, 50, "the score itself is")
}

func TestCounterResetIsNotTraffic(t *testing.T) {
	t.Parallel()
	r := newRig(1)
	r.step(10*time.Minute, nil)
	r.gpus[0].values[pcieRX] = -1e9 // 0 at the next step
	for range 3 {
		r.step(step, nil)
		z := r.get(AnomalyRobustZScore, 0, "pcie_rx")
		fixture.If(t, z != 0 && !math.IsNaN(z), "a counter that began again scores %g", z)
	}
}

func TestCUSUMFindsSlowDrift(t *testing.T) {
	t.Parallel()
	r := newRig(2)
	rnd := noise()
	shake := r.shake(rnd)
	r.step(62*time.Minute, shake)
	warmer := 0.0
	r.step(90*time.Minute, func() {
		shake()
		warmer += 2.0 / 540 // two degrees in 90 minutes
		r.gpus[0].values[coreTemperature] = math.Round(60 + warmer + rnd.NormFloat64())
	})
	if got, other := r.get(DriftCUSUM, 0, "temperature"), r.get(DriftCUSUM, 1, "temperature"); got < 10 ||
		math.Abs(other) > 5 {
		t.Errorf("two degrees of drift sum up to %g, none to %g; want over 10 and under 5", got, other)
	}
	z := r.get(AnomalyRobustZScore, 0, "temperature")
	fixture.If(t, math.Abs(z) > 6, "the robust score is %g: then a sum is no use", z)
	// An idle GPU is like another one: the baseline stays for an hour, then a new one is learnt.
	idle := func() { shake(); r.gpus[0].values[utilization], r.gpus[0].values[coreTemperature] = 0, 40 }
	held := r.get(DriftCUSUM, 0, "temperature")
	r.step(30*time.Minute, idle)
	if got := r.get(DriftCUSUM, 0, "temperature"); far(got, held, 1.5) { // the minute between them has values of both
		t.Errorf("another load moved the sum from %g to %g", held, got)
	}
	r.step(35*time.Minute, idle)
	got := r.get(DriftCUSUM, 0, "temperature")
	fixture.If(t, usable(got), "while a baseline is learnt there is a sum: %g", got)
	r.step(62*time.Minute, idle)
	fixture.Equal(t, r.get(DriftCUSUM, 0, "temperature"), 0, "the sum against the new baseline is")
}

func TestCorrectedErrorsCountAgainstTheGPUsOwnBaseline(t *testing.T) {
	t.Parallel()
	r := newRig(3)
	for _, g := range r.gpus {
		g.values[eccCorrected] = 1e6 // from the board's past: no incident
	}
	r.step(10*time.Minute, nil)
	rate, sum := r.get(ECCCorrectablePerHour, 0), r.get(ECCCorrectableCUSUM, 0)
	fixture.If(t, rate != 0 || sum != 0, "errors of the past: %g an hour, sum %g", rate, sum)
	r.gpus[1].values[eccCorrected] += 5000 // one burst
	worst := 0.0
	r.step(58*time.Minute, func() {
		r.gpus[0].values[eccCorrected] += .5 // 180 per hour
		worst = max(worst, r.get(ECCCorrectableCUSUM, 1))
	})
	if rate, sum := r.get(ECCCorrectablePerHour, 0), r.get(ECCCorrectableCUSUM, 0); rate < 170 ||
		rate > 180 || sum < 20 {
		t.Errorf("3 errors a minute: %g an hour, sum %g; want 174 and over 20", rate, sum)
	}
	rate = r.get(ECCCorrectablePerHour, 1)
	fixture.If(t, rate != 5000 || worst > 5, "a burst: %g an hour, sum up to %g; want 5000, under 5", rate, worst)
	r.gpus[0].values[eccCorrected] = 0 // the driver was reloaded
	r.step(time.Minute, nil)
	rate = r.get(ECCCorrectablePerHour, 0)
	fixture.If(t, rate < 150 || rate > 180, "after the counter began again: %g an hour", rate)
}

func TestMemoryPressureReplaysAndLag(t *testing.T) {
	r := newRig(2)
	use := func(gpu int, workload, engine string, v float64) collectors.Sample {
		return collectors.Sample{Metric: workloads.WorkloadUse, Labels: []string{r.gpus[gpu].gpu, r.gpus[gpu].uuid,
			workload, engine}, Value: v}
	}
	r.extra = []collectors.Sample{use(1, "a", "memory", .99), use(0, "a", "sm", .9), use(1, "a", "sm", .25),
		use(1, "a", "sm", math.NaN()), use(0, "b", "sm", .5)}
	for _, g := range r.gpus {
		g.values[pcieReplays] = 12345
	}
	r.step(2*time.Minute, func() { r.gpus[0].values[pcieReplays] += 10; r.gpus[1].values[pcieReplays]++ })
	fixture.Equal(t, r.get(MemoryPressure, 0), 40./85, "memory pressure")
	// 32 GT/s, 16 lanes, a minute, 1e-12: 30.72 replays.
	got := r.get(PCIeReplayExcess, 0)
	fixture.If(t, far(got, 60/30.72, 1e-9), "60 replays a minute are %g times what is allowed, want 1.95", got)
	got = r.get(PCIeReplayExcess, 1)
	fixture.If(t, far(got, 6/30.72, 1e-9), "6 replays a minute are %g times what is allowed", got)
	if busy, idle, alone := r.get(WorkloadLag, 0, "a"), r.get(WorkloadLag, 1, "a"),
		r.get(WorkloadLag, 0, "b"); busy != 0 || idle != .65 || usable(alone) {
		t.Errorf("lags %g, %g and %g; want 0, 0.65 and none of a workload on one GPU", busy, idle, alone)
	}
	r.gpus[0].values[pcieReplays] = 0
	r.extra = append(r.extra, held("a"))
	r.step(step, nil)
	fixture.AtMost(t, r.get(PCIeReplayExcess, 0), 60/30.72, "a counter that began again")
	fixture.Equal(t, r.get(WorkloadLag, 1, "a"), 0, "the lag of one that the enforcer holds back")
	fixture.Equal(t, len(pcieRates), 7, "PCIe generations")
}

// TestNonFiniteValuesAreIgnored passes values that no GPU reports. The output is
// always numbers, and recovers afterwards.
func TestNonFiniteValuesAreIgnored(t *testing.T) {
	t.Parallel()
	r, rnd := newRig(5), noise()
	wild := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, -1, math.MaxFloat64, -math.MaxFloat64,
		math.SmallestNonzeroFloat64, 1e300}
	good := r.gpus[0].values
	r.step(40*time.Minute, func() {
		for _, g := range r.gpus {
			for i := range g.values {
				if rnd.IntN(4) == 0 {
					g.values[i] = wild[rnd.IntN(len(wild))]
				}
			}
		}
		r.extra = append(linkSamples(r.gpus[0], 4, wild[rnd.IntN(len(wild))], 1),
			residing(r.gpus[0], "a", wild[rnd.IntN(len(wild))]))
		if rnd.IntN(20) == 0 {
			r.now = r.now.Add(time.Duration(rnd.Int64N(int64(2*time.Hour))) - time.Hour) // clocks jump
		}
		if r.last != nil {
			whole(t, r.last)
		}
	})
	for _, g := range r.gpus {
		g.values = good
	}
	r.extra = nil
	r.step(25*time.Minute, nil)
	fixture.Equal(t, r.get(AnomalyRobustZScore, 0, "power"), 0, "ten minutes later the score of power is")
	_ = fixture.Value(json.Marshal(r.Save(r.now)))(t)
}

// whole checks that derived samples match their declarations.
func whole(t *testing.T, s *Snapshot) {
	t.Helper()
	seen := map[string]bool{}
	for _, m := range families {
		for _, sample := range s.Of(m) {
			key := m.Name + strings.Join(sample.Labels, "\x00")
			if !usable(sample.Value) || len(sample.Labels) != len(m.Labels) || seen[key] {
				t.Fatalf("%s%v is %g, twice: %v", m, sample.Labels, sample.Value, seen[key])
			}
			seen[key] = true
		}
	}
}

// TestInputsAreRead finds each input by its labels in the output of some model, and
// the alternative of one that a model lacks.
func TestInputsAreRead(t *testing.T) {
	shown := strings.Split(string(fixture.Value(os.ReadFile("../../collectors/testdata/models.prom"))(t)), "\n")
	for _, in := range inputs {
		for _, labels := range [][]string{in.labels, in.or} {
			fixture.Equal(t, slices.ContainsFunc(shown, func(line string) bool {
				has := strings.HasPrefix(line, in.metric.Name+"{")
				for n, v := range labels {
					has = has && strings.Contains(line, in.metric.Labels[2+n]+`="`+v+`"`)
				}
				return has
			}), true, "a model has %s %q", in.metric, labels)
		}
	}
	r := newRig(1)
	r.gpus[0].values[power] = math.NaN()
	r.extra = []collectors.Sample{{Metric: device.Power, Labels: []string{"0", r.gpus[0].uuid, "instant", "gpu"}, Value: 300}}
	r.step(step, nil)
	fixture.Equal(t, r.cards[0].now[power], 300, "without an average the power is")
}
