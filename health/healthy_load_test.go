package health

import (
	"fmt"
	"math"
)

// A demand is a work's use of a GPU: parts of the time, and bytes per second.
// Waiting work is busy without using the SMs.
type demand struct{ busy, sm, tensor, dram, nvlink, rx, tx float64 }

func (d *demand) add(o demand) {
	d.busy, d.sm, d.tensor, d.dram = d.busy+o.busy, d.sm+o.sm, d.tensor+o.tensor, d.dram+o.dram
	d.nvlink, d.rx, d.tx = d.nvlink+o.nvlink, d.rx+o.rx, d.tx+o.tx
}

// A job is work of one workload on some of the GPUs.
type job struct {
	run  func(*healthyHost, *job)
	name string
	team string // the tenant, if the host has quotas
	gi   string // MIG instance
	part float64
	gpus []*healthyGPU

	began, ends int // steps
	loading     int // steps in which it fills the memory
	meeting     int // steps in which its processes wait for each other
	pause       int // step until which it pauses its usual work
	aside       demand
	alike       demand  // its usual demand
	share       float64 // part of the memory after loading
	grown       float64 // growth beyond that
	mood        wander
	bias        []float64 // by GPU

	held  []float64 // bytes, by GPU
	use   []float64 // of the SMs
	over  float64   // audits that found too much
	level string    // level of the escalation
	down  int       // step in which the level falls
	new   bool      // its process has no session yet
}

func (h *healthyHost) job(run func(*healthyHost, *job), kind string, gpus ...*healthyGPU) *job {
	h.numbered++
	n := len(gpus)
	j := &job{run: run, name: fmt.Sprintf("%s:%d", kind, h.numbered), team: fmt.Sprintf("team-%d", h.numbered%5),
		level: "observe", part: 1, gpus: gpus, began: h.n, ends: math.MaxInt,
		bias: make([]float64, n), held: make([]float64, n), use: make([]float64, n)}
	for i := range j.bias {
		j.bias[i] = 1 + 0.02*h.r.NormFloat64()
	}
	h.jobs = append(h.jobs, j)
	return j
}

// ask adds the job's demand of its GPUs, and its memory.
func (j *job) ask(h *healthyHost, d demand, memory float64) {
	for i, g := range j.gpus {
		one := demand{d.busy * j.bias[i], d.sm * j.bias[i], d.tensor * j.bias[i], d.dram * j.bias[i],
			d.nvlink, d.rx, d.tx}
		one.busy, one.sm, one.tensor, one.dram = one.busy*j.part, one.sm*j.part, one.tensor*j.part, one.dram*j.part
		g.want.add(one)
		j.hold(i, memory)
		j.use[i] = math.Round(100*clamp(one.busy*(1+0.05*heavy(h.r)))) / 100
	}
}

// hold keeps a part of the memory.
func (j *job) hold(i int, part float64) {
	g := j.gpus[i]
	j.held[i] = 0
	if part > 0 {
		j.held[i] = math.Round(part*j.part*(g.number["memory_bytes"]-g.number["reserved_bytes"])/(2<<20)) * (2 << 20)
		g.used += j.held[i]
		g.residents++
	}
}

// start restarts the job after a gap.
func (j *job) start(h *healthyHost, gap, loading int) {
	j.began, j.loading, j.grown, j.pause = h.n+gap, loading, 0, 0
}

// load fills the memory while the weights come from the disk, and reports
// whether the job is still loading.
func (j *job) load(h *healthyHost) bool {
	t := h.n - j.began
	switch {
	case t < 0:
		j.rest()
	case t < j.loading:
		rate := j.share * j.gpus[0].number["memory_bytes"] / float64(10*j.loading)
		j.ask(h, demand{busy: 0.02, sm: 0.01, dram: 0.01, rx: rate}, 0.01+j.share*float64(t)/float64(j.loading))
	default:
		return false
	}
	return true
}

// rest leaves the job without a process.
func (j *job) rest() {
	clear(j.held)
	clear(j.use)
}

// train is one job on several GPUs: steps with exchange of gradients, a
// checkpoint each half hour, occasional evaluations, and a restart.
func train(h *healthyHost, j *job) {
	if j.load(h) {
		return
	}
	t := h.n - j.began
	switch {
	case t < j.loading+j.meeting: // the collective's kernels spin
		j.ask(h, demand{busy: 1, sm: 0.12}, j.share)
		return
	case h.chance(1, stepsDay):
		j.start(h, 3+h.r.IntN(60), 6+h.r.IntN(36))
	case h.n < j.pause:
		j.ask(h, j.aside, j.share+j.grown)
		return
	case t%180 == 179:
		j.pause, j.aside = h.n+2+h.r.IntN(10), demand{busy: 0.05, sm: 0.02, dram: 0.05, tx: 5e9}
	case h.chance(1, 3*stepsHour):
		j.pause, j.aside = h.n+12+h.r.IntN(60), demand{busy: 0.8, sm: 0.6, tensor: 0.25, dram: 0.3, rx: 1e9}
	}
	if h.r.Float64()*float64(t-j.loading-j.meeting+1) < 1 { // an input that is larger than all before
		j.grown += 0.15 * h.r.Float64() * (0.95 - j.share - j.grown)
	}
	d := j.alike
	if h.chance(1, 100) { // waits for data
		d = demand{busy: 0.3 + 0.6*h.r.Float64(), sm: 0.2, tensor: 0.1, dram: 0.1}
	}
	j.ask(h, d, j.share+j.grown)
}

// serve answers requests: fewer at night, more in bursts.
func serve(h *healthyHost, j *job) {
	if j.load(h) {
		return
	}
	if h.chance(1, 10*stepsDay) {
		j.start(h, 2+h.r.IntN(12), 3+h.r.IntN(66))
	}
	hour := float64(h.n%stepsDay) / stepsHour
	rate := 0.45 - 0.35*math.Cos(2*math.Pi*(hour-3)/24)
	if h.n < j.pause {
		rate *= 1.8
	} else if h.chance(1, 2*stepsHour) {
		j.pause = h.n + 6 + h.r.IntN(60)
	}
	rate = clamp(rate * (1 + 0.3*j.mood.next(h.r, 0.95, 1)))
	d := j.alike
	d = demand{busy: min(1, 1.3*rate), sm: rate * d.sm, tensor: rate * d.tensor, dram: rate * d.dram,
		nvlink: rate * d.nvlink, rx: 9e7 * rate, tx: 6e7 * rate}
	j.ask(h, d, j.share)
	for i, g := range j.gpus { // requests are spread unevenly
		g.want.busy *= 1 + 0.05*h.r.NormFloat64()*j.bias[i]
	}
}

// batch runs successive jobs of some minutes, each of its own kind.
func batch(h *healthyHost, j *job) {
	if h.n >= j.pause {
		h.numbered++
		j.name = fmt.Sprintf("slurm:%d.0", h.numbered)
		j.over, j.level = 0, "observe"
		j.start(h, int(60*h.r.ExpFloat64()), h.r.IntN(12))
		j.pause = j.began + j.loading + 30 + h.r.IntN(330)
		j.share = 0.05 + 0.9*h.r.Float64()
		j.alike = batches[h.r.IntN(len(batches))]
	}
	if j.load(h) {
		return
	}
	d := j.alike
	if d.sm == 0.55 && (h.n/9)%2 == 0 { // prepares its data in between
		d = demand{busy: 0.05, sm: 0.02}
	}
	quiet := 1 + 0.03*j.mood.next(h.r, 0.9, 1)
	d.sm, d.tensor, d.dram = d.sm*quiet, d.tensor*quiet, d.dram*quiet
	j.ask(h, d, j.share+0.001)
}

// batches are kinds of batch jobs: heavy on the tensor cores, on the memory, or
// on both; light; with many small kernels; and fragmented.
var batches = []demand{
	{busy: 1, sm: 0.95, tensor: 0.88, dram: 0.25}, {busy: 1, sm: 0.8, tensor: 0.02, dram: 0.7},
	{busy: 0.97, sm: 0.9, tensor: 0.5, dram: 0.35, rx: 3e8},
	{busy: 0.3, sm: 0.2, tensor: 0.05, dram: 0.1}, {busy: 0.96, sm: 0.25, dram: 0.012},
	{busy: 0.9, sm: 0.55, tensor: 0.3, dram: 0.3, rx: 1e9}, {busy: 1, sm: 0.97, dram: 0.02},
}

// notebook holds memory and computes now and then.
func notebook(h *healthyHost, j *job) {
	switch {
	case j.share == 0 || h.chance(1, 3*stepsHour):
		j.start(h, h.r.IntN(stepsHour), 1)
		j.share = 0.02 + 0.3*h.r.Float64()
	case h.chance(1, stepsHour) && j.share+j.grown < 0.8:
		j.grown += 0.1 * h.r.Float64()
	}
	if j.load(h) {
		return
	}
	if h.n >= j.pause && h.chance(1, 60) {
		j.pause = h.n + 1 + h.r.IntN(20)
		j.aside = demand{busy: 0.2 + 0.8*h.r.Float64(), sm: 0.5 * h.r.Float64(), tensor: 0.3 * h.r.Float64(),
			dram: 0.4 * h.r.Float64()}
	}
	d := demand{}
	if h.n < j.pause {
		d = j.aside
	}
	j.ask(h, d, j.share+j.grown)
}
