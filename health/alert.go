package health

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// An Alert is one alert as Alertmanager knows it. Its labels are its identity,
// so they contain no value, PID or text that changes.
type Alert struct {
	Labels      map[string]string // alertname, severity, check, class, source, node, the entity's and those of all
	Annotations map[string]string // summary, description, runbook_url and the evidence
	Starts      time.Time
	Ends        time.Time // when it was resolved; zero while it fires
}

// Identity is the alert's labels as one string.
func (a Alert) Identity() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(a.Labels)) {
		b.WriteString(name + "\x00" + a.Labels[name] + "\x00")
	}
	return b.String()
}
