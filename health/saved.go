package health

import (
	"encoding/json"
	"maps"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// Saved is the part of an engine that outlives a restart of the agent.
type Saved struct {
	Version   int                `json:"version"`
	Boot      string             `json:"boot_id"`
	Time      time.Time          `json:"time"`
	Faults    []savedFault       `json:"faults"`            // failing checks
	Cleared   []savedClearing    `json:"cleared"`           // cleared latched faults
	Resets    []resetSign        `json:"resets"`            // of each GPU, in this boot
	Reset     time.Time          `json:"reset_at,omitzero"` // of the whole node
	Incidents []incident.Event   `json:"incidents"`         // of the last 30 days
	Counters  map[string]float64 `json:"counters"`          // lifetime counters
	Peaks     []savedPeak        `json:"peaks"`             // of signals, in this boot; of falls, ever
	Fresh     []savedFresh       `json:"fresh,omitempty"`   // GPUs that settle
	Normal    baselines          `json:"normal"`            // settings
	Settings  []savedSetting     `json:"settings"`          // as last seen
	Brake     float64            `json:"chassis_brake,omitempty"`
	Derived   json.RawMessage    `json:"derived,omitempty"`
}

// savedVersion is the version of Saved's form.
const savedVersion = 1

type savedFault struct {
	Check   string          `json:"check"`
	Entity  incident.Entity `json:"entity"`
	State   incident.State  `json:"state"`
	Since   time.Time       `json:"since"`
	Hold    time.Duration   `json:"hold_ns"`
	Latched bool            `json:"latched,omitempty"`
	Levels  []savedLevel    `json:"levels"`
}

type savedLevel struct {
	Level    int               `json:"level"` // of the check's
	Severity incident.Severity `json:"severity"`
	Since    time.Time         `json:"since"`
	Bad      time.Time         `json:"bad"`
	Value    float64           `json:"value"`
	Worst    float64           `json:"worst,omitempty"`
	When     time.Time         `json:"when,omitzero"` // of the worst value
	Labels   string            `json:"labels,omitempty"`
}

type savedClearing struct {
	clearing
	Time time.Time `json:"time"`
}

type savedPeak struct {
	peak
	Value float64 `json:"value"`
}

// A savedFresh is a GPU with links that train, and the time of its arrival.
type savedFresh struct {
	Entity incident.Entity `json:"entity"`
	Since  time.Time       `json:"since"`
}

// sound is earlier than any clock that somebody has set. A clock that shows
// less has begun anew, as on a host with an empty battery.
var sound = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// restoring converts the times of a state for an engine that continues with it
// now. An event keeps its age, also by the monotonic clock, so that setting the
// clock later changes nothing. If the clock has gone back since the save, or
// was not set then, no time counts as passed since the save.
func restoring(saved, now time.Time) func(time.Time) time.Time {
	from := now
	if saved.After(now) || saved.Before(sound) && !now.Before(sound) && !saved.IsZero() {
		from = saved
	}
	return func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return now.Add(min(t.Sub(from), 0))
	}
}

// each returns the events with their times converted by f.
func each(events []incident.Event, f func(time.Time) time.Time) []incident.Event {
	all := make([]incident.Event, 0, len(events))
	for _, e := range events {
		e.Time, e.First, e.Last = f(e.Time), f(e.First), f(e.Last)
		all = append(all, e)
	}
	return all
}

// Save returns the state that a new engine needs to continue during the boot
// with this id. Its times follow the present clock.
func (e *Engine) Save(boot string) (Saved, error) {
	s := Saved{Version: savedVersion, Boot: boot, Time: e.memory.now, Incidents: each(e.memory.incidents, e.dated),
		Counters: maps.Clone(e.memory.kept), Normal: e.normal,
		Settings: e.settings.save(e.dated), Brake: e.memory.brake}
	for _, j := range e.judges {
		for _, st := range j.order {
			if st.severity(j.Check) == incident.None {
				continue
			}
			f := savedFault{Check: j.ID, Entity: st.Entity, State: st.state, Since: e.dated(st.since), Hold: st.hold,
				Latched: st.latched}
			for i, l := range st.levels {
				if l.active {
					f.Levels = append(f.Levels, savedLevel{i, j.Levels[i].Severity, e.dated(l.since), e.dated(l.bad),
						l.value, l.worst, e.dated(l.when), l.labels})
				}
			}
			s.Faults = append(s.Faults, f)
		}
	}
	for c, t := range e.memory.cleared {
		s.Cleared = append(s.Cleared, savedClearing{c, e.dated(t)})
	}
	for _, sign := range e.memory.resets.gpus {
		sign.At, sign.Reset = e.dated(sign.At), e.dated(sign.Reset)
		s.Resets = append(s.Resets, sign)
	}
	s.Reset = e.dated(e.memory.resets.node)
	for g, c := range e.memory.counted {
		if g.lifetime {
			for labels, l := range c.last {
				s.Counters[g.query+"\x00"+labels] = l.value
			}
		}
	}
	for p, v := range e.memory.peaks {
		s.Peaks = append(s.Peaks, savedPeak{p, v})
	}
	for gpu, since := range e.plans.fresh {
		s.Fresh = append(s.Fresh, savedFresh{gpu, e.dated(since)})
	}
	var err error
	s.Derived, err = json.Marshal(e.metrics.Save(e.memory.now))
	return s, err
}

// Restore lets a new engine continue from s. Faults that were latched in
// another boot are over: the events say so.
func (e *Engine) Restore(s Saved, boot string, now time.Time) (changes []incident.Event, err error) {
	m := e.memory
	restored := restoring(s.Time, now)
	m.now, m.incidents = now, each(s.Incidents, restored)
	maps.Copy(m.kept, s.Counters)
	for _, c := range s.Cleared {
		m.cleared[c.clearing] = restored(c.Time)
	}
	if !s.Time.IsZero() {
		m.since = restored(s.Time)
	}
	if now.Sub(m.since) < brakes.window {
		m.brakeBefore = s.Brake
	}
	for _, p := range s.Peaks {
		if s.Boot == boot || isFall(p.Query) {
			m.peaks[p.peak] = p.Value
		}
	}
	if s.Boot == boot {
		for _, sign := range s.Resets {
			sign.At, sign.Reset = restored(sign.At), restored(sign.Reset)
			m.resets.gpus[keyOf(sign.Entity)] = sign
		}
		m.resets.node, m.resets.watched = restored(s.Reset), m.since
		e.plans.resume(s.Fresh, m.resets.gpus, now.Sub(m.since), restored)
	} else if s.Boot != "" {
		e.plans.begun = true // all GPUs are new after a boot: their links train
	}
	if s.Boot != boot { // a boot ends what a reset ends
		for i := range m.incidents {
			m.incidents[i].NeedsReset = false
		}
	}
	if s.Normal != nil {
		e.normal = s.Normal
	}
	e.settings.restore(s.Settings, restored)
	byID := map[string]*judge{}
	for _, j := range e.judges {
		byID[j.ID] = j
	}
	for _, f := range s.Faults {
		j := byID[f.Check]
		if j == nil || j.off {
			continue // this version no longer has the check, or it is disabled
		}
		st := j.status(f.Entity, now)
		if st == nil {
			continue
		}
		st.state, st.since, st.hold, st.latched = f.State, restored(f.Since), f.Hold, f.Latched
		for _, l := range f.Levels {
			// else the check has changed
			if l.Level >= 0 && l.Level < len(j.Levels) && j.Levels[l.Level].Severity == l.Severity {
				st.levels[l.Level] = level{active: true, read: now, since: restored(l.Since), bad: restored(l.Bad),
					value: l.Value, worst: l.Worst, when: restored(l.When), labels: l.Labels}
			}
		}
		if f.Latched && s.Boot != boot {
			changes = append(changes, e.unlatch(j, st, m.since, "The host was booted."))
		}
	}
	if len(s.Derived) > 0 {
		err = e.metrics.Restore(s.Derived, restored)
	}
	return changes, err
}

// dated returns a time by the present clock.
func (e *Engine) dated(t time.Time) time.Time { return host.Rebased(t, e.memory.now) }

// clearing identifies a count of a fault that was cleared.
type clearing struct {
	Check  string          `json:"check"`
	Entity incident.Entity `json:"entity"`
}
