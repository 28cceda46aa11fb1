package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
)

// What the engine says of its judgement.
var (
	Status       = collectors.Gauge("nvgpu_health_status", "Health of the GPU: 0 is well, 1 degraded (a warning), 2 failed (critical or worse). Absent while it is not known.")
	NodeStatus   = collectors.HostGauge("nvgpu_node_health_status", "Health of the node, the worst of its GPUs and of the checks on the node itself: 0 is well, 1 degraded, 2 failed. Absent while it is not known.")
	CheckFailing = collectors.Gauge("nvgpu_health_check_failing", "Whether the check fails for the GPU, or for the node where gpu is empty.", "check")
	CheckUnknown = collectors.Gauge("nvgpu_health_checks_unknown", "Checks of the GPU, or of the node where gpu is empty, that have no data any more: it may not be well.")
	AlertFiring  = collectors.HostGauge("nvgpu_alert_firing", "For how many entities the alert fires, by the agent's own judgement.", "alert", "severity")
)

// standing is how a GPU, or the node, fares.
type standing struct {
	known   bool
	unknown int
	worst   Severity
	checks  []collectors.Sample // whether each fails
}

// report adds the judgement to s.
func (e *Engine) report(s *Snapshot) {
	all := map[Entity]*standing{{}: {known: true}}
	firing := make([]collectors.Sample, 0, 2*len(e.judges))
	for _, j := range e.judges {
		first := len(firing)
		for _, l := range j.Levels {
			if e.pages(j) && !slices.ContainsFunc(firing[first:], func(f collectors.Sample) bool { return f.Labels[1] == l.Severity.String() }) {
				firing = append(firing, collectors.Sample{Metric: AlertFiring, Labels: []string{j.Alert, l.Severity.String()}})
			}
		}
		for _, st := range j.order {
			all[st.Parent()] = all[st.Parent()].with(j, st)
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
	worst := None
	for _, gpu := range slices.SortedFunc(maps.Keys(all), Entity.compare) {
		g := all[gpu]
		worst = max(worst, g.worst)
		labels := []string{gpu.GPU, gpu.UUID}
		checks = append(checks, g.checks...)
		unknown = append(unknown, collectors.Sample{Metric: CheckUnknown, Labels: labels, Value: float64(g.unknown)})
		if gpu != (Entity{}) && g.known && (s.answers(gpu) || g.worst > Info) {
			status = append(status, collectors.Sample{Metric: Status, Labels: labels, Value: g.worst.status()})
		}
	}
	s.Add(checks...)
	s.Add(unknown...)
	s.Add(status...)
	if s.answers(Entity{}) || worst > Info {
		s.Add(collectors.Sample{Metric: NodeStatus, Value: worst.status()})
	}
	s.Add(firing...)
	s.Add(e.incidents(s)...)
}

// with adds what a check says of the GPU, or of what is on it.
func (g *standing) with(j *judge, st *status) *standing {
	if g == nil {
		g = &standing{}
	}
	severity := st.severity(j.Check)
	if n := len(g.checks); n == 0 || g.checks[n-1].Labels[2] != j.ID {
		g.checks = append(g.checks, collectors.Sample{Metric: CheckFailing, Labels: []string{st.GPU, st.UUID, j.ID}})
	}
	if severity != None {
		g.checks[len(g.checks)-1].Value = 1
	}
	switch {
	case severity == None && st.state == Unknown:
		g.unknown++
	default:
		g.known = true
	}
	if !j.Shadow {
		g.worst = max(g.worst, severity)
	}
	return g
}

// incidents returns how many incidents each GPU had, by class.
func (e *Engine) incidents(s *Snapshot) (all []collectors.Sample) {
	for _, up := range s.Of(collectors.Up) {
		gpu := entityOf(up, nil)
		for _, class := range Classes {
			all = append(all, collectors.Sample{Metric: IncidentsTotal, Labels: []string{gpu.GPU, gpu.UUID, string(class)}, Value: e.totals[gpu][class]})
		}
	}
	return all
}

// status is the value of Status.
func (s Severity) status() float64 {
	switch {
	case s >= Critical:
		return 2
	case s == Warning:
		return 1
	}
	return 0
}

// A Finding is one fault that an engine sees now.
type Finding struct {
	Check    string    `json:"check"`
	Alert    string    `json:"alert,omitempty"`
	Entity   Entity    `json:"entity"`
	Severity Severity  `json:"severity"`
	State    State     `json:"state"`
	Since    time.Time `json:"since"`
	Latched  bool      `json:"latched,omitempty"`
	Shadow   bool      `json:"shadow,omitempty"` // it does not alert
	Value    float64   `json:"value"`
	Message  string    `json:"message"`
	Action   string    `json:"action"`
}

// Findings returns what fails, and what is unknown, the worst first.
func (e *Engine) Findings() (all []Finding) {
	for _, j := range e.judges {
		for _, st := range j.order {
			if st.state == OK {
				continue
			}
			severity := st.severity(j.Check)
			f := Finding{Check: j.ID, Alert: j.Alert, Entity: st.Entity, Severity: severity, State: st.state, Since: e.dated(st.since), Latched: st.latched,
				Shadow: j.Shadow, Value: st.value(j.Check), Message: e.message(j, st), Action: e.action(j, st)}
			for i, l := range st.levels {
				if l.active && j.Levels[i].Severity == severity {
					f.Since = e.dated(l.since)
				}
			}
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return cmp.Or(-cmp.Compare(a.Severity, b.Severity), a.Entity.compare(b.Entity), cmp.Compare(a.Check, b.Check))
	})
	return all
}

// message says what is wrong, in a sentence.
func (e *Engine) message(j *judge, st *status) string {
	text := j.Summary
	switch severity := st.severity(j.Check); {
	case severity == None && st.state == Unknown:
		text = "There is no data any more to judge " + j.ID + " by."
	case severity == None:
		text = "Over: " + j.Summary
	case j.Detail != "":
		value := st.value(j.Check)
		text = strings.NewReplacer("{value}", fmt.Sprintf("%.4g", value), "{percent}", fmt.Sprintf("%.3g %%", 100*value), "{entity}", st.Name(), "{labels}", e.labels(j, st)).Replace(j.Detail)
	}
	if ev := e.evidence(j, st); ev != nil {
		text += " " + ev.Message
	}
	return text
}

// labels says of what the worst value is, where a check's gauge has several
// series for an entity: ": setting persistence, value 0, expected 1".
func (e *Engine) labels(j *judge, st *status) string {
	var all []string
	for i, l := range st.levels {
		src := j.Levels[i].When.Signal.source
		if src == nil || !l.active {
			continue
		}
		src.each(e.latest, func(s collectors.Sample) {
			if entityOf(s, src.by) == st.Entity && s.Value == l.value {
				all = append(all, src.rest(s))
			}
		})
	}
	if all == nil {
		return ""
	}
	return ": " + strings.Join(slices.Compact(all), "; ")
}

// rest names the labels of a sample that make no entity and that nobody asked
// for by name.
func (src source) rest(s collectors.Sample) string {
	var all []string
	for i, l := range s.Metric.Labels {
		if l != "gpu" && l != "uuid" && !slices.Contains(src.by, l) && !slices.ContainsFunc(src.matches, func(m match) bool { return m.at == i }) {
			all = append(all, l+" "+s.Labels[i])
		}
	}
	return strings.Join(all, ", ")
}

// Name returns the entity as it stands in a sentence: "link 7 of GPU 3".
func (e Entity) Name() string {
	switch {
	case e.Device != "":
		return e.Device
	case e.Link != "":
		return "link " + e.Link + " of GPU " + e.GPU
	case e.Workload != "" || e.Tenant != "":
		return e.who() + e.where()
	case e.GPU != "":
		return "GPU " + e.GPU
	case e.UUID != "":
		return "GPU " + e.UUID
	}
	return "the node"
}

// who names the workload, the tenant, or the workload as one of the tenant's.
func (e Entity) who() string {
	switch {
	case e.Tenant == "":
		return e.Workload
	case e.Workload == "":
		return "tenant " + e.Tenant
	}
	return e.Workload + " of tenant " + e.Tenant
}

// where says which GPU it is that e is on, if it is one.
func (e Entity) where() string {
	if e.GPU == "" {
		return ""
	}
	return " on GPU " + e.GPU
}

// action says what to do; of an incident also in the catalogue's word.
func (e *Engine) action(j *judge, st *status) string {
	if ev := e.evidence(j, st); ev != nil && ev.Action != "" {
		return strings.TrimSuffix(j.Action, ".") + ": " + ev.Action + "."
	}
	return j.Action
}

// evidence returns the newest incident that the check counted, if it counts any.
func (e *Engine) evidence(j *judge, st *status) *Event {
	if st.severity(j.Check) == None {
		return nil
	}
	for i, l := range st.levels {
		counted := j.Levels[i].When.Signal.counts
		if counted == nil || !l.active {
			continue
		}
		for n := len(e.memory.incidents) - 1; n >= 0; n-- {
			ev := &e.memory.incidents[n]
			if entity, ok := counted.entity(ev); ok && entity == st.Entity && counted.Match(ev) {
				return ev
			}
		}
	}
	return nil
}

// transition describes a change of state.
func (e *Engine) transition(j *judge, st *status, from State) Event {
	now := e.memory.now
	ev := Event{Version: EventVersion, Kind: KindTransition, ID: fmt.Sprintf("%s/%s/%d", j.ID, st.Entity, now.UnixNano()), Time: now,
		Entity: st.Entity, Check: j.ID, Class: j.Class, Severity: st.severity(j.Check), From: from, To: st.state, Latched: st.latched,
		Workload: st.Workload, Message: e.message(j, st)}
	for i, l := range st.levels {
		if l.active {
			ev.Value, ev.Threshold, ev.Window, ev.First = l.value, j.Levels[i].When.Threshold, j.Levels[i].For.String(), e.dated(l.since)
		}
	}
	if ev.Severity != None {
		ev.Action = e.action(j, st)
	}
	if cause := e.evidence(j, st); cause != nil {
		ev.What, ev.Code, ev.PID, ev.Comm, ev.Workload, ev.GI = cause.What, cause.Code, cause.PID, cause.Comm, cmp.Or(ev.Workload, cause.Workload), cause.GI
		ev.Sources = cause.Sources
	}
	return ev
}

// Page sets which checks in shadow mode alert all the same.
func (e *Engine) Page(checks []string) { e.page = checks }

// pages reports whether a check alerts.
func (e *Engine) pages(j *judge) bool {
	return j.Alert != "" && (!j.Shadow || slices.Contains(e.page, j.ID))
}

// Alerts returns the alerts that fire, with labels beside their own.
func (e *Engine) Alerts(labels map[string]string) (all []Alert) {
	for _, j := range e.judges {
		if !e.pages(j) {
			continue
		}
		for _, st := range j.order {
			for i, l := range st.levels {
				if l.active {
					all = append(all, e.alert(j, st, j.Levels[i].Severity, l, labels))
				}
			}
		}
	}
	return all
}

// Runbook is where the runbook is, to which "#" and an alert's name in lower
// case are added.
const Runbook = "https://github.com/gpusteward/gpusteward/blob/main/alerts/RUNBOOK.md"

func (e *Engine) alert(j *judge, st *status, severity Severity, l level, labels map[string]string) Alert {
	a := Alert{Starts: e.dated(l.since), Labels: maps.Clone(labels), Annotations: map[string]string{
		"summary": j.Summary, "description": e.message(j, st), "action": e.action(j, st), "runbook_url": Runbook + "#" + strings.ToLower(j.Alert),
		"value": fmt.Sprintf("%.4g", l.value),
	}}
	if a.Labels == nil {
		a.Labels = map[string]string{}
	}
	maps.Copy(a.Labels, map[string]string{"alertname": j.Alert, "severity": severity.String(), "check": j.ID, "source": "gpusteward"})
	for _, p := range st.parts() {
		a.Labels[p[0]] = p[1]
	}
	if ev := e.evidence(j, st); ev != nil {
		for name, v := range map[string]string{"pid": fmt.Sprint(ev.PID), "comm": ev.Comm, "workload": ev.Workload, "sources": strings.Join(ev.Sources, ", ")} {
			if v != "" && v != "0" {
				a.Annotations[name] = v
			}
		}
	}
	return a
}
