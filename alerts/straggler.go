package alerts

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
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

// An alert takes so many findings, an evaluation each, within a minute, and
// most of those in which any rank was found. While the program pauses, as for a
// checkpoint, there is no evidence for or against, and none is forgotten within the
// minute. What happens once leaves the window before, and what takes 20 s does too.
const (
	stragglerFindings = 6
	stragglerFalls    = 4  // evaluations: the windows of the first and of the last one have no scrape in common
	stragglerOf       = 6  // evaluations, in which so much was lost on average as in a finding at least
	stragglerWithin   = 12 // evaluations
	stragglerOthers   = 28 // evaluations, in which what is lost for others counts against a rank; no alert before
	stragglerUsual    = 60 // evaluations, by which it is known how much healthy ranks differ
)

// evaluations is a range that has the results of the last n evaluations, and not
// one more or less because both ends are times of evaluations.
func evaluations(n int) string {
	return health.PromDuration(time.Duration(n)*stragglerStep - time.Second)
}

// A derivation is a recording rule.
type derivation struct{ doc, name, expr string }

// The recorded series.
const (
	meanSeconds = "rank:nvgpu_rank_collective_seconds:mean"
	callsRate   = "communicator:nvgpu_rank_collectives:rate"
	inRatio     = "gpu:nvgpu_rank_collective_seconds:rate"
	rankRatio   = "rank:nvgpu_rank_collective_seconds:rate"
	ranksDiffer = "communicator:nvgpu_rank_collective_seconds:spread"
	lostRatio   = "rank:nvgpu_rank_lost_seconds:rate"
	found       = "rank:nvgpu_rank_lost_seconds:found"
	mostFound   = "communicator:nvgpu_rank_lost_seconds:found"
)

// Labels of a communicator, and of a process in its communicators.
const (
	ofAll = "(job, cluster, communicator)"
	ofOne = "(job, cluster, instance, uuid, tenant, workload)"
)

var derivations = []derivation{
	{"Collectives a second of the communicator's ranks.", callsRate,
		fmt.Sprintf("quantile by %s (0.5, rate(%s[%s]))", ofAll, workloads.RankCollectives,
			health.PromDuration(stragglerWindow))},
	{"Seconds that a collective takes on the rank's GPU, with the wait for other ranks and without pauses,\n      # " +
		"if the ranks get on. No rates: each would take its own guess how long before a counter was zero.", meanSeconds,
		fmt.Sprintf("(delta(%s[%s]) - delta(%s[%[2]s])) / (delta(%[4]s[%[2]s]) > 0)\n          "+
			"and on %[5]s (%[6]s > 0.2 * max_over_time(%[6]s[%[7]s]))", workloads.RankSeconds, health.PromDuration(stragglerWindow),
			workloads.RankPaused, workloads.RankMeasured, ofAll, callsRate, evaluations(stragglerWithin))},
	{"Seconds per second that the GPU spends in collectives, while the ranks get on as they lately did. All of its\n" +
		"      # communicators count: who waits for a straggler in one of them comes late to the next.", inRatio,
		fmt.Sprintf("sum by %s (%s * on %s group_left () max_over_time(%s[%s]))", ofOne, meanSeconds, ofAll, callsRate,
			evaluations(stragglerWithin))},
	{"The same for each communicator of the GPU.", rankRatio,
		fmt.Sprintf("0 * %s + on %s group_left () %s", meanSeconds, ofOne, inRatio)},
	{"How much healthy ranks differ, by those that wait longest: a straggler is not among them.", ranksDiffer,
		fmt.Sprintf("quantile by %[1]s (0.9, %[2]s) - quantile by %[1]s (0.5, %[2]s)", ofAll, rankRatio)},
	{"Seconds per second that the typical rank waits longer than this one.", lostRatio,
		fmt.Sprintf("quantile by %[1]s (0.5, %[2]s) - on %[1]s group_right () %[2]s", ofAll, rankRatio)},
	{"Findings: ranks for which 5 % is lost, and four times as much as healthy ranks usually differ. At a single time\n" +
		"      # they seem alike by chance, or unlike because their hosts are scraped one after the other. If less than\n" +
		"      # half as much is lost as before, the rank is slow no longer: the rest is of the window's first part.", found,
		fmt.Sprintf("%[2]s > 0.05 > on %[1]s group_left () (4 * quantile_over_time(0.5, %[3]s[%[4]s]))\n          "+
			"> 0.5 * max_over_time(%[2]s[%[5]s])",
			ofAll, lostRatio, ranksDiffer, evaluations(stragglerUsual), evaluations(stragglerFalls))},
	{"The most that is lost for a rank found in the communicator.", mostFound, fmt.Sprintf("max by %s (%s)", ofAll, found)},
}

// straggler is the alert. A rank is named if the others wait for it for 5 % of
// the time, and much longer than they wait for each other: two ranks, and stages
// of a pipeline differ among themselves. Ranks that take turns at being slow are
// found in turn, and three conditions tell them from a straggler. A turn is short: its
// findings have one or two high values among low ones. So the findings of the minute
// must add up to 35 % of what they would if each evaluation had the highest.
// Evaluations in a pause are not counted. The same rank may have two turns in a minute.
// So they must add up to more, by 1.5 times what was lost for others in the time before:
// what is lost weighs more than how often, which chance decides for those near 5 %. A
// communicator must be as old as that time, or the turns of others are not known yet;
// files of a restarted host are not in memory at first, either. Stages of a pipeline
// also call different numbers of collectives. A rank that was slow for half a minute may
// be named if no other rank was slow before: by then it cannot be told from a straggler.
//
// The rules miss up to a fifth of the stragglers in jobs with steps of 4 to 8 s, and now and
// then name one of several ranks that are slow for up to 30 s in turn. Stages of a pipeline that
// call the same number of collectives look like ranks: if one is slow, all are named, because
// waits in sends and receives are not measured. If one host is slow, all of its ranks are named.
//
// A simulated cluster of 512 ranks tests the rules on Prometheus's own engine: jitter of 1 to
// 3 %, garbage collection, checkpoints by one rank or by all, uploads, evaluations, logging by rank
// 0, experts whose load wanders, ranks that take turns at being slow, stages of pipelines, pairs,
// restarts with a cold host, missed scrapes and restarts of Prometheus. -straggler.style makes it
// harder:
//
//	go test -tags tools -v -run Straggler ./alerts -args -straggler.injections=500 -straggler.hours=100
var straggler = fleetRule{
	rule: rule{
		alert: "JobStraggler", severity: incident.Warning,
		expr: fmt.Sprintf("avg_over_time(%s[%s]) > 0.05\nand count_over_time(%s[%s]) >= %d\n"+
			"and sum_over_time(%[3]s[%[4]s]) >= 0.35 * max_over_time(%[3]s[%[4]s]) * count_over_time(%[1]s[%[4]s])\n"+
			"    + 1.5 * (sum_over_time(%[8]s[%[6]s]) - on %[7]s group_right () sum_over_time(%[3]s[%[6]s]))\n"+
			"and on %[7]s (%[10]s offset %[11]s)\n"+
			"and on %[7]s (min by %[7]s (rate(%[9]s[1m])) > 0.7 * max by %[7]s (rate(%[9]s[1m])))",
			lostRatio, evaluations(stragglerOf), found, evaluations(stragglerWithin), stragglerFindings,
			evaluations(stragglerOthers), ofAll, mostFound, workloads.RankCollectives, callsRate,
			health.PromDuration(stragglerOthers*stragglerStep)),
		summary: "{{ $labels.instance }}, GPU {{ $labels.gpu }}: The ranks of a job wait for rank {{ $labels.rank }}.",
		description: "The ranks of communicator {{ $labels.communicator }} lose {{ $value | humanizePercentage }} of " +
			"their time waiting for rank {{ $labels.rank }}: {{ $labels.workload }} of {{ $labels.tenant }} on GPU " +
			"{{ $labels.gpu }} of {{ $labels.instance }}.",
		action: "Compare the GPU's clocks, temperature and links with its neighbours', and look for other work on the host.",
	},
	cause: "A collective ends when its last rank has entered it. The rank that comes last spends the least time in " +
		"it, and its GPU or its host is slow. If several ranks of one host are named, look at the host.",
}

// stragglerScene is the ranks of ten communicators. After two minutes the others
// wait for rank 2. Of c1 the other ranks are equally fast, but 30 s later they
// pause, and rank 1 waits for longer; p2's ranks are the stages of a pipeline, and
// e3's differ. In n4 rank 2 is slow in the first minute. Three of t5 take turns.
// In w6 rank 2 is slow half of the time, and in s7 for 20 s. In b8 it is slow by
// little, and then by much for 15 s. In a9 it has two turns, and rank 1 a weaker one
// between. In d0 rank 2 is a stage that calls half as many collectives as the other stages, and
// then less work comes to it.
var stragglerScene = []struct {
	communicator, host    string
	rank                  int
	calls, seconds, after float64                     // in the interval of a scrape
	once, paused          float64                     // 30 s later, in addition
	when                  func(at time.Duration) bool // the rank has after; nil: after two minutes
}{
	{"c1", "host-0", 0, 50, 1, 1, 0, 2, nil}, {"c1", "host-0", 1, 50, 1.02, 1.02, 1, 2, nil},
	{"c1", "host-0", 2, 50, 1, .5, 0, 0, nil}, {"c1", "host-0", 3, 50, 1.01, 1.01, 0, 2, nil},
	{"p2", "host-1", 0, 25, 1, 1, 0, 0, nil}, {"p2", "host-1", 1, 50, 1.02, 1.02, 0, 0, nil},
	{"p2", "host-1", 2, 50, 1, .5, 0, 0, nil}, {"p2", "host-1", 3, 25, 1.01, 1.01, 0, 0, nil},
	{"e3", "host-2", 0, 50, .95, .95, 0, 0, nil}, {"e3", "host-2", 1, 50, 1.3, 1.3, 0, 0, nil},
	{"e3", "host-2", 2, 50, 1, .5, 0, 0, nil}, {"e3", "host-2", 3, 50, 1, 1, 0, 0, nil},
	{"n4", "host-3", 0, 50, 1, 1, 0, 0, nil}, {"n4", "host-3", 1, 50, 1.02, 1.02, 0, 0, nil},
	{"n4", "host-3", 2, 50, 1, .5, 0, 0, firstMinute}, {"n4", "host-3", 3, 50, 1.01, 1.01, 0, 0, nil},
	{"t5", "host-4", 0, 50, 1.5, .75, 0, 0, takesTurn(30, 0, 3)}, {"t5", "host-4", 1, 50, 1.5, .75, 0, 0, takesTurn(30, 1, 3)},
	{"t5", "host-4", 2, 50, 1.5, .75, 0, 0, takesTurn(30, 2, 3)}, {"t5", "host-4", 3, 50, 1.51, 1.51, 0, 0, nil},
	{"t5", "host-4", 4, 50, 1.51, 1.51, 0, 0, nil},
	{"w6", "host-5", 0, 50, 1, 1, 0, 0, nil}, {"w6", "host-5", 1, 50, 1.02, 1.02, 0, 0, nil},
	{"w6", "host-5", 2, 50, 1, .55, 0, 0, takesTurn(15, 0, 2)}, {"w6", "host-5", 3, 50, 1, 1, 0, 0, nil},
	{"s7", "host-6", 0, 50, 2, 2, 0, 0, nil}, {"s7", "host-6", 1, 50, 2.01, 2.01, 0, 0, nil},
	{"s7", "host-6", 2, 50, 2, .5, 0, 0, shortly}, {"s7", "host-6", 3, 50, 2.02, 2.02, 0, 0, nil},
	{"b8", "host-7", 0, 50, 3, 3.3, 0, 0, slightly}, {"b8", "host-7", 1, 50, 3.01, 3.31, 0, 0, slightly},
	{"b8", "host-7", 2, 50, 3, .5, 0, 0, burst}, {"b8", "host-7", 3, 50, 3.02, 3.32, 0, 0, slightly},
	{"a9", "host-8", 0, 50, 1, 1, 0, 0, nil}, {"a9", "host-8", 1, 50, 1, .67, 0, 0, between},
	{"a9", "host-8", 2, 50, 1, .45, 0, 0, twice}, {"a9", "host-8", 3, 50, 1.01, 1.01, 0, 0, nil},
	{"a9", "host-8", 4, 50, 1.01, 1.01, 0, 0, nil},
	{"d0", "host-9", 0, 50, 1, 1, 0, 0, nil}, {"d0", "host-9", 1, 50, 1.02, 1.02, 0, 0, nil},
	{"d0", "host-9", 2, 25, .5, .25, 0, 0, nil}, {"d0", "host-9", 3, 50, 1, 1, 0, 0, nil},
}

// firstMinute is the first minute.
func firstMinute(at time.Duration) bool { return at < time.Minute }

// shortly is a slowness of 20 s that has just ended when the test expects an alert.
func shortly(at time.Duration) bool { return at >= 125*time.Second && at < 145*time.Second }

// slightly is a slowness of 20 s, and burst one of 15 s soon after it.
func slightly(at time.Duration) bool { return at >= 100*time.Second && at < 120*time.Second }
func burst(at time.Duration) bool    { return at >= 125*time.Second && at < 140*time.Second }

// twice is a slowness of 25 s that comes again 30 s later, and between one of 20 s before it comes again.
func twice(at time.Duration) bool {
	return at >= 70*time.Second && at < 95*time.Second || at >= 125*time.Second && at < 150*time.Second
}
func between(at time.Duration) bool { return at >= 105*time.Second && at < 125*time.Second }

// takesTurn is one of several turns of so many seconds, the first of which is counted as 0.
func takesTurn(seconds, n, of time.Duration) func(at time.Duration) bool {
	return func(at time.Duration) bool { return (at/time.Second+10)/seconds%of == n }
}

// stragglerTest is the test of the rule: it is silent before it has findings enough.
func stragglerTest() ruleTest {
	t := ruleTest{name: straggler.alert, pace: pace(stragglerStep)}
	const begins, surprises, fires, ends = 2 * time.Minute, 150 * time.Second, 165 * time.Second, 4 * time.Minute
	for _, s := range stragglerScene {
		labels := fmt.Sprintf(`communicator=%q,gpu="%d",instance="%s:9836",job=%q,rank="%[2]d",tenant="t",`+
			`uuid="GPU-%[2]d",workload="w"`, s.communicator, s.rank, s.host, job)
		var calls, took, pauses []float64
		n, seconds, paused := 0.0, 0.0, 0.0
		t.pace.steps(ends, func(at time.Duration) {
			calls, took, pauses = append(calls, n), append(took, math.Round(100*seconds)/100), append(pauses, paused)
			n += s.calls
			seconds += s.seconds
			if s.when == nil && at >= begins || s.when != nil && s.when(at) {
				seconds += s.after - s.seconds
			}
			if at == surprises {
				seconds, paused = seconds+s.once+s.paused, paused+s.paused
			}
		})
		for _, m := range []*collectors.Metric{workloads.RankCollectives, workloads.RankMeasured} {
			t.series = append(t.series, series{fmt.Sprintf("%s{%s}", m, labels), calls})
		}
		t.series = append(t.series, series{fmt.Sprintf("%s{%s}", workloads.RankSeconds, labels), took},
			series{fmt.Sprintf("%s{%s}", workloads.RankPaused, labels), pauses})
	}
	r := straggler.rule
	r.summary = "host-0:9836, GPU 2: The ranks of a job wait for rank 2."
	r.description = "The ranks of communicator c1 lose 10.1% of their time waiting for rank 2: w of t on GPU 2 of " +
		"host-0:9836."
	labels := slices.Concat([][2]string{{"communicator", "c1"}, {"gpu", "2"}, {"instance", "host-0:9836"}, {"job", job},
		{"rank", "2"}, {"tenant", "t"}, {"uuid", "GPU-2"}, {"workload", "w"}}, r.labels())
	named := []firing{{labels, r.annotations()}}
	// Ranges of Prometheus 3 leave their left end out, so it is one evaluation earlier.
	t.alerts = []expectation{{at: time.Minute, alert: r.alert}, {at: begins + (stragglerFindings-1)*stragglerStep, alert: r.alert},
		{at: fires, alert: r.alert, firing: named}, {at: ends, alert: r.alert, firing: named}}
	return t
}

// stragglerFiles returns the rules about stragglers and their test.
func stragglerFiles() (rules, test string) {
	var b strings.Builder
	fmt.Fprintf(&b, "%sgroups:\n  - name: stragglers\n    interval: %s\n    rules:\n", stragglerHead,
		health.PromDuration(stragglerStep))
	for _, d := range derivations {
		fmt.Fprintf(&b, "      # %s\n      - record: %s\n        expr: %s\n", d.doc, d.name, d.expr)
	}
	straggler.write(&b)
	return b.String(), testFile("stragglers.rules.yml", pace(stragglerStep), []ruleTest{stragglerTest()})
}
