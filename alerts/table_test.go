package alerts

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/health"
)

// deviations lists the rows of the table that a check follows only in part, with reasons.
var deviations = map[string]string{
	"ecc_uncorrectable": "its action can wait until the work ends; urgent cases have an XID of their own",
	"agent_self":        "an agent that does not run for half a minute is worth an info before the warning",
	"mem_leak":          "filling a GPU on purpose looks like a leak until it is full: info before a warning",
	"nvlink_down":       "a link that comes back each time is not lost: a warning",
	"remap_count":       "three remaps in a day may be the beginning of a trend: info",
	"driver_hang":       "a call may wait a minute for another tool that holds the driver's lock: info before critical",
	"thermal_margin":    "if nearly all GPUs of the host are hot, the cause is the air of the room and not a GPU: info",
	"mem_pressure": "never alerts: it is a metric, nvgpu_memory_pressure_ratio; frameworks take all memory " +
		"on purpose, and mem_leak and the quotas report those that take too much",
	"power_cap_ratio": "never alerts: it is a metric, nvgpu_clock_event_seconds_total",
	"stale":           "the table's severity is unknown, which is the state of the GPU; the alert is a warning",
	"xid_repeat": "an application's fault never condemns a GPU: info if many owners have it, " +
		"and a warning if the GPU also had a fault of its own",
	"quota_violation": "escalation beyond a warning is the enforcer's",
}

// renamed lists checks with another id in the table, and checks that share a row.
var renamed = map[string]string{"qos": "qos_bandwidth / qos_latency", "ib_port_flap": "ib_port"}

// added lists checks that the table does not have, with reasons.
var added = map[string]string{
	"clock_outlier":      "slow_gpu among GPUs that do the same job, which needs no shadow mode",
	"work_outlier":       "clock_outlier by the work that a GPU gets done",
	"memory_clock":       "clock_stuck for memory",
	"temp_rise":          "temp_outlier against the GPU's own past: its place in the chassis is not a fault",
	"hw_slowdown":        "power_brake and thermal_throttle_ratio if the driver names neither",
	"fan_stopped":        "thermal_margin before it is too late",
	"c2c_link":           "nvlink_down of a superchip's links to its CPU",
	"nvlink_missing":     "nvlink_down for a link that was never up",
	"nvlink_slow":        "nvlink_down in part",
	"driver_mismatch":    "driver_unbound with its cause",
	"ghost_process":      "orphan_memory of a process that the driver still lists",
	"gsp":                "xid_fatal without an XID",
	"busy_idle":          "hung_kernel without a process",
	"hung_job":           "hung_kernel of a workload on several GPUs, told once",
	"driver_error":       "xid_fatal without an XID, for all but the GSP",
	"broker":             "the process that holds the quotas, not the quotas",
	"driver_blocked":     "the second half of driver_hang: tasks in state D belong to the host and not to a GPU",
	"unhooked":           "quota_violation by processes without a session",
	"quota_drift":        "the enforcer's own books against the driver's",
	"job_hang":           "hung_job by what its processes do, with the culprit",
	"job_slow":           "tenant_stall by what its processes do, with the cause",
	"job_straggler":      "a rank of a job, and not a GPU among others",
	"quota_convoy":       "qos of a job on several GPUs: its lost time shows in no GPU's share",
	"quota_action":       "the second half of quota_violation: the last levels of escalation",
	"resume_late":        "an order of the enforcer's that it cannot carry out",
	"overcommit_wait":    "a promise of more memory than there is, which nobody can have in turn",
	"suspend_broken":     "driver_error for processes that were suspended, without an XID",
	"quota_forecast":     "mem_leak against the tenant's cap instead of the GPU's memory",
	"guarantee_forecast": "qos before it happens",
	"nvlink_gpu_outlier": "nvlink_outlier for links without series of their own: the sum of a GPU against its peers",
}

// TestTable compares the checks with the table from which they were written: their ids, the
// names of their alerts and their severities.
func TestTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../health/testdata/health-checks.tsv")
	if err != nil {
		t.Fatal(err)
	}
	type made struct {
		alerts     []string
		severities map[string]bool
	}
	checks := map[string]*made{}
	for _, c := range health.Checks() {
		id := c.ID
		if row := renamed[id]; row != "" {
			id = row
		}
		if checks[id] == nil {
			checks[id] = &made{severities: map[string]bool{}}
		}
		checks[id].alerts = append(checks[id].alerts, c.Alert)
		for _, l := range c.Levels {
			checks[id].severities[l.Severity.String()] = true
		}
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if f[0] == "id" {
			continue
		}
		rows++
		c, differs := checks[f[0]], deviations[f[0]] != ""
		delete(checks, f[0])
		if c == nil {
			if !differs {
				t.Errorf("%s: there is no such check", f[0])
			}
			continue
		}
		if alerts := strings.Split(f[7], " / "); !slices.Equal(c.alerts, alerts) {
			t.Errorf("%s: its alerts are %q, the table says %q", f[0], c.alerts, alerts)
		}
		if want := severities(f[5]); maps.Equal(c.severities, want) == differs {
			t.Errorf("%s: its severities are %v, the table says %v; listed as a deviation: %v",
				f[0], c.severities, want, differs)
		}
	}
	if rows != 53 {
		t.Errorf("the table has %d rows", rows)
	}
	for id := range checks {
		if added[id] != "" {
			continue
		}
		t.Errorf("the check %s is not in the table", id)
	}
}

// severities parses a cell of the table. An early warning is an info.
func severities(cell string) map[string]bool {
	all := map[string]bool{}
	words := regexp.MustCompile(`early-warning|early|info|warning|critical|emergency`)
	for _, word := range words.FindAllString(cell, -1) {
		if strings.HasPrefix(word, "early") {
			word = "info"
		}
		all[word] = true
	}
	return all
}
