package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/health/incident"
)

const fleetHead = `# Alerting rules over several hosts, and for agents that do not answer. Written
# by make generate from alerts/fleet.go; do not edit. The scrape configuration
# of the agents must have the job_name gpusteward. The rules evaluate clusters
# and racks separately if the targets have the labels cluster and rack;
# otherwise all hosts form one group. Requires Prometheus 2.42.
`

// A fleetRule is a rule over several hosts and the scenes that test it. Its description is a
// Prometheus template.
type fleetRule struct {
	rule
	cause  string
	scenes []scene
}

// lowMargin counts the hosts of a rack that have a GPU less than 5 °C from its limit.
var lowMargin = fmt.Sprintf("count by (job, cluster, rack) (min by (job, cluster, rack, instance) (%s) < 5)",
	device.TemperatureMargin)

var fleet = []fleetRule{
	{
		rule: rule{
			alert: "GPUStewardDown", severity: incident.Critical, wait: 15 * time.Minute, // a boot takes minutes
			expr:        fmt.Sprintf("up{job=%q} == 0", job),
			summary:     "{{ $labels.instance }}: Prometheus cannot scrape the agent of a GPU host.",
			description: "Its GPUs are not monitored.",
			action:      "Check that the host is up. Then run systemctl status gpusteward, and read its log.",
		},
		cause: "The host, its network or the agent has been down for longer than a reboot takes. Until it answers, its " +
			"other alerts are out of date, and are silenced.",
		scenes: []scene{{
			shows: []shown{up(0, 1, 0), up(1, 1, 1)},
			want:  [][2]string{{"instance", "host-0:9836"}, {"job", job}},
			says:  "Its GPUs are not monitored.",
		}},
	},
	{
		rule: rule{
			alert: "GPUStewardAbsent", severity: incident.Critical, wait: 10 * time.Minute,
			expr:        fmt.Sprintf("absent(up{job=%q})", job),
			summary:     "Prometheus has no agent as a target.",
			description: "The job {{ $labels.job }} is empty: no GPU is monitored.",
			action:      "Check Prometheus's scrape configuration and service discovery.",
		},
		cause: "Somebody removed or renamed the job, or nothing is discovered for it.",
		scenes: []scene{{
			shows: []shown{up(0, 1, none)},
			want:  [][2]string{{"job", job}},
			says:  "The job gpusteward is empty: no GPU is monitored.",
		}},
	},
	{
		rule: rule{
			alert: "FleetXIDBurst", severity: incident.Warning,
			expr: fmt.Sprintf("count by (job, cluster, xid) "+
				"(max by (job, cluster, instance, xid) (%s) > time() - 3600) >= 3", faults.XIDLast),
			summary:     "The same XID occurred on several hosts within an hour.",
			description: "{{ $value }} hosts had XID {{ $labels.xid }} within an hour.",
			action:      "Find what the hosts have in common: a job, an image, a new driver, a switch, a power feed.",
		},
		cause: "GPUs do not fail together by chance. health/incident/data/xid.tsv explains the code.",
		scenes: []scene{{
			shows: slices.Concat(
				on([]int{0, 1, 2}, faults.XIDLast, `gpu="0",uuid="GPU-0",xid="79",`, longAgo, 60),
				on([]int{0, 1}, faults.XIDLast, `gpu="0",uuid="GPU-0",xid="31",`, longAgo, 60),
				on([]int{2}, faults.XIDLast, `gpu="0",uuid="GPU-0",xid="31",`, longAgo, longAgo)),
			want: [][2]string{{"job", job}, {"xid", "79"}},
			says: "3 hosts had XID 79 within an hour.",
		}},
	},
	{
		rule: rule{
			alert: "FleetGPUsMissing", severity: incident.Critical, wait: 5 * time.Minute,
			expr: fmt.Sprintf("1 - (sum by (job, cluster) (%s) or 0 * sum by (job, cluster) (%s))"+
				" / sum by (job, cluster) (%[2]s unless on (job, instance) %s == 1) > 0.05",
				collectors.Devices, collectors.DevicesExpected, collectors.Drained),
			summary:     "More than 5 % of the fleet's GPUs are missing.",
			description: "{{ $value | humanizePercentage }} of the GPUs that the hosts should have are missing.",
			action:      "Find the hosts with GPUMissing or GPUDriverUnbound, and what they have in common.",
		},
		cause: "Hosts that answer list fewer GPUs than they once had. " +
			"Drained hosts and hosts that are down do not count.",
		scenes: []scene{{
			shows: slices.Concat(
				on([]int{0}, collectors.Devices, "", 19, 18),
				on([]int{0, 1}, collectors.DevicesExpected, "", 19, 19),
				on([]int{1}, collectors.Devices, "", 19, none),
				on([]int{1}, collectors.Drained, "", 0, 1)),
			want: [][2]string{{"job", job}},
			says: "5.263% of the GPUs that the hosts should have are missing.",
		}, {
			// No host lists a GPU, as when the driver does not load.
			shows: append(on([]int{0}, collectors.Devices, "", 8, none),
				on([]int{0}, collectors.DevicesExpected, "", 8, 8)...),
			want: [][2]string{{"job", job}},
			says: "100% of the GPUs that the hosts should have are missing.",
		}},
	},
	{
		rule: rule{
			alert: "FleetThermal", severity: incident.Warning, wait: 5 * time.Minute,
			expr: lowMargin + " >= 3\nand\n" + lowMargin +
				fmt.Sprintf(" / count by (job, cluster, rack) (min by (job, cluster, rack, instance) (%s)) > 0.25",
					device.TemperatureMargin),
			summary:     "Many hosts are close to thermal throttling.",
			description: "{{ $value }} hosts have a GPU less than 5 degrees Celsius from its limit.",
			action:      "Check the room: the inlet temperature, the cooling units, the airflow of the rack.",
		},
		cause: "One hot GPU has a problem with its heat sink; if a quarter of the hosts is hot, the cooling has one. Hosts are counted " +
			"by rack if the targets have that label. GPUs report their margin since Hopper.",
		scenes: []scene{{
			shows: slices.Concat(
				on([]int{0, 1, 2}, device.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="a",`, 20, 4),
				on([]int{3, 4, 5}, device.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="a",`, 20, 20),
				on([]int{6, 7}, device.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="b",`, 20, 4),
				on([]int{8}, device.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="b",`, 20, 5),
				on([]int{10, 11, 12}, device.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="c",`, 20, 4),
				on([]int{13, 14, 15, 16, 17, 18, 19, 20, 21}, device.TemperatureMargin,
					`gpu="0",uuid="GPU-0",rack="c",`, 20, 5)),
			want: [][2]string{{"job", job}, {"rack", "a"}},
			says: "3 hosts have a GPU less than 5 degrees Celsius from its limit.",
		}},
	},
	{
		rule: rule{
			alert: "FleetDriverVersionsMixed", severity: incident.Info, wait: 24 * time.Hour,
			expr: fmt.Sprintf("count by (job, cluster) (count by (job, cluster, driver_version) (%s)) > 1",
				device.DriverInfo),
			summary:     "Hosts have had different versions of the driver for a day.",
			description: "{{ $value }} versions of the driver are in use.",
			action:      "Finish the upgrade, or roll it back.",
		},
		cause: "A rollout stopped halfway. Jobs over several hosts may fail in ways that were never tested.",
		scenes: []scene{{
			shows: slices.Concat(
				on([]int{0, 1}, device.DriverInfo, `driver_version="580.95.05",`, 1, 1),
				on([]int{1}, device.DriverInfo, `driver_version="590.12.01",`, none, 1)),
			want: [][2]string{{"job", job}},
			says: "2 versions of the driver are in use.",
		}},
	},
}

// fleetRules returns the rules over several hosts: of the fleet, and of racks.
func fleetRules() []fleetRule { return slices.Concat(fleet, ofRacks()) }

// ofFleet returns the fleet's rules and their tests.
func ofFleet() (rules []rule, tests []ruleTest) {
	for _, f := range fleetRules() {
		rules = append(rules, f.rule)
		for _, s := range f.scenes {
			tests = append(tests, s.test(f.rule))
		}
	}
	return rules, tests
}

// metrics returns the metrics in the rule's expression.
func (f fleetRule) metrics() (all []string) {
	for _, m := range collectors.Metrics() {
		if slices.ContainsFunc([]string{" ", ")", "{"}, func(after string) bool {
			return strings.Contains(f.expr, m.Name+after)
		}) {
			all = append(all, m.Name)
		}
	}
	return all
}
