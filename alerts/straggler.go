package alerts

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health/incident"
)

const stragglerHead = `# Names the rank for which the others of a job wait, across hosts. Written by
# make generate from alerts/straggler.go; do not edit. The scrape configuration
# of the agents must have the job_name gpusteward, and a scrape_interval of 5s:
# with a longer one these rules find nothing. Requires Prometheus 2.42.
`

// stragglerStep is the interval of scrapes and evaluations. The window has four
// scrapes, of which two may be missing. The rule waits for longer than a window:
// what happens once, such as a pause of the program, leaves it before.
const (
	stragglerStep   = 5 * time.Second
	stragglerWindow = 20 * time.Second
	stragglerWait   = 25 * time.Second
)

// A derivation is a recording rule of a rank in a communicator.
type derivation struct{ doc, name, expr string }

// The recorded series.
const (
	meanSeconds = "rank:nvgpu_rank_collective_seconds:mean"
	lostRatio   = "rank:nvgpu_rank_lost_seconds:rate"
	spread      = "communicator:nvgpu_rank_spread_seconds:rate"
)

// ofAll are the labels of a communicator.
const ofAll = "(job, cluster, communicator)"

// collectivesOver is the rate of a communicator's collectives over a window.
func collectivesOver(window time.Duration) string {
	return fmt.Sprintf("quantile by %s (0.5, rate(%s[%s]))", ofAll, workloads.RankCollectives, promDuration(window))
}

var derivations = []derivation{
	{"Seconds that a collective takes on the rank's GPU, with the wait for other ranks.", meanSeconds,
		fmt.Sprintf("rate(%s[%s]) / (rate(%s[%[2]s]) > 0)", workloads.RankSeconds, promDuration(stragglerWindow),
			workloads.RankMeasured)},
	{"Seconds per second for which the typical rank waits longer than this one.", lostRatio,
		fmt.Sprintf("(quantile by %s (0.5, %s) - on %[1]s group_right () %[2]s) * on %[1]s group_left () %[3]s > 0.02",
			ofAll, meanSeconds, collectivesOver(stragglerWindow))},
	{"The same between ranks without a fault: the upper quartile and the median.", spread,
		fmt.Sprintf("(quantile by %s (0.75, %s) - on %[1]s quantile by %[1]s (0.5, %[2]s)) * on %[1]s %[3]s",
			ofAll, meanSeconds, collectivesOver(stragglerWindow))},
}

// straggler is the alert. A rank is named if the others wait for it for 5 % of
// the time, and much longer than they wait for each other: ranks that take
// turns, two ranks, and stages of a pipeline differ among themselves. Stages of
// a pipeline also call different numbers of collectives. A job that pauses, as
// for a checkpoint that one rank writes, says nothing about its ranks.
var straggler = fleetRule{
	rule: rule{
		alert: "JobStraggler", severity: incident.Warning, wait: stragglerWait,
		expr: fmt.Sprintf("%s > 0.05\nand %[1]s > on %s group_left () (4 * %s)\n"+
			"and on %[2]s (min by %[2]s (rate(%[4]s[1m])) > 0.7 * max by %[2]s (rate(%[4]s[1m])))\n"+
			"and on %[2]s (%[5]s > 0.6 * %[6]s)",
			lostRatio, ofAll, spread, workloads.RankCollectives, collectivesOver(stragglerWindow),
			collectivesOver(2*time.Minute)),
		summary: "{{ $labels.instance }}, GPU {{ $labels.gpu }}: The ranks of a job wait for rank {{ $labels.rank }}.",
		description: "The ranks of communicator {{ $labels.communicator }} lose {{ $value | humanizePercentage }} of " +
			"their time waiting for rank {{ $labels.rank }}: {{ $labels.workload }} of {{ $labels.tenant }} on GPU " +
			"{{ $labels.gpu }} of {{ $labels.instance }}.",
		action: "Compare the GPU's clocks, temperature and links with its neighbours', and look for other work on the host.",
	},
	cause: "A collective ends when its last rank has entered it. The rank that comes last spends the least time in " +
		"it, and its GPU or its host is slow. If several ranks of one host are named, look at the host.",
}

// stragglerScene is the ranks of two communicators. After a minute the others
// wait for rank 2. Of c1 the other ranks are equally fast; p2's ranks are the
// stages of a pipeline.
var stragglerScene = []struct {
	communicator          string
	rank                  int
	calls, seconds, after float64 // in the interval of a scrape
}{
	{"c1", 0, 50, 1, 1}, {"c1", 1, 50, 1.02, 1.02}, {"c1", 2, 50, 1, .5}, {"c1", 3, 50, 1.01, 1.01},
	{"p2", 0, 25, 1, 1}, {"p2", 1, 50, 1.02, 1.02}, {"p2", 2, 50, 1, .5}, {"p2", 3, 25, 1.01, 1.01},
}

// stragglerTest is the test of the rule: it is silent before its wait.
func stragglerTest() ruleTest {
	t := ruleTest{name: straggler.alert, pace: pace(stragglerStep)}
	begins, fires := time.Minute, 2*time.Minute
	for _, s := range stragglerScene {
		labels := fmt.Sprintf(`communicator=%q,gpu="%d",instance="host-0:9836",job=%q,rank="%[2]d",tenant="t",`+
			`uuid="GPU-%[2]d",workload="w"`, s.communicator, s.rank, job)
		calls, took := series{name: labels}, series{name: labels}
		n, seconds := 0.0, 0.0
		t.pace.steps(fires, func(at time.Duration) {
			calls.values, took.values = append(calls.values, n), append(took.values, math.Round(100*seconds)/100)
			n += s.calls
			if seconds += s.seconds; at >= begins {
				seconds += s.after - s.seconds
			}
		})
		for _, m := range []*collectors.Metric{workloads.RankCollectives, workloads.RankMeasured} {
			t.series = append(t.series, series{fmt.Sprintf("%s{%s}", m, labels), calls.values})
		}
		t.series = append(t.series, series{fmt.Sprintf("%s{%s}", workloads.RankSeconds, labels), took.values})
	}
	r := straggler.rule
	r.summary = "host-0:9836, GPU 2: The ranks of a job wait for rank 2."
	r.description = "The ranks of communicator c1 lose 10.1% of their time waiting for rank 2: w of t on GPU 2 of " +
		"host-0:9836."
	labels := slices.Concat([][2]string{{"communicator", "c1"}, {"gpu", "2"}, {"instance", "host-0:9836"}, {"job", job},
		{"rank", "2"}, {"tenant", "t"}, {"uuid", "GPU-2"}, {"workload", "w"}}, r.labels())
	t.alerts = []expectation{{at: begins + stragglerWait, alert: r.alert},
		{at: fires, alert: r.alert, firing: []firing{{labels, r.annotations()}}}}
	return t
}

// stragglerFiles returns the rules about stragglers and their test.
func stragglerFiles() (rules, test string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%sgroups:\n  - name: stragglers\n    interval: %s\n    rules:\n", stragglerHead,
		promDuration(stragglerStep))
	for _, d := range derivations {
		fmt.Fprintf(&b, "      # %s\n      - record: %s\n        expr: %s\n", d.doc, d.name, d.expr)
	}
	straggler.write(&b)
	return b.String(), testFile("stragglers.rules.yml", pace(stragglerStep), []ruleTest{stragglerTest()})
}
