package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// resets remember the signs of a reset of each GPU, by UUID: its energy counter
// began again, or the driver no longer asks for a reset.
type resets struct {
	gpus    map[string]resetSign
	node    time.Time // when all GPUs had been reset
	watched time.Time // the last look
}

// A resetSign is what a GPU showed when it last answered.
type resetSign struct {
	Entity incident.Entity `json:"entity"`
	Joules float64         `json:"joules"`            // used since the driver was loaded; 0: unknown
	Action float64         `json:"action"`            // that the driver asks for
	At     time.Time       `json:"at"`                // when it was seen
	Reset  time.Time       `json:"reset_at,omitzero"` // faults until then are over by a reset
}

// blink is how long before a GPU answers again its reset may have been.
const blink = 30 * time.Second

// keyOf returns the GPU of an entity: its index changes when another is lost.
func keyOf(e incident.Entity) string { return cmp.Or(e.UUID, e.GPU) }

// last returns the time until which a reset ended the faults of an entity's
// GPU, or of the node.
func (r *resets) last(e incident.Entity) time.Time {
	if key := keyOf(e); key != "" && r.gpus[key].Reset.After(r.node) {
		return r.gpus[key].Reset
	}
	return r.node
}

// seen returns the GPUs that were reset since its last call, the node if none
// is left that was not, and the time at which the driver was loaded anew. It is
// unknown when exactly a GPU was reset: a fault from after the GPU was last
// there may be one from after the reset, and is not over then.
func (r *resets) seen(s *derived.Snapshot, events []incident.Event, now time.Time) (all []incident.Entity,
	loaded time.Time) {
	signs := map[string]resetSign{}
	note := func(m *collectors.Metric, put func(*resetSign, float64)) {
		for _, sample := range s.Of(m) {
			if m == device.Energy && sample.Labels[2] != "gpu" {
				continue
			}
			gpu := incident.EntityOf(sample, nil)
			sign, ok := signs[keyOf(gpu)]
			if !ok {
				sign = r.gpus[keyOf(gpu)]
			}
			sign.Entity, sign.At = gpu, now
			put(&sign, sample.Value)
			signs[keyOf(gpu)] = sign
		}
	}
	note(device.Energy, func(sign *resetSign, v float64) { sign.Joules = v })
	note(faults.RecoveryAction, func(sign *resetSign, v float64) { sign.Action = v })
	for key, sign := range signs {
		before, known := r.gpus[key]
		if sign.Joules < before.Joules || incident.AsksForReset(int(before.Action)) && sign.Action == 0 {
			sign.Reset = latest(before.At, r.watched.Add(-blink))
			all = append(all, sign.Entity)
		}
		if known || len(r.gpus) < derived.MostGPUs {
			r.gpus[key] = sign
		}
	}
	slices.SortFunc(all, incident.Entity.Compare)
	if oldest := r.oldest(); oldest.After(r.node) {
		r.node = oldest
		all = append(all, incident.Entity{})
	}
	for _, e := range events {
		if e.What == incident.WhatDriverLoaded && e.First.After(r.node) {
			r.node, loaded = e.First, e.First
		}
	}
	r.watched = now
	return all, loaded
}

// oldest returns the time until which all GPUs had a reset.
func (r *resets) oldest() (oldest time.Time) {
	for _, sign := range r.gpus {
		if oldest.IsZero() || sign.Reset.Before(oldest) {
			oldest = sign.Reset
		}
		if sign.Reset.IsZero() {
			return sign.Reset
		}
	}
	return oldest
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// relieved takes the driver's word that it asks for nothing of a GPU any more as
// the end of its faults until then, as a reset is. It returns what was said, by
// GPU.
func (r *resets) relieved(events []incident.Event) map[string]string {
	said := map[string]string{}
	for i := range events {
		e := &events[i]
		key := keyOf(e.Entity)
		sign, known := r.gpus[key]
		if key == "" || !incident.EndsRecovery(e) || !e.First.After(sign.Reset) || !known && len(r.gpus) >= derived.MostGPUs {
			continue
		}
		sign.Entity, sign.Reset = e.Entity, e.First
		r.gpus[key], said[key] = sign, "The driver asks for nothing any more: "+strings.TrimSuffix(e.Message, ".")+"."
	}
	return said
}

// release ends the latched faults of GPUs that were reset or relieved, and those
// from before the driver was loaded, unless an incident since then holds them.
func (e *Engine) release(reset []incident.Entity, said map[string]string, loaded time.Time) (changes []incident.Event) {
	for _, j := range e.judges {
		for _, st := range j.order {
			of := func(gpu incident.Entity) bool { return keyOf(gpu) == keyOf(st.Entity) }
			why := "A reset was seen."
			if !st.since.Before(loaded) && !slices.ContainsFunc(reset, of) {
				why = said[keyOf(st.Entity)]
			}
			if st.latched && why != "" && !e.memory.holding(j.Check, st) {
				changes = append(changes, e.unlatch(j, st, e.memory.resets.last(st.Entity), why))
			}
		}
	}
	return changes
}

// unlatch ends a latched fault, by what was until a time, and says why. If the
// fault persists, the next samples find it again.
func (e *Engine) unlatch(j *judge, st *status, until time.Time, why string) incident.Event {
	from := st.state
	st.clear(e.memory.now)
	for _, l := range j.Levels {
		if counted := l.When.Signal.counts; counted != nil {
			e.memory.cleared[clearing{counted.Name, st.Entity}] = until
		}
	}
	ev := e.transition(j, st, from)
	ev.Message = strings.TrimSuffix(ev.Message, ".") + ". " + why
	return ev
}

// Checks with an acknowledgement that changes the normal state.
const (
	driftCheck   = "config_drift"
	missingCheck = "gpu_missing"
)

// errNotLatched means that an entity has nothing that an operator could clear.
var errNotLatched = errors.New("there is nothing to acknowledge")

// Ack clears a latched fault for an operator, and returns the event that
// records it. The entity may lack the GPU's UUID or its index. The error wraps
// errNotLatched, or names the checks.
func (e *Engine) Ack(check string, entity incident.Entity, now time.Time) (incident.Event, error) {
	e.memory.now = now
	at := slices.IndexFunc(e.judges, func(j *judge) bool { return j.Is(check) })
	if at < 0 {
		if _, err := Named(check); err != nil {
			return incident.Event{}, fmt.Errorf("%w; %s", err, e.latched())
		}
		return incident.Event{}, fmt.Errorf("%s is not made here; %s", check, e.latched())
	}
	j := e.judges[at]
	for _, st := range j.order {
		same := st.Entity
		if entity.UUID == "" {
			same.UUID = ""
		}
		if entity.GPU == "" {
			same.GPU = ""
		}
		if same == entity && (st.latched || j.Accepts && st.severity(j.Check) != incident.None) {
			if j.ID == driftCheck {
				e.normal.accept(st.Parent(), e.latest)
			}
			e.memory.accept(j.Check, st.Entity)
			e.normal.acceptWorst(j, st, e.latest)
			ev := e.unlatch(j, st, now, "")
			ev.Kind = incident.KindAck
			return ev, nil
		}
	}
	return incident.Event{}, fmt.Errorf("%s of %s: %w; %s", j.ID, entity, errNotLatched, e.latched())
}

// latched says which faults an operator can clear.
func (e *Engine) latched() string {
	var all []string
	for _, j := range e.judges {
		for _, st := range j.order {
			if st.latched || j.Accepts && st.severity(j.Check) != incident.None {
				all = append(all, j.ID+" "+st.String())
			}
		}
	}
	if all == nil {
		return "this host has no fault to acknowledge"
	}
	return "acknowledge one of " + strings.Join(all, ", ")
}
