package health

import "time"

// An Alert is one alert as Alertmanager knows it: its labels are its
// identity, so no value, PID or text that changes is in them.
type Alert struct {
	Labels      map[string]string // alertname, severity, check, source, node and the entity's
	Annotations map[string]string // summary, description, runbook_url and the evidence
	Starts      time.Time
	Ends        time.Time // when it was resolved; zero while it fires
}
