package health

import (
	"fmt"
	"math/rand/v2"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

// A healthyHost simulates a host with eight healthy GPUs under typical loads,
// with the noise, the gaps and the mishaps of real hosts. The same seed makes
// the same host.
type healthyHost struct {
	r       *rand.Rand
	model   *healthyModel
	gpus    []*healthyGPU
	series  []series
	kernel  []series // needs no driver
	out     []collectors.Sample
	perLink bool
	mig     bool
	quotas  bool // an enforcer gives guarantees
	shadow  bool // in shadow mode
	q       *rand.Rand
	tenants []*healthyTenant

	n     int       // steps so far
	start time.Time // of step 0
	shift time.Duration

	jobs     []*job
	era      int // step in which the host's work changes
	style    string
	numbered int // jobs so far

	inlet    wander // degrees, of the room
	hall     float64
	fans     int // steps of the chassis' fans
	away     int // steps for which the driver stays away
	training int // steps for which the links train
	absent   map[absence]int
	late     map[*healthyGPU]int
	restart  bool // the agent was restarted before this step
	xids     int

	driverUp, drainedNow, blocked, pressure float64
	ports                                   []float64
	one, zero                               float64
}

// An absence is a family that a GPU fails to show for a pass or two.
type absence struct {
	metric *collectors.Metric
	gpu    *healthyGPU
}

const (
	stepsHour = 360
	stepsDay  = 24 * stepsHour
	stepsWeek = 7 * stepsDay
)

// newHealthyHost returns the host of a seed, before its first step.
func newHealthyHost(seed uint64) *healthyHost {
	r := rand.New(rand.NewPCG(seed, 4))
	h := &healthyHost{r: r, model: pickModel(r.Float64()),
		start:  time.Date(2026, 3, 2, 0, 0, int(seed%60), 0, time.UTC),
		absent: map[absence]int{}, late: map[*healthyGPU]int{}, driverUp: 1, one: 1}
	h.n = r.IntN(stepsDay)
	h.hall = min(max(1.5*r.NormFloat64(), -3), 3)
	h.mig = h.model.has("mig") && r.Float64() < 0.15
	h.perLink = h.model.has("nvswitch") && !h.mig && r.Float64() < 0.2
	h.quotas = r.Float64() < 0.3
	h.q = rand.New(rand.NewPCG(seed, 5)) // quotas change nothing else
	h.shadow = h.q.Float64() < 0.5
	for i := range 8 {
		h.gpus = append(h.gpus, newHealthyGPU(h, i, seed))
	}
	h.ports = make([]float64, 8)
	for i := range h.ports {
		h.ports[i] = 1
	}
	h.catalogue()
	h.place()
	return h
}

// now returns the time of the host's clock, which is set back now and then.
func (h *healthyHost) now() time.Time {
	return h.start.Add(time.Duration(h.n)*step + h.shift)
}

// step advances by 10 s and returns the samples and events. The samples are
// valid until the next call.
func (h *healthyHost) step() (samples []collectors.Sample, events []incident.Event) {
	h.n++
	events = h.mishaps()
	h.weather()
	for _, g := range h.gpus {
		g.want = demand{}
		g.residents = 0
		g.used = 0
	}
	if h.n >= h.era {
		h.place()
	}
	for _, j := range h.jobs {
		if h.away == 0 {
			j.run(h, j)
		}
	}
	for _, g := range h.gpus {
		g.advance(h)
	}
	if h.quotas && h.away == 0 {
		h.enforce()
	}
	return h.show(), events
}

// weather simulates the room and the chassis: the inlet follows the day and
// wanders, and the fans rise in steps with the hottest GPU.
func (h *healthyHost) weather() {
	h.inlet.next(h.r, 0.999, 0.8)
	hottest := 0.0
	for _, g := range h.gpus {
		hottest = max(hottest, g.die)
	}
	room := h.model.number["temperature_c.gpu_max"] - hottest
	switch {
	case room < 11 && h.fans < 6 && h.n%6 == 0:
		h.fans++
	case room > 16 && h.fans > 0 && h.n%30 == 0:
		h.fans--
	}
}

// chance reports whether an event that happens a number of times in so many
// steps happens now.
func (h *healthyHost) chance(times float64, steps int) bool {
	return h.r.Float64() < times/float64(steps)
}

// mishaps are random events of healthy hosts.
func (h *healthyHost) mishaps() []incident.Event {
	h.restart = h.chance(1, stepsDay)
	if h.restart {
		h.tenants = nil // the broker's counters restart with the agent's
		for _, g := range h.gpus {
			g.restarted()
		}
	}
	if h.chance(1, stepsWeek) {
		h.shift -= time.Duration(1+h.r.IntN(30)) * time.Second
	}
	if h.chance(1, 4*stepsWeek) { // maintenance: nothing runs
		h.style, h.jobs, h.era = "maintenance", nil, h.n+2*stepsHour+h.r.IntN(6*stepsHour)
	}
	h.reload()
	for _, g := range h.gpus {
		if h.chance(2, stepsDay) {
			h.absent[absence{h.series[h.r.IntN(len(h.series))].metric, g}] = 1 + h.r.IntN(2)
		}
	}
	if h.chance(1, stepsDay) {
		h.late[h.gpus[h.r.IntN(len(h.gpus))]] = 1 + h.r.IntN(2)
	}
	h.blocked = collectors.Bool(h.chance(20, stepsDay)) // for a moment that is normal
	h.pressure = min(0.9, max(0.05, 0.3+0.1*h.r.NormFloat64()))
	if h.chance(1, 4*stepsWeek) {
		h.ports[h.r.IntN(len(h.ports))] = 0
	} else {
		for i := range h.ports {
			h.ports[i] = 1
		}
	}
	return h.tenantXIDs()
}

// reload removes the driver for a while once a week, mostly announced. The work
// has ended by then, and counters restart.
func (h *healthyHost) reload() {
	switch {
	case h.away > 1:
		h.away--
	case h.away == 1:
		h.away, h.driverUp, h.drainedNow = 0, 1, 0
		h.training = h.r.IntN(7)
		for _, g := range h.gpus {
			g.reloaded()
		}
		h.place()
	case h.chance(1, stepsWeek):
		h.jobs, h.away, h.driverUp = nil, 1+h.r.IntN(4), 0
		if h.r.Float64() < 0.7 {
			h.drainedNow, h.away = 1, 6+h.r.IntN(60)
		}
	case h.training > 0:
		h.training--
	}
}

// tenantXIDs are the faults of programs under development.
func (h *healthyHost) tenantXIDs() []incident.Event {
	if len(h.jobs) == 0 || h.away > 0 || !h.chance(0.4, stepsDay) {
		return nil
	}
	j := h.jobs[h.r.IntN(len(h.jobs))]
	g := j.gpus[h.r.IntN(len(j.gpus))]
	code := []int{13, 31, 43}[h.r.IntN(3)]
	x := incident.XIDs()[code]
	h.xids++
	return []incident.Event{{Version: incident.EventVersion, Kind: incident.KindIncident,
		ID: fmt.Sprintf("xid-%d", h.xids), Time: h.now(), Entity: incident.Entity{GPU: g.gpu, UUID: g.uuid},
		What: incident.WhatXID, Code: code, Class: x.Class, Severity: x.Severity, Count: 1, First: h.now(),
		Last: h.now(), PID: 4000 + h.xids, Workload: j.name}}
}
