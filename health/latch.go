package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// resets are the signs of a reset of a GPU: its energy counter began again, or
// the driver no longer asks for anything.
type resets map[incident.Entity]resetSign

type resetSign struct{ joules, action float64 }

// seen returns the GPUs that were reset since its last call.
func (r resets) seen(s *derived.Snapshot) (all []incident.Entity) {
	energy, action := map[incident.Entity]float64{}, map[incident.Entity]float64{}
	for _, sample := range s.Of(device.Energy) {
		if sample.Labels[2] == "gpu" {
			energy[incident.EntityOf(sample, nil)] = sample.Value
		}
	}
	for _, sample := range s.Of(faults.RecoveryAction) {
		action[incident.EntityOf(sample, nil)] = sample.Value
	}
	for gpu, joules := range energy {
		before, known := r[gpu]
		now := resetSign{joules, before.action}
		if a, ok := action[gpu]; ok {
			now.action = a
		}
		if known && (joules < before.joules || before.action != 0 && now.action == 0) {
			all = append(all, gpu)
		}
		r[gpu] = now
	}
	slices.SortFunc(all, incident.Entity.Compare)
	return all
}

// clear ends the latched faults of a GPU, and forgets the incidents behind
// them.
func (e *Engine) clear(gpu incident.Entity) (changes []incident.Event) {
	for _, j := range e.judges {
		for _, st := range j.order {
			if st.latched && st.Parent() == gpu {
				changes = append(changes, e.unlatch(j, st))
			}
		}
	}
	return changes
}

// unlatch ends a latched fault. If the fault persists, the next samples find it
// again.
func (e *Engine) unlatch(j *judge, st *status) incident.Event {
	from := st.state
	st.clear(e.memory.now)
	e.memory.cleared[clearing{j.ID, st.Entity}] = e.memory.now
	return e.transition(j, st, from)
}

// Checks with an acknowledgement that changes the normal state.
const (
	driftCheck   = "config_drift"
	missingCheck = "gpu_missing"
)

// ErrNotLatched means that an entity has nothing that an operator could clear.
var ErrNotLatched = errors.New("there is nothing to acknowledge")

// Ack clears a latched fault for an operator, and returns the event that
// records it. The entity may lack the GPU's UUID or its index. The error wraps
// ErrNotLatched, or names the checks.
func (e *Engine) Ack(check string, entity incident.Entity, now time.Time) (incident.Event, error) {
	e.memory.now = now
	at := slices.IndexFunc(e.judges, func(j *judge) bool { return j.ID == check })
	if at < 0 {
		return incident.Event{}, fmt.Errorf("there is no check %q; %s", check, e.latched())
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
			ev := e.unlatch(j, st)
			ev.Kind = incident.KindAck
			return ev, nil
		}
	}
	return incident.Event{}, fmt.Errorf("%s of %s: %w; %s", check, entity, ErrNotLatched, e.latched())
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
