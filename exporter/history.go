package exporter

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpusteward/collectors"
)

// The history holds each GPU, and each workload with steps: the last 15 minutes
// in steps of 5 s, and the last day in minutes. A GPU takes 82 KiB, a workload
// 48 KiB, and the largest number of both 8.1 MiB.
const (
	historyStep   = 5 * time.Second
	historyPoints = int(15 * time.Minute / historyStep)
	historyGPUs   = 64
	historyJobs   = 64

	minuteSteps = int64(time.Minute / historyStep)
	dayMinutes  = 24 * 60
	dayHours    = 25 // the first and the last one in part
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
	// the means of the last day's minutes, by track and hour of the day; nil: nothing was known
	days  [][dayHours]*[60]float32
	hours [dayHours]int64 // the hours, since 1970, to which days belong
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
	if h.gpus == nil {
		h.gpus, h.jobs, h.newest = past[GPU]{}, past[Workload]{}, now-1
	}
	if now < h.newest { // the clock was set back: its times come twice
		h.gpus.rewind(now)
		h.jobs.rewind(now)
		h.newest = now - 1
	}
	h.gpus.advance(h.newest, now)
	h.jobs.advance(h.newest, now)
	for i := range gpus {
		if r := h.gpus.of(gpus[i].UUID, historySeries, historyGPUs, now); r != nil {
			r.index = gpus[i].Index
			r.set(now, &gpus[i])
		}
	}
	for i := range workloads {
		if workloads[i].Steps == nil {
			continue
		}
		if r := h.jobs.of(workloads[i].Name, jobSeries, historyJobs, now); r != nil {
			r.set(now, &workloads[i])
		}
	}
	h.newest = now
}

// advance sums up the minute that ended, makes the steps after newest, until
// now, unknown, and forgets what was there in none of a day.
func (p past[T]) advance(newest, now int64) {
	for name, r := range p {
		if r.seen <= now-dayMinutes*minuteSteps {
			delete(p, name)
			continue
		}
		if minute := newest / minuteSteps; minute < now/minuteSteps {
			r.sum(minute, newest)
		}
		for s := max(newest+1, now-int64(historyPoints)+1); s <= now; s++ {
			r.set(s, nil)
		}
	}
}

// rewind forgets the steps, and the hours from that of now on.
func (p past[T]) rewind(now int64) {
	for _, r := range p {
		r.seen = min(r.seen, now-1)
		r.clear()
		for slot, hour := range r.hours {
			if hour >= now/minuteSteps/60 {
				r.forget(slot)
			}
		}
	}
}

// of returns the rings by this name. If there are too many, it replaces those
// that were not there for longest; nil if all are there now.
func (p past[T]) of(name string, all []track[T], most int, now int64) *rings[T] {
	r := p[name]
	if r == nil && len(p) >= most {
		oldest := ""
		for name, r := range p {
			if r.seen < now && (oldest == "" || r.seen < p[oldest].seen) {
				oldest = name
			}
		}
		delete(p, oldest)
	}
	if r == nil && len(p) < most {
		r = &rings[T]{tracks: all, points: make([][historyPoints]float32, len(all)),
			days: make([][dayHours]*[60]float32, len(all))}
		r.clear()
		p[name] = r
	}
	return r
}

// clear makes all steps unknown.
func (r *rings[T]) clear() {
	for s := range int64(historyPoints) {
		r.set(s, nil)
	}
}

// forget makes an hour unknown.
func (r *rings[T]) forget(slot int) {
	for i := range r.days {
		r.days[i][slot] = nil
	}
	r.hours[slot] = 0
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

// sum writes the means of a minute's steps that are no later than newest.
func (r *rings[T]) sum(minute, newest int64) {
	hour := minute / 60
	slot := int(hour % dayHours)
	if r.hours[slot] != hour {
		r.forget(slot)
		r.hours[slot] = hour
	}
	for i := range r.tracks {
		sum, n := 0., 0.
		for s := minute * minuteSteps; s < (minute+1)*minuteSteps && s <= newest; s++ {
			if v := float64(r.points[i][s%int64(historyPoints)]); !math.IsNaN(v) {
				sum, n = sum+v, n+1
			}
		}
		if n == 0 {
			continue
		}
		if r.days[i][slot] == nil {
			r.days[i][slot] = new([60]float32)
			for m := range r.days[i][slot] {
				r.days[i][slot][m] = float32(math.NaN())
			}
		}
		r.days[i][slot][minute%60] = float32(sum / n)
	}
}

// day returns the means of the minutes by series, the last one of the minute
// newest.
func (r *rings[T]) day(newest int64) map[string]Points {
	out := map[string]Points{}
	for i, track := range r.tracks {
		points := make(Points, dayMinutes)
		for at := range points {
			minute := newest - dayMinutes + 1 + int64(at)
			slot := minute / 60 % dayHours
			points[at] = float32(math.NaN())
			if r.days[i][slot] != nil && r.hours[slot] == minute/60 {
				points[at] = r.days[i][slot][minute%60]
			}
		}
		out[track.name] = points
	}
	return out
}

// recent reports whether a T was there in one of the steps until newest.
func (r *rings[T]) recent(newest int64) bool { return r.seen > newest-int64(historyPoints) }

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
		if !r.recent(h.newest) {
			continue
		}
		out.GPUs = append(out.GPUs, GPUHistory{Index: r.index, UUID: uuid, Series: r.all(h.newest)})
	}
	for name, r := range h.jobs {
		if !r.recent(h.newest) {
			continue
		}
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

// Day is the last day of a GPU or a workload with steps, as /api/v1/history/day
// returns it. The last point of each series is the mean of the minute that
// begins at End. A subject without a history has no series.
type Day struct {
	End    time.Time         `json:"end"`
	Step   float64           `json:"step_seconds"`
	Series map[string]Points `json:"series"`
}

// ofDay returns the last day of a GPU or of a workload.
func (h *history) ofDay(gpu, workload string) Day {
	h.mu.Lock()
	defer h.mu.Unlock()
	newest := h.newest/minuteSteps - 1 // the current minute has no mean yet
	out := Day{End: time.Unix(newest*60, 0).UTC(), Step: 60, Series: map[string]Points{}}
	if r := h.gpus[gpu]; r != nil {
		out.Series = r.day(newest)
	}
	if r := h.jobs[workload]; r != nil {
		out.Series = r.day(newest)
	}
	return out
}

// day answers with the last day of one GPU or one workload.
func (h *history) day(w http.ResponseWriter, r *http.Request) {
	gpu, workload, err := subject(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(h.ofDay(gpu, workload)) // the client has left: nobody to tell
}

// knows says whether there is a history of the GPU.
func (h *history) knows(uuid string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.gpus[uuid] != nil
}

// named lets a request name a GPU by its index, too. It answers one for a GPU that is not the host's with 404.
func (s *Server) named(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if query := r.URL.Query(); len(query) == 1 && len(query["gpu"]) == 1 && query.Get("gpu") != "" {
			name, known, all := query.Get("gpu"), s.live.history.knows(query.Get("gpu")), []string{}
			for _, up := range s.options.Samples() {
				if up.Metric != collectors.Up {
					continue
				}
				all = append(all, up.Labels[0])
				if name == up.Labels[0] || name == up.Labels[1] {
					query.Set("gpu", up.Labels[1])
					known = true
				}
			}
			if !known && len(all) > 0 {
				http.Error(w, fmt.Sprintf("there is no GPU %q; the host has %s", name, strings.Join(all, ", ")), http.StatusNotFound)
				return
			}
			r = r.Clone(r.Context())
			r.URL.RawQuery = query.Encode()
		}
		answer(w, r)
	})
}

// subject returns the GPU or the workload that a request is about.
func subject(r *http.Request) (gpu, workload string, err error) {
	query := r.URL.Query()
	for name, values := range query {
		if name != "gpu" && name != "workload" {
			return "", "", fmt.Errorf("there is no parameter %q; the parameters are gpu and workload", name)
		}
		if len(values) > 1 || values[0] == "" {
			return "", "", fmt.Errorf("%s is empty or given twice", name)
		}
	}
	if len(query) != 1 {
		return "", "", errors.New("give gpu, an index or a UUID, or workload, a name, but not both")
	}
	return query.Get("gpu"), query.Get("workload"), nil
}
