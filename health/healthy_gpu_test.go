package health

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
)

// A wander is noise with memory, like that of sensors, and with heavy tails:
// one step in fifty is five times as wide.
type wander struct{ v float64 }

func (w *wander) next(r *rand.Rand, rho, sigma float64) float64 {
	w.v = rho*w.v + math.Sqrt(1-rho*rho)*sigma*heavy(r)
	return w.v
}

func heavy(r *rand.Rand) float64 {
	z := r.NormFloat64()
	if r.Float64() < 0.02 {
		z *= 5
	}
	return z
}

func clamp(v float64) float64 { return min(max(v, 0), 1) }

// A healthyGPU is a healthy GPU. No two are the same.
type healthyGPU struct {
	*healthyModel
	r         *rand.Rand
	gpu, uuid string

	// Random differences of silicon and slot.
	draws, runs, place, spots float64
	correctedRate             float64 // corrected ECC errors per day

	want      demand
	used      float64 // bytes
	residents float64 // processes
	lingers   int     // steps for which memory outlives its process
	left      float64 // that memory

	die, sink            float64 // degrees above the air
	busyLately           bool
	power, heat, busyFor wander

	seen vitals
}

// vitals are the values that the GPU shows.
type vitals struct {
	up                                        float64
	utilization, memoryUtilization            float64
	clock, memoryClock, average, instant      float64
	core, hbm, margin                         float64
	used, free, reserved                      float64
	sm, tensor, dram                          float64
	energy                                    float64
	rx, tx                                    float64
	capped, thermal, idle                     float64
	cappedFor, thermalFor, idleFor            float64
	corrected, aggregate                      float64
	replays, correctable, aer                 float64
	generation, processes                     float64
	fabricDone, fabricTrains                  float64
	linkRX, linkTX, linkErrors, linkRecovered [36]float64
	linkBER                                   [36]float64
	migUsed, migFree                          [4]float64
}

func newHealthyGPU(h *healthyHost, index int, seed uint64) *healthyGPU {
	r := h.r
	g := &healthyGPU{healthyModel: h.model, r: r, gpu: strconv.Itoa(index),
		uuid: fmt.Sprintf("GPU-%08x-0000-4000-8000-%012x", seed, index)}
	g.draws = 1 + 0.02*min(max(r.NormFloat64(), -2), 2)
	g.runs = 1 + 0.01*min(max(r.NormFloat64(), -2), 2)
	g.place = 6 * float64(index%4) / 3 * r.Float64() // the airflow meets four rows, one after the other
	g.spots = 0.7 * min(max(r.NormFloat64(), -2), 2)
	g.correctedRate = 20 * math.Pow(r.Float64(), 4)
	v := &g.seen
	v.up, v.generation, v.fabricDone = 1, g.number["pcie.generation"], 1
	v.energy, v.aggregate = 1e6*r.Float64(), float64(r.IntN(200))
	for i := range v.linkErrors {
		v.linkErrors[i] = float64(r.IntN(20))
		v.linkBER[i] = math.Pow(10, -15-r.Float64())
	}
	g.die = g.number["temperature_c.idle"]
	return g
}

// advance computes the GPU's values after 10 s from its load.
func (g *healthyGPU) advance(h *healthyHost) {
	g.work(h)
	watts := g.draw(h)
	g.warm(h, watts)
	g.count(h)
	g.glitch()
}

// work sets utilization, activity and memory.
func (g *healthyGPU) work(h *healthyHost) {
	v, w := &g.seen, &g.want
	w.busy, w.sm, w.tensor, w.dram = clamp(w.busy), clamp(w.sm), clamp(w.tensor), clamp(w.dram)
	noise := 1 + 0.02*g.busyFor.next(g.r, 0.9, 1)
	v.sm, v.tensor, v.dram = clamp(w.sm*noise), clamp(w.tensor*noise), clamp(w.dram*noise)
	busy := w.busy
	if busy > 0.01 && busy < 0.98 { // the driver shows the last moment of ten seconds
		busy = clamp(busy + 0.06*heavy(g.r))
	}
	v.utilization = math.Round(100*busy) / 100
	v.memoryUtilization = math.Round(100*min(1, 1.33*v.dram)) / 100
	g.memory()
	v.generation = g.number["pcie.generation"]
	if !g.busyLately && busy == 0 {
		v.generation = g.number["pcie.idle_generation"]
	}
	g.busyLately = busy > 0
	v.processes = g.residents
	v.fabricTrains, v.fabricDone = 0, 1
	if h.training > 0 {
		v.fabricTrains, v.fabricDone = 1, 0
	}
}

// memory sets the used memory. Now and then a process's memory is freed a
// moment after its end.
func (g *healthyGPU) memory() {
	v := &g.seen
	if g.residents == 0 && v.processes > 0 && g.r.Float64() < 0.1 {
		g.lingers, g.left = 1+g.r.IntN(2), v.used
	}
	extra := 0.0
	if g.lingers--; g.lingers >= 0 {
		extra = g.left
	}
	v.reserved = g.number["reserved_bytes"]
	most := g.number["memory_bytes"] - v.reserved
	v.used = math.Round(min(most, g.used+extra)/65536) * 65536
	v.free = most - v.used
}

// draw sets clock and power. The power limit holds the clock of heavy loads.
func (g *healthyGPU) draw(h *healthyHost) float64 {
	v, n, r := &g.seen, g.number, g.r
	limit, most := n["power_w.default"], n["clock_mhz.max"]
	full := n["clock_mhz.full"] / most
	dynamic := (limit*0.992 - n["power_w.active"]) / (full * full) * g.draws
	intensity := 0.25*g.want.sm + 0.6*v.tensor/0.92 + 0.15*v.dram/0.256
	static, clock := n["power_w.active"], most*min(1, g.runs)
	v.capped, v.idle, v.memoryClock = 0, 0, 1e6*n["clock_mhz.memory"]
	if g.want.busy < 0.005 && !g.busyLately {
		static, clock, intensity, v.idle = n["power_w.idle"], n["clock_mhz.idle_low"], 0, 1
		v.memoryClock = 1e6 * n["clock_mhz.memory_idle"]
		if r.Float64() < 0.2 {
			clock = n["clock_mhz.idle_high"]
		}
	}
	if need := dynamic * intensity; need > 0 {
		if held := most * math.Sqrt((limit*0.992-static)/need) * g.runs; held < clock {
			clock, v.capped = held*(1+0.006*heavy(r)), 1
		}
	}
	clock = min(max(clock, n["clock_mhz.idle_low"]), most)
	v.clock = math.Round(clock/15) * 15 * 1e6
	watts := static + dynamic*intensity*(clock/most)*(clock/most)
	watts = max(5, watts*(1+0.01*g.power.next(r, 0.9, 1)))
	v.average = math.Round(1000*watts) / 1000
	v.instant = math.Round(1000*max(5, watts*(1+0.03*heavy(r)))) / 1000
	return watts
}

// warm sets the temperatures: the die follows in half a minute, the heat sink
// and the air in ten.
func (g *healthyGPU) warm(h *healthyHost, watts float64) {
	v, n := &g.seen, g.number
	span := n["power_w.default"]*0.992 - n["power_w.idle"]
	over := (n["temperature_c.full"] - n["temperature_c.idle"]) * (watts - n["power_w.idle"]) / span * (1 +
		0.01*g.spots)
	air := n["temperature_c.idle"] + h.hall + h.inlet.v + g.place - 1.5*float64(h.fans)
	cooled := over * (1 - 0.04*float64(h.fans))
	g.die += (air + 0.8*cooled + g.sink - g.die) * -math.Expm1(-10/n["temperature_c.tau_s"])
	g.sink += (0.2*cooled - g.sink) * -math.Expm1(-10.0/600)
	noise := 0.4 * g.heat.next(g.r, 0.9, 1)
	v.core = math.Round(g.die + noise)
	v.margin = n["temperature_c.gpu_max"] - v.core
	hot := (n["temperature_c.memory_full"] - n["temperature_c.memory_idle"]) / max(1,
		n["temperature_c.full"]-n["temperature_c.idle"])
	v.hbm = math.Round(n["temperature_c.memory_idle"] + hot*(g.die-n["temperature_c.idle"]) +
		4*v.dram - 1 + g.spots + noise)
}

// glitch makes one reading wrong, once.
func (g *healthyGPU) glitch() {
	if g.r.Float64() > 1.0/stepsDay {
		return
	}
	v, r := &g.seen, g.r
	switch r.IntN(6) {
	case 0:
		v.core += math.Round(15 * r.NormFloat64())
		v.margin = g.number["temperature_c.gpu_max"] - v.core
	case 1:
		v.average *= 0.5 + r.Float64()
	case 2:
		v.instant *= 0.2 + 2*r.Float64()
	case 3:
		v.utilization = math.Round(100*r.Float64()) / 100
	case 4:
		v.clock = g.number["clock_mhz.idle_low"] * 1e6
	case 5:
		v.hbm += math.Round(15 * r.NormFloat64())
	}
}
