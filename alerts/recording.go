package alerts

import (
	_ "embed" // the scene
	"fmt"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
)

const recordingHead = `# Recording rules: the health, use and energy of a fleet in few series, for
# retention over years, remote write, or graphs over months. Written by make
# generate from alerts/recording.go; do not edit. Names are
# level:metric:operation. The level lists the labels that are kept beside job;
# name is the GPU's model. The rules keep the labels cluster and rack if the
# targets have them. Ratios are recorded as sums: divide them by
# nvgpu_info:count. The scrape configuration of the agents must have the
# job_name gpusteward. Requires Prometheus 2.42.
`

// recordingWindow is the range of a rate, and recordingStep is the evaluation interval.
const recordingWindow, recordingStep = 5 * time.Minute, 30 * time.Second

// A recording is a recording rule that aggregates a metric of all hosts to a few labels.
type recording struct {
	doc       string
	by        []string // the labels that are kept beside job
	metric    string   // without _total
	operation string
	expr      string             // %s stands for the labels
	want      map[string]float64 // the result for recordingScene, by labels without job
}

// The levels, and the joins that add their labels.
var (
	byRack   = []string{"cluster", "rack"}
	byModel  = []string{"cluster", "rack", "name"}
	byTenant = []string{"cluster", "tenant"}
	byOwner  = []string{"cluster", "kind", "namespace", "slurm_account"}

	ofModel = fmt.Sprintf(" * on (job, instance, gpu, uuid) group_left (name) %s", device.Info)
	ofOwner = fmt.Sprintf(" * on (job, instance, workload) group_left (kind, namespace, slurm_account) %s",
		workloads.WorkloadInfo)
)

// and adds a label to a level.
func and(level []string, label string) []string { return append(level[:len(level):len(level)], label) }

// sumOf records the sum of a gauge; of is the join that some levels need.
func sumOf(doc string, by []string, m *collectors.Metric, of string, want map[string]float64) recording {
	return recording{doc, by, m.Name, "sum", fmt.Sprintf("sum by (%%s) (%s%s)", m, of), want}
}

// rateOf records the rate of a counter per second.
func rateOf(doc string, by []string, m *collectors.Metric, of string, want map[string]float64) recording {
	window := health.PromDuration(recordingWindow)
	expr := fmt.Sprintf("sum by (%%s) (rate(%s[%s])%s)", m, window, of)
	return recording{doc, by, strings.TrimSuffix(m.Name, "_total"), "rate" + window, expr, want}
}

// inHealth records the number of GPUs with a status.
func inHealth(doc, operation string, status int, want map[string]float64) recording {
	expr := fmt.Sprintf("sum by (%%s) (%s{gpu!=\"\"} == bool %d)", health.Status, status)
	return recording{doc, byRack, health.Status.Name, operation, expr, want}
}

var recordings = []recording{
	{"Hosts with an agent that answers.", byRack, "up", "sum", fmt.Sprintf("sum by (%%s) (up{job=%q})", job),
		map[string]float64{`cluster="c",rack="a"`: 1, `cluster="c",rack="b"`: 1}},
	{"Hosts.", byRack, "up", "count", fmt.Sprintf("count by (%%s) (up{job=%q})", job),
		map[string]float64{`cluster="c",rack="a"`: 2, `cluster="c",rack="b"`: 1}},
	sumOf("GPUs that the hosts should have.", byRack, collectors.DevicesExpected, "",
		map[string]float64{`cluster="c",rack="a"`: 4, `cluster="c",rack="b"`: 1}),
	sumOf("GPUs that answer.", byRack, collectors.Up, "",
		map[string]float64{`cluster="c",rack="a"`: 2, `cluster="c",rack="b"`: 1}),
	inHealth("GPUs that are healthy. GPUs of unknown health are in none of these states.", "well", 0,
		map[string]float64{`cluster="c",rack="a"`: 1, `cluster="c",rack="b"`: 1}),
	inHealth("GPUs that are degraded.", "degraded", 1,
		map[string]float64{`cluster="c",rack="a"`: 0, `cluster="c",rack="b"`: 0}),
	inHealth("GPUs that have failed.", "failed", 2,
		map[string]float64{`cluster="c",rack="a"`: 1, `cluster="c",rack="b"`: 0}),
	rateOf("Faults per second.", and(byRack, "class"), health.IncidentsTotal, "",
		map[string]float64{`cluster="c",rack="a",class="hardware-fault"`: .1}),

	{"GPUs by model.", byModel, device.Info.Name, "count", fmt.Sprintf("count by (%%s) (%s)", device.Info),
		map[string]float64{`cluster="c",rack="a",name="H100"`: 2, `cluster="c",rack="b",name="L4"`: 1}},
	sumOf("Utilization of the engines.", and(byModel, "engine"), activity.Utilization, ofModel,
		map[string]float64{`cluster="c",rack="a",name="H100",engine="gpu"`: .75,
			`cluster="c",rack="b",name="L4",engine="gpu"`: .5}),
	sumOf("Activity of the pipes (since Hopper).", and(byModel, "pipe"), activity.GPMActivity, ofModel,
		map[string]float64{`cluster="c",rack="a",name="H100",pipe="tensor"`: .25}),
	sumOf("Memory by state; the states sum to the total.", and(byModel, "state"), device.MemoryBytes, ofModel,
		map[string]float64{`cluster="c",rack="a",name="H100",state="used"`: 300,
			`cluster="c",rack="a",name="H100",state="free"`: 500}),
	rateOf("Watts, from the GPUs' energy counters; the scope module includes gpu.",
		and(byModel, "scope"), device.Energy, ofModel,
		map[string]float64{`cluster="c",rack="a",name="H100",scope="gpu"`: 110}),
	{"GPUs that a scheduler has allocated.", byModel, workloads.AllocationInfo.Name, "count",
		fmt.Sprintf("count by (%%s) (group by (job, cluster, rack, instance, gpu, uuid) (%s)%s)",
			workloads.AllocationInfo, ofModel),
		map[string]float64{`cluster="c",rack="a",name="H100"`: 1}},
	rateOf("GPUs that were allocated and idle.", byModel, workloads.AllocatedIdle, ofModel,
		map[string]float64{`cluster="c",rack="a",name="H100"`: .5}),

	rateOf("GPU time that tenants used.", byTenant, workloads.QuotaCompute, "",
		map[string]float64{`cluster="c",tenant="t"`: 1.1}),
	sumOf("Memory that tenants were charged for.", byTenant, workloads.QuotaMemoryUsed, "",
		map[string]float64{`cluster="c",tenant="t"`: 30}),
	rateOf("Audits per second that found a tenant beyond its quota.",
		and(byTenant, "objective"), workloads.QuotaViolations, "",
		map[string]float64{`cluster="c",tenant="t",objective="memory"`: .2}),
	rateOf("Windows per second in which a tenant did not get its guarantee.",
		and(byTenant, "objective"), workloads.QoSViolations, "",
		map[string]float64{`cluster="c",tenant="t",objective="compute"`: .3}),

	rateOf("GPU time of workloads, by owner.", byOwner, workloads.WorkloadSM, ofOwner,
		map[string]float64{`cluster="c",kind="pod",namespace="chat"`: .6,
			`cluster="c",kind="slurm",slurm_account="nlp"`: .4}),
	rateOf("Watts of workloads, by owner: an estimate by their share of SM time.",
		byOwner, workloads.WorkloadEnergy, ofOwner,
		map[string]float64{`cluster="c",kind="pod",namespace="chat"`: 60}),
}

// recordingScene is the series of three hosts in two racks, with values every 10 s in promtool's
// notation.
//
//go:embed recording.tsv
var recordingScene string

// name returns the name of the recorded series.
func (r recording) name() string {
	return strings.Join(r.by, "_") + ":" + r.metric + ":" + r.operation
}

// query returns the expression.
func (r recording) query() string { return fmt.Sprintf(r.expr, "job, "+strings.Join(r.by, ", ")) }

// recordingFiles returns the recording rules and their test.
func recordingFiles() (rules, test string) {
	var b, t strings.Builder
	fmt.Fprintf(&b, "%sgroups:\n  - name: gpusteward-recording\n    interval: %s\n    rules:\n",
		recordingHead, health.PromDuration(recordingStep))
	fmt.Fprintf(&t, "# promtool test of recording.rules.yml. Written by make generate; do not edit.\n"+
		"rule_files: [recording.rules.yml]\nevaluation_interval: %s\n"+
		"tests:\n  - name: \"three hosts in two racks\"\n    interval: 10s\n    input_series:\n",
		health.PromDuration(recordingStep))
	for line := range strings.Lines(recordingScene) {
		series, values, _ := strings.Cut(strings.TrimSpace(line), "}\t")
		fmt.Fprintf(&t, "      - series: '%s,job=%q}'\n        values: '%s'\n", series, job, values)
	}
	t.WriteString("    promql_expr_test:\n")
	for _, r := range recordings {
		fmt.Fprintf(&b, "      # %s\n      - record: %s\n        expr: %s\n", r.doc, r.name(), r.query())
		// The test rounds, because the last binary digit is not exact.
		fmt.Fprintf(&t, "      - expr: round(%s, 1e-6)\n        eval_time: %s\n        exp_samples:\n",
			r.name(), health.PromDuration(2*recordingWindow))
		for _, s := range sorted(labelled(r.want)) {
			fmt.Fprintf(&t, "          - labels: '{%s,job=%q}'\n            value: %s\n", s[0], job, s[1])
		}
	}
	return b.String(), t.String()
}

// labelled formats the values by labels as text.
func labelled(values map[string]float64) map[string]string {
	all := map[string]string{}
	for labels, v := range values {
		all[labels] = fmt.Sprint(v)
	}
	return all
}
