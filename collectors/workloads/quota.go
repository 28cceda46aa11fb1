package workloads

import (
	"cmp"
	"slices"
	"strconv"

	"gpusteward/collectors"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// A termMetric is the metric of a quota term.
type termMetric struct {
	*quota.Term
	metric *collectors.Metric
}

// termMetrics holds the metrics of all terms that have one, in the table's
// order.
var termMetrics = func() (all []termMetric) {
	for _, t := range quota.Terms {
		if t.Metric.Name != "" {
			all = append(all, termMetric{t, collectors.Gauge(t.Metric.Name, t.Metric.Help, "tenant")})
		}
	}
	return all
}()

// ofTerm returns the metric of a term's key.
func ofTerm(key string) *collectors.Metric {
	at := slices.IndexFunc(termMetrics, func(t termMetric) bool { return t.Key == key })
	return termMetrics[at].metric
}

// Quotas, as the enforcer reports them through the broker: the promises, the
// audit's findings, and escalation's steps. A workload belongs to the tenant.
var (
	QuotaGuarantee       = ofTerm("guarantee")
	QuotaMemoryGuarantee = ofTerm("memory_guarantee")
	QuotaLaunchObjective = ofTerm("launch_wait")
	QuotaBandwidthLimit  = ofTerm("bandwidth")
	QuotaBandwidth       = collectors.Gauge("nvgpu_quota_bandwidth_ratio",
		"Share of the memory bandwidth used by the tenant in the audit's last window.", "tenant")
	QuotaChargeDrift = collectors.Gauge("nvgpu_quota_charge_drift_ratio",
		"Difference between the tenant's SM time from the driver's samples and the time charged to it, as a "+
			"share of GPU time; negative if it was charged for more.", "tenant").Signed()
	QuotaBackend = collectors.Gauge("nvgpu_quota_backend_info",
		"Backend that enforces the tenant's quota of a resource (hook, mps, kernel, gemini or none), always 1.",
		"tenant", "resource", "backend")

	QoSWindows = collectors.Counter("nvgpu_qos_windows_total",
		"Windows in which the tenant wanted its guarantee, by objective.", "tenant", "objective")
	QoSViolations = collectors.Counter("nvgpu_qos_violations_total",
		"Windows in which the tenant did not get its guarantee, by objective.", "tenant", "objective")

	QuotaViolations = collectors.Counter("nvgpu_quota_violations_total",
		"Audits that found the workload over its quota, by objective.", "tenant", "workload", "objective")
	UnhookedProcesses = collectors.Gauge("nvgpu_unhooked_processes",
		"Processes of the workload on the GPU without a session with the broker.", "tenant", "workload")
	UnderreportingProcesses = collectors.Gauge("nvgpu_underreporting_processes",
		"Processes of the workload on the GPU whose hook reports less than the driver.", "tenant", "workload")
	QuotaLedgerDrift = collectors.Gauge("nvgpu_quota_ledger_drift_bytes",
		"Bytes of GPU memory that the driver counts beyond the broker's books, for the workload's processes "+
			"with a session; negative if it counts less.", "tenant", "workload").Signed()

	QuotaLevel = collectors.HostGauge("nvgpu_quota_rung",
		"Escalation level of the workload: 1 for the current level, 0 for the others.", "tenant", "workload", "rung")
	QuotaShadow = collectors.HostGauge("nvgpu_quota_shadow",
		"Whether escalation beyond warn is only reported for the workload, and not acted on.",
		"tenant", "workload")
	QuotaActions = collectors.HostCounter("nvgpu_quota_actions_total",
		"Escalation steps, by the level entered (or resume) and by result: done, shadow, braked, missed or "+
			"failed.", "tenant", "workload", "action", "result")

	TenantFilesRefused = collectors.HostGauge("gpusteward_tenant_files_refused",
		"Invalid files in enforcer.tenants_dirs; their tenants keep the previous configuration, and the log "+
			"gives the reason.")

	GeminiClients = collectors.HostGauge("nvgpu_gemini_clients",
		"Processes under Gemini's hook, by server address.", "listen")
	GeminiRequests = collectors.HostCounter("nvgpu_gemini_requests_total",
		"Requests of programs under Gemini's hook, by operation: quota, memory_limit or memory_update.", "listen", "op")
	GeminiFaults = collectors.HostCounter("nvgpu_gemini_faults_total",
		"Problems between programs under Gemini's hook and their server, by kind: connections refused, "+
			"evicted for others or malformed, requests from unknown names, duplicate requests, memory overfreed, "+
			"processes unseen, turns expired, answers repeated for silent clients (reminded), tables that could "+
			"not be applied (table).", "listen", "kind")
	GeminiBadLines = collectors.HostGauge("nvgpu_gemini_bad_lines",
		"Invalid lines in the table for programs under Gemini's hook; their clients keep the previous values, "+
			"and the log gives the reason.", "listen")

	MPSServers = collectors.HostGauge("nvgpu_mps_servers", "Servers of CUDA MPS that run on the host, one for each user of it.")
	MPSClients = collectors.HostGauge("nvgpu_mps_clients",
		"Clients of the user's MPS servers; tenant is the tenant that they serve, or empty.", "uid", "tenant")
	MPSThreads = collectors.HostGauge("nvgpu_mps_active_thread_ratio",
		"Share of the GPU's threads for the next clients of the user's MPS servers; with several servers the "+
			"largest.", "uid", "tenant")
)

// quotaMetrics holds the metrics that the enforcer reports.
var quotaMetrics = func() (all []*collectors.Metric) {
	for _, t := range termMetrics {
		all = append(all, t.metric)
	}
	return append(all, QuotaBandwidth, QuotaChargeDrift, QuotaBackend,
		QoSWindows, QoSViolations, QuotaViolations, UnhookedProcesses, UnderreportingProcesses, QuotaLedgerDrift,
		QuotaLevel, QuotaShadow, QuotaActions, TenantFilesRefused, GeminiClients, GeminiRequests, GeminiFaults,
		GeminiBadLines, MPSServers, MPSClients, MPSThreads)
}()

// Levels are the names of escalation's levels, lowest first.
var Levels = []string{"observe", "warn", "throttle", "pause", "suspend", "terminate"}

// Limits on the series of workloads, which can be numerous, so that there is
// room for the tenants, which an operator has named.
const (
	maxEscalated = 64  // workloads, the highest rung first
	maxActions   = 256 // by workload, action and result
	maxAudited   = 128 // pairs of workload and GPU
)

// putEscalation puts the metrics that belong to no GPU.
func putEscalation(out *collectors.Readings, s *wire.EnforcerStats) {
	level := func(l wire.EscalationStats) int { return slices.Index(Levels, l.Level) }
	for i, l := range slices.SortedStableFunc(slices.Values(s.Escalation),
		func(a, b wire.EscalationStats) int { return cmp.Compare(level(b), level(a)) }) {
		if i >= maxEscalated {
			out.Drop(QuotaLevel)
			continue
		}
		for _, name := range Levels {
			out.Set(QuotaLevel, collectors.Bool(name == l.Level), l.Tenant, l.Workload, name)
		}
		out.Set(QuotaShadow, collectors.Bool(l.Shadow), l.Tenant, l.Workload)
	}
	for i, a := range s.Actions {
		if i >= maxActions {
			out.Drop(QuotaActions)
			continue
		}
		out.Set(QuotaActions, float64(a.Count), a.Tenant, a.Workload, a.Action, a.Result)
	}
	out.Set(TenantFilesRefused, float64(s.Refused))
	out.Set(MPSServers, float64(len(s.MPS)))
	type whose struct{ uid, tenant string }
	clients, threads := map[whose]int{}, map[whose]float64{}
	for _, m := range s.MPS {
		w := whose{strconv.Itoa(m.UID), m.Tenant}
		clients[w] += m.Clients
		threads[w] = max(threads[w], m.Threads)
	}
	for w, n := range clients {
		out.Set(MPSClients, float64(n), w.uid, w.tenant)
		out.Set(MPSThreads, threads[w], w.uid, w.tenant)
	}
}

// putQuotas puts the promises to tenants on each GPU, and the audit's findings
// about workloads there. index maps UUIDs to the GPUs' indices.
func putQuotas(out *collectors.Readings, s *wire.EnforcerStats, index map[string]string) {
	for _, q := range s.Quotas {
		putQuota(out, q, index[q.GPU])
	}
	for i, w := range s.Workloads {
		if i >= maxAudited {
			out.Drop(UnhookedProcesses)
			continue
		}
		put := func(m *collectors.Metric, v float64, labels ...string) {
			out.Set(m, v, append([]string{index[w.GPU], w.GPU, w.Tenant, w.Workload}, labels...)...)
		}
		put(UnhookedProcesses, float64(w.Unhooked))
		put(UnderreportingProcesses, float64(w.Under))
		if w.Drift != nil {
			put(QuotaLedgerDrift, *w.Drift)
		}
		for objective, n := range w.Violations {
			put(QuotaViolations, float64(n), objective)
		}
	}
	for _, g := range s.Gemini {
		putGemini(out, g, index)
	}
}

// putGemini puts the statistics of a server for Gemini's hook, and for its clients
// what their protocol reports.
func putGemini(out *collectors.Readings, g wire.GeminiStats, index map[string]string) {
	out.Set(GeminiClients, float64(g.Clients), g.Listen)
	out.Set(GeminiBadLines, float64(g.BadLines), g.Listen)
	for op, n := range g.Requests {
		out.Set(GeminiRequests, float64(n), g.Listen, op)
	}
	for kind, n := range g.Faults {
		out.Set(GeminiFaults, float64(n), g.Listen, kind)
	}
	for _, t := range g.Tenants {
		put := func(m *collectors.Metric, v float64, labels ...string) {
			out.Set(m, v, append([]string{index[t.GPU], t.GPU, t.Tenant}, labels...)...)
		}
		put(QuotaSessions, float64(t.Sessions))
		put(QuotaGuarantee, t.Guarantee)
		if t.Limit < 1 {
			put(QuotaLimit, t.Limit)
		}
		put(QuotaTarget, t.Share10s.Target, "10s")
		put(QuotaShare, t.Share10s.Actual, "10s")
		put(QuotaCompute, t.ChargedSeconds)
		put(QuotaTurns, float64(t.Turns))
		put(QuotaWait, t.WaitSeconds)
		put(QuotaMemoryLimit, float64(t.MemoryCap))
		put(QuotaMemoryUsed, float64(t.MemoryUsed))
		put(QuotaMemoryDenied, float64(t.MemoryDenied))
		if t.Charge != nil {
			put(QuotaChargeDrift, *t.Charge)
		}
		put(QuotaBackend, 1, "compute", "gemini")
		put(QuotaBackend, 1, "memory", "gemini")
	}
}

// putQuota puts the promises to one tenant on one GPU.
func putQuota(out *collectors.Readings, q wire.QuotaStats, index string) {
	put := func(m *collectors.Metric, v float64, labels ...string) {
		out.Set(m, v, append([]string{index, q.GPU, q.Tenant}, labels...)...)
	}
	for _, t := range termMetrics {
		if v, told := t.Told(&q.Quota); told {
			put(t.metric, v)
		}
	}
	if q.Bus != nil {
		put(QuotaBandwidth, *q.Bus)
	}
	if q.Charge != nil {
		put(QuotaChargeDrift, *q.Charge)
	}
	for _, o := range q.QoS {
		put(QoSWindows, float64(o.Windows), o.Objective)
		put(QoSViolations, float64(o.Violations), o.Objective)
	}
	for _, h := range q.Holders {
		put(QuotaBackend, 1, h.Resource, h.Backend)
	}
}
