package health

import (
	"math"
	"math/rand/v2"

	"gpusteward/collectors"
)

// poisson returns how often an event with a daily rate happens in a step.
func poisson(r *rand.Rand, daily float64) (n float64) {
	mean := daily / stepsDay
	for p := r.Float64(); p < mean; p /= mean {
		n++
	}
	return n
}

// count advances the counters, all of which rise on healthy GPUs.
func (g *healthyGPU) count(h *healthyHost) {
	v, r := &g.seen, g.r
	v.energy += 10 * v.average
	v.rx += 10 * (2e6 + g.want.rx) * (1 + 0.05*r.NormFloat64())
	v.tx += 10 * (2e6 + g.want.tx) * (1 + 0.05*r.NormFloat64())
	v.cappedFor += 10 * v.capped
	v.idleFor += 10 * v.idle
	v.thermal = 0
	if v.capped == 1 && h.chance(1, 60) { // a moment of heat at full load
		v.thermal = 1
		v.thermalFor += min(3, 1.5*r.ExpFloat64())
	}
	corrected := poisson(r, g.correctedRate)
	if h.chance(1, 30*stepsDay) {
		corrected += 50 // one weak row that is read repeatedly
	}
	v.corrected += corrected
	v.aggregate += corrected
	if h.away == 0 {
		v.replays += poisson(r, 3)
		v.correctable += poisson(r, 3)
		v.aer += poisson(r, 3)
	}
	g.links(h)
}

// links spreads the traffic over the links, or sums it up.
func (g *healthyGPU) links(h *healthyHost) {
	v, n := &g.seen, 1
	if h.perLink {
		n = int(g.number["nvlink.links"])
	}
	each := 10 * g.want.nvlink / float64(n)
	for i := range n {
		v.linkRX[i] += each * (1 + 0.002*g.r.NormFloat64())
		v.linkTX[i] += each * (1 + 0.002*g.r.NormFloat64())
	}
	if g.r.Float64() < 0.3/stepsDay {
		at := g.r.IntN(n)
		v.linkErrors[at] += 1 + math.Floor(2*g.r.ExpFloat64())
		v.linkRecovered[at] += collectors.Bool(g.r.Float64() < 0.3)
	}
}

// reloaded restarts the driver's counters.
func (g *healthyGPU) reloaded() {
	v := &g.seen
	v.energy, v.corrected, v.replays, v.correctable = 0, 0, 0, 0
	v.cappedFor, v.thermalFor, v.idleFor = 0, 0, 0
	v.linkRX, v.linkTX, v.linkErrors, v.linkRecovered = [36]float64{}, [36]float64{}, [36]float64{}, [36]float64{}
	g.restarted()
}

// restarted restarts the agent's counters.
func (g *healthyGPU) restarted() {
	if g.has("gpm") {
		g.seen.rx, g.seen.tx = 0, 0
	}
}
