package health

import (
	"math"
	"regexp"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// A slow fault develops slowly or partially, on GPU 3 of an H100 host whose
// other seven GPUs are healthy and do the same job. It begins after half an
// hour.
type slowFault struct {
	name    string
	perLink bool
	place   func(h *healthyHost)                             // work other than a training job on all GPUs
	all     bool                                             // every GPU is altered
	alter   func(h *healthyHost, at time.Duration, s *shown) // GPU 3's samples, at that time since the fault began
	check   string                                           // the check that finds it; empty: nothing may be found
	on      string                                           // empty: gpu=3
	// limit after the fault began; if nothing may be found, the length of the
	// required silence
	within time.Duration
	says   string // part of the message
}

// shown is a sample that may be altered.
type shown struct {
	*collectors.Sample
}

func (s *shown) is(m *collectors.Metric, labels ...string) bool {
	return s.Metric == m && labelsFit(s.Labels[2:], labels)
}

// labelsFit reports whether labels match the wanted ones, if any are wanted.
func labelsFit(have, want []string) bool {
	for i, w := range want {
		if w != "" && have[i] != w {
			return false
		}
	}
	return true
}

const slowGPU = "3"

// pulse reports whether the time is within the first d of each period.
func pulse(at, d, each time.Duration) bool { return at%each < d }

// heldFor returns the time that a reason held, if it holds for d of each
// period.
func heldFor(at, d, each time.Duration) float64 {
	return (at/each*d + min(at%each, d)).Seconds()
}

// load runs one job of a kind on all GPUs.
func load(d demand, share float64) func(h *healthyHost) {
	return func(h *healthyHost) {
		j := h.job(func(h *healthyHost, j *job) { j.ask(h, d, share) }, "slurm", h.gpus...)
		for i := range j.bias {
			j.bias[i] = 1 + 0.004*h.r.NormFloat64()
		}
	}
}

var (
	matmul = demand{busy: 1, sm: .9, tensor: .6, dram: .3, nvlink: 5e10, rx: 2e8} // at the power limit
	light  = demand{busy: .95, sm: .4, tensor: .1, dram: .2, rx: 2e8}             // far below it
)

var slowFaults = []slowFault{
	{name: "one of 18 NVLinks at half its speed", check: "nvlink_slow", on: "gpu=3,link=all",
		within: 5 * time.Minute, says: "97.2 %",
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(links.NVLinkSpeed) {
				s.Value *= 17.5 / 18
			}
		}},
	{name: "one NVLink of which each has series, at half its speed", perLink: true, check: "nvlink_slow",
		on: "gpu=3,link=7", within: 5 * time.Minute,
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(links.NVLinkSpeed, "7") {
				s.Value /= 2
			}
		}},
	{name: "a clock 8 % below seven siblings at their power limit", place: load(matmul, .7), check: "clock_outlier",
		within: 6 * time.Minute, says: "SM clock -[78]",
		alter: slower},
	{name: "a clock 8 % below seven siblings, and the power that goes with it", place: load(matmul, .7),
		check: "clock_outlier", within: 6 * time.Minute,
		alter: func(h *healthyHost, at time.Duration, s *shown) {
			slower(h, at, s)
			switch {
			case s.is(device.Power):
				s.Value *= .87
			case s.is(device.ClockEventActive, "sw_power_cap"):
				s.Value = 0
			}
		}},
	{name: "a clock 8 % below seven siblings that are not at their limit", place: load(light, .3),
		check: "clock_outlier", within: 6 * time.Minute,
		alter: slower},
	{name: "half the SM activity and power at the same clock", place: load(matmul, .7), check: "work_outlier",
		within: 14 * time.Minute,
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(activity.GPMActivity) || s.is(device.Power) {
				s.Value /= 2
			}
		}},
	{name: "a memory clock that is stuck low", place: load(matmul, .7), check: "memory_clock", within: 2 * time.Minute,
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(device.Clock, "memory") {
				s.Value = 1593e6
			}
		}},
	{name: "hardware slowdown half of the time", check: "hw_slowdown", within: 5 * time.Minute,
		alter: func(_ *healthyHost, at time.Duration, s *shown) {
			if s.is(device.ClockEventActive, "hw_slowdown") {
				s.Value = collectors.Bool(pulse(at, 20*time.Second, 40*time.Second))
			}
		}},
	{name: "hardware thermal slowdown 2 s of each minute", check: "thermal_throttle_ratio", within: 12 * time.Minute,
		alter: func(_ *healthyHost, at time.Duration, s *shown) {
			if s.is(device.ClockEventSeconds, "hw_thermal") {
				s.Value = heldFor(at, 2*time.Second, time.Minute)
			}
		}},
	{name: "power brake 10 s of each 30", check: "power_brake", within: 5 * time.Minute,
		alter: func(_ *healthyHost, at time.Duration, s *shown) {
			if s.is(device.ClockEventSeconds, "hw_power_brake") {
				s.Value = heldFor(at, 10*time.Second, 30*time.Second)
			}
		}},
	{name: "PCIe of half the lanes at 8 % utilization", place: load(demand{busy: .08, sm: .05, dram: .02}, .3),
		check: "pcie_degraded", within: 3 * time.Minute, alter: narrowed},
	{name: "PCIe of half the lanes, busy 40 % in every other sample", check: "pcie_degraded", within: 6 * time.Minute,
		alter: func(h *healthyHost, at time.Duration, s *shown) {
			narrowed(h, at, s)
			if s.is(activity.Utilization, "gpu") {
				s.Value = .4 * collectors.Bool(pulse(at, step, 2*step))
			}
		}},
	{name: "a leak of 1 % an hour from 96.5 %", check: "mem_leak", on: "gpu=3,workload=slurm:1", within: 2 * time.Hour,
		place: load(matmul, .965),
		alter: leaks(func(at time.Duration) float64 { return .01 * at.Hours() })},
	{name: "a leak of 30 % an hour in steps of 2 GiB", check: "mem_leak", on: "gpu=3,workload=slurm:1",
		within: 125 * time.Minute, place: load(matmul, .4),
		alter: leaks(func(at time.Duration) float64 { return math.Floor(.3*at.Hours()*80/2) * 2 / 80 })},
	{name: "a memory setting of an older day", check: driftCheck, within: 195 * time.Second,
		says: "setting power_limit, value 500, expected 700",
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(device.PowerLimit, "enforced") {
				s.Value = 500
			}
		}},

	// Healthy causes that resemble a fault.
	{name: "clocks that are locked on all GPUs", within: time.Hour, place: load(matmul, .7), all: true,
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(device.Clock, "sm") {
				s.Value = 1200e6
			}
		}},
	{name: "heterogeneous jobs", within: 6 * time.Hour, place: func(h *healthyHost) {
		for i, g := range h.gpus {
			j := h.job(batch, "slurm", g)
			j.alike = batches[i%len(batches)]
		}
	}},
	{name: "a job on four of eight GPUs", within: 3 * time.Hour,
		place: func(h *healthyHost) { h.trains(h.gpus[:4]...) }},
	{name: "a job on each half, one of them slower", within: 3 * time.Hour, place: func(h *healthyHost) {
		h.trains(h.gpus[:4]...)
		h.job(func(h *healthyHost, j *job) { j.ask(h, light, .3) }, "slurm", h.gpus[4:]...)
	}},
	{name: "an idle link of generation 1", within: 2 * time.Hour, place: load(demand{}, 0),
		alter: func(_ *healthyHost, _ time.Duration, s *shown) {
			if s.is(links.PCIeGeneration, "current") {
				s.Value = 1
			}
		}},
	{name: "a link that is raised for moments of work", within: 2 * time.Hour, place: load(demand{}, .3),
		alter: func(_ *healthyHost, at time.Duration, s *shown) {
			switch {
			case s.is(activity.Utilization, "gpu"):
				s.Value = .4 * collectors.Bool(pulse(at, step, 3*step))
			case s.is(links.PCIeGeneration, "current"): // mostly read a moment later
				s.Value = 1 + 4*collectors.Bool(pulse(at+7*at/5, 2*step, 5*step))
			}
		}},
	{name: "a data set that grows, and fits", within: 3 * time.Hour, place: load(matmul, .3),
		alter: leaks(func(at time.Duration) float64 { return min(.12*at.Hours(), .25) })},
	{name: "a cache that fills up to nearly all", within: 3 * time.Hour, place: load(matmul, .3),
		alter: leaks(func(at time.Duration) float64 { return .65 * -math.Expm1(-at.Minutes()/12) })},
	{name: "hot for a moment", within: time.Hour, alter: func(_ *healthyHost, at time.Duration, s *shown) {
		if s.is(device.ClockEventSeconds, "hw_thermal") {
			s.Value = min(at, 8*time.Second).Seconds()
		}
	}},
	{name: "a power brake for a moment", within: time.Hour, alter: func(_ *healthyHost, at time.Duration, s *shown) {
		if s.is(device.ClockEventSeconds, "hw_power_brake") {
			s.Value = min(at, 12*time.Second).Seconds()
		}
	}},
	{name: "clocks that change, and say so", within: time.Hour,
		alter: func(_ *healthyHost, at time.Duration, s *shown) {
			if s.is(device.ClockEventActive, "hw_slowdown") {
				s.Value = collectors.Bool(pulse(at, step, 2*time.Minute))
			}
		}},
}

// slower sets GPU 3's clock 8 % below its siblings'.
func slower(h *healthyHost, _ time.Duration, s *shown) {
	if s.is(device.Clock, "sm") || s.is(device.Clock, "graphics") {
		var others []float64
		for _, g := range h.gpus {
			if g.gpu != slowGPU {
				others = append(others, g.seen.clock)
			}
		}
		s.Value = math.Round(.92*derived.Median(others)/15e6) * 15e6
	}
}

func narrowed(_ *healthyHost, _ time.Duration, s *shown) {
	if s.is(links.PCIeWidth, "current") {
		s.Value = 8
	}
}

// leaks increases the memory of the job on GPU 3.
func leaks(part func(at time.Duration) float64) func(*healthyHost, time.Duration, *shown) {
	return func(h *healthyHost, at time.Duration, s *shown) {
		g := h.gpus[3]
		all := g.number["memory_bytes"] - g.number["reserved_bytes"]
		more := min(math.Round(part(at)*all/(2<<20))*(2<<20), all-g.seen.used)
		switch {
		case s.Metric == workloads.WorkloadMemory, s.is(device.MemoryBytes, "used"):
			s.Value += more
		case s.is(device.MemoryBytes, "free"):
			s.Value -= more
		}
	}
}

const slowBegins = 30 * time.Minute

func (f *slowFault) test(t *testing.T) {
	h := busyHost(f.perLink)
	h.jobs, h.numbered, h.era, h.hall, h.quotas = nil, 0, 1<<40, 0, false
	if f.place == nil {
		f.place = load(matmul, .7)
	}
	f.place(h)
	found, on := time.Duration(-1), "gpu="+slowGPU
	if f.on != "" {
		on = f.on
	}
	e := NewEngine(Checks(), h.now())
	for at := -slowBegins; at <= f.within; at += step {
		samples := h.calm()
		if at >= 0 && f.alter != nil {
			for i := range samples {
				if s := (&shown{Sample: &samples[i]}); len(s.Labels) >= 2 && (f.all || s.Labels[0] == slowGPU) &&
					s.Metric.Labels[0] == "gpu" {
					f.alter(h, at, s)
				}
			}
		}
		for _, c := range e.Eval(derived.NewSnapshot(samples), nil, h.now()) {
			own := c.Check == f.check && c.Entity.String() == on
			switch {
			case c.Severity < incident.Warning:
			case own && at >= 0 && found < 0:
				found = at
				t.Logf("found after %v: %s", at, c.Message)
				if ok, err := regexp.MatchString(f.says, c.Message); err != nil || !ok {
					t.Errorf("%q does not say %q: %v", c.Message, f.says, err)
				}
			case !own && c.Check != "slow_gpu": // in shadow mode
				t.Errorf("found as well after %v: %s of %s, %v: %s", at, c.Check, c.Entity, c.Severity, c.Message)
			}
		}
	}
	if f.check != "" && found < 0 {
		t.Errorf("%s of %s says nothing within %v", f.check, on, f.within)
	}
}

// calm is a step without mishaps.
func (h *healthyHost) calm() []collectors.Sample {
	h.n++
	h.weather()
	for _, g := range h.gpus {
		g.want, g.residents, g.used = demand{}, 0, 0
	}
	for _, j := range h.jobs {
		j.run(h, j)
	}
	for _, g := range h.gpus {
		g.advance(h)
	}
	return h.show()
}
