package exporter

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/common/model"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
	"gpusteward/internal/wire"
)

// An origin is where a series comes from.
type origin struct{ cluster, host, workload string }

// A fleetReader makes a Fleet of series.
type fleetReader struct {
	time     time.Time
	warnings []string
	hosts    map[origin]*fleetFacts
	jobs     map[origin]*FleetJob // the worst finding of a workload on a host
	users    map[origin]string
	together map[origin][]origin // by communicator, in place of the host: the workloads in it
}

// fleetFacts are what is known of a host.
type fleetFacts struct {
	FleetHost

	job      string // the label
	up       bool
	verdict  float64 // of NodeStatus; negative: there is none
	drained  bool
	severity map[string]string      // of firing alerts, by check
	failing  map[string]*FleetFault // by check
}

// alerts notes the severity of a check, unless a worse one is known.
func (h *fleetFacts) alerts(check, severity string) {
	if slices.Index(severities, severity) >= slices.Index(severities, h.severity[check]) {
		h.severity[check] = severity
	}
}

// fault returns the entry of a failing check.
func (h *fleetFacts) fault(check string) *FleetFault {
	if h.failing[check] == nil {
		h.failing[check] = &FleetFault{Check: check}
	}
	return h.failing[check]
}

// host returns the entry of the host that a series is of.
func (r *fleetReader) host(m model.Metric) *fleetFacts {
	at := origin{cluster: string(m["cluster"]), host: string(m["instance"])}
	if r.hosts[at] == nil {
		r.hosts[at] = &fleetFacts{FleetHost: FleetHost{Host: at.host, Cluster: at.cluster}, up: true, verdict: -1,
			severity: map[string]string{}, failing: map[string]*FleetFault{}}
	}
	return r.hosts[at]
}

// suspect notes that a workload on a host hangs or lags, unless it is known to do worse.
func (r *fleetReader) suspect(m model.Metric, j FleetJob) {
	at := workOf(m)
	j.Workload, j.Cluster, j.Host, j.GPU = at.workload, at.cluster, at.host, number(string(m["gpu"]))
	if worse := r.jobs[at]; worse == nil || j.compare(*worse) < 0 {
		r.jobs[at] = &j
	}
}

func workOf(m model.Metric) origin {
	return origin{string(m["cluster"]), string(m["instance"]), string(m["workload"])}
}

// Labels by which a query keeps series apart. An agent that several servers
// scrape has several of each.
const (
	perHost = "max by (cluster, instance) "
	perWork = "max by (cluster, instance, workload, gpu, rank, reason, cause, evidence, where) "
)

// members are the workloads in communicators.
var members = "max by (cluster, instance, workload, communicator) (" + workloads.RankCollectives.Name + "{})"

// A fleetQuery is a query, without the matchers that select the agents' series, and what is
// made of a series of the answer.
type fleetQuery struct {
	query string
	note  func(r *fleetReader, m model.Metric, v float64)
}

// fleetQueries tell which hosts and jobs are not well.
var fleetQueries = []fleetQuery{
	{"max by (job, cluster, rack, instance) (up{})", func(r *fleetReader, m model.Metric, v float64) {
		h := r.host(m)
		h.job, h.Rack, h.up = string(m["job"]), string(m["rack"]), v > 0
	}},
	{perHost + "(" + health.NodeStatus.Name + "{})", func(r *fleetReader, m model.Metric, v float64) { r.host(m).verdict = v }},
	{perHost + "(" + collectors.Drained.Name + "{} == 1)", func(r *fleetReader, m model.Metric, _ float64) {
		r.host(m).drained = true
	}},
	{perHost + "(" + collectors.Devices.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		r.host(m).GPUs = new(int(v))
	}},
	{perHost + "(" + collectors.DevicesExpected.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		r.host(m).Expected = new(int(v))
	}},
	{perWork + "(" + workloads.JobHang.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		reason := string(m["reason"])
		r.suspect(m, FleetJob{Hang: &Hang{Seconds: v, Rank: string(m["rank"]), Reason: reason,
			What: cmp.Or(wire.HangReasons[reason], reason), Where: string(m["where"])}})
	}},
	{perWork + "(" + workloads.JobStraggler.Name + "{} > 0)", func(r *fleetReader, m model.Metric, v float64) {
		cause := string(m["cause"])
		r.suspect(m, FleetJob{Straggler: &Straggler{Ratio: v, Rank: string(m["rank"]), Cause: cause,
			What: cmp.Or(wire.StragglerCauses[cause], cause)}})
	}},
	{perWork + `(ALERTS{alertname="JobStraggler",alertstate="firing"})`, func(r *fleetReader, m model.Metric, _ float64) {
		r.suspect(m, FleetJob{Straggler: &Straggler{Rank: string(m["rank"])}})
	}},
	{perWork + "(" + workloads.JobSlowdown.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		cause := string(m["cause"])
		r.suspect(m, FleetJob{Slow: &Slow{Ratio: v, Cause: cause, What: cmp.Or(wire.SlowCauses[cause], cause),
			Evidence: string(m["evidence"])}})
	}},
}

// hostQueries tell what is wrong with hosts: they are about a few of a great many series.
var hostQueries = []fleetQuery{
	{"max by (cluster, instance, alert, severity) (" + health.AlertFiring.Name + "{} > 0)",
		func(r *fleetReader, m model.Metric, _ float64) {
			if c, err := health.Named(string(m["alert"])); err == nil && !c.OfWork() {
				r.host(m).alerts(c.ID, string(m["severity"]))
			}
		}},
	{"max by (cluster, instance, check, gpu) (" + health.CheckFailing.Name + "{} == 1)",
		func(r *fleetReader, m model.Metric, _ float64) {
			check := string(m["check"])
			if c, err := health.Named(check); err == nil && c.OfWork() {
				return
			}
			fault := r.host(m).fault(check)
			if gpu, err := strconv.Atoi(string(m["gpu"])); err == nil {
				fault.GPUs = append(fault.GPUs, gpu)
			}
		}},
}

// jobQueries tell more about jobs.
var jobQueries = []fleetQuery{
	{"max by (cluster, instance, workload, slurm_user) (last_over_time(" + workloads.WorkloadInfo.Name + `{slurm_user!=""}[5m]))`,
		func(r *fleetReader, m model.Metric, _ float64) { r.users[workOf(m)] = string(m["slurm_user"]) }},
	{members + " and on (cluster, communicator) (" + members + " and on (cluster, instance, workload) (" +
		workloads.JobHang.Name + "{} or " + workloads.JobStraggler.Name + "{} or " + workloads.JobSlowdown.Name + "{}))",
		func(r *fleetReader, m model.Metric, _ float64) {
			in := origin{cluster: string(m["cluster"]), host: string(m["communicator"])}
			r.together[in] = append(r.together[in], workOf(m))
		}},
}
