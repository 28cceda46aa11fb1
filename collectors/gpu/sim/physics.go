package sim

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/noise"
)

// heat holds the constants derived from a model and a GPU's position.
type heat struct {
	dynamic           float64 // watts of a full load at the maximum clock
	resistance, air   float64 // of the GPU: kelvin per watt, degrees Celsius
	memResist, memAir float64 // of the memory
	decay, fast       float64 // fraction of the way to the equilibrium per step
	below             float64 // ratio of a capped GPU's distance from its limit
}

// throttle counts the time of reduced clocks, in nanoseconds.
type throttle struct {
	power, thermal, swThermal, hwThermal, brake, low, app uint64
}

// start sets the state before the first step: a GPU that has long been at its
// load.
func (g *gpu) start() {
	m := g.model
	p, t := m.Power, m.Temperature
	place := 2*noise.Ratio(noise.Hash(g.seed, 77)) - 1
	if m.VirtualMachine {
		place = 0
	}
	g.heat.below = 0.992
	ratioFull := m.Clock.Full / m.Clock.Max
	g.heat.dynamic = (p.Default*g.heat.below - p.Active) / (ratioFull * ratioFull)
	span := p.Default*g.heat.below - p.Idle
	g.heat.resistance = (t.Full - t.Idle) / span * (1 + 0.03*place)
	g.heat.air = t.Idle - p.Idle*g.heat.resistance + 1.5*place
	g.heat.memResist = (t.MemoryFull - t.MemoryIdle) / span
	g.heat.memAir = t.MemoryIdle - p.Idle*g.heat.memResist + 1.2*place
	g.heat.decay = 1 - math.Exp(-step.Seconds()/t.Tau)
	g.heat.fast = 1 - math.Exp(-step.Seconds()/10)

	g.ecc.mode = 1
	g.rows.banks = m.RowBanks
	g.nvlink.start(g)
	g.settle()
	g.celsius = g.heat.air + g.heat.resistance*p.Idle
	g.memory = g.heat.memAir + g.heat.memResist*p.Idle
	uptime := 3600 + 86400*noise.Ratio(noise.Hash(g.seed, 78)) // seconds since the driver was loaded
	g.joules = uptime * p.Idle
	g.throttled.low = uint64(uptime*100) * 1e7
}

// physics computes the clock, power and temperature of a step from the work.
func (g *gpu) physics() {
	m := g.model
	g.reasons = 0
	if g.work.busy > 0.005 {
		g.hot = 2 * second
	} else if g.hot > 0 {
		g.hot--
	}
	static, intensity := m.Power.Idle, 0.0
	wanted := m.Clock.IdleLow
	if g.cell(11, 20) > 0.75 {
		wanted += (m.Clock.IdleHigh - m.Clock.IdleLow) * g.cell(12, 20)
	}
	if g.hot > 0 {
		static, wanted = m.Power.Active, m.Clock.Max
		w := &g.work
		if intensity = 0.25*w.busy + 0.6*w.gpm.tensor/0.92 + 0.15*w.gpm.dram/0.256; g.trouble.hung {
			intensity = spinning
		}
	} else {
		g.reasons |= nvml.ClocksEventReasonGpuIdle
	}
	clock := g.limit(wanted, static, intensity)
	g.clock = max(math.Round(clock/m.Clock.Step)*m.Clock.Step, min(m.Clock.IdleLow, wanted))
	scale := g.clock / m.Clock.Max
	g.watts = static + g.heat.dynamic*intensity*scale*scale
	g.watts += g.trouble.watts
	g.watts *= 1 + 0.008*g.noise(13) + 0.017*g.noise(14)*min(intensity, 1)

	aim, rate, extra := g.heat.air+g.heat.resistance*g.watts, g.heat.decay, 0.0
	if g.hotter > 0 {
		extra, rate = max(0, g.hotter-aim), g.heat.fast
	}
	g.celsius += (aim + extra - g.celsius) * rate
	g.memory += (g.heat.memAir + g.heat.memResist*g.watts + 0.8*extra - g.memory) * rate
}

// limit lowers a clock, in MHz, to the value that power and temperature allow,
// and sets the reasons. An idle GPU is already slow: only heat and brake are
// reasons.
func (g *gpu) limit(wanted, static, intensity float64) float64 {
	m, clock := g.model, wanted
	if g.trouble.clock > 0 {
		clock = min(clock, g.trouble.clock)
	}
	if d := g.heat.dynamic * intensity; d > 0 {
		left := max(g.spec.PowerLimit*g.heat.below-static, 0)
		if most := m.Clock.Max * math.Sqrt(left/d); most < clock {
			clock = most
			g.reasons |= nvml.ClocksEventReasonSwPowerCap
		}
	}
	t := m.Temperature
	if over := g.celsius - t.GPUMax; over >= 0 {
		clock = min(clock, m.Clock.Max*max(0.2, 0.9-0.1*over))
		g.reasons |= nvml.ClocksEventReasonSwThermalSlowdown
	}
	if g.celsius >= t.Slowdown {
		clock = min(clock, m.Clock.Max*0.4)
		g.reasons |= nvml.ClocksThrottleReasonHwThermalSlowdown | nvml.ClocksThrottleReasonHwSlowdown
	}
	if g.brake {
		clock = min(clock, m.Clock.Max*0.25)
		g.reasons |= nvml.ClocksThrottleReasonHwPowerBrakeSlowdown | nvml.ClocksThrottleReasonHwSlowdown
	}
	return clock
}

// count records the step and integrates the counters.
func (g *gpu) count() {
	w := &g.work
	g.hist[g.n&(history-1)] = tick{g.watts, w.busy, w.mem, w.enc, w.dec, w.jpg, w.ofa, g.weight}
	g.joules += g.watts * step.Seconds()
	g.total.add(&w.gpm, step.Seconds())
	g.nvlink.count(g)
	if g.n%second == 0 {
		g.pcie.errors += g.pcie.rate
	}
	add := func(counter *uint64, mask uint64) {
		if g.reasons&mask != 0 {
			*counter += uint64(step)
		}
	}
	t := &g.throttled
	add(&t.power, nvml.ClocksEventReasonSwPowerCap)
	add(&t.swThermal, nvml.ClocksEventReasonSwThermalSlowdown)
	add(&t.hwThermal, nvml.ClocksThrottleReasonHwThermalSlowdown)
	add(&t.thermal, nvml.ClocksEventReasonSwThermalSlowdown|nvml.ClocksThrottleReasonHwThermalSlowdown)
	add(&t.brake, nvml.ClocksThrottleReasonHwPowerBrakeSlowdown)
	add(&t.low, nvml.ClocksEventReasonGpuIdle)
	add(&t.app, nvml.ClocksThrottleReasonHwSlowdown|nvml.ClocksEventReasonSwPowerCap|
		nvml.ClocksEventReasonSwThermalSlowdown)
}
