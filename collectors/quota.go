package collectors

import (
	"cmp"
	"slices"
	"strconv"

	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// A termMetric is the metric of a term of a quota.
type termMetric struct {
	*quota.Term
	metric *Metric
}

// termMetrics are those of all terms that have one, in the table's order.
var termMetrics = func() (all []termMetric) {
	for _, t := range quota.Terms {
		if t.Metric.Name != "" {
			all = append(all, termMetric{t, Gauge(t.Metric.Name, t.Metric.Help, "tenant")})
		}
	}
	return all
}()

// ofTerm returns the metric of a key.
func ofTerm(key string) *Metric {
	at := slices.IndexFunc(termMetrics, func(t termMetric) bool { return t.Key == key })
	return termMetrics[at].metric
}

// What the enforcer says of quotas, through the broker: what they promise, what
// the audit finds, and what the escalation does. A workload is the tenant's.
var (
	QuotaGuarantee       = ofTerm("guarantee")
	QuotaMemoryGuarantee = ofTerm("memory_guarantee")
	QuotaLaunchObjective = ofTerm("launch_wait")
	QuotaBandwidthLimit  = ofTerm("bandwidth")
	QuotaBandwidth       = Gauge("nvgpu_quota_bandwidth_ratio", "Part of the memory's bandwidth that the tenant had in the audit's last window.", "tenant")
	QuotaChargeDrift     = Gauge("nvgpu_quota_charge_drift_ratio", "Time that the tenant's kernels had the GPU by the driver's samples beyond what it was charged for, as a part of the GPU's time; below 0 where it was charged for more.", "tenant").Signed()
	QuotaBackend         = Gauge("nvgpu_quota_backend_info", "The backend that holds the tenant to a resource's quota (hook, mps, kernel, gemini or none), always 1.", "tenant", "resource", "backend")

	QoSWindows    = Counter("nvgpu_qos_windows_total", "Windows in which the tenant wanted what its quota guarantees, by objective.", "tenant", "objective")
	QoSViolations = Counter("nvgpu_qos_violations_total", "Windows in which the tenant did not get what its quota guarantees, by objective.", "tenant", "objective")

	QuotaViolations         = Counter("nvgpu_quota_violations_total", "Audits that found the workload beyond what its quota allows, by objective.", "tenant", "workload", "objective")
	UnhookedProcesses       = Gauge("nvgpu_unhooked_processes", "Processes of the workload on the GPU that have no session with the broker.", "tenant", "workload")
	UnderreportingProcesses = Gauge("nvgpu_underreporting_processes", "Processes of the workload on the GPU whose hook says less than the driver.", "tenant", "workload")
	QuotaLedgerDrift        = Gauge("nvgpu_quota_ledger_drift_bytes", "GPU memory that the driver counts beyond the broker's books, of the workload's processes with a session; below 0 where it counts less.", "tenant", "workload").Signed()

	QuotaLevel   = HostGauge("nvgpu_quota_rung", "Level of escalation of the workload: 1 for that, 0 for the others.", "tenant", "workload", "rung")
	QuotaShadow  = HostGauge("nvgpu_quota_shadow", "Whether beyond warn it is only said what would be done about the workload.", "tenant", "workload")
	QuotaActions = HostCounter("nvgpu_quota_actions_total", "Steps of escalation, by the level that was entered, or resume, and by what came of it: done, shadow, braked, missed or failed.", "tenant", "workload", "action", "result")

	TenantFilesRefused = HostGauge("gpusteward_tenant_files_refused", "Files of enforcer.tenants_dirs that are bad: their tenants of before stay. The log says why.")

	GeminiClients  = HostGauge("nvgpu_gemini_clients", "Processes under Gemini's hook, by the address that serves them.", "listen")
	GeminiRequests = HostCounter("nvgpu_gemini_requests_total", "Requests of programs under Gemini's hook, by what they ask: quota, memory_limit or memory_update.", "listen", "op")
	GeminiFaults   = HostCounter("nvgpu_gemini_faults_total", "Things that went wrong between programs under Gemini's hook and their server: connections refused, evicted for others or malformed, requests of unknown names, duplicate ones, memory overfreed, processes unseen, turns expired, answers sent again to who says nothing (reminded), tables that did not come into force (table).", "listen", "kind")
	GeminiBadLines = HostGauge("nvgpu_gemini_bad_lines", "Lines of the table for programs under Gemini's hook that are bad: what their clients had before stays. The log says why.", "listen")

	MPSServers = HostGauge("nvgpu_mps_servers", "Servers of CUDA MPS.")
	MPSClients = HostGauge("nvgpu_mps_clients", "Clients of the user's MPS servers; tenant is whom they serve, empty where that is none.", "uid", "tenant")
	MPSThreads = HostGauge("nvgpu_mps_active_thread_ratio", "Part of the GPU's threads that the next clients of the user's MPS servers get; of several servers the most.", "uid", "tenant")
)

// quotaMetrics are those that the enforcer says.
var quotaMetrics = func() (all []*Metric) {
	for _, t := range termMetrics {
		all = append(all, t.metric)
	}
	return append(all, QuotaBandwidth, QuotaChargeDrift, QuotaBackend,
		QoSWindows, QoSViolations, QuotaViolations, UnhookedProcesses, UnderreportingProcesses, QuotaLedgerDrift,
		QuotaLevel, QuotaShadow, QuotaActions, TenantFilesRefused, GeminiClients, GeminiRequests, GeminiFaults, GeminiBadLines,
		MPSServers, MPSClients, MPSThreads)
}()

// Levels are the names of the levels of escalation, from the lowest on.
var Levels = []string{"observe", "warn", "throttle", "pause", "terminate"}

// Bounds of what workloads can cost, who may be many, so that there is room for
// the tenants, whom an operator has named.
const (
	maxEscalated = 64  // workloads, the highest first
	maxActions   = 256 // by workload, action and result
	maxAudited   = 128 // workloads on GPUs
)

// escalation puts what belongs to no GPU.
func (r *Readings) escalation(s *wire.EnforcerStats) {
	level := func(l wire.EscalationStats) int { return slices.Index(Levels, l.Level) }
	for i, l := range slices.SortedStableFunc(slices.Values(s.Escalation), func(a, b wire.EscalationStats) int { return cmp.Compare(level(b), level(a)) }) {
		if i >= maxEscalated {
			r.drop(QuotaLevel)
			continue
		}
		for _, name := range Levels {
			r.Set(QuotaLevel, Bool(name == l.Level), l.Tenant, l.Workload, name)
		}
		r.Set(QuotaShadow, Bool(l.Shadow), l.Tenant, l.Workload)
	}
	for i, a := range s.Actions {
		if i >= maxActions {
			r.drop(QuotaActions)
			continue
		}
		r.Set(QuotaActions, float64(a.Count), a.Tenant, a.Workload, a.Action, a.Result)
	}
	r.Set(TenantFilesRefused, float64(s.Refused))
	r.Set(MPSServers, float64(len(s.MPS)))
	type whose struct{ uid, tenant string }
	clients, threads := map[whose]int{}, map[whose]float64{}
	for _, m := range s.MPS {
		w := whose{strconv.Itoa(m.UID), m.Tenant}
		clients[w] += m.Clients
		threads[w] = max(threads[w], m.Threads)
	}
	for w, n := range clients {
		r.Set(MPSClients, float64(n), w.uid, w.tenant)
		r.Set(MPSThreads, threads[w], w.uid, w.tenant)
	}
}

// quotas puts what tenants were promised of each GPU, and what the audit found
// of workloads on it. The GPUs' indices are by UUID.
func (r *Readings) quotas(s *wire.EnforcerStats, index map[string]string) {
	for _, q := range s.Quotas {
		r.quota(q, index[q.GPU])
	}
	for i, w := range s.Workloads {
		if i >= maxAudited {
			r.drop(UnhookedProcesses)
			continue
		}
		put := func(m *Metric, v float64, labels ...string) {
			r.Set(m, v, append([]string{index[w.GPU], w.GPU, w.Tenant, w.Workload}, labels...)...)
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
		r.gemini(g, index)
	}
}

// gemini puts what a server for Gemini's hook says, of its clients what their
// protocol tells.
func (r *Readings) gemini(g wire.GeminiStats, index map[string]string) {
	r.Set(GeminiClients, float64(g.Clients), g.Listen)
	r.Set(GeminiBadLines, float64(g.BadLines), g.Listen)
	for op, n := range g.Requests {
		r.Set(GeminiRequests, float64(n), g.Listen, op)
	}
	for kind, n := range g.Faults {
		r.Set(GeminiFaults, float64(n), g.Listen, kind)
	}
	for _, t := range g.Tenants {
		put := func(m *Metric, v float64, labels ...string) {
			r.Set(m, v, append([]string{index[t.GPU], t.GPU, t.Tenant}, labels...)...)
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

// quota puts what one tenant was promised of one GPU.
func (r *Readings) quota(q wire.QuotaStats, index string) {
	put := func(m *Metric, v float64, labels ...string) {
		r.Set(m, v, append([]string{index, q.GPU, q.Tenant}, labels...)...)
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
