package agent

import (
	"context"
	"encoding/json"
	"regexp"

	"gpusteward/exporter"
	"gpusteward/health"
)

// checkNames returns the names of all checks, to complete one.
func checkNames() (ids []string) {
	for _, c := range health.Checks() {
		ids = append(ids, c.ID)
	}
	return ids
}

// plainName matches names that a shell takes as they are.
var plainName = regexp.MustCompile(`^[\w:.@/-]+$`)

// workloadNames returns the workloads of the running agent, to complete one; none if
// it does not answer.
func (f *flags) workloadNames() (names []string) {
	var s exporter.State
	text, err := exporter.Agent{RuntimeDir: f.runtimeDir}.Ask(context.Background(), "/api/v1/state")
	if err != nil || json.Unmarshal(text, &s) != nil {
		return nil
	}
	for _, w := range s.Workloads {
		if plainName.MatchString(w.Name) {
			names = append(names, w.Name)
		}
	}
	return names
}
