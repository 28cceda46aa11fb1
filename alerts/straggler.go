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
# with 15s these rules find nothing. Requires Prometheus 2.42.
`

// stragglerStep is the interval of scrapes and evaluations. The window has three
// scrapes, of which one may be missing.
const (
	stragglerStep   = 5 * time.Second
	stragglerWindow = 3 * stragglerStep
)

// An alert takes so many findings, an evaluation each, and four of five of those
// in which the ranks finished collectives at all. While the program pauses, as
// for a checkpoint, there is no evidence for or against, and none is forgotten
// within the minute. What happens once leaves the window before.
const (
	stragglerFindings = 5
	stragglerOf       = 6  // of the last evaluations, four of five with collectives
	stragglerWithin   = 12 // evaluations
)

// evaluations is a range that has the results of the last n evaluations, and not
// one more or less because both ends are times of evaluations.
func evaluations(n int) string {
	return promDuration(time.Duration(n)*stragglerStep - time.Second)
}

// A derivation is a recording rule.
type derivation struct{ doc, name, expr string }

// The recorded series.
const (
	meanSeconds = "rank:nvgpu_rank_collective_seconds:mean"
	callsRate   = "communicator:nvgpu_rank_collectives:rate"
	inRatio     = "gpu:nvgpu_rank_collective_seconds:rate"
	rankRatio   = "rank:nvgpu_rank_collective_seconds:rate"
	lostRatio   = "rank:nvgpu_rank_lost_seconds:rate"
)

// Labels of a communicator, and of a process in its communicators.
const (
	ofAll = "(job, cluster, communicator)"
	ofOne = "(job, cluster, instance, uuid, tenant, workload)"
)

var derivations = []derivation{
	{"Collectives a second of the communicator's ranks.", callsRate,
		fmt.Sprintf("quantile by %s (0.5, rate(%s[%s]))", ofAll, workloads.RankCollectives,
			promDuration(stragglerWindow))},
	{"Seconds that a collective takes on the rank's GPU, with the wait for other ranks and without pauses,\n      # if the ranks get on.", meanSeconds,
		fmt.Sprintf("(rate(%s[%s]) - rate(%s[%[2]s])) / (rate(%[4]s[%[2]s]) > 0)\n          "+
			"and on %[5]s (%[6]s > 0.5 * max_over_time(%[6]s[%[7]s]))", workloads.RankSeconds, promDuration(stragglerWindow),
			workloads.RankPaused, workloads.RankMeasured, ofAll, callsRate, evaluations(stragglerWithin))},
	{"Seconds per second that the GPU spends in collectives, while the ranks get on as they lately did. All of its\n" +
		"      # communicators count: who waits for a straggler in one of them comes late to the next.", inRatio,
		fmt.Sprintf("sum by %s (%s * on %s group_left () max_over_time(%s[%s]))", ofOne, meanSeconds, ofAll, callsRate,
			evaluations(stragglerWithin))},
	{"The same for each communicator of the GPU.", rankRatio,
		fmt.Sprintf("0 * %s + on %s group_left () %s", meanSeconds, ofOne, inRatio)},
	{"Findings: seconds per second that the typical rank waits longer than this one, if that is 5 % and six times\n" +
		"      # as much as healthy ranks differ, which is what lies between the median and the upper quartile. None in a\n" +
		"      # communicator's first minute: files are not in memory yet.", lostRatio,
		fmt.Sprintf("(quantile by %[1]s (0.5, %[2]s) - on %[1]s group_right () %[2]s) > 0.05\n          "+
			"> on %[1]s group_left () (6 * (quantile by %[1]s (0.75, %[2]s) - quantile by %[1]s (0.5, %[2]s)))\n          "+
			"and on %[1]s (%[3]s offset 1m)", ofAll, rankRatio, callsRate)},
}

// straggler is the alert. A rank is named if the others wait for it for 5 % of
// the time, and much longer than they wait for each other: ranks that take
// turns, two ranks, and stages of a pipeline differ among themselves. Stages of
// a pipeline also call different numbers of collectives.
var straggler = fleetRule{
	rule: rule{
		alert: "JobStraggler", severity: incident.Warning,
		expr: fmt.Sprintf("avg_over_time(%s[%s])\nand count_over_time(%[1]s[%[3]s]) >= %[4]d\n"+
			"and count_over_time(%[1]s[%[2]s]) >= 0.8 * count_over_time(%[5]s[%[2]s])\n"+
			"and on %[6]s (min by %[6]s (rate(%[7]s[1m])) > 0.7 * max by %[6]s (rate(%[7]s[1m])))",
			lostRatio, evaluations(stragglerOf), evaluations(stragglerWithin), stragglerFindings, meanSeconds, ofAll,
			workloads.RankCollectives),
		summary: "{{ $labels.instance }}, GPU {{ $labels.gpu }}: The ranks of a job wait for rank {{ $labels.rank }}.",
		description: "The ranks of communicator {{ $labels.communicator }} lose {{ $value | humanizePercentage }} of " +
			"their time waiting for rank {{ $labels.rank }}: {{ $labels.workload }} of {{ $labels.tenant }} on GPU " +
			"{{ $labels.gpu }} of {{ $labels.instance }}.",
		action: "Compare the GPU's clocks, temperature and links with its neighbours', and look for other work on the host.",
	},
	cause: "A collective ends when its last rank has entered it. The rank that comes last spends the least time in " +
		"it, and its GPU or its host is slow. If several ranks of one host are named, look at the host.",
}

// stragglerScene is the ranks of four communicators. After a minute the others
// wait for rank 2. Of c1 the other ranks are equally fast; p2's ranks are the
// stages of a pipeline, and e3's differ. In n4 rank 2 is slow in the first minute.
var stragglerScene = []struct {
	communicator, host    string
	rank                  int
	calls, seconds, after float64 // in the interval of a scrape
}{
	{"c1", "host-0", 0, 50, 1, 1}, {"c1", "host-0", 1, 50, 1.02, 1.02}, {"c1", "host-0", 2, 50, 1, .5}, {"c1", "host-0", 3, 50, 1.01, 1.01},
	{"p2", "host-1", 0, 25, 1, 1}, {"p2", "host-1", 1, 50, 1.02, 1.02}, {"p2", "host-1", 2, 50, 1, .5}, {"p2", "host-1", 3, 25, 1.01, 1.01},
	{"e3", "host-2", 0, 50, .95, .95}, {"e3", "host-2", 1, 50, 1.3, 1.3}, {"e3", "host-2", 2, 50, 1, .5}, {"e3", "host-2", 3, 50, 1, 1},
	{"n4", "host-3", 0, 50, 1, 1}, {"n4", "host-3", 1, 50, 1.02, 1.02}, {"n4", "host-3", 2, 50, .5, 1}, {"n4", "host-3", 3, 50, 1.01, 1.01},
}

// stragglerTest is the test of the rule: it is silent before it has findings enough.
func stragglerTest() ruleTest {
	t := ruleTest{name: straggler.alert, pace: pace(stragglerStep)}
	begins, fires := time.Minute, 2*time.Minute
	for _, s := range stragglerScene {
		labels := fmt.Sprintf(`communicator=%q,gpu="%d",instance="%s:9836",job=%q,rank="%[2]d",tenant="t",`+
			`uuid="GPU-%[2]d",workload="w"`, s.communicator, s.rank, s.host, job)
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
		t.series = append(t.series, series{fmt.Sprintf("%s{%s}", workloads.RankSeconds, labels), took.values},
			series{fmt.Sprintf("%s{%s}", workloads.RankPaused, labels), make([]float64, len(took.values))})
	}
	r := straggler.rule
	r.summary = "host-0:9836, GPU 2: The ranks of a job wait for rank 2."
	r.description = "The ranks of communicator c1 lose 10.1% of their time waiting for rank 2: w of t on GPU 2 of " +
		"host-0:9836."
	labels := slices.Concat([][2]string{{"communicator", "c1"}, {"gpu", "2"}, {"instance", "host-0:9836"}, {"job", job},
		{"rank", "2"}, {"tenant", "t"}, {"uuid", "GPU-2"}, {"workload", "w"}}, r.labels())
	// Ranges of Prometheus 3 leave their left end out, so it is one evaluation earlier.
	t.alerts = []expectation{{at: begins + (stragglerFindings-1)*stragglerStep, alert: r.alert},
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
