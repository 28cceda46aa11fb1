package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// Metrics of the engine's judgement.
var (
	Status = collectors.Gauge("nvgpu_health_status", "Health of the GPU: 0 is healthy, 1 degraded (a warning), 2 "+
		"failed (critical or worse). Faults of workloads and tenants do not count. Absent while it is not known.")
	NodeStatus = collectors.HostGauge("nvgpu_node_health_status", "Health of the node, the worst of its GPUs and "+
		"of the checks on the node itself: 0 is healthy, 1 degraded, 2 failed. Absent while it is not known.")
	CheckFailing = collectors.Gauge("nvgpu_health_check_failing",
		"Whether the check fails for the GPU, or for the node if gpu is empty.", "check")
	CheckUnknown = collectors.Gauge("nvgpu_health_checks_unknown",
		"Checks of the GPU, or of the node if gpu is empty, that have no more data: it may be unhealthy.")
	AlertFiring = collectors.HostGauge("nvgpu_alert_firing",
		"Number of entities for which the alert fires, by the agent's own judgement.", "alert", "severity")
)

// standing is the condition of a GPU, or of the node.
type standing struct {
	known   bool
	unknown int
	worst   incident.Severity
	checks  []collectors.Sample // whether each fails
}

// report adds the judgement to s.
func (e *Engine) report(s *derived.Snapshot) {
	all := map[incident.Entity]*standing{{}: {known: true}}
	firing := make([]collectors.Sample, 0, 2*len(e.judges))
	for _, j := range e.judges {
		first := len(firing)
		for _, l := range j.Levels {
			if e.alerts(j) &&
				!slices.ContainsFunc(firing[first:],
					func(f collectors.Sample) bool { return f.Labels[1] == l.Severity.String() }) {
				firing = append(firing, collectors.Sample{Metric: AlertFiring, Labels: []string{j.Alert,
					l.Severity.String()}})
			}
		}
		for _, st := range j.order {
			counts := !e.shadows(j) && st.Workload == "" && st.Tenant == "" // as in a verdict
			all[st.Parent()] = all[st.Parent()].with(j, st, counts, e.memory.now)
			for i := range st.levels {
				for n := range firing[first:] {
					if f := &firing[first+n]; st.levels[i].active && f.Labels[1] == j.Levels[i].Severity.String() {
						f.Value++
					}
				}
			}
		}
	}
	var checks, unknown, status []collectors.Sample
	worst := incident.None
	for _, gpu := range slices.SortedFunc(maps.Keys(all), incident.Entity.Compare) {
		g := all[gpu]
		worst = max(worst, g.worst)
		labels := []string{gpu.GPU, gpu.UUID}
		checks = append(checks, g.checks...)
		unknown = append(unknown, collectors.Sample{Metric: CheckUnknown, Labels: labels, Value: float64(g.unknown)})
		if gpu != (incident.Entity{}) && g.known && (s.Answers(gpu) || g.worst > incident.Info) {
			status = append(status, collectors.Sample{Metric: Status, Labels: labels, Value: statusOf(g.worst)})
		}
	}
	s.Add(checks...)
	s.Add(unknown...)
	s.Add(status...)
	if s.Answers(incident.Entity{}) || worst > incident.Info {
		s.Add(collectors.Sample{Metric: NodeStatus, Value: statusOf(worst)})
	}
	s.Add(firing...)
	s.Add(e.incidents(s)...)
}

// with adds a check's result for the GPU, or for something on it, and whether
// that makes the GPU worse.
func (g *standing) with(j *judge, st *status, counts bool, now time.Time) *standing {
	if g == nil {
		g = &standing{}
	}
	severity := st.severity(j.Check)
	if n := len(g.checks); n == 0 || g.checks[n-1].Labels[2] != j.ID {
		g.checks = append(g.checks, collectors.Sample{Metric: CheckFailing, Labels: []string{st.GPU, st.UUID, j.ID}})
	}
	if severity != incident.None {
		g.checks[len(g.checks)-1].Value = 1
	}
	switch {
	case severity == incident.None && st.state == incident.Unknown:
		g.unknown++
	default:
		g.known = true
	}
	if counts {
		g.worst = max(g.worst, st.counted(j.Check, now))
	}
	return g
}

// incidents returns the number of incidents of each GPU, by class.
func (e *Engine) incidents(s *derived.Snapshot) (all []collectors.Sample) {
	for _, up := range s.Of(collectors.Up) {
		gpu := incident.EntityOf(up, nil)
		for _, class := range incident.Classes {
			t := e.totals[gpu][class]
			all = append(all, collectors.Sample{Metric: IncidentsTotal, Labels: []string{gpu.GPU, gpu.UUID,
				string(class)}, Value: t.incidents, Origin: cmp.Or(t.origin, e.began)})
		}
	}
	return all
}

// statusOf is the value of Status.
func statusOf(s incident.Severity) float64 {
	switch {
	case s >= incident.Critical:
		return 2
	case s == incident.Warning:
		return 1
	}
	return 0
}

// A Finding is one fault that the engine sees now.
type Finding struct {
	Check    string            `json:"check"`
	Alert    string            `json:"alert,omitempty"`
	Entity   incident.Entity   `json:"entity"`
	Severity incident.Severity `json:"severity"`
	State    incident.State    `json:"state"`
	Since    time.Time         `json:"since"`
	Latched  bool              `json:"latched,omitempty"`
	Shadow   bool              `json:"shadow,omitempty"`  // it does not alert
	Value    float64           `json:"value"`             // the last reading
	Limit    string            `json:"limit"`             // from which on it fails: "> 0.05, 6 of 6 in 1m"
	Worst    float64           `json:"worst"`             // of this fault
	WorstAt  time.Time         `json:"worst_at,omitzero"` // the time of Worst
	// when the fault ended, and when it will be forgotten unless it returns; the
	// severity is info by then
	Recovered time.Time `json:"recovered,omitzero"`
	Clears    time.Time `json:"clears,omitzero"`
	Message   string    `json:"message"`
	Action    string    `json:"action"`
}

// Findings returns the failing and the unknown checks, the worst first.
func (e *Engine) Findings() (all []Finding) {
	for _, j := range e.judges {
		for _, st := range j.order {
			if st.state == incident.OK {
				continue
			}
			at := st.told(j.Check)
			l, level := &st.levels[at], j.Levels[at]
			f := Finding{Check: j.ID, Alert: j.Alert, Entity: st.Entity, Severity: st.severity(j.Check),
				State: st.state, Since: e.dated(st.since), Latched: st.latched,
				Shadow: e.shadows(j), Value: l.value, Worst: l.worst, WorstAt: e.dated(l.when),
				Limit:   fmt.Sprintf("%s %s, %s", level.When.Op, number(level.When.Threshold), level.For),
				Message: e.message(j, st), Action: e.action(j, st, at)}
			if l.active {
				f.Since = e.dated(l.since)
			}
			if st.recovered(j.Check, e.memory.now) {
				f.Severity, f.Recovered = incident.Info, e.dated(st.since)
				f.Clears = e.dated(st.clears(e.memory.now))
			}
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), a.Entity.Compare(b.Entity), cmp.Compare(a.Check, b.Check))
	})
	return all
}

// transition describes a change of state.
func (e *Engine) transition(j *judge, st *status, from incident.State) incident.Event {
	now := e.memory.now
	ev := incident.Event{Version: incident.EventVersion, Kind: incident.KindTransition,
		ID: fmt.Sprintf("%s/%s/%d", j.ID, st.Entity, now.UnixNano()), Time: now,
		Entity: st.Entity, Check: j.ID, Class: j.Class, Severity: st.severity(j.Check), From: from, To: st.state,
		Latched: st.latched, Shadow: e.shadows(j),
		Workload: st.Workload, Message: e.message(j, st)}
	if i := st.told(j.Check); st.levels[i].active {
		ev.Threshold, ev.Window, ev.First = j.Levels[i].When.Threshold, j.Levels[i].For.String(),
			e.dated(st.levels[i].since)
		ev.Value, _ = st.says(i)
	}
	if ev.Severity != incident.None {
		ev.Action = e.action(j, st, st.told(j.Check))
	}
	if cause := e.evidence(j, st); cause != nil {
		ev.What, ev.Code, ev.PID, ev.Comm, ev.Workload, ev.GI = cause.What, cause.Code, cause.PID, cause.Comm,
			cmp.Or(ev.Workload, cause.Workload), cause.GI
		ev.Sources = cause.Sources
	}
	return ev
}

// alerts reports whether a check alerts.
func (e *Engine) alerts(j *judge) bool { return j.Alert != "" && !e.shadows(j) && !j.off }

// shadows reports whether a check is in shadow mode and has not been enabled.
func (e *Engine) shadows(j *judge) bool { return j.Shadow && !slices.ContainsFunc(e.enabled, j.Is) }

// Alerts returns the alerts that fire, with additional labels.
func (e *Engine) Alerts(labels map[string]string) (all []Alert) {
	for _, j := range e.judges {
		if !e.alerts(j) {
			continue
		}
		for _, st := range j.order {
			for i, l := range st.levels {
				if l.active {
					all = append(all, e.alert(j, st, i, labels))
				}
			}
		}
	}
	return all
}

// Runbook is the address of the runbook. The caller adds "#" and the name of an
// alert in lower case.
const Runbook = "https://github.com/gpusteward/gpusteward/blob/main/alerts/RUNBOOK.md"

// alert returns the alert of a level.
func (e *Engine) alert(j *judge, st *status, level int, labels map[string]string) Alert {
	value, _ := st.says(level)
	where := locate(labels["node"], st.Entity)
	a := Alert{Starts: e.dated(st.levels[level].since), Labels: maps.Clone(labels), Annotations: map[string]string{
		"summary": where + j.Summary, "description": e.sentences(j, st, level), "action": e.action(j, st, level),
		"runbook_url": Runbook + "#" + strings.ToLower(j.Alert),
		"value":       plain(value, 4),
	}}
	if a.Labels == nil {
		a.Labels = map[string]string{}
	}
	maps.Copy(a.Labels, map[string]string{"alertname": j.Alert, "severity": j.Levels[level].Severity.String(),
		"check": j.ID, "source": "gpusteward"})
	if j.Class != "" {
		a.Labels["class"] = string(j.Class)
	}
	for _, p := range st.Parts() {
		a.Labels[p[0]] = p[1]
	}
	if ev := e.evidence(j, st); ev != nil {
		xid := 0
		if ev.What == incident.WhatXID {
			xid = ev.Code
		}
		for name, v := range map[string]string{"xid": fmt.Sprint(xid), "pid": fmt.Sprint(ev.PID), "comm": ev.Comm,
			"workload": ev.Workload, "sources": strings.Join(ev.Sources, ", ")} {
			if v != "" && v != "0" {
				a.Annotations[name] = v
			}
		}
	}
	return a
}
