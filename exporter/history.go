package exporter

import (
	"cmp"
	"encoding/json"
	"math"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The history holds the last 15 minutes of each GPU, and of each workload with
// steps. With the largest number of both it takes 860 KiB.
const (
	historyStep   = 5 * time.Second
	historyPoints = int(15 * time.Minute / historyStep)
	historyGPUs   = 64
	historyJobs   = 64
)

// A track is a value of a T over time; NaN is unknown. The page takes the same
// values from each state (history.js).
type track[T any] struct {
	name string
	of   func(*T) float64
}

// historySeries are the series of a GPU.
var historySeries = []track[GPU]{
	{"utilization_ratio", func(g *GPU) float64 { return g.Utilization.of("gpu") }},
	{"sm_ratio", func(g *GPU) float64 { return g.Activity.of("sm") }},
	{"tensor_ratio", func(g *GPU) float64 { return g.Activity.of("tensor") }},
	{"dram_ratio", func(g *GPU) float64 { return g.Activity.of("dram") }},
	{"memory_used_bytes", func(g *GPU) float64 { return g.Memory.of("used") }},
	{"power_watts", func(g *GPU) float64 { return known(g.Power) }},
	{"temperature_celsius", func(g *GPU) float64 { return g.Temperature.of("gpu") }},
	{"sm_clock_hertz", func(g *GPU) float64 { return g.Clocks.of("sm") }},
	{"nvlink_rx_bytes_per_second", func(g *GPU) float64 { return g.NVLink.of("rx") }},
	{"nvlink_tx_bytes_per_second", func(g *GPU) float64 { return g.NVLink.of("tx") }},
	{"pcie_rx_bytes_per_second", func(g *GPU) float64 { return g.PCIe.of("rx") }},
	{"pcie_tx_bytes_per_second", func(g *GPU) float64 { return g.PCIe.of("tx") }},
}

// jobSeries are the series of a workload with steps.
var jobSeries = []track[Workload]{
	{"step_seconds", func(w *Workload) float64 { return positive(w.Steps.Seconds) }},
	{"launching_seconds", func(w *Workload) float64 { return w.Steps.Parts.of("launching") }},
	{"waiting_seconds", func(w *Workload) float64 { return w.Steps.Parts.of("waiting") }},
	{"copying_seconds", func(w *Workload) float64 { return w.Steps.Parts.of("copying") }},
	{"held_seconds", func(w *Workload) float64 { return w.Steps.Parts.of("held") }},
	{"host_seconds", func(w *Workload) float64 { return w.Steps.Parts.of("host") }},
	{"goodput_ratio", func(w *Workload) float64 { return known(w.Steps.Goodput) }},
}

// positive returns v; NaN if it is 0.
func positive(v float64) float64 {
	if v == 0 {
		return math.NaN()
	}
	return v
}

// A history is the recent past of the GPUs and jobs. It is safe for concurrent
// use.
type history struct {
	mu     sync.Mutex
	newest int64 // step, since 1970
	gpus   past[GPU]
	jobs   past[Workload]
}

// A past has the series of some Ts, by name.
type past[T any] map[string]*rings[T]

// Rings hold the series of one T. The slots of a ring are steps of the clock,
// so a time without samples is a gap.
type rings[T any] struct {
	index  int   // of a GPU
	seen   int64 // the last step in which it was there
	tracks []track[T]
	points [][historyPoints]float32 // by track
}

// step returns the number of the step that contains t.
func step(t time.Time) int64 { return t.Unix() / int64(historyStep/time.Second) }

// due reports whether a new step has begun that has no points yet.
func (h *history) due(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return step(t) != h.newest
}

// add notes the values at t, once per step.
func (h *history) add(t time.Time, gpus []GPU, workloads []Workload) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := step(t)
	if now < h.newest || h.gpus == nil { // the clock was set back: its times come twice
		h.gpus, h.jobs, h.newest = past[GPU]{}, past[Workload]{}, now-1
	}
	h.gpus.advance(h.newest, now)
	h.jobs.advance(h.newest, now)
	for i := range gpus {
		if r := h.gpus.of(gpus[i].UUID, historySeries, historyGPUs); r != nil {
			r.index = gpus[i].Index
			r.set(now, &gpus[i])
		}
	}
	for i := range workloads {
		if workloads[i].Steps == nil {
			continue
		}
		if r := h.jobs.of(workloads[i].Name, jobSeries, historyJobs); r != nil {
			r.set(now, &workloads[i])
		}
	}
	h.newest = now
}

// advance makes the steps after newest, until now, unknown, and forgets what was
// there in none.
func (p past[T]) advance(newest, now int64) {
	for name, r := range p {
		if r.seen <= now-int64(historyPoints) {
			delete(p, name)
			continue
		}
		for s := max(newest+1, now-int64(historyPoints)+1); s <= now; s++ {
			r.set(s, nil)
		}
	}
}

// of returns the rings by this name; nil if there are too many.
func (p past[T]) of(name string, all []track[T], most int) *rings[T] {
	r := p[name]
	if r == nil && len(p) < most {
		r = &rings[T]{tracks: all, points: make([][historyPoints]float32, len(all))}
		for s := range int64(historyPoints) {
			r.set(s, nil)
		}
		p[name] = r
	}
	return r
}

// set writes the slot of a step; nil is unknown.
func (r *rings[T]) set(step int64, one *T) {
	for i, track := range r.tracks {
		v := math.NaN()
		if one != nil {
			v = track.of(one)
			r.seen = step
		}
		r.points[i][step%int64(historyPoints)] = float32(v)
	}
}

// all returns the points by series, the last one of the step newest.
func (r *rings[T]) all(newest int64) map[string]Points {
	out, oldest := map[string]Points{}, (newest+1)%int64(historyPoints)
	for i, track := range r.tracks {
		out[track.name] = slices.Concat(r.points[i][oldest:], r.points[i][:oldest])
	}
	return out
}

// History is the last 15 minutes of the GPUs and jobs, as /api/v1/history returns it.
// The last point of each series belongs to the step that begins at End.
type History struct {
	End  time.Time    `json:"end"`
	Step float64      `json:"step_seconds"`
	GPUs []GPUHistory `json:"gpus"` // by index
	Jobs []JobHistory `json:"jobs"` // by workload
}

// A GPUHistory has the points of one GPU, the oldest first.
type GPUHistory struct {
	Index  int               `json:"index"`
	UUID   string            `json:"uuid"`
	Series map[string]Points `json:"series"`
}

// A JobHistory has the points of a workload with steps, the oldest first.
type JobHistory struct {
	Workload string            `json:"workload"`
	Series   map[string]Points `json:"series"`
}

// Points are values at equal intervals; NaN is encoded as null.
type Points []float32

// MarshalJSON returns the points with four significant digits, enough for a
// chart.
func (p Points) MarshalJSON() ([]byte, error) {
	text := append(make([]byte, 0, 8*len(p)), '[')
	for i, v := range p {
		if i > 0 {
			text = append(text, ',')
		}
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			text = append(text, "null"...)
		} else {
			text = strconv.AppendFloat(text, float64(v), 'g', 4, 32)
		}
	}
	return append(text, ']'), nil
}

// all returns a copy of the history.
func (h *history) all() History {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := History{End: time.Unix(h.newest*int64(historyStep/time.Second), 0).UTC(), Step: historyStep.Seconds(),
		GPUs: []GPUHistory{}, Jobs: []JobHistory{}}
	for uuid, r := range h.gpus {
		out.GPUs = append(out.GPUs, GPUHistory{Index: r.index, UUID: uuid, Series: r.all(h.newest)})
	}
	for name, r := range h.jobs {
		out.Jobs = append(out.Jobs, JobHistory{Workload: name, Series: r.all(h.newest)})
	}
	slices.SortFunc(out.GPUs, func(a, b GPUHistory) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	slices.SortFunc(out.Jobs, func(a, b JobHistory) int { return cmp.Compare(a.Workload, b.Workload) })
	return out
}

func (h *history) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(h.all()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
