package derived

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// Scores of a GPU's faults.
var (
	FaultScore = collectors.Gauge("nvgpu_fault_score",
		"Faults of the class, weighted by severity, with more weight for those in a row; half of it is gone after an "+
			"hour.", "class")
	LemonScore = collectors.Gauge("nvgpu_lemon_score",
		"Faults that no tenant caused, weighted by severity. Of each hour only the worst counts, and after 30 days an "+
			"eighth of its weight is left.")
)

// Limits of scores.
const (
	faultHalfLife = time.Hour
	lemonHalfLife = 10 * 24 * time.Hour
	inARow        = time.Hour // longest time between consecutive faults of a class
	rowBonus      = 0.25      // for each earlier fault
	mostBonus     = 1.0
	oneOffence    = time.Hour // faults within it are one offence
	mostTold      = 1024
	historyKept   = 60 * 24 * time.Hour
)

// severityWeight is the weight of a fault by its severity.
var severityWeight = [...]float64{incident.None: 0, incident.Info: 0.1, incident.Warning: 0.5, incident.Critical: 1,
	incident.Emergency: 2}

// A history is the part of a GPU that outlives a restart.
type history struct {
	Seen   time.Time                  `json:"seen"`
	Faults map[incident.Class]*streak `json:"faults,omitempty"`
	Lemon  decaying                   `json:"lemon"`
	// The offence that Lemon counted last; faults soon after belong to it.
	Offence float64   `json:"offence,omitempty"`
	Began   time.Time `json:"began,omitzero"`

	ECC  errorRate `json:"ecc"`
	PCIe errorRate `json:"pcie"`
	Rows trend     `json:"rows"`

	Place  place    `json:"place,omitempty"`
	Waited decaying `json:"waited,omitzero"` // seconds: the longest wait of a workload here that ended well
}

// A streak scores the faults of a class.
type streak struct {
	Score decaying  `json:"score"`
	Row   int       `json:"row"` // faults in a row
	Last  time.Time `json:"last,omitzero"`
}

// A decaying value halves in each half-life.
type decaying struct {
	Value float64   `json:"value"`
	At    time.Time `json:"at,omitzero"`
}

// decay brings v to now. It leaves the value as it is if the clock went back.
func (v *decaying) decay(now time.Time, halfLife time.Duration) float64 {
	if over := now.Sub(v.At); over > 0 && !v.At.IsZero() {
		v.Value *= math.Exp2(-over.Seconds() / halfLife.Seconds())
	}
	v.At = now
	return v.Value
}

// Fault counts an incident of a GPU. A repeated report, with the same ID, does
// not count again. The scores ignore other events, and those without a GPU or a
// class.
func (d *Metrics) Fault(e incident.Event, now time.Time) {
	uuid := e.Entity.UUID
	if i := slices.IndexFunc(d.cards, func(c *card) bool { return c.gpu == e.Entity.GPU }); uuid == "" && i >= 0 {
		uuid = d.cards[i].uuid
	}
	if e.Kind != incident.KindIncident || uuid == "" || !slices.Contains(incident.Classes, e.Class) ||
		e.ID != "" && slices.Contains(d.told, e.ID) {
		return
	}
	h := d.history(uuid, now)
	if h == nil {
		return
	}
	if e.ID != "" {
		d.told = append(d.told[max(0, len(d.told)+1-mostTold):], e.ID)
	}
	weight := severityWeight[min(max(e.Severity, incident.None), incident.Emergency)]
	s := h.Faults[e.Class]
	if s == nil {
		s = &streak{}
		h.Faults[e.Class] = s
	}
	if now.Sub(s.Last) > inARow {
		s.Row = 0
	}
	s.Score.decay(now, faultHalfLife)
	s.Score.Value += weight * (1 + min(rowBonus*float64(s.Row), mostBonus))
	s.Row, s.Last = s.Row+1, now
	// A tenant's fault never condemns a GPU.
	if e.Class != incident.ApplicationFault && (e.What != incident.WhatXID || !incident.XIDs()[e.Code].Tenant()) {
		h.offend(weight, now)
	}
}

// offend counts an offence, or the growth of one.
func (h *history) offend(weight float64, now time.Time) {
	if over := now.Sub(h.Began); over > oneOffence || over < 0 {
		h.Began, h.Offence = now, 0
	}
	h.Lemon.decay(now, lemonHalfLife)
	h.Lemon.Value += max(0, weight-h.Offence)
	h.Offence = max(weight, h.Offence)
}

// scores puts the scores: 0 for faults that never happened.
func (d *Metrics) scores(c *card, h *history, now time.Time) {
	for i, class := range incident.Classes {
		score := 0.0
		if s := h.Faults[class]; s != nil {
			score = s.Score.decay(now, faultHalfLife)
		}
		d.put(FaultScore, c.classes[i], score)
	}
	d.put(LemonScore, c.labels, h.Lemon.decay(now, lemonHalfLife))
}

// history returns the history of a GPU; nil if there are too many. GPUs that
// have been gone for long make room.
func (d *Metrics) history(uuid string, now time.Time) *history {
	h := d.histories[uuid]
	if h == nil {
		maps.DeleteFunc(d.histories, func(uuid string, h *history) bool {
			here := slices.ContainsFunc(d.cards, func(c *card) bool { return c.uuid == uuid })
			return now.Sub(h.Seen) > historyKept && !here
		})
		if len(d.histories) >= MostGPUs {
			return nil
		}
		h = &history{Faults: map[incident.Class]*streak{}, Rows: trend{every: rowsEvery}, Place: place{}}
		d.histories[uuid] = h
	}
	h.Seen = now
	return h
}

// sum adds the newest increases of the counters of corrected errors.
func (h *history) sum(c *card) {
	h.ECC.add(c.rose[eccCorrected])
	h.PCIe.add(c.rose[pcieCorrectable])
}

// advance ends a minute.
func (h *history) advance(now time.Time) {
	h.Seen = now
	h.ECC.advance()
	h.PCIe.advance()
}

// Saved is the part of Metrics that outlives a restart, to be written as JSON.
type Saved struct {
	GPUs map[string]*history `json:"gpus"` // by UUID
	Told []string            `json:"told"` // counted incidents
}

// Save returns the state for a restart; its times follow the present clock. The
// rest belongs to d: the caller must write it before it uses d again.
func (d *Metrics) Save(now time.Time) Saved {
	saved := Saved{GPUs: map[string]*history{}, Told: d.told}
	for uuid, h := range d.histories {
		saved.GPUs[uuid] = h.at(func(t time.Time) time.Time { return host.Rebased(t, now) })
		saved.GPUs[uuid].Rows = h.Rows.moved(now.Sub(d.steady(now).Round(0)).Seconds())
	}
	return saved
}

// at returns a copy of h with its times converted by f.
func (h *history) at(f func(time.Time) time.Time) *history {
	c := *h
	c.Seen, c.Began, c.Lemon.At, c.Waited.At = f(h.Seen), f(h.Began), f(h.Lemon.At), f(h.Waited.At)
	c.Faults = map[incident.Class]*streak{}
	for class, s := range h.Faults {
		s := *s
		s.Score.At, s.Last = f(s.Score.At), f(s.Last)
		c.Faults[class] = &s
	}
	return &c
}

// Restore continues from the JSON that Save returned, with its times converted
// by at. After an error d is unchanged.
func (d *Metrics) Restore(text json.RawMessage, at func(time.Time) time.Time) error {
	var saved Saved
	if err := json.Unmarshal(text, &saved); err != nil {
		return fmt.Errorf("decode the state of statistics: %w", err)
	}
	d.told = saved.Told[max(0, len(saved.Told)-mostTold):]
	for uuid, h := range saved.GPUs {
		if h == nil || len(d.histories) >= MostGPUs {
			continue
		}
		if h.Faults == nil {
			h.Faults = map[incident.Class]*streak{}
		}
		maps.DeleteFunc(h.Faults, func(class incident.Class, s *streak) bool {
			return s == nil || !slices.Contains(incident.Classes, class)
		})
		for _, e := range []*errorRate{&h.ECC, &h.PCIe} {
			e.Next = min(max(e.Next, 0), windowSize-1)
		}
		if n := len(h.Rows.Times); n > trendSize || n != len(h.Rows.Values) || !slices.IsSorted(h.Rows.Times) {
			h.Rows = trend{}
		}
		if n := len(h.Rows.Times); n > 0 {
			last := time.UnixMilli(int64(h.Rows.Times[n-1] * 1000))
			h.Rows = h.Rows.moved(at(last).Sub(last).Seconds())
		}
		h.Rows.every = rowsEvery
		h.Place = h.Place.valid()
		d.histories[uuid] = h.at(at)
	}
	return nil
}
