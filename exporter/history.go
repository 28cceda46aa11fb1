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

// The history holds the last 15 minutes of each GPU. With the largest number of
// GPUs it takes 540 KiB.
const (
	historyStep   = 5 * time.Second
	historyPoints = int(15 * time.Minute / historyStep)
	historyGPUs   = 64
)

// historySeries are the series of a GPU; NaN is unknown. The page takes the
// same values from each state (history.js).
var historySeries = [...]struct {
	name string
	of   func(g *GPU) float64
}{
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

// A history is the recent past of the GPUs. Each series is a ring whose slots
// are steps of the clock, so a time without samples is a gap. It is safe for
// concurrent use.
type history struct {
	mu     sync.Mutex
	newest int64 // step, since 1970
	gpus   map[string]*gpuHistory
}

// A gpuHistory has the rings of one GPU.
type gpuHistory struct {
	index int
	seen  int64 // the last step in which the GPU was there
	rings [len(historySeries)][historyPoints]float32
}

// step returns the number of the step that contains t.
func step(t time.Time) int64 { return t.Unix() / int64(historyStep/time.Second) }

// due reports whether a new step has begun that has no points yet.
func (h *history) due(t time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return step(t) != h.newest
}

// add notes the GPUs' values at t, once per step.
func (h *history) add(t time.Time, gpus []GPU) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := step(t)
	if now < h.newest || h.gpus == nil { // the clock was set back: its times come twice
		h.gpus, h.newest = map[string]*gpuHistory{}, now-1
	}
	for uuid, g := range h.gpus {
		if g.seen <= now-int64(historyPoints) {
			delete(h.gpus, uuid)
			continue
		}
		for s := max(h.newest+1, now-int64(historyPoints)+1); s <= now; s++ {
			g.set(s, nil)
		}
	}
	for i := range gpus {
		h.of(&gpus[i], now).set(now, &gpus[i])
	}
	h.newest = now
}

// of returns the rings of g; nil if there are too many GPUs.
func (h *history) of(g *GPU, now int64) *gpuHistory {
	rings := h.gpus[g.UUID]
	if rings == nil && len(h.gpus) < historyGPUs {
		rings = &gpuHistory{}
		for s := range int64(historyPoints) {
			rings.set(s, nil)
		}
		h.gpus[g.UUID] = rings
	}
	if rings != nil {
		rings.index, rings.seen = g.Index, now
	}
	return rings
}

// set writes the slot of a step; a nil GPU is unknown.
func (h *gpuHistory) set(step int64, g *GPU) {
	if h == nil {
		return
	}
	for i, series := range historySeries {
		v := math.NaN()
		if g != nil {
			v = series.of(g)
		}
		h.rings[i][step%int64(historyPoints)] = float32(v)
	}
}

// History is the last 15 minutes of the GPUs, as /api/v1/history returns it.
// The last point of each series belongs to the step that begins at End.
type History struct {
	End  time.Time    `json:"end"`
	Step float64      `json:"step_seconds"`
	GPUs []GPUHistory `json:"gpus"` // by index
}

// A GPUHistory has the points of one GPU, the oldest first.
type GPUHistory struct {
	Index  int               `json:"index"`
	UUID   string            `json:"uuid"`
	Series map[string]Points `json:"series"`
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
		GPUs: []GPUHistory{}}
	for uuid, g := range h.gpus {
		one := GPUHistory{Index: g.index, UUID: uuid, Series: map[string]Points{}}
		oldest := (h.newest + 1) % int64(historyPoints)
		for i, series := range historySeries {
			one.Series[series.name] = slices.Concat(g.rings[i][oldest:], g.rings[i][:oldest])
		}
		out.GPUs = append(out.GPUs, one)
	}
	slices.SortFunc(out.GPUs, func(a, b GPUHistory) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.UUID, b.UUID))
	})
	return out
}

func (h *history) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if err := json.NewEncoder(w).Encode(h.all()); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
