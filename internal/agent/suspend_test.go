package agent

import (
	"errors"
	"strings"
	"testing"

	"gpusteward/enforcer/suspend"
	"gpusteward/health/incident"
)

// TestSuspensionsAreEvents writes what happened to whom, and why, into the
// journal.
func TestSuspensionsAreEvents(t *testing.T) {
	r := suspend.Record{Tenant: "a", Workload: "slurm:1", Why: "ordered by uid 0"}
	for _, c := range []struct {
		end      suspend.End
		now      string
		result   string
		severity incident.Severity
		says     string
	}{
		{suspend.End{Record: r, Done: suspend.Suspended}, "suspended", "done", incident.Info, "uid 0"},
		{suspend.End{Record: r, Done: suspend.Resuming}, "running", "done", incident.Info, "uid 0"},
		{suspend.End{Record: r, Done: suspend.Suspended, Err: errors.New("no room")}, "suspended", "failed", incident.Warning,
			"no room"},
		{suspend.End{Record: r, Done: suspend.Resuming, Lost: []int{7}}, "running", "done", incident.Critical, "[7]"},
	} {
		e := suspended(c.end)
		if e.Kind != incident.KindEnforcement || e.Entity.Workload != "slurm:1" || e.Entity.Tenant != "a" ||
			e.Now != c.now || e.Result != c.result || e.Severity != c.severity || !strings.Contains(e.Message, c.says) ||
			e.Was == e.Now || e.Time.IsZero() {
			t.Errorf("%+v is told as %+v", c.end, e)
		}
	}
}
