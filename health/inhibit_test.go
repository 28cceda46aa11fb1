package health

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors"
	"gpusteward/collectors/faults"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// firingOf returns an alert of a check on a GPU.
func firingOf(check string, severity incident.Severity, uuid string) Alert {
	return Alert{Labels: map[string]string{"alertname": check, "check": check, "severity": severity.String(),
		"uuid": uuid, "instance": "n:9836", "source": "gpusteward"}}
}

// TestAlertmanagerSilencesAlike compares the shipped rules for Alertmanager with the agent's own silencing: every
// check, with every severity, beside every other check.
func TestAlertmanagerSilencesAlike(t *testing.T) {
	t.Parallel()
	var shipped struct {
		Rules []struct {
			Source []string `yaml:"source_matchers"`
			Target []string `yaml:"target_matchers"`
			Equal  []string `yaml:"equal"`
		} `yaml:"inhibit_rules"`
	}
	text := fixture.Value(os.ReadFile("../deploy/alertmanager.yml"))(t)
	fixture.Must(t, yaml.Unmarshal(text, &shipped))
	matcher := regexp.MustCompile(`^(\w+) (=|!=|=~|!~) "(.*)"$`)
	type match struct {
		label string
		is    *regexp.Regexp
		not   bool
	}
	read := map[string]match{}
	matches := func(a Alert, all []string) bool {
		return !slices.ContainsFunc(all, func(text string) bool {
			x, known := read[text]
			if !known {
				m := matcher.FindStringSubmatch(text)
				fixture.Need(t, m == nil, false, "matcher %q", text)
				if !strings.HasSuffix(m[2], "~") {
					m[3] = regexp.QuoteMeta(m[3])
				}
				x = match{m[1], regexp.MustCompile("^(?:" + m[3] + ")$"), strings.HasPrefix(m[2], "!")}
				read[text] = x
			}
			return x.is.MatchString(a.Labels[x.label]) == x.not
		})
	}
	silences := func(a, b Alert) bool {
		for _, r := range shipped.Rules {
			same := !slices.ContainsFunc(r.Equal, func(label string) bool { return a.Labels[label] != b.Labels[label] })
			if same && matches(a, r.Source) && matches(b, r.Target) {
				return true
			}
		}
		return false
	}
	var all []Alert
	for _, c := range Checks() {
		for _, l := range c.Levels {
			a := firingOf(c.ID, l.Severity, "GPU-0")
			a.Labels["alertname"] = c.Alert
			all = append(all, a)
		}
	}
	pairs := 0
	for _, a := range all {
		for _, b := range all {
			want := a.silences(b)
			fixture.Equal(t, silences(a, b), want, "%v beside %v: Alertmanager silences it", a.Labels, b.Labels)
			if want {
				pairs++
			}
			for _, label := range []string{"instance", "gpu", "uuid", "link", "tenant", "workload", "device"} {
				elsewhere := label == "instance" || label == "uuid"
				if a.Labels["check"] != b.Labels["check"] && !(elsewhere && want) {
					continue // another label makes none be silenced that is not now
				}
				part := Alert{Labels: maps.Clone(b.Labels)}
				part.Labels[label] = "another"
				if silences(a, part) {
					t.Errorf("%s of %s: Alertmanager silences %s of %s where %s is another", a.Labels["severity"],
						a.Labels["check"], b.Labels["severity"], b.Labels["check"], label)
				}
			}
			other := firingOf(b.Labels["check"], severityOf(b), "GPU-1")
			if a.silences(other) {
				t.Errorf("%s silences %s of another GPU", a.Labels["check"], b.Labels["check"])
			}
			if b.Labels["check"] != a.Labels["check"] && severityOf(b) > severityOf(a) && want {
				t.Errorf("%s silences %s, which is worse", a.Labels["check"], b.Labels["check"])
			}
		}
	}
	fixture.AtLeast(t, pairs, 50, "pairs are silenced")
	for _, i := range inhibitions {
		for _, id := range append(slices.Clone(i.Effects), i.Cause) {
			if !slices.ContainsFunc(Checks(), func(c *Check) bool { return c.ID == id }) {
				t.Errorf("%q is no check", id)
			}
		}
	}
}

// TestFailedRemapAlertsOnce checks the alerts of one fault that four checks see, and that no alert is withdrawn.
func TestFailedRemapAlertsOnce(t *testing.T) {
	w := newWorld(t, Checks()...)
	m := &Monitor{engine: w.engine, firing: map[string]Alert{}}
	m.Configure(Settings{})
	var told []Alert
	m.Tell = func(all []Alert) { told = all }
	fires := func() (all []string) {
		m.tell(w.now)
		for _, a := range told {
			if a.Ends.IsZero() {
				all = append(all, a.Labels["check"]+"/"+a.Labels["severity"])
			}
		}
		slices.Sort(all)
		return all
	}
	fault := func(n, code int, check string) incident.Event {
		x := incident.XIDs()[code]
		return incident.Event{Kind: incident.KindIncident, ID: fmt.Sprint("i-", n),
			Entity: incident.Entity{GPU: "0", UUID: "GPU-0"}, What: incident.WhatXID, Code: code, Class: x.Class,
			Severity: x.Severity, Check: check, First: w.now, Last: w.now, Count: 1}
	}
	recovery := fault(2, incident.RecoveryXID, incident.RecoveryCheck)
	recovery.Severity = incident.Critical
	up := on("0", collectors.Up, 1)
	w.step(step, []incident.Event{fault(1, 64, "remap_failed"), recovery}, up, on("0", faults.RowRemapFailure, 1),
		on("0", faults.RowRemapPending, 1), on("0", faults.RecoveryAction, 1))
	all := len(w.engine.Alerts(nil))
	if got := fires(); !slices.Equal(got, []string{"remap_failed/emergency"}) || all < 4 {
		t.Errorf("of %d alerts, %v were sent, want only the cause", all, got)
	}

	w = newWorld(t, Checks()...)
	m.engine, m.firing = w.engine, map[string]Alert{}
	w.step(step, nil, up, on("0", faults.RecoveryAction, 1))
	before := fires()
	w.step(step, nil, up, on("0", faults.RecoveryAction, 1), on("0", faults.RowRemapFailure, 1))
	if got := fires(); !slices.Equal(before, []string{incident.RecoveryCheck + "/critical"}) ||
		!slices.Equal(got, []string{incident.RecoveryCheck + "/critical", "remap_failed/emergency"}) {
		t.Errorf("told %v, and with the cause %v: what was told stays", before, got)
	}
}
