package health

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A stage is a host of eight GPUs under one job. A scene changes it from step to step.
type stage struct {
	at                  time.Duration // since the first step
	gpus                []*actor
	driverUp, drained   float64
	events              []incident.Event
	expected, happening int
	onBus, switches     int
	away                bool   // there is no agent; the next one starts with the state of the last
	boot                string // the next agent's, if it is another than the last one's
}

// An actor is one of a stage's GPUs.
type actor struct {
	gpu, stuck, bound    string // stuck is the reason why it does not answer; bound is its driver
	listed               bool
	busy, mem, watts     float64
	clock, margin, limit float64
	asked                float64 // requested limit; 0 is not shown
	links                float64
	used, processes      float64
	joules               float64 // 0 is not shown
	lanes, gen, pstate   float64 // of the PCIe link, and the performance state
	port                 float64 // lanes of the port above the GPU; 0 is not shown
	superchip            bool    // it has a link to the processor in its package
	pcie, nvlink         float64 // bytes per second
	sentPCIe, sentNVLink float64
	hot                  bool // it reports its temperature
	held                 map[string]float64
}

const gib = 1 << 30

func newStage(n int) *stage {
	s := &stage{driverUp: 1, expected: n, onBus: n}
	for i := range n {
		s.gpus = append(s.gpus, &actor{gpu: fmt.Sprint(i), bound: "nvidia", listed: true, busy: 1, mem: .4, watts: 600,
			clock: 1.7e9, margin: 25, limit: 700, links: 18, hot: true, lanes: 16, gen: 5,
			pcie: 50e6, nvlink: 20e9, processes: 1, held: map[string]float64{"slurm:1": 60 * gib}})
	}
	return s
}

// each changes all GPUs.
func (s *stage) each(f func(*actor)) {
	for _, g := range s.gpus {
		f(g)
	}
}

// train makes the GPU work; spin makes it busy without progress.
func (g *actor) train() {
	g.busy, g.mem, g.clock, g.watts, g.pcie, g.nvlink = 1, .4, 1.7e9, 600, 50e6, 20e9
}

func (g *actor) spin() {
	g.busy, g.mem, g.clock, g.watts, g.pcie, g.nvlink = 1, 0, 1.98e9, 130, 4e6, 0
}

// queue runs short jobs on all GPUs, beside a permanent notebook on each.
func (s *stage) queue() {
	for i, g := range s.gpus {
		g.held = map[string]float64{"user:1": 8 * gib,
			fmt.Sprint("slurm:", i, "-", (s.at+time.Duration(i)*3*time.Minute)/(24*time.Minute)): 30 * gib}
	}
}

// during reports whether the step is within a period.
func (s *stage) during(from, to time.Duration) bool { return s.at >= from && s.at < to }

// xid makes a GPU report an XID of a process of an owner; the owner may be empty.
func (s *stage) xid(code, gpu int, owner string) {
	s.happening++
	e := happened(fmt.Sprint("xid-", s.happening), incident.WhatXID, code, fmt.Sprint(gpu), birth.Add(s.at))
	if owner != "" {
		e.PID, e.Owner, e.Workload = 4000+s.happening, owner, "slurm:"+fmt.Sprint(s.happening)
	}
	s.events = append(s.events, e)
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
	node(links.PCIDevices, float64(s.switches), "nvswitch")
	listed := 0
	for _, g := range s.gpus {
		all = append(all, on(g.gpu, links.PCIDeviceBound, collectors.Bool(g.bound != ""),
			"0000:0"+g.gpu+":00.0", "gpu", g.bound))
		if s.driverUp == 1 && g.listed {
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
		case !g.listed:
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
		put(device.TemperatureMargin, g.margin)
		if g.hot {
			put(device.Temperature, 87-g.margin, "gpu")
		}
		put(links.NVLinkUp, g.links, "all")
		put(device.VirtualizationInfo, 1, "none")
		put(links.PCIeWidth, g.lanes, "current")
		put(links.PCIeWidth, 16, "max")
		if g.port > 0 {
			put(links.PCIPortLanes, g.port)
		}
		if g.superchip {
			put(links.C2CUp, 1, "0")
		}
		put(links.PCIeGeneration, g.gen, "current")
		put(links.PCIeGeneration, 5, "max")
		put(device.PerformanceState, g.pstate)
		put(device.ComputeMode, 0)
		put(activity.PCIeBytes, g.sentPCIe/2, "rx")
		put(activity.PCIeBytes, g.sentPCIe/2, "tx")
		put(links.NVLinkBytes, g.sentNVLink, "rx", "data", "all")
		used := g.used
		for _, workload := range slices.Sorted(keys(g.held)) {
			used += g.held[workload]
			put(workloads.WorkloadMemory, g.held[workload], workload, "")
		}
		put(device.MemoryBytes, used, "used")
		put(device.MemoryBytes, 80*gib-used, "free")
		put(workloads.Processes, g.processes, "compute")
	}
	return all
}

func keys(m map[string]float64) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// A scene is a sequence of events on a stage, and the expected finding: the check, its severity, and the time limit
// from the beginning. A scene without a severity expects no finding of any check. The sites have other healthy causes
// by the week, and testdata/world/faults.yml has other faults.
type scene struct {
	check, name string
	gpus        int // 8 if 0
	length      time.Duration
	pace        time.Duration // between steps; 10 s if 0
	play        func(s *stage)
	want        incident.Severity
	within      time.Duration
	once        string // the one entity with a finding; any if empty
}

// follows reports whether one check silences another.
func follows(effect, cause string) bool {
	return slices.ContainsFunc(inhibitions, func(i inhibition) bool { return i.Cause == cause && i.silences(effect) })
}

// shadowed reports whether a check does not alert.
func shadowed(id string) bool {
	return slices.ContainsFunc(Checks(), func(c *Check) bool { return c.ID == id && c.Shadow })
}

// scenes returns all scenes.
func scenes() []scene {
	return slices.Concat(kernelScenes, agentScenes, driverScenes, linkScenes, xidScenes, memoryScenes, heatScenes)
}

var kernelScenes = []scene{
	{check: "hung_job", name: "a collective that waits for a rank that is gone",
		length: 40 * time.Minute, want: incident.Warning, within: 34 * time.Minute, once: "workload=slurm:1",
		play: func(s *stage) {
			if s.at < 20*time.Minute {
				return
			}
			s.each((*actor).spin)
			s.gpus[3].busy, s.gpus[3].watts = 0, 90
		}},
	{check: "hung_job", name: "ranks that spin for twelve minutes while a checkpoint is written",
		length: 5 * time.Hour, play: func(s *stage) {
			s.each((*actor).train)
			if in := s.at % time.Hour; in >= 40*time.Minute && in < 52*time.Minute {
				s.each((*actor).spin)
			}
		}},
	{check: "hung_job", name: "a rank that copies its part out for long, while the others spin",
		length: 3 * time.Hour, play: func(s *stage) {
			s.each((*actor).train)
			if in := s.at % time.Hour; in >= 30*time.Minute && in < 54*time.Minute {
				s.each((*actor).spin)
				if in < 50*time.Minute {
					s.gpus[0].busy, s.gpus[0].pcie = 0, 2e9
				}
			}
		}},
	{check: "hung_job", name: "a rank that evaluates while the others spin",
		length: 2 * time.Hour, play: func(s *stage) {
			s.each((*actor).train)
			if s.during(30*time.Minute, 55*time.Minute) {
				s.each((*actor).spin)
				s.gpus[0].busy, s.gpus[0].mem, s.gpus[0].watts = 1, .4, 600
			}
		}},
	{check: "hung_job", name: "a job that waited before for half as long, and went on",
		length: 4 * time.Hour, play: func(s *stage) {
			minutes := [...]time.Duration{12, 22, 40, 40}[s.at/time.Hour]
			s.each((*actor).train)
			if in := s.at%time.Hour - 10*time.Minute; in >= 0 && in < minutes*time.Minute {
				s.each((*actor).spin)
			}
		}},
	{check: "hung_job", name: "a job that hangs on all of its GPUs",
		length: 2 * time.Hour, want: incident.Warning, within: 20*time.Minute + derived.WholeFor + 20*time.Second,
		once: "workload=slurm:1",
		play: func(s *stage) {
			if s.at >= 20*time.Minute {
				s.each((*actor).spin)
			}
		}},
	{check: "hung_job", name: "a job that hangs, and waited before for as long as it may",
		length: 3 * time.Hour, want: incident.Warning, within: time.Hour + 24*time.Minute + 20*time.Second,
		once: "workload=slurm:1",
		play: func(s *stage) {
			s.each((*actor).train)
			if s.during(20*time.Minute, 32*time.Minute) || s.at >= time.Hour {
				s.each((*actor).spin)
			}
		}},
	{check: "hung_job", name: "trainers on three of eight GPUs that wait while the others generate",
		length: 3 * time.Hour, play: func(s *stage) {
			s.each((*actor).train)
			if s.at%time.Hour >= 15*time.Minute && s.at%time.Hour < 55*time.Minute {
				for _, g := range s.gpus[5:] {
					g.spin()
				}
			}
		}},
	{check: "hung_job", name: "half of a job's GPUs that wait for more than an hour", gpus: 2, length: 2 * time.Hour,
		want: incident.Warning, within: 81 * time.Minute, once: "workload=slurm:1", play: func(s *stage) {
			s.each((*actor).train)
			if s.at >= 20*time.Minute {
				s.gpus[1].spin()
			}
		}},
	{check: "hung_kernel", name: "one of eight programs of a user that hangs",
		length: 2 * time.Hour, want: incident.Warning, within: 20*time.Minute + 10*time.Minute + 20*time.Second,
		once: "gpu=3",
		play: func(s *stage) {
			s.each(func(g *actor) { g.held = map[string]float64{"user:1000": 60 * gib} })
			if s.at >= 20*time.Minute {
				s.gpus[3].spin()
			}
		}},
	{check: "hung_kernel", name: "a kernel that spins on a GPU with locked clocks", length: 40 * time.Minute, gpus: 1,
		want: incident.Warning, within: 20*time.Minute + 10*time.Minute + 4*time.Minute, play: func(s *stage) {
			s.each(func(g *actor) { g.clock = 1e9 })
			if s.at >= 20*time.Minute {
				s.each(func(g *actor) { g.mem, g.watts, g.pcie, g.nvlink = 0, 110, 4e6, 0 })
			}
		}},
}

var agentScenes = []scene{
	{check: "stale", name: "an agent that does not get to run, on a host with one GPU", gpus: 1, length: time.Hour,
		play: func(s *stage) {
			s.each(func(g *actor) {
				if g.stuck = ""; s.during(10*time.Minute, 10*time.Minute+50*time.Second) {
					g.stuck = "late"
				}
			})
		}},
	{check: "agent_self", name: "an agent that does not get to run for minutes", length: 20 * time.Minute,
		want: incident.Warning, within: 10*time.Minute + 130*time.Second, play: func(s *stage) {
			if s.at >= 10*time.Minute {
				s.each(func(g *actor) { g.stuck = "late" })
				s.gpus[2].stuck = "nvmlDeviceGetFieldValues" // the call of its reader when it was last seen
			}
		}},
}

var driverScenes = []scene{
	{check: "driver_unbound", name: "a driver that is loaded anew as soon as its work is ended", length: time.Hour,
		play: func(s *stage) {
			s.driverUp = collectors.Bool(!s.during(20*time.Minute, 23*time.Minute))
			s.each(func(g *actor) {
				if g.bound = "nvidia"; s.driverUp == 0 {
					g.bound = ""
				}
			})
		}},
	{check: "driver_unbound", name: "all GPUs are handed to virtual machines", length: time.Hour, play: func(s *stage) {
		if s.at >= 20*time.Minute {
			s.driverUp = 0
			s.each(func(g *actor) { g.bound = "vfio-pci" })
		}
	}},
	{check: "gpu_missing", name: "a GPU that is gone while another is handed to a virtual machine", length: time.Hour,
		want: incident.Emergency, within: 40*time.Minute + 30*time.Second, play: func(s *stage) {
			if s.at >= 20*time.Minute {
				s.gpus[6].listed, s.gpus[6].bound = false, "vfio-pci"
			}
			s.gpus[2].listed = s.at < 40*time.Minute
		}},
	{check: "config_drift", name: "prologs that cap GPUs which a notebook shares with their jobs",
		length: 4 * time.Hour, play: func(s *stage) {
			s.queue()
			for i, g := range s.gpus {
				start := 30*time.Minute + time.Duration(i)*15*time.Minute
				if g.limit = 700; s.during(start, start+45*time.Minute) {
					g.limit = 400 + 20*float64(i)
				}
			}
		}},
	{check: "config_drift", name: "a cap that was set before a job, and that its epilog takes back under the next",
		length: 8 * time.Hour, play: func(s *stage) {
			s.queue()
			for _, g := range s.gpus[2:4] {
				if s.during(15*time.Minute, 25*time.Minute) {
					g.held = nil
				}
				// the other GPU's job continues
				if g.limit = 700; s.during(20*time.Minute, 40*time.Minute) || g.gpu == "3" && s.at >= 20*time.Minute {
					g.limit = 500
				}
			}
		}},
	{check: "config_drift", name: "a cap beside the jobs of a queue that stays", length: 5 * time.Hour,
		want: incident.Warning, within: 20*time.Minute + lentFor + 150*time.Second, play: func(s *stage) {
			s.queue()
			if s.at >= 20*time.Minute {
				s.gpus[2].limit = 350
			}
		}},
	{check: "config_drift", name: "an admin caps a GPU that is idle", length: time.Hour, play: func(s *stage) {
		if g := s.gpus[2]; s.at >= 20*time.Minute {
			g.limit, g.processes, g.busy, g.held = 500, 0, 0, nil
		}
	}},
	{check: "config_drift", name: "a driver that is loaded anew has its defaults", gpus: 2, length: time.Hour,
		play: func(s *stage) {
			s.drained = collectors.Bool(s.during(20*time.Minute, 25*time.Minute))
			s.driverUp = 1 - s.drained
			s.each(func(g *actor) {
				if g.limit = 500; s.at >= 20*time.Minute {
					g.limit = 700
				}
			})
		}},
	{check: "config_drift", name: "a setting that a reset loses, and that is set again under a job",
		gpus: 3, length: 2 * time.Hour, play: func(s *stage) {
			for i, g := range s.gpus {
				g.limit = 500 + 50*float64(i)
			}
			g := s.gpus[1]
			if g.stuck, g.held = "", s.gpus[0].held; s.during(20*time.Minute, 22*time.Minute) {
				g.stuck, g.held = "gpu_in_reset", nil
			}
			if s.during(20*time.Minute, 40*time.Minute) {
				g.limit = 700
			}
		}},
	{check: "gpu_absent", name: "six boards without NVSwitches", gpus: 6, length: time.Hour, play: func(*stage) {}},
	{check: "gpu_absent", name: "a GPU on the bus that the driver never listed", gpus: 4, length: time.Hour,
		want: incident.Warning, within: 5 * time.Minute, once: "node", play: func(s *stage) {
			if len(s.gpus) == 4 {
				s.gpus, s.expected = s.gpus[:3], 3
			}
		}},
	{check: "config_drift", name: "a controller that lowers the limits of seven GPUs", length: 2 * time.Hour,
		play: func(s *stage) {
			for i, g := range s.gpus[1:] {
				if g.limit = 700; s.at >= 20*time.Minute+time.Duration(i)*time.Minute {
					g.limit = 450
				}
				g.asked = g.limit
			}
			s.gpus[0].asked = 700
		}},
	{check: "config_drift", name: "a cap that a reload of the driver takes, and that one GPU does not get back",
		length: time.Hour, want: incident.Warning, within: 32 * time.Minute, once: "gpu=2", play: func(s *stage) {
			s.drained = collectors.Bool(s.during(20*time.Minute, 25*time.Minute))
			s.driverUp = 1 - s.drained
			for _, g := range s.gpus {
				if g.limit = 500; s.during(20*time.Minute, 29*time.Minute) || g.gpu == "2" && s.at >= 20*time.Minute {
					g.limit = 700
				}
				g.asked = g.limit
			}
		}},
	{check: "config_drift", name: "a cap that was set while no agent ran", gpus: 2, length: time.Hour,
		play: func(s *stage) {
			if s.away = s.during(20*time.Minute, 21*time.Minute); s.at >= 20*time.Minute {
				s.gpus[1].limit, s.gpus[1].asked = 500, 500
			}
			s.gpus[0].asked = 700
		}},
	{check: "config_drift", name: "a limit that the chassis lowered while no agent ran", gpus: 2, length: time.Hour,
		want: incident.Warning, within: 24 * time.Minute, once: "gpu=1", play: func(s *stage) {
			if s.away = s.during(20*time.Minute, 21*time.Minute); s.at >= 20*time.Minute {
				s.gpus[1].limit = 500
			}
			s.each(func(g *actor) { g.asked, g.joules = 700, g.joules+6000 })
		}},
	{check: "config_drift", name: "an admin caps one GPU while it works", length: 3 * time.Hour, play: func(s *stage) {
		s.each(func(g *actor) { g.asked = g.limit })
		if g := s.gpus[2]; s.at >= 90*time.Minute {
			g.limit, g.asked = 500, 500
		}
	}},
	{check: "config_drift", name: "a GPU that was capped before the agent came", length: time.Hour,
		play: func(s *stage) {
			s.each(func(g *actor) { g.asked = g.limit })
			s.gpus[2].limit, s.gpus[2].asked = 500, 500
		}},
	{check: "config_drift", name: "a GPU that had lost its cap before the agent came",
		length: time.Hour, want: incident.Warning, within: 130 * time.Second, once: "gpu=2", play: func(s *stage) {
			s.each(func(g *actor) { g.limit, g.asked = 500, 500 })
			s.gpus[2].limit, s.gpus[2].asked = 700, 700
		}},
	{check: "config_drift", name: "a GPU that a chassis had limited before the agent came",
		length: time.Hour, want: incident.Warning, within: 130 * time.Second, once: "gpu=2", play: func(s *stage) {
			s.each(func(g *actor) { g.asked = 700 })
			s.gpus[2].limit = 500
		}},
	{check: "config_drift", name: "a limit that falls below the one that was asked for",
		length: 3 * time.Hour, want: incident.Warning, within: 90*time.Minute + 150*time.Second,
		once: "gpu=2",
		play: func(s *stage) {
			s.each(func(g *actor) { g.asked = 700 })
			if s.at >= 90*time.Minute {
				s.gpus[2].limit = 500
			}
		}},
	{check: "config_drift", name: "a cap that was asked for beside the jobs of a queue, and stays",
		length: 6 * time.Hour, want: incident.Warning, within: 20*time.Minute + lentFor + 150*time.Second,
		once: "gpu=2",
		play: func(s *stage) {
			s.queue()
			s.each(func(g *actor) { g.asked = 700 })
			if g := s.gpus[2]; s.at >= 20*time.Minute {
				g.limit, g.asked = 350, 350
			}
		}},
	{check: "config_drift", name: "a limit that falls under a job", length: time.Hour, want: incident.Warning,
		within: 20*time.Minute + 150*time.Second, play: func(s *stage) {
			if s.at >= 20*time.Minute {
				s.gpus[2].limit = 350
			}
		}},
	{check: "config_drift", name: "a reset that loses one GPU's cap", length: time.Hour, want: incident.Warning,
		within: 24*time.Minute + 150*time.Second, play: func(s *stage) {
			s.each(func(g *actor) { g.limit = 500 })
			g := s.gpus[2]
			if s.at >= 20*time.Minute {
				g.limit, g.processes, g.held = 700, 0, nil
			}
			if g.stuck = ""; s.during(20*time.Minute, 22*time.Minute) {
				g.stuck = "gpu_in_reset"
			}
		}},
}

// reload replaces the agent's pod and the driver between two times. The links train until a third one.
func (s *stage) reload(from, to, trained time.Duration) {
	s.away = s.during(from, to)
	s.each(func(g *actor) {
		if g.links = 18; s.during(from, trained) {
			g.links = 0
		}
	})
}

var linkScenes = []scene{
	{check: "pcie_degraded", name: "a desktop that draws its windows at a low clock", gpus: 1, length: 2 * time.Hour,
		play: func(s *stage) {
			g := s.gpus[0]
			if g.gen, g.pstate, g.busy = 5, 0, .4; s.at > 10*time.Minute {
				g.busy, g.pstate, g.gen = .16, 5+3*float64(s.at/time.Minute%2), 1+float64(s.at/time.Minute%2)
			}
		}},
	{check: "pcie_degraded", name: "a board that never had more than 8 lanes", gpus: 1, length: time.Hour,
		want: incident.Warning, within: time.Minute, play: func(s *stage) { s.gpus[0].lanes, s.gpus[0].port = 8, 16 }},
	{check: "pcie_degraded", name: "a board with 8 lanes below a virtual machine's port, which says one", gpus: 1,
		length: time.Hour, want: incident.Warning, within: time.Minute,
		play: func(s *stage) { s.gpus[0].lanes, s.gpus[0].port = 8, 1 }},
	{check: "pcie_degraded", name: "a board in a slot of 8 lanes", gpus: 1, length: time.Hour,
		play: func(s *stage) { s.gpus[0].lanes, s.gpus[0].port = 8, 8 }},
	{check: "pcie_degraded", name: "a superchip, of which the driver says one lane", gpus: 1, length: time.Hour,
		play: func(s *stage) { g := s.gpus[0]; g.lanes, g.gen, g.port, g.superchip = 1, 1, 16, true }},
	{check: "pcie_degraded", name: "a board with 4 lanes in a slot of 8 lanes", gpus: 1, length: time.Hour,
		want: incident.Warning, within: time.Minute, play: func(s *stage) { s.gpus[0].lanes, s.gpus[0].port = 4, 8 }},
	{check: "pcie_degraded", name: "a board that has 8 lanes since a boot", gpus: 1, length: time.Hour,
		want: incident.Critical, within: 24 * time.Minute, play: func(s *stage) {
			if s.away, s.boot = s.during(20*time.Minute, 23*time.Minute), "other"; s.at >= 20*time.Minute {
				s.gpus[0].lanes, s.gpus[0].port = 8, 8
			}
		}},
	{check: "nvlink_down", name: "links that train when the agent comes back after a reload of the driver",
		length: time.Hour, play: func(s *stage) {
			s.reload(20*time.Minute, 23*time.Minute, 26*time.Minute)
			s.each(func(g *actor) {
				if g.joules += 6000; s.at == 22*time.Minute {
					g.joules = 90
				}
			})
		}},
	{check: "nvlink_down", name: "links that train, and GPUs that do not tell their energy", length: time.Hour,
		play: func(s *stage) { s.reload(20*time.Minute, 21*time.Minute, 24*time.Minute) }},
	{check: "nvlink_down", name: "links that train while the agent is replaced once more", length: time.Hour,
		play: func(s *stage) {
			s.reload(20*time.Minute, 21*time.Minute, 24*time.Minute)
			s.away = s.away || s.during(22*time.Minute, 22*time.Minute+10*time.Second)
		}},
	{check: "nvlink_down", name: "links that train after the kernel said that the driver was loaded", length: time.Hour,
		play: func(s *stage) {
			s.reload(20*time.Minute, 20*time.Minute+20*time.Second, 24*time.Minute)
			if s.at == 20*time.Minute+30*time.Second {
				s.events = append(s.events, happened("loaded", incident.WhatDriverLoaded, 0, "", birth.Add(s.at)))
			}
		}},
	{check: "nvlink_down", name: "links that are down after a reload of the driver", length: time.Hour,
		want: incident.Critical, within: 26*time.Minute + 30*time.Second, play: func(s *stage) {
			s.reload(20*time.Minute, 21*time.Minute, 2*time.Hour)
		}},
	{check: "nvlink_down", name: "links that failed while no agent ran, without a reset", length: time.Hour,
		want: incident.Critical, within: 23*time.Minute + 30*time.Second, play: func(s *stage) {
			s.reload(20*time.Minute, 23*time.Minute, 2*time.Hour)
			s.each(func(g *actor) { g.joules += 6000 })
		}},
	{check: "nvlink_down", name: "a link that does not come back after a drain", length: time.Hour,
		want: incident.Critical, within: 36 * time.Minute, play: func(s *stage) {
			s.drained = collectors.Bool(s.during(20*time.Minute, 30*time.Minute))
			s.driverUp = 1 - s.drained
			if s.at >= 30*time.Minute {
				s.gpus[4].links = 17
			}
		}},
}

// usersCrash has another user's job crash on GPU 3 every two hours.
func usersCrash(s *stage) {
	if s.at%(2*time.Hour) == 0 {
		s.xid(31, 3, fmt.Sprint("user:", s.at/time.Hour))
	}
}

var xidScenes = []scene{
	{check: "xid_repeat", name: "jobs that are killed, of which nobody knows whose", length: 24 * time.Hour,
		pace: time.Minute, play: func(s *stage) {
			if s.at%(30*time.Minute) == 0 {
				s.xid(45, 3, "")
			}
		}},
	{check: "xid_repeat", name: "a queue on one GPU whose users' jobs crash, and other work on the others",
		length: 12 * time.Hour, pace: time.Minute, want: incident.Info, within: 8*time.Hour + time.Minute,
		play: usersCrash},
	{check: "xid_repeat", name: "five users on one GPU that replaced a row of its memory", length: 12 * time.Hour,
		pace: time.Minute, want: incident.Warning, within: 8*time.Hour + time.Minute, play: func(s *stage) {
			usersCrash(s)
			if s.at == time.Hour {
				s.xid(63, 3, "")
			}
		}},
	{check: "xid_repeat", name: "five users on one GPU, and a row that another replaced", length: 12 * time.Hour,
		pace: time.Minute, want: incident.Info, within: 8*time.Hour + time.Minute, play: func(s *stage) {
			usersCrash(s)
			if s.at == time.Hour {
				s.xid(63, 4, "")
			}
		}},
	{check: "gpu_lemon", name: "a GPU on which many tenants' programs fail", length: 48 * time.Hour,
		pace: 5 * time.Minute, play: func(s *stage) {
			for i, code := range []int{8, 11, 13, 25, 31, 32, 39, 43, 45, 69, 137} {
				if s.at%(3*time.Hour) == time.Duration(i)*15*time.Minute {
					for gpu := range s.gpus {
						s.xid(code, gpu, fmt.Sprint("user:", i))
					}
				}
			}
		}},
}

var memoryScenes = []scene{
	{check: "mem_leak", gpus: 2, name: "a cache that fills ever more slowly", length: 4 * time.Hour,
		play: func(s *stage) {
			s.each(func(g *actor) { g.held["slurm:1"] = 16*gib + 60*gib*(1-math.Exp(-s.at.Minutes()/40)) })
		}},
	{check: "mem_leak", gpus: 2, name: "a cache that let go of a part, and fills again beyond what it had",
		length: 4 * time.Hour, play: func(s *stage) {
			s.gpus[1].held["slurm:1"] = 40 * gib
			if s.at > time.Hour {
				s.gpus[1].held["slurm:1"] = min(75*gib, 32.5*gib+12*gib*(s.at-time.Hour).Hours())
			}
		}},
	{check: "mem_leak", gpus: 2, name: "a leak that begins when all is loaded", length: 5 * time.Hour,
		want: incident.Warning, within: time.Hour + 80*time.Minute, play: func(s *stage) {
			s.gpus[1].held["slurm:1"] = min(79.9*gib, 20*gib+20*gib*max(0, s.at-time.Hour).Hours())
		}},
	{check: "mem_leak", gpus: 2, name: "a leak of 1 % an hour in steps, on a GPU that is nearly full", length: 5 * time.Hour,
		want: incident.Warning, within: 3*time.Hour + 20*time.Minute, play: func(s *stage) {
			steps := math.Floor(max(0, s.at-time.Hour).Minutes() / 30)
			s.gpus[1].held["slurm:1"] = min(79.9*gib, 77.2*gib+.4*gib*steps)
		}},
	{check: "mem_leak", gpus: 2, name: "a cache on a nearly full GPU that grows twice", length: 5 * time.Hour,
		play: func(s *stage) {
			steps := min(2, math.Floor(max(0, s.at-time.Hour).Minutes()/30))
			s.gpus[1].held["slurm:1"] = 77.2*gib + .8*gib*steps
		}},
	{check: "mem_leak", gpus: 2, name: "a leak in steps of 2 GiB", length: 3 * time.Hour, want: incident.Warning,
		within: 152 * time.Minute, play: func(s *stage) {
			s.gpus[1].held["slurm:1"] = min(79.9*gib, 20*gib+2*gib*math.Floor(s.at.Minutes()/5))
		}},
}

var heatScenes = []scene{
	{check: "thermal_margin", name: "two GPUs in the chassis's warm air, on a warm day", length: 6 * time.Hour,
		play: func(s *stage) {
			day := 6 * math.Sin(math.Pi*s.at.Hours()/6) // degrees
			for i, g := range s.gpus {
				if g.margin = 20 - math.Round(day); i >= 6 {
					g.margin = math.Round(max(-1, 4-day))
				}
			}
		}},
	{check: "temp_rise", name: "a heat sink that comes off slowly", length: 3 * time.Hour, want: incident.Warning,
		within: 40*time.Minute + 80*time.Minute, play: func(s *stage) {
			s.gpus[3].margin = math.Round(40 - 8*max(0, s.at.Hours()-40./60))
		}},
	{check: "temp_rise", name: "one GPU that is hotter from one minute to the next", length: 2 * time.Hour,
		want: incident.Warning, within: 40*time.Minute + 7*time.Minute, play: func(s *stage) {
			if s.at > 40*time.Minute {
				s.gpus[3].margin = 9
			}
		}},
	{check: "thermal_margin", name: "a host's only GPU", gpus: 1, length: time.Hour, want: incident.Warning,
		within: 20*time.Minute + 50*time.Second, play: func(s *stage) {
			if s.at >= 20*time.Minute {
				s.gpus[0].margin = 0
			}
		}},
}

// eachScene plays one of n scenes.
func eachScene(t *testing.T, n int) {
	t.Parallel()
	for i, c := range scenes() {
		if i%n != 0 {
			continue
		}
		t.Run(c.check+"/"+c.name, func(t *testing.T) {
			t.Parallel()
			n := c.gpus
			if n == 0 {
				n = 8
			}
			pace := max(c.pace, step)
			w, s, worst, found := newWorld(t, Checks()...), newStage(n), incident.None, time.Duration(-1)
			of := map[string]bool{}
			for ; s.at < c.length; s.at += pace {
				was := s.away
				s.events = nil
				c.play(s)
				if s.away {
					w.now = w.now.Add(pace)
					continue
				}
				if was {
					w.restart(cmp.Or(s.boot, "same"))
				}
				for _, e := range w.step(pace, s.events, s.samples()...) {
					if e.Check == c.check && e.Severity >= incident.Warning {
						of[e.Entity.String()] = true
					}
					switch {
					case e.Check == c.check && e.Severity > worst:
						worst, found = e.Severity, s.at
					case e.Severity >= incident.Warning && e.To != incident.Recovering && e.Check != c.check &&
						!shadowed(e.Check) && !follows(e.Check, c.check):
						t.Errorf("%v: found as well: %s of %s, %v: %s", s.at, e.Check, e.Entity, e.Severity, e.Message)
					}
				}
			}
			switch {
			case c.want == incident.None && worst >= incident.Warning:
				t.Errorf("found after %v, %v, though it is no fault", found, worst)
			case c.want != incident.None && worst != c.want:
				t.Errorf("%v, want %v", worst, c.want)
			case c.want != incident.None && found > c.within:
				t.Errorf("found after %v, want %v at most", found, c.within)
			}
			fixture.If(t, c.once != "" && (len(of) != 1 || !of[c.once]), "found of %v, want %s alone", of, c.once)
			t.Logf("%v after %v", worst, found)
		})
	}
}
