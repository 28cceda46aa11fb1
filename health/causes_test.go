package health

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A stage is a host of GPUs under one job. A scene changes it from step to step.
type stage struct {
	at                         time.Duration // since the first step
	gpus                       []*actor
	driverUp, drained          float64
	away                       float64 // 1: there is no agent; the next one starts with the state of the last
	events                     []incident.Event
	expected, happening, onBus int
}

// An actor is one of a stage's GPUs.
type actor struct {
	gpu, stuck, driver, holder     string  // stuck is the reason why it does not answer
	listed                         float64 // by the driver
	busy, mem, watts               float64
	clock, margin, limit           float64
	asked, joules, port, superchip float64 // requested limit, lanes of the port above it, 1 beside a processor; 0 is not shown
	links, processes               float64
	held, notebook                 float64 // GiB of the holder, and of a permanent notebook
	lanes, gen, pstate             float64 // of the PCIe link, and the performance state
	pcie, nvlink                   float64 // bytes per second
	sentPCIe, sentNVLink           float64
}

const gib = 1 << 30

func newStage(n int) *stage {
	s := &stage{driverUp: 1, expected: n, onBus: n}
	for i := range n {
		s.gpus = append(s.gpus, &actor{gpu: fmt.Sprint(i), driver: "nvidia", holder: "slurm:1", listed: 1, busy: 1,
			mem: .4, watts: 600, clock: 1.7e9, margin: 25, limit: 700, links: 18, lanes: 16, gen: 5, pcie: 50e6,
			nvlink: 20e9, processes: 1, held: 60})
	}
	return s
}

// value returns a value that a cue may change.
func (s *stage) value(g *actor, name string) *float64 {
	return map[string]*float64{"driver": &s.driverUp, "drained": &s.drained, "away": &s.away, "listed": &g.listed,
		"busy": &g.busy, "mem": &g.mem, "watts": &g.watts, "clock": &g.clock, "margin": &g.margin, "limit": &g.limit,
		"asked": &g.asked, "joules": &g.joules, "port": &g.port, "superchip": &g.superchip, "links": &g.links,
		"processes": &g.processes, "held": &g.held, "notebook": &g.notebook, "lanes": &g.lanes, "gen": &g.gen,
		"pstate": &g.pstate, "pcie": &g.pcie, "nvlink": &g.nvlink}[name]
}

// during reports whether the step is within a period.
func (s *stage) during(from, to time.Duration) bool { return s.at >= from && s.at < to }

// changes are those that a cue cannot state, by name.
var changes = map[string]func(s *stage, i int, g *actor){
	"spin": func(_ *stage, _ int, g *actor) { // without progress
		g.busy, g.mem, g.clock, g.watts, g.pcie, g.nvlink = 1, 0, 1.98e9, 130, 4e6, 0
	},
	"queue": func(s *stage, i int, g *actor) { // short jobs, beside a permanent notebook
		g.held, g.notebook = 30, 8
		g.holder = fmt.Sprint("slurm:", i, "-", (s.at+time.Duration(i)*3*time.Minute)/(24*time.Minute))
	},
	"fill": func(s *stage, _ int, g *actor) { g.held = 16 + 60*(1-math.Exp(-s.at.Minutes()/40)) },
	"warm day": func(s *stage, i int, g *actor) {
		day := 6 * math.Sin(math.Pi*s.at.Hours()/6) // degrees
		if g.margin = 20 - day; i >= 6 {
			g.margin = max(-1, 4-day)
		}
	},
}

func (s *stage) samples() (all []collectors.Sample) {
	node := func(m *collectors.Metric, v float64, labels ...string) {
		all = append(all, collectors.Sample{Metric: m, Labels: labels, Value: v})
	}
	node(collectors.DriverUp, s.driverUp)
	node(collectors.DriverMismatch, 0, "", "")
	node(collectors.Drained, s.drained)
	node(collectors.DevicesExpected, float64(s.expected))
	node(links.PCIDevices, float64(s.onBus), "gpu")
	node(links.PCIDevices, 0, "nvswitch")
	listed := 0
	for _, g := range s.gpus {
		all = append(all, on(g.gpu, links.PCIDeviceBound, collectors.Bool(g.driver != ""),
			"0000:0"+g.gpu+":00.0", "gpu", g.driver))
		if s.driverUp == 1 && g.listed == 1 {
			listed++
		}
	}
	if s.drained == 0 {
		node(collectors.Devices, float64(listed))
	}
	for _, g := range s.gpus {
		put := func(m *collectors.Metric, v float64, labels ...string) { all = append(all, on(g.gpu, m, v, labels...)) }
		stuck := g.stuck
		switch {
		case s.drained == 1:
			continue
		case s.driverUp == 0:
			stuck = "driver_not_loaded"
		case g.listed == 0:
			stuck = "not_listed"
		}
		put(collectors.Up, collectors.Bool(stuck == ""))
		g.sentPCIe += g.pcie * step.Seconds()
		g.sentNVLink += g.nvlink * step.Seconds()
		if stuck != "" {
			put(collectors.WorkerStuck, 1, stuck)
			continue
		}
		info := make([]string, len(device.Info.Labels)-2)
		info[slices.Index(device.Info.Labels, "name")-2] = "NVIDIA H100 80GB HBM3"
		put(device.Info, 1, info...)
		put(device.AddressingMode, 1, "none")
		if g.joules > 0 {
			put(device.Energy, g.joules, "gpu")
		}
		put(faults.RecoveryAction, 0)
		put(activity.Utilization, g.busy, "gpu")
		put(activity.Utilization, g.mem, "memory")
		put(device.Power, g.watts, "average", "gpu")
		put(device.PowerLimit, g.limit, "enforced")
		if g.asked > 0 {
			put(device.PowerLimit, g.asked, "requested")
			put(device.PowerLimit, 700, "default")
		}
		put(device.Clock, g.clock, "sm")
		put(device.ClockMax, 1.98e9, "sm")
		put(device.TemperatureMargin, math.Round(g.margin))
		put(device.Temperature, 87-math.Round(g.margin), "gpu")
		put(links.NVLinkUp, g.links, "all")
		put(device.VirtualizationInfo, 1, "none")
		put(links.PCIeWidth, g.lanes, "current")
		put(links.PCIeWidth, 16, "max")
		if g.port > 0 {
			put(links.PCIPortLanes, g.port)
		}
		if g.superchip > 0 {
			put(links.C2CUp, 1, "0")
		}
		put(links.PCIeGeneration, g.gen, "current")
		put(links.PCIeGeneration, 5, "max")
		put(device.PerformanceState, g.pstate)
		put(device.ComputeMode, 0)
		put(activity.PCIeBytes, g.sentPCIe/2, "rx")
		put(activity.PCIeBytes, g.sentPCIe/2, "tx")
		put(links.NVLinkBytes, g.sentNVLink, "rx", "data", "all")
		for workload, held := range map[string]float64{g.holder: g.held, "user:1": g.notebook} {
			if held > 0 {
				put(workloads.WorkloadMemory, held*gib, workload, "")
			}
		}
		put(device.MemoryBytes, (g.held+g.notebook)*gib, "used")
		put(device.MemoryBytes, (80-g.held-g.notebook)*gib, "free")
		put(workloads.Processes, g.processes, "compute")
	}
	return all
}

// A scene is an element of testdata/causes.yml, which explains its keys.
type scene struct {
	Check  string             `yaml:"check"`
	Name   string             `yaml:"name"`
	GPUs   int                `yaml:"gpus"`
	OnBus  int                `yaml:"on_bus"`
	Length scenarios.Duration `yaml:"length"`
	Pace   scenarios.Duration `yaml:"pace"`
	Boot   string             `yaml:"boot"` // the next agent's, if it is another than the last one's
	Find   finding            `yaml:"find"`
	Cues   []cue              `yaml:"cues"`
}

// A cue changes a stage while it lasts.
type cue struct {
	At     scenarios.Duration `yaml:"at"`
	For    scenarios.Duration `yaml:"for"`
	Every  scenarios.Duration `yaml:"every"`
	GPUs   []int              `yaml:"gpus"`
	Stuck  string             `yaml:"stuck"`
	Driver *string            `yaml:"driver_of"`
	Holder string             `yaml:"holder"`
	Event  string             `yaml:"event"`
	XID    int                `yaml:"xid"`
	Owner  string             `yaml:"owner"`
	Do     string             `yaml:"do"`
	Rises  map[string]float64 `yaml:"rises"`
	Steps  scenarios.Duration `yaml:"steps"`
	Values map[string]float64 `yaml:",inline"`
}

// play changes a stage for its step.
func (c *scene) play(s *stage) {
	fresh := newStage(len(s.gpus)).gpus
	for i, g := range s.gpus {
		fresh[i].sentPCIe, fresh[i].sentNVLink = g.sentPCIe, g.sentNVLink
	}
	s.gpus, s.driverUp, s.drained, s.away, s.events = fresh, 1, 0, 0, nil
	for _, u := range c.Cues {
		since := s.at - time.Duration(u.At)
		if since >= 0 && u.Every > 0 {
			since %= time.Duration(u.Every)
		}
		if since < 0 || u.For > 0 && since >= time.Duration(u.For) {
			continue
		}
		for i, g := range s.gpus {
			if len(u.GPUs) == 0 || slices.Contains(u.GPUs, i) {
				u.play(s, i, g, since)
			}
		}
	}
}

func (c *cue) play(s *stage, i int, g *actor, since time.Duration) {
	if c.Do != "" {
		changes[c.Do](s, i, g)
	}
	g.stuck, g.holder = cmp.Or(c.Stuck, g.stuck), cmp.Or(c.Holder, g.holder)
	if c.Driver != nil {
		g.driver = *c.Driver
	}
	for name, v := range c.Values {
		*s.value(g, name) = v
	}
	for name, v := range c.Rises {
		*s.value(g, name) += v * since.Truncate(time.Duration(c.Steps)).Hours()
	}
	if c.Event != "" && since == 0 {
		s.happening++
		e := happened(fmt.Sprint(c.Event, "-", s.happening), c.Event, c.XID, g.gpu, birth.Add(s.at))
		if c.Owner != "" {
			e.PID, e.Owner = 4000+s.happening, strings.ReplaceAll(c.Owner, "{hour}", fmt.Sprint(int(s.at.Hours())))
			e.Workload = fmt.Sprint("slurm:", s.happening)
		}
		s.events = append(s.events, e)
	}
}

// follows reports whether one check silences another.
func follows(effect, cause string) bool {
	return slices.ContainsFunc(inhibitions, func(i inhibition) bool { return i.Cause == cause && i.silences(effect) })
}

// shadowed reports whether a check does not alert.
func shadowed(id string) bool {
	return slices.ContainsFunc(Checks(), func(c *Check) bool { return c.ID == id && c.Shadow })
}

// eachScene plays one of n scenes.
func eachScene(t *testing.T, n int) {
	t.Parallel()
	for i, c := range elements[scene](t, "testdata/causes.yml") {
		if i%n != 0 {
			continue
		}
		t.Run(c.Check+"/"+c.Name, func(t *testing.T) {
			t.Parallel()
			n, pace := cmp.Or(c.GPUs, 8), max(time.Duration(c.Pace), step)
			w, s, worst, found := newWorld(t, Checks()...), newStage(n), incident.None, time.Duration(-1)
			s.onBus = cmp.Or(c.OnBus, n)
			of := map[string]bool{}
			for ; s.at < time.Duration(c.Length); s.at += pace {
				was := s.away
				c.play(s)
				if s.away == 1 {
					w.now = w.now.Add(pace)
					continue
				}
				if was == 1 {
					w.restart(cmp.Or(c.Boot, "same"))
				}
				for _, e := range w.step(pace, s.events, s.samples()...) {
					if e.Check == c.Check && e.Severity >= incident.Warning {
						of[e.Entity.String()] = true
					}
					switch {
					case e.Check == c.Check && e.Severity > worst:
						worst, found = e.Severity, s.at
					case e.Severity >= incident.Warning && e.To != incident.Recovering && e.Check != c.Check &&
						!shadowed(e.Check) && !follows(e.Check, c.Check):
						t.Errorf("%v: found as well: %s of %s, %v: %s", s.at, e.Check, e.Entity, e.Severity, e.Message)
					}
				}
			}
			switch {
			case c.Find.Severity == incident.None && worst >= incident.Warning:
				t.Errorf("found after %v, %v, though it is no fault", found, worst)
			case c.Find.Severity != incident.None && worst != c.Find.Severity:
				t.Errorf("%v, want %v", worst, c.Find.Severity)
			case c.Find.Severity != incident.None && found > time.Duration(c.Find.Within):
				t.Errorf("found after %v, want %v at most", found, time.Duration(c.Find.Within))
			}
			fixture.If(t, c.Find.On != "" && (len(of) != 1 || !of[c.Find.On]), "found of %v, want %s alone", of, c.Find.On)
			t.Logf("%v after %v", worst, found)
		})
	}
}
