package health

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"gpusteward/collectors"
)

// A need is a work's momentary demand on a board: parts of the time and of the pipes, bytes per second, and the part of
// the board's dynamic power at the highest clock that the limit permits. Work that waits in a kernel is busy and needs
// almost no power.
type need struct{ busy, heat, sm, tensor, dram, nvlink, rx, tx float64 }

func (n *need) add(o need, part float64) {
	n.busy, n.heat, n.sm = n.busy+part*o.busy, n.heat+part*o.heat, n.sm+part*o.sm
	n.tensor, n.dram, n.nvlink, n.rx, n.tx = n.tensor+part*o.tensor, n.dram+part*o.dram, n.nvlink+o.nvlink,
		n.rx+o.rx, n.tx+o.tx
}

// A board is a GPU: its model, its settings, its activity and its readings.
type board struct {
	worldRow
	r         *rand.Rand
	gpu, uuid string
	pci       string // 0000:9b:00
	vbios     string

	// No two boards are alike.
	draws, runs, spot float64
	place             float64                                  // degrees, of the slot
	trickle           struct{ ecc, replays, crc, aer float64 } // per day

	// Settings.
	persistence, compute, limit, locked, mig float64

	want      need
	held      float64 // bytes of processes
	cache     float64 // bytes of the host's page cache, on a coherent board
	residents float64
	lingers   time.Duration // for which memory outlives its process
	left      float64

	silent  string                      // why the board does not answer; empty: it does
	read    time.Duration               // when it last was
	away    string                      // the foreign driver that has it
	missing map[*collectors.Metric]bool // families that cannot be read now
	trained time.Duration               // when its links are up
	noise   [4]float64

	v readouts
}

// readouts are the values that a board shows.
type readouts struct {
	utilization, memoryUtilization                            float64
	clock, memoryClock, pstate                                float64
	average, instant, energy, enforced, requested             float64
	core, hbm, margin, fan, rpm                               float64
	used, free                                                float64
	sm, tensor, dram, occupancy                               float64
	rx, tx                                                    float64
	idle, app, cap, swThermal                                 float64
	capFor, swThermalFor, brakeFor, lowFor, baseFor           float64
	corrected, aggregate                                      float64
	replays, recoveries, correctable, aer, generation         float64
	processes                                                 float64
	links, speed, linkRX, linkTX, crc, linkRecoveries         [18]float64 // the sum first, or each
	fabricDone, fabricTrains                                  float64
	persistence, compute, mig, noMIG, lockedNow, one, nothing float64
}

func newBoard(r *rand.Rand, row worldRow, index int, seed uint64) *board {
	b := &board{worldRow: row, r: r, gpu: fmt.Sprint(index), uuid: fmt.Sprintf("GPU-%08x-%04x-4000-8000-%012x", seed,
		index, seed*7919+uint64(index)),
		pci: fmt.Sprintf("0000:%02x:00", 0x19+0x11*index), vbios: row["vbios"], missing: map[*collectors.Metric]bool{}}
	b.draws, b.runs, b.spot = 1+0.025*bounded(r), 1+0.008*bounded(r), 0.8*bounded(r)
	b.place = 5 * r.Float64() * float64(index/4) // the back row gets the front row's air
	b.trickle.ecc, b.trickle.replays, b.trickle.crc = 0.4*r.ExpFloat64(), 0.5*r.ExpFloat64(), 0.5*r.ExpFloat64()
	b.persistence, b.limit, b.v.one = 1, row.number("w_limit"), 1
	v := &b.v
	// healthy H200s have 1 to 28 on a link
	v.aggregate, v.crc[0], v.recoveries = float64(r.IntN(60)), float64(r.IntN(29)), float64(5+r.IntN(200))
	v.core = row.number("c_idle")
	v.energy = 3e6 * r.Float64()
	return b
}

// bounded is the noise of a batch of tested parts: no value is far out.
func bounded(r *rand.Rand) float64 { return min(max(r.NormFloat64(), -2.2), 2.2) }

// wanders returns noise with a deviation of 1 that remembers the last step.
func (b *board) wanders(i int, keeps float64) float64 {
	z := b.r.NormFloat64()
	if b.r.Float64() < 0.015 {
		z *= 4
	}
	b.noise[i] = keeps*b.noise[i] + math.Sqrt(1-keeps*keeps)*z
	return b.noise[i]
}

// advance computes a board's readings after dt from its demand.
func (b *board) advance(s *site, dt time.Duration) {
	b.activity()
	watts := b.power(dt.Seconds())
	b.warms(s, watts, dt.Seconds())
	b.memory(s, dt)
	b.counts(s, dt.Seconds())
}

func (b *board) activity() {
	v, w := &b.v, &b.want
	w.busy, w.heat = min(w.busy, 1), min(w.heat, 1.15)
	wobble := 1 + 0.02*b.wanders(0, 0.8)
	v.sm, v.tensor, v.dram = clamp(w.sm*wobble), clamp(w.tensor*wobble), clamp(w.dram*wobble)
	v.occupancy = clamp(0.5 * v.sm)
	busy := w.busy
	if busy > 0.01 && busy < 0.97 { // the driver's sample covers a part of a second
		busy = clamp(busy * (1 + 0.1*b.r.NormFloat64()))
	}
	v.utilization = math.Round(100*busy) / 100
	v.memoryUtilization = math.Round(100*min(1, 1.33*v.dram)) / 100
	v.persistence, v.compute, v.mig, v.noMIG = b.persistence, b.compute, b.mig, 1-b.mig
	v.enforced, v.requested = b.limit, b.limit
}

// power sets clock and power: the locked clock, or the highest that the power limit permits.
func (b *board) power(dt float64) float64 {
	v, most, low := &b.v, b.number("mhz_max"), b.number("mhz_idle")
	full := b.number("mhz_full") / most
	most *= min(1, b.runs)
	dynamic := (b.number("w_limit") - b.number("w_active")) / (full * full) * b.draws
	clock, static := most, b.number("w_active")
	v.idle, v.cap, v.app, v.lockedNow, v.pstate, v.memoryClock = 0, 0, 0, 0, 0, 1e6*b.number("mhz_memory")
	if b.locked > 0 && b.locked < clock {
		clock, v.app, v.lockedNow = b.locked, 1, 1
	}
	if b.want.busy == 0 {
		static, v.idle = b.number("w_idle"), 1
		if b.residents > 0 { // a context keeps it out of the deepest sleep
			static = 0.6*static + 0.4*b.number("w_active")
		} else {
			clock = low
		}
		if b.has("p8") && b.residents == 0 {
			v.pstate, v.memoryClock = 8, 1e6*b.number("mhz_memory_idle")
		}
	}
	if asked := dynamic * b.want.heat; asked > 0 {
		if held := b.number("mhz_max") * math.Sqrt((b.limit*0.992-static)/asked); held < clock {
			clock, v.cap = held*(1+0.006*b.r.NormFloat64()), 1
		}
	}
	clock = min(max(clock, low), b.number("mhz_max"))
	v.clock = math.Round(clock/15) * 15e6
	f := clock / b.number("mhz_max")
	if b.want.busy > 0 { // the power of an unused clock
		static = b.number("w_idle") + f*(static-b.number("w_idle"))
	}
	watts := max(6, (static+dynamic*b.want.heat*f*f)*(1+0.01*b.wanders(1, 0.8)))
	v.average = math.Round(1000*watts) / 1000
	v.instant = math.Round(1000*max(6, watts*(1+0.04*b.r.NormFloat64()))) / 1000
	v.energy += watts * dt
	v.capFor += v.cap * dt
	if clock < full*b.number("mhz_max") {
		v.baseFor += dt
	}
	if b.want.busy < 0.5 {
		v.lowFor += dt
	}
	return watts
}

// warms sets the temperatures, the fan of a board that has one, and the
// driver's reaction to heat: it lowers the clock slightly near the limit.
func (b *board) warms(s *site, watts, dt float64) {
	v := &b.v
	span := b.number("w_limit") - b.number("w_idle")
	over := (b.number("c_full") - b.number("c_idle")) * (watts - b.number("w_idle")) / span * (1 + 0.03*b.spot)
	air := b.number("c_idle") + b.place + s.aisle()
	if b.has("fan") {
		v.fan = clamp(0.3 + (v.core-45)/60)
		v.rpm = math.Round(4200 * v.fan * (1 + 0.01*b.r.NormFloat64()))
		v.fan = math.Round(100*v.fan) / 100
	}
	target := air + over
	if hot := target - (b.number("c_max") - 2); hot > 0 { // the chassis' fans speed up
		target -= 0.7 * hot
	}
	b.noise[3] += (target - b.noise[3]) * -math.Expm1(-dt/b.number("tau_s"))
	v.core = math.Round(b.noise[3] + 0.4*b.wanders(2, 0.8))
	v.margin = b.number("c_max") - v.core
	v.swThermal = collectors.Bool(v.margin <= 0)
	if v.margin <= 2 {
		v.swThermalFor += 0.01 * dt
	}
	rise := (b.number("c_hbm_full") - b.number("c_hbm_idle")) / (b.number("c_full") - b.number("c_idle"))
	v.hbm = math.Round(b.number("c_hbm_idle") + rise*(b.noise[3]-b.number("c_idle")) + 4*v.dram + b.spot)
}

// memory sets the used memory. Now and then the driver frees a process's memory slightly after its end.
func (b *board) memory(s *site, dt time.Duration) {
	v := &b.v
	if b.residents == 0 && v.processes > 0 && b.r.Float64() < 0.1 {
		b.lingers, b.left = time.Duration(1+b.r.IntN(20))*time.Second, v.used
	}
	used := b.held + b.cache
	if b.lingers > 0 {
		used, b.lingers = used+b.left, b.lingers-dt
	}
	most := b.number("memory") - b.number("reserved")
	v.used = math.Round(min(most, used)/65536) * 65536
	v.free = most - v.used
	v.processes = b.residents
}

// counts advances the counters.
func (b *board) counts(s *site, dt float64) {
	v, days := &b.v, dt/day.Seconds()
	for _, c := range []struct {
		daily float64
		of    []*float64
	}{{b.trickle.ecc, []*float64{&v.corrected, &v.aggregate}}, {b.trickle.replays,
		[]*float64{&v.replays}}, {b.trickle.crc, []*float64{&v.crc[b.line()]}},
		{b.trickle.crc / 40, []*float64{&v.linkRecoveries[b.line()]}}, {b.trickle.aer, []*float64{&v.aer, &v.correctable}}} {
		if n := times(b.r, c.daily*days); n > 0 {
			for _, p := range c.of {
				*p += n
			}
		}
	}
	v.rx += dt * (2e4 + b.want.rx)
	v.tx += dt * (2e4 + b.want.tx)
	v.generation = b.number("pcie")
	if b.want.busy == 0 {
		v.generation = b.number("pcie_idle")
	}
	n := b.number("links")
	v.fabricTrains, v.fabricDone = 0, 1
	if left := b.trained - s.clock; left > 0 { // they come up one after the other
		v.fabricTrains, v.fabricDone = 1, 0
		n = math.Floor(n * (1 - min(1, left.Seconds()/20)))
	}
	v.links[0] = n
	for i := range b.lines() {
		part := 1.0
		if b.has("each") {
			v.links[i] = collectors.Bool(float64(i) < n)
			part = (1 + 0.002*b.r.NormFloat64()) / b.number("links")
		}
		v.speed[i] = v.links[i] * b.number("link_mbps") * 1e6
		v.linkRX[i] += dt * b.want.nvlink * part
		v.linkTX[i] += dt * b.want.nvlink * part
	}
}

// lines returns the number of a board's NVLinks with series of their own, or 1 for their sum.
func (b *board) lines() int {
	if b.has("each") {
		return int(b.number("links"))
	}
	return 1
}

// line returns one of these.
func (b *board) line() int {
	if b.has("each") {
		return b.r.IntN(b.lines())
	}
	return 0
}

// reset clears the state that a reloaded driver forgets.
func (b *board) reset(s *site) {
	v := &b.v
	for _, p := range []*float64{&v.energy, &v.capFor, &v.swThermalFor, &v.brakeFor, &v.lowFor, &v.baseFor,
		&v.corrected, &v.replays, &v.recoveries, &v.correctable} {
		*p = 0
	}
	for _, p := range []*[18]float64{&v.linkRX, &v.linkTX, &v.crc, &v.linkRecoveries} {
		*p = [18]float64{}
	}
	b.limit, b.locked, b.compute = b.number("w_limit"), 0, 0
	b.trained = s.clock + time.Duration(10+b.r.IntN(50))*time.Second
}

// opened restarts the agent's own counters since it opened the board.
func (b *board) opened() { b.v.rx, b.v.tx = 0, 0 }

// times returns the number of events with a mean.
func times(r *rand.Rand, mean float64) (n float64) {
	if mean <= 0 {
		return 0
	}
	for p := r.ExpFloat64(); p < mean; p += r.ExpFloat64() {
		n++
	}
	return n
}

func clamp(v float64) float64 { return min(max(v, 0), 1) }
