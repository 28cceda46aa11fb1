package health

import (
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// An Engine judges snapshots and keeps one state for each check and entity. It
// is pure: the caller passes the time, and it does no I/O. It belongs to one
// goroutine.
type Engine struct {
	memory   *memory
	metrics  *derived.Metrics
	derived  []collectors.Sample // at the last step
	every    time.Duration       // between steps
	stepped  int64               // the last step
	judges   []*judge
	plans    plans
	normal   baselines
	settings observed // of the GPUs at the last step
	dark     dark
	latest   *derived.Snapshot
	enabled  []string                                     // checks in shadow mode that alert
	totals   map[incident.Entity]map[incident.Class]total // of incidents
	began    *collectors.Origin                           // of the totals
}

// A total counts the incidents of a class on a GPU.
type total struct {
	incidents float64
	origin    *collectors.Origin
}

// A judge has the states of one check.
type judge struct {
	*Check           // with the operator's thresholds
	own      *Check  // without
	off      bool    // it is not made
	optional bool    // all of its signals may be absent
	sampled  []int64 // when each level took its last sample
	statuses map[incident.Entity]*status
	order    []*status // by entity
}

// mostStatuses bounds the entities of a check.
const mostStatuses = 4096

// NewEngine returns an engine without a past.
func NewEngine(checks []*Check, now time.Time) *Engine {
	e := &Engine{memory: newMemory(now), latest: derived.NewSnapshot(nil), metrics: derived.New(), every: step,
		stepped: -1, normal: baselines{},
		settings: observed{settings: map[string]map[string]observation{}}, dark: dark{gpus: map[incident.Entity]bool{}},
		totals: map[incident.Entity]map[incident.Class]total{}, began: &collectors.Origin{Since: now}}
	for _, c := range checks {
		required := slices.ContainsFunc(c.Levels, func(l Level) bool { return !l.When.Signal.comesAndGoes() })
		e.judges = append(e.judges, &judge{Check: c, own: c, optional: !required,
			sampled: slices.Repeat([]int64{-1}, len(c.Levels)), statuses: map[incident.Entity]*status{}})
	}
	return e
}

// Eval judges the state at now, and returns the changes. Events are the
// incidents since the last call; Eval weighs them. It adds the derived metrics to s.
func (e *Engine) Eval(s *derived.Snapshot, events []incident.Event, now time.Time) (changes []incident.Event) {
	m := e.memory
	m.now, e.latest = now, s
	e.plans.drains(s, now)
	for i := range events {
		events[i] = e.weigh(events[i])
		e.account(events[i])
		m.remember(events[i])
	}
	m.tidy()
	said := m.resets.relieved(events)
	reset, loaded := m.resets.seen(s, events, now)
	for _, gpu := range reset {
		if gpu != (incident.Entity{}) {
			e.plans.reset(gpu, now)
		}
	}
	if !loaded.IsZero() {
		e.plans.loaded(s, loaded)
	}
	m.hold()
	changes = e.release(reset, said, loaded)
	m.count(s)
	m.fell(s)
	if at := m.index(e.every); at != e.stepped {
		e.stepped = at
		before := len(s.Added())
		e.metrics.Derive(s, now)
		e.plans.explain(s, now)
		m.chassis(s)
		orphans(s)
		e.normal.drift(s, &e.settings, now)
		e.normal.lacks(s)
		e.normal.absent(s)
		e.derived = slices.Clone(s.Added()[before:])
	} else {
		s.Add(slices.DeleteFunc(slices.Clone(e.derived),
			func(sample collectors.Sample) bool { return outlived(s, sample) })...)
	}
	for _, j := range e.judges {
		changes = append(changes, e.judge(j, s)...)
	}
	changes = append(changes, e.dark.tell(e, s)...)
	e.report(s)
	return changes
}

// outlived reports whether a derived sample belongs to a GPU that no longer
// answers. Such a sample is as old as the data that it was derived from. The
// GPU's history stays.
func outlived(s *derived.Snapshot, sample collectors.Sample) bool {
	gpu := incident.EntityOf(sample, nil)
	return gpu != (incident.Entity{}) && sample.Metric != derived.FaultScore && sample.Metric != derived.LemonScore &&
		sample.Metric != Away && !s.Answers(gpu)
}

// weigh returns an incident with its severity on this host. The OOM killer
// harms only its victim, so it matters here if the victim was on a GPU. A
// program that is ended while the agent is drained is ended on purpose.
func (e *Engine) weigh(ev incident.Event) incident.Event {
	switch {
	case ev.What == incident.WhatOOM && ev.Workload != "" && e.metrics.Resides(ev.Workload):
		ev.Check, ev.Severity = hostCheck, incident.Warning
	case ev.What == incident.WhatXID && ev.Code == removedXID && ev.Follows == "" && e.plans.drainedAt(ev.First):
		ev.Follows, ev.Severity = "drain", incident.Info
	}
	return ev
}

// removedXID is the XID of a program that was ended.
const removedXID = 45

// account counts an incident that is new and accompanies no other.
func (e *Engine) account(ev incident.Event) {
	if ev.Kind != incident.KindIncident || ev.Follows != "" || e.memory.knows(ev.ID) {
		return
	}
	e.metrics.Fault(ev, e.memory.now)
	gpu := ev.Entity.Parent()
	if e.totals[gpu] == nil {
		e.totals[gpu] = map[incident.Class]total{}
	}
	e.totals[gpu][ev.Class] = total{e.totals[gpu][ev.Class].incidents + 1,
		&collectors.Origin{Since: e.began.Since, Event: ev.ID, At: ev.First}}
}

// judge takes the samples of a check that are due.
func (e *Engine) judge(j *judge, s *derived.Snapshot) (changes []incident.Event) {
	m, due := e.memory, false
	if j.off {
		return nil
	}
	for i, l := range j.Levels {
		p := l.For.spelled()
		at := m.index(p.Every)
		if at == j.sampled[i] {
			continue
		}
		j.sampled[i], due = at, true
		open := m.gates(l.When, s)
		l.When.Signal.read(m, s, func(entity incident.Entity, v float64) {
			st := j.status(entity, m.now)
			if st == nil {
				return
			}
			st.read = m.now
			if l.When.Signal.counts == nil && m.now.Sub(st.cleared) < echoes {
				return // incidents have a time, readings do not
			}
			pass := open(entity)
			bad := pass && l.When.holds(v, l.When.Threshold)
			st.levels[i].sample(l, v, bad, !pass || !l.When.holds(v, l.When.Clear), m.now)
			if bad && strings.Contains(j.Detailed(l), "{labels}") {
				st.levels[i].labels = l.When.Signal.parts(s, entity, v)
			}
		})
	}
	if !due {
		return nil
	}
	j.order = slices.DeleteFunc(j.order, func(st *status) bool {
		over := st.over(j.Check, m.now) || st.state == incident.Unknown && !st.latched &&
			st.severity(j.Check) == incident.None && renumbered(s, st.Entity)
		if over {
			delete(j.statuses, st.Entity)
		}
		return over
	})
	for _, st := range j.order {
		st.latched = st.latched && j.Latched
		from := st.state
		changed := st.settle(j.Check, m.now)
		if st.state == incident.Recovering && e.left(j.Check, s, st.Entity) {
			st.clear(m.now)
			changed = from != st.state
		}
		switch st.latched = st.latched || m.holding(j.Check, st); {
		case changed && onlyData(j, st, from):
			e.dark.changes = append(e.dark.changes, e.transition(j, st, from))
		case changed:
			changes = append(changes, e.transition(j, st, from))
		}
	}
	return changes
}

// renumbered reports whether the driver lists an entity's GPU as another: at another index, or with the UUID that it lacked.
func renumbered(s *derived.Snapshot, entity incident.Entity) (is bool) {
	gpu := entity.Parent()
	for _, up := range s.Of(collectors.Up) {
		switch now := incident.EntityOf(up, nil); {
		case now == gpu:
			return false
		case up.Value == 1 && (gpu.UUID != "" && now.UUID == gpu.UUID || gpu.UUID == "" && now.GPU == gpu.GPU):
			is = true
		}
	}
	return is
}

// left reports whether an entity's job or GPU is gone. A job is known to have
// ended only if it was seen: by the driver, or by the broker, for a check of what programs under the hook do.
func (e *Engine) left(c *Check, s *derived.Snapshot, entity incident.Entity) bool {
	gpu := entity.Parent()
	is := func(sample collectors.Sample) bool { return keyOf(incident.EntityOf(sample, nil)) == keyOf(gpu) }
	if up := s.Of(collectors.Up); gpu != (incident.Entity{}) && len(up) > 0 && !slices.ContainsFunc(up, is) {
		return true
	}
	switch {
	case entity.Workload == "":
		return false
	case e.metrics.Resides(entity.Workload):
		return !e.metrics.Runs(entity.Workload, entity.GPU)
	}
	hooked := slices.ContainsFunc(c.Metrics(), func(m *collectors.Metric) bool {
		return m == workloads.JobHang || m == workloads.JobSlowdown || m == workloads.JobStraggler
	})
	return hooked && !slices.ContainsFunc(s.Of(workloads.JobStepping), func(sample collectors.Sample) bool {
		return incident.EntityOf(sample, []string{"tenant", "workload"}) == entity
	})
}

// status returns the state of an entity; nil if there are too many.
func (j *judge) status(entity incident.Entity, now time.Time) *status {
	st := j.statuses[entity]
	if st == nil && len(j.order) < mostStatuses {
		st = &status{Entity: entity, levels: make([]level, len(j.Levels)), since: now, read: now,
			passing: entity.Workload != "" || entity.Tenant != "" || j.optional}
		j.statuses[entity] = st
		at, _ := slices.BinarySearchFunc(j.order, entity,
			func(st *status, e incident.Entity) int { return st.Compare(e) })
		j.order = slices.Insert(j.order, at, st)
	}
	return st
}

// index returns the number of the interval of d since the engine began. If d is
// 0, each evaluation is an interval of its own.
func (m *memory) index(d time.Duration) int64 { return int64(m.now.Sub(m.start) / max(d, 1)) }

// gates returns whether the conditions beside c's signal hold for an entity:
// its own, its GPU's, and the node's.
func (m *memory) gates(c Condition, s *derived.Snapshot) func(incident.Entity) bool {
	type gate struct {
		Condition
		answers
		next    int // index at which the next entity is likely to be
		further func(incident.Entity) bool
	}
	var all []gate
	for _, w := range c.While {
		all = append(all, gate{w, readings(w.Signal, m, s), 0, m.gates(w, s)})
	}
	return func(entity incident.Entity) bool {
		for i := range all {
			g := &all[i]
			v, next, ok := g.from(g.next, entity)
			if g.next = next; !ok {
				v, ok = g.of(entity.Parent())
			}
			if !ok && g.Signal.node {
				v, ok = g.of(incident.Entity{})
			}
			if !ok || !g.holds(v, g.Threshold) || !g.further(entity) {
				return false
			}
		}
		return true
	}
}
