package sim

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/broker"
	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/scenarios"
)

const (
	preroll = 1200 // steps that a GPU runs before the scenario starts
	history = 256  // steps that a GPU remembers; a power of two
	second  = int64(time.Second / step)
)

// gpu is the state of one simulated GPU. mu guards the mutable fields.
type gpu struct {
	host   *Host
	index  int
	spec   scenarios.GPU
	model  *models.Model
	seed   uint64
	faults []scenarios.Fault // of this GPU
	load   load
	heat   heat
	names  map[string]scenarios.ContainerName // of its containers, by id
	broker *broker.GPU                        // what a broker knows about it

	mu        sync.Mutex
	n         int64 // steps since the scenario began, negative during the preroll
	next      int64 // step of the next begin or end of a fault
	active    []bool
	work      activity
	hist      [history]tick
	subs      []subscription
	lines     []line // of the kernel's log about this GPU
	dropped   int    // number of lines
	procs     []process
	weight    float64 // of all processes
	slots     []slot
	clock     float64 // SM clock, MHz
	hot       int64   // steps for which the clock stays up without work
	watts     float64
	celsius   float64
	memory    float64 // memory temperature, degrees Celsius
	reasons   uint64  // clock event reasons
	joules    float64
	throttled throttle
	total     gpm // integrals of the activity
	nvlink    nvlink
	ecc       ecc
	rows      rows
	pcie      pcieState
	action    uint32 // recovery action
	brake     bool
	hotter    float64 // target temperature during a loss of airflow, or 0
	trouble   trouble
}

// tick is the record of one step.
type tick struct {
	watts               float64
	busy, mem, enc, dec float64 // ratios
	jpg, ofa            float64
	weight              float64 // of the processes
}

func newGPU(h *Host, index int, spec scenarios.GPU, m *models.Model) *gpu {
	g := &gpu{host: h, index: index, spec: spec, model: m, load: loads[spec.Load], n: -preroll}
	g.seed = noise.Hash(h.seed, uint64(index)+1)
	for _, f := range h.scenario.Faults {
		if f.HostWide() || f.GPU == index {
			g.faults = append(g.faults, f)
		}
	}
	g.broker = g.newBroker()
	g.active = make([]bool, len(g.faults))
	g.next = g.following(-step)
	g.start()
	g.advance(0)
	return g
}

// advance runs the steps up to the simulated time t.
func (g *gpu) advance(t time.Duration) {
	for to := int64(t / step); g.n < to; {
		g.step()
	}
}

// step runs one step.
func (g *gpu) step() {
	g.n++
	if g.n >= g.next {
		g.strike()
	}
	g.populate()
	g.take()
	work, troubled := g.trouble.does(g)
	if !troubled {
		work = g.crowded(g.load.shape(g))
	}
	g.work = work
	g.physics()
	g.count()
	g.charge()
}

// time returns the simulated time of the last step.
func (g *gpu) time() time.Duration { return time.Duration(g.n) * step }

// strike starts and ends faults.
func (g *gpu) strike() {
	now := g.time()
	for i := range g.faults {
		f := &g.faults[i]
		from, _, active := f.Window(now)
		instant := f.For == 0 && f.Every > 0 // repeats without a window
		if active && (!g.active[i] || instant && now == from) {
			if begin := effects[f.Kind].begin; begin != nil {
				begin(g, f)
			}
		}
		if !active && g.active[i] {
			if end := effects[f.Kind].end; end != nil {
				end(g, f)
			}
		}
		g.active[i] = active
	}
	g.next = g.following(now)
}

// following returns the step of the first begin or end of a fault after t.
func (g *gpu) following(t time.Duration) int64 {
	first := scenarios.Forever
	for i := range g.faults {
		first = min(first, g.faults[i].Next(t))
	}
	return int64(first / step)
}

// strikes reports whether a fault of a kind is active at t.
func (g *gpu) strikes(kind string, t time.Duration) bool {
	for i := range g.faults {
		if g.faults[i].Kind == kind {
			if _, _, active := g.faults[i].Window(t); active {
				return true
			}
		}
	}
	return false
}

// absent reports whether the driver lacks the GPU at t.
func (g *gpu) absent(t time.Duration) bool {
	return !g.plugged(t) || g.strikes("driver_unbound", t)
}

// plugged reports whether the GPU is on the PCI bus at t.
func (g *gpu) plugged(t time.Duration) bool {
	for i := range g.faults {
		f := &g.faults[i]
		_, _, active := f.Window(t)
		if f.Kind == "hot_remove" && active || f.Kind == "hot_add" && !active {
			return false
		}
	}
	return true
}

// average returns the mean of a recorded value over the last second.
func (g *gpu) average(value func(*tick) float64) float64 {
	sum := 0.0
	for n := g.n - second + 1; n <= g.n; n++ {
		sum += value(&g.hist[n&(history-1)])
	}
	return sum / float64(second)
}

// reload resets the state that a driver loses when it is reloaded.
func (g *gpu) reload(*scenarios.Fault) {
	g.joules, g.throttled, g.total = 0, throttle{}, gpm{}
	g.ecc.volatile = [2][2]uint64{}
	g.nvlink.restart()
	g.action = uint32(nvml.GPU_RECOVERY_ACTION_NONE)
	g.pcie.errors = 0
}

// noise returns a number from -1 to 1 that changes with every step. Channels
// are independent of each other.
func (g *gpu) noise(channel uint64) float64 { return noise.White(g.seed+channel, g.n) }

// slow and cell return numbers from 0 to 1 that last for a period, in steps.
func (g *gpu) slow(channel uint64, period int64) float64 {
	return noise.Slow(g.seed+channel, g.n+preroll, period)
}

func (g *gpu) cell(channel uint64, period int64) float64 {
	return noise.Cell(g.seed+channel, g.n+preroll, period)
}
