package alerts

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
)

const fleetHead = `# Alerting rules for what takes more than one host to see, and for agents that
# do not answer. Written by make generate from alerts/fleet.go; do not edit.
# The agents' scrape configuration must be called gpusteward (job_name). Where
# targets have the labels cluster and rack, these are judged one by one; else
# all hosts are one. Needs Prometheus 2.42.
`

// A fleetRule is a rule over several hosts, with what shows that it is right.
// Its description is a template of Prometheus's.
type fleetRule struct {
	rule
	cause  string
	scenes []scene
}

// lowMargin are the hosts of a rack with a GPU that is about to slow down.
var lowMargin = fmt.Sprintf("count by (job, cluster, rack) (min by (job, cluster, rack, instance) (%s) < 5)", collectors.TemperatureMargin)

var fleet = []fleetRule{
	{
		rule: rule{
			alert: "GPUStewardDown", severity: incident.Critical, wait: 15 * time.Minute, // a GPU host takes minutes to boot
			expr:        fmt.Sprintf("up{job=%q} == 0", job),
			summary:     "{{ $labels.instance }}: The agent of a GPU host does not answer Prometheus.",
			description: "{{ $labels.instance }} cannot be scraped: nobody watches its GPUs.",
			action:      "See whether the host is up, then systemctl status gpusteward and its log.",
		},
		cause: "The host or its network is down, or the agent is. Until it answers, what is said of the host is old, and silenced. A host that boots is back within a quarter of an hour.",
		scenes: []scene{{
			shows: []shown{up(0, 1, 0), up(1, 1, 1)},
			want:  [][2]string{{"instance", "host-0:9836"}, {"job", job}},
			says:  "host-0:9836 cannot be scraped: nobody watches its GPUs.",
		}},
	},
	{
		rule: rule{
			alert: "GPUStewardAbsent", severity: incident.Critical, wait: 10 * time.Minute,
			expr:        fmt.Sprintf("absent(up{job=%q})", job),
			summary:     "Prometheus knows no agent at all.",
			description: "Prometheus has no target of the job {{ $labels.job }}: nobody watches any GPU.",
			action:      "Look at Prometheus's scrape configuration and service discovery.",
		},
		cause: "The job is gone from the configuration, is called something else, or its service discovery finds nothing.",
		scenes: []scene{{
			shows: []shown{up(0, 1, none)},
			want:  [][2]string{{"job", job}},
			says:  "Prometheus has no target of the job gpusteward: nobody watches any GPU.",
		}},
	},
	{
		rule: rule{
			alert: "FleetXIDBurst", severity: incident.Warning,
			expr:        fmt.Sprintf("count by (job, cluster, xid) (max by (job, cluster, instance, xid) (%s) > time() - 3600) >= 3", collectors.XIDLast),
			summary:     "The same XID came on several hosts within an hour.",
			description: "{{ $value }} hosts had XID {{ $labels.xid }} within an hour.",
			action:      "Look for what they share: a job, an image, a new driver, a switch, a power feed.",
		},
		cause: "GPUs do not fail together by chance. health/incident/data/xid.tsv says what the code means.",
		scenes: []scene{{
			shows: append(append(on([]int{0, 1, 2}, collectors.XIDLast, `gpu="0",uuid="GPU-0",xid="79",`, longAgo, 60),
				on([]int{0, 1}, collectors.XIDLast, `gpu="0",uuid="GPU-0",xid="31",`, longAgo, 60)...),
				on([]int{2}, collectors.XIDLast, `gpu="0",uuid="GPU-0",xid="31",`, longAgo, longAgo)...),
			want: [][2]string{{"job", job}, {"xid", "79"}},
			says: "3 hosts had XID 79 within an hour.",
		}},
	},
	{
		rule: rule{
			alert: "FleetGPUsMissing", severity: incident.Critical, wait: 5 * time.Minute,
			expr: fmt.Sprintf("1 - (sum by (job, cluster) (%s) or 0 * sum by (job, cluster) (%s)) / sum by (job, cluster) (%[2]s unless on (job, instance) %s == 1) > 0.05",
				collectors.Devices, collectors.DevicesExpected, collectors.Drained),
			summary:     "More than one in twenty of the fleet's GPUs is missing.",
			description: "{{ $value | humanizePercentage }} of the GPUs that the hosts should have are missing.",
			action:      "See which hosts have GPUMissing or GPUDriverUnbound, and what they share.",
		},
		cause: "Hosts that answer and list fewer GPUs than they were seen to have. Drained hosts and hosts that are down do not count.",
		scenes: []scene{{
			shows: append(append(on([]int{0}, collectors.Devices, "", 19, 18), on([]int{0, 1}, collectors.DevicesExpected, "", 19, 19)...),
				append(on([]int{1}, collectors.Devices, "", 19, none), on([]int{1}, collectors.Drained, "", 0, 1)...)...),
			want: [][2]string{{"job", job}},
			says: "5.263% of the GPUs that the hosts should have are missing.",
		}, {
			// No host lists any GPU, as with a driver that does not load.
			shows: append(on([]int{0}, collectors.Devices, "", 8, none), on([]int{0}, collectors.DevicesExpected, "", 8, 8)...),
			want:  [][2]string{{"job", job}},
			says:  "100% of the GPUs that the hosts should have are missing.",
		}},
	},
	{
		rule: rule{
			alert: "FleetThermal", severity: incident.Warning, wait: 5 * time.Minute,
			expr: lowMargin + " >= 3\nand\n" + lowMargin +
				fmt.Sprintf(" / count by (job, cluster, rack) (min by (job, cluster, rack, instance) (%s)) > 0.25", collectors.TemperatureMargin),
			summary:     "Many hosts are about to slow down for heat.",
			description: "{{ $value }} hosts have a GPU less than 5 degrees Celsius from its limit.",
			action:      "Look at the room: inlet temperature, cooling units, airflow of the rack.",
		},
		cause: "One hot GPU is a heat sink; a quarter of the hosts is the cooling. Counted by rack where targets have that label; GPUs since Hopper say their margin.",
		scenes: []scene{{
			shows: slices.Concat(
				on([]int{0, 1, 2}, collectors.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="a",`, 20, 4),
				on([]int{3, 4, 5}, collectors.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="a",`, 20, 20),
				on([]int{6, 7}, collectors.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="b",`, 20, 4),
				on([]int{8}, collectors.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="b",`, 20, 5),
				on([]int{10, 11, 12}, collectors.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="c",`, 20, 4),
				on([]int{13, 14, 15, 16, 17, 18, 19, 20, 21}, collectors.TemperatureMargin, `gpu="0",uuid="GPU-0",rack="c",`, 20, 5)),
			want: [][2]string{{"job", job}, {"rack", "a"}},
			says: "3 hosts have a GPU less than 5 degrees Celsius from its limit.",
		}},
	},
	{
		rule: rule{
			alert: "FleetDriverVersionsMixed", severity: incident.Info, wait: 24 * time.Hour,
			expr:        fmt.Sprintf("count by (job, cluster) (count by (job, cluster, driver_version) (%s)) > 1", collectors.DriverInfo),
			summary:     "Hosts have had different versions of the driver for a day.",
			description: "{{ $value }} versions of the driver are in use.",
			action:      "Finish the upgrade, or undo it.",
		},
		cause: "A rollout that stopped half-way. Jobs over several hosts may then fail in ways that nobody has tested.",
		scenes: []scene{{
			shows: append(on([]int{0, 1}, collectors.DriverInfo, `driver_version="580.95.05",`, 1, 1), on([]int{1}, collectors.DriverInfo, `driver_version="590.12.01",`, none, 1)...),
			want:  [][2]string{{"job", job}},
			says:  "2 versions of the driver are in use.",
		}},
	},
}

// ofFleet returns the fleet's rules and their tests.
func ofFleet() (rules []rule, tests []ruleTest) {
	for _, f := range fleet {
		rules = append(rules, f.rule)
		for _, s := range f.scenes {
			tests = append(tests, s.test(f.rule))
		}
	}
	return rules, tests
}

// metrics returns the metrics that the rule looks at.
func (f fleetRule) metrics() (all []string) {
	for _, m := range collectors.Metrics() {
		if strings.Contains(f.expr, m.Name+" ") || strings.Contains(f.expr, m.Name+")") {
			all = append(all, m.Name)
		}
	}
	return all
}
