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

// deviations are the rows of the table of checks that are made otherwise, and
// why.
var deviations = map[string]string{
	"ecc_uncorrectable": "its action waits for the end of the work: nobody is to be woken for it, and what cannot wait is an XID of its own",
	"agent_self":        "an agent that does not get to run for half a minute is worth knowing: info before a warning",
	"mem_leak":          "what fills a GPU on purpose grows as a leak does, until it is full: info before a warning",
	"nvlink_down":       "a link that comes back each time is no link that is lost: a warning",
	"remap_count":       "three remaps in a day may be the beginning of a trend: info",
	"driver_hang":       "a call may wait for a minute while another tool holds the driver's lock: info before critical",
	"thermal_margin":    "where nearly all GPUs of the host are as hot it is the room's air, and no GPU: info",
	"mem_pressure":      "never alerts: it is a metric, nvgpu_memory_pressure_ratio; frameworks take all memory on purpose, and mem_leak and the quotas tell of who takes what it should not",
	"power_cap_ratio":   "never alerts: it is a metric, nvgpu_clock_event_seconds_total",
	"stale":             "the table's severity is unknown, which is the GPU's state; people see a warning",
	"xid_repeat":        "an application's fault never condemns a GPU: info where many owners have it, and a warning where the GPU had a fault of its own too",
	"quota_violation":   "the escalation beyond a warning is the enforcer's",
}

// renamed are checks whose row has another id, or that share one.
var renamed = map[string]string{"qos": "qos_bandwidth / qos_latency", "ib_port_flap": "ib_port"}

// added are checks beside those of the table, and why.
var added = map[string]string{
	"clock_outlier":      "slow_gpu among GPUs that do the same job, which needs no shadow mode",
	"work_outlier":       "the same by what a GPU gets done",
	"memory_clock":       "clock_stuck for memory",
	"temp_rise":          "temp_outlier against the GPU's own past: where it sits in the chassis is no fault",
	"hw_slowdown":        "power_brake and thermal_throttle_ratio where the driver names neither",
	"fan_stopped":        "thermal_margin before it is too late",
	"nvlink_missing":     "nvlink_down where the link never was up",
	"nvlink_slow":        "nvlink_down in part",
	"driver_mismatch":    "driver_unbound by its name",
	"ghost_process":      "orphan_memory of a process that the driver still lists",
	"gsp":                "xid_fatal where no XID comes",
	"busy_idle":          "hung_kernel with no process to ask about",
	"driver_error":       "xid_fatal where no XID comes, for all but the GSP",
	"broker":             "who keeps quotas, and not what they are",
	"driver_blocked":     "the second half of driver_hang: tasks in state D are the host's, and no GPU's",
	"unhooked":           "quota_violation by processes that no book knows",
	"quota_drift":        "the enforcer's own books, held against the driver's",
	"quota_convoy":       "qos of a job on several GPUs: the time that it loses shows in no GPU's share",
	"quota_action":       "the second half of quota_violation: the escalation's last levels",
	"quota_forecast":     "mem_leak against the tenant's cap instead of the GPU's memory",
	"guarantee_forecast": "qos before it happens",
	"nvlink_gpu_outlier": "nvlink_outlier where links have no series of their own: the sum of a GPU against its peers",
}

// TestTable holds the checks against the table from which they were made: their
// ids, the names of their alerts and the severities.
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
			t.Errorf("%s: its severities are %v, the table says %v; a deviation with a reason: %v", f[0], c.severities, want, differs)
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

// severities reads a cell of the table: what is early is worth knowing.
func severities(cell string) map[string]bool {
	all := map[string]bool{}
	for _, word := range regexp.MustCompile(`early-warning|early|info|warning|critical|emergency`).FindAllString(cell, -1) {
		if strings.HasPrefix(word, "early") {
			word = "info"
		}
		all[word] = true
	}
	return all
}
