package workloads

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/internal/wire"
)

// The broker's own state, and the shares of its tenants. A tenant is the holder
// of a quota; the policy maps workloads to tenants.
var (
	BrokerUp = collectors.HostGauge("gpusteward_broker_up",
		"Whether the broker answers and can serve clients; present only if the enforcer is enabled.")
	BrokerStarved = collectors.HostGauge("gpusteward_broker_starved",
		"Whether a shortage kept the broker from serving a client in the last minute: descriptors, memory, "+
			"sessions, or time to accept connections.")
	BrokerSessions = collectors.HostGauge("nvgpu_broker_sessions", "Sessions of hooked processes, by state.", "state")
	BrokerHookInfo = collectors.HostGauge("nvgpu_broker_hook_info",
		"Version of the hook in a session, always 1.", "hook_version", "abi")
	BrokerHookUnknown = collectors.HostGauge("nvgpu_broker_hook_unknown_entries",
		"Driver entry points requested by a program and unknown to its hook, the maximum over the sessions; "+
			"above 0 the driver is newer than the hook.", "hook_version")
	BrokerRequests = collectors.HostCounter("nvgpu_broker_requests_total",
		"Messages to the broker, by operation and result.", "op", "result")
	BrokerAdmissions = collectors.HostCounter("nvgpu_broker_admissions_total",
		"Memory requests decided by the broker.")
	BrokerAdmissionSeconds = collectors.HostCounter("nvgpu_broker_admission_seconds_total",
		"Seconds the broker took to decide memory requests.")
	BrokerFaults = collectors.HostCounter("nvgpu_broker_faults_total",
		"Problems between processes and the broker, by kind: sessions dropped because they did not read "+
			"(slow) or asked too much (flood), messages over the rate limit (slowed), shortages that kept a "+
			"client from being served (starved), sessions with GPUs unknown to the broker, where no quota holds "+
			"(ungoverned).", "kind")
	BrokerHandover = collectors.Counter("nvgpu_broker_handover_seconds_total",
		"Seconds of GPU time spent on switching between tenants.")
	BrokerTogether = collectors.Counter("nvgpu_broker_together_seconds_total",
		"Seconds in which several tenants ran on the GPU at once.")
	BrokerGangs = collectors.Counter("nvgpu_broker_gangs_total",
		"Tenants found to wait for themselves across GPUs; the broker then holds and releases them on all "+
			"those GPUs together.")

	QuotaSessions = collectors.Gauge("nvgpu_quota_sessions", "Sessions of the tenant on the GPU.", "tenant")
	QuotaLimit    = collectors.Gauge("nvgpu_quota_compute_limit_ratio",
		"Upper limit of the tenant's share of GPU time; absent without a limit.", "tenant")
	QuotaTarget = collectors.Gauge("nvgpu_quota_compute_target_ratio",
		"Share of GPU time due to the tenant by its weight and limit, over the window.", "tenant", "window")
	QuotaShare = collectors.Gauge("nvgpu_quota_compute_share_ratio",
		"Share of GPU time served to the tenant over the window, in time its work would take alone.",
		"tenant", "window")
	QuotaCompute = collectors.Counter("nvgpu_quota_compute_seconds_total",
		"Seconds the tenant's work was on the GPU; time with several tenants is divided among them.", "tenant")
	QuotaServed = collectors.Counter("nvgpu_quota_served_seconds_total",
		"Seconds the tenant's work on the GPU would have taken alone; guarantees use this unit.", "tenant")
	QuotaWanted = collectors.Counter("nvgpu_quota_wanted_seconds_total",
		"Seconds the tenant had work for the GPU or launches waiting.", "tenant")
	QuotaLag = collectors.Gauge("nvgpu_quota_lag_seconds",
		"Seconds of service owed to the tenant; negative if the tenant is ahead.", "tenant").Signed()
	QuotaConvoy = collectors.Counter("nvgpu_quota_convoy_seconds_total",
		"Seconds the tenant's work on this GPU waited for its held-back work on another GPU.", "tenant")
	QuotaLongest = collectors.Gauge("nvgpu_quota_longest_launch_seconds",
		"Seconds of the tenant's longest launch in the last minutes: no neighbour is guaranteed a shorter "+
			"wait.", "tenant")
	QuotaGatePassed = collectors.Counter("nvgpu_quota_gate_passed_total",
		"Launches of the tenant let through because the event they waited for did not come in time.", "tenant")
	QuotaGateErrors = collectors.Counter("nvgpu_quota_gate_errors_total",
		"Failures in the tenant's hook, mostly events that the driver refused: it could not measure launches then.", "tenant")
	QuotaTurns = collectors.Counter("nvgpu_quota_turns_total",
		"Times the tenant was released to run on the GPU after a hold.", "tenant")
	QuotaTimeSlice = collectors.Gauge("nvgpu_quota_time_slice_seconds",
		"Seconds of the time slice set for the tenant's contexts; absent with the driver's default.", "tenant")
	QuotaPace = collectors.Gauge("nvgpu_quota_pace_ratio",
		"Part of the time that the tenant's launches may take where programs run at once; absent while it is all.", "tenant")
	QuotaTimeSliceRefusals = collectors.Counter("nvgpu_quota_time_slice_refusals_total",
		"Time slices of the tenant's contexts that the driver refused; once for each context.", "tenant")
	QuotaOverrun = collectors.Counter("nvgpu_quota_overrun_seconds_total",
		"Seconds the tenant had work on the GPU long after its hold began: kernels that do not end.", "tenant")
	QuotaOverruns = collectors.Counter("nvgpu_quota_overruns_total",
		"Times the tenant's work had not drained 50 ms after its hold began.", "tenant")
	QuotaWait = collectors.Counter("nvgpu_quota_wait_seconds_total",
		"Seconds the tenant wanted the GPU and was held back.", "tenant")
	QuotaThrottled = collectors.Counter("nvgpu_quota_compute_throttled_seconds_total",
		"Seconds the tenant's threads waited to launch, from the hook; concurrent waits add up.", "tenant")
	QuotaCopied = collectors.Counter("nvgpu_quota_copied_bytes_total",
		"Bytes the tenant requested to copy, from the hook.", "tenant")
	QuotaLaunchWaits = collectors.Counter("nvgpu_quota_launch_waits_total",
		"Times the tenant wanted the GPU and waited to be released, including waits of zero length.", "tenant")
	QuotaLateWaits = collectors.Counter("nvgpu_quota_launch_waits_late_total",
		"Times the tenant's wait for release exceeded its objective.", "tenant")

	QuotaMemoryLimit = collectors.Gauge("nvgpu_quota_memory_limit_bytes",
		"Bytes of GPU memory the tenant may have; absent without a cap.", "tenant")
	QuotaMemoryUsed = collectors.Gauge("nvgpu_quota_memory_used_bytes",
		"Bytes of GPU memory charged to the tenant.", "tenant")
	QuotaMemoryReserved = collectors.Gauge("nvgpu_quota_memory_reserved_bytes",
		"Bytes of GPU memory granted to the tenant and not allocated yet.", "tenant")
	QuotaMemoryPeak = collectors.Gauge("nvgpu_quota_memory_peak_bytes",
		"Peak bytes of GPU memory charged to the tenant.", "tenant")
	QuotaMemoryDenied = collectors.Counter("nvgpu_quota_memory_denied_total",
		"Allocations refused because of the tenant's cap.", "tenant")
	QuotaUncounted = collectors.Counter("nvgpu_quota_memory_uncounted_total",
		"Allocations of the tenant that could not be booked; its cap does not apply to them.", "tenant")
)

// Limits on an answer of the broker.
const (
	brokerPatience = time.Second
	maxBrokerStats = 16 << 20 // bytes: 1024 processes with steps and hangs have half as many
)

var _ = collectors.Register(collectors.Collector{
	Name: "broker",
	Doc: "Sessions, shares, service and memory of the tenants from the broker's books, the findings and " +
		"actions of the enforcer, and the steps, ranks and hangs of jobs; only if it is enabled.",
	Tier: collectors.Fast,
	Metrics: slices.Concat([]*collectors.Metric{
		BrokerUp, BrokerStarved, BrokerSessions, BrokerHookInfo, BrokerHookUnknown, BrokerRequests, BrokerAdmissions,
		BrokerAdmissionSeconds, BrokerFaults, BrokerHandover, BrokerTogether, BrokerGangs, QuotaSessions, QuotaLimit,
		QuotaTarget, QuotaShare, QuotaCompute, QuotaServed, QuotaWanted, QuotaLag, QuotaConvoy, QuotaLongest,
		QuotaGatePassed, QuotaGateErrors, QuotaTurns, QuotaTimeSlice, QuotaPace, QuotaTimeSliceRefusals, QuotaOverrun, QuotaOverruns, QuotaWait, QuotaThrottled,
		QuotaMemoryLimit, QuotaMemoryUsed, QuotaMemoryReserved, QuotaMemoryPeak, QuotaMemoryDenied, QuotaUncounted,
		QuotaCopied, QuotaLaunchWaits, QuotaLateWaits,
	}, quotaMetrics, jobMetrics, suspendedMetrics),
	Kernel: func(host.Kernel) func(out *collectors.Readings) { return readBooks(new(brokerClient)) },
})

// readBooks returns a read of the books that c fetches.
func readBooks(c *brokerClient) func(out *collectors.Readings) {
	jobs := newJobs()
	return func(out *collectors.Readings) {
		ask := out.Books
		if ask == nil {
			ask = func() (wire.Stats, error) { return c.ask(out.Config.Broker) }
		}
		stats, err := ask()
		if out.Books == nil && out.Config.Broker == "" {
			return
		}
		starved := stats.Starved || errors.Is(err, errStarved)
		out.Set(BrokerUp, collectors.Bool(err == nil && !starved))
		if err == nil || starved {
			out.Set(BrokerStarved, collectors.Bool(starved))
		}
		if err == nil {
			putBroker(out, stats, jobs)
		} else if !errors.Is(err, errNoBroker) {
			out.Fail(nvml.ERROR_OPERATING_SYSTEM)
		}
	}
}

// putBroker puts the broker's statistics.
func putBroker(out *collectors.Readings, s wire.Stats, jobs *jobs) {
	for state, n := range s.Sessions {
		out.Set(BrokerSessions, float64(n), state)
	}
	for _, h := range s.Hooks {
		out.Set(BrokerHookInfo, 1, h.Version, h.ABI)
		out.Set(BrokerHookUnknown, float64(h.Unknown), h.Version)
	}
	for _, q := range s.Requests {
		out.Set(BrokerRequests, float64(q.Count), q.Op, q.Result)
	}
	admissions := uint64(0)
	for _, n := range s.Admission.Counts {
		admissions += n
	}
	out.Set(BrokerAdmissions, float64(admissions))
	out.Set(BrokerAdmissionSeconds, s.Admission.Seconds)
	for kind, n := range s.Faults {
		out.Set(BrokerFaults, float64(n), kind)
	}
	index := map[string]string{} // of GPUs by UUID; a MIG device has none
	for _, id := range out.Known() {
		index[id.UUID] = strconv.Itoa(id.Index)
	}
	for _, g := range s.GPUs {
		out.Set(BrokerHandover, g.HandoverSeconds, index[g.GPU], g.GPU)
		out.Set(BrokerTogether, g.TogetherSeconds, index[g.GPU], g.GPU)
		out.Set(BrokerGangs, float64(g.Gangs), index[g.GPU], g.GPU)
	}
	if s.Enforcer != nil {
		putEscalation(out, s.Enforcer)
	}
	for _, t := range s.Tenants {
		putTenant(out, t, index[t.GPU])
	}
	if s.Enforcer != nil {
		putQuotas(out, s.Enforcer, index)
		putSuspended(out, s.Enforcer, index)
		jobs.put(out, s.Enforcer, index)
	}
}

// putTenant puts the books of one tenant on one GPU.
func putTenant(out *collectors.Readings, t wire.TenantStats, index string) {
	put := func(m *collectors.Metric, v float64, labels ...string) {
		out.Set(m, v, append([]string{index, t.GPU, t.Tenant}, labels...)...)
	}
	put(QuotaSessions, float64(t.Sessions))
	if t.Limit < 1 {
		put(QuotaLimit, t.Limit)
	}
	put(QuotaTarget, t.Share1s.Target, "1s")
	put(QuotaTarget, t.Share10s.Target, "10s")
	put(QuotaShare, t.Share1s.Actual, "1s")
	put(QuotaShare, t.Share10s.Actual, "10s")
	put(QuotaCompute, t.ChargedSeconds)
	put(QuotaServed, t.ServedSeconds)
	put(QuotaWanted, t.WantedSeconds)
	put(QuotaLag, t.LagSeconds)
	put(QuotaConvoy, t.ConvoySeconds)
	put(QuotaLongest, t.LongestSeconds)
	put(QuotaGatePassed, float64(t.GatePassed))
	put(QuotaGateErrors, float64(t.GateErrors))
	put(QuotaTurns, float64(t.Turns))
	if t.SliceSeconds > 0 {
		put(QuotaTimeSlice, t.SliceSeconds)
	}
	if t.Pace > 0 {
		put(QuotaPace, t.Pace)
	}
	put(QuotaTimeSliceRefusals, float64(t.SlicesRefused))
	put(QuotaOverrun, t.OverrunSeconds)
	put(QuotaOverruns, float64(t.Overruns))
	put(QuotaWait, t.WaitSeconds)
	put(QuotaThrottled, t.ThrottledSeconds)
	put(QuotaCopied, float64(t.CopiedBytes))
	put(QuotaLaunchWaits, float64(t.Waits))
	put(QuotaLateWaits, float64(t.LateWaits))
	if t.MemoryCap > 0 {
		put(QuotaMemoryLimit, float64(t.MemoryCap))
	}
	put(QuotaMemoryUsed, float64(t.MemoryUsed))
	put(QuotaMemoryReserved, float64(t.MemoryReserved))
	put(QuotaMemoryPeak, float64(t.MemoryPeak))
	put(QuotaMemoryDenied, float64(t.MemoryDenied))
	put(QuotaUncounted, float64(t.Uncounted))
}

// errNoBroker means that no process listens at the socket. The metric
// gpusteward_broker_up shows it, and no collector has failed.
var errNoBroker = errors.New("no broker")

// errStarved means that a shortage keeps the broker from answering.
var errStarved = errors.New("the broker is short of resources")

// A brokerClient fetches the broker's books over one connection, and reconnects
// if the broker closed it. It belongs to one goroutine.
type brokerClient struct {
	patience time.Duration // with an answer; 0 means brokerPatience
	socket   string        // that conn is connected to
	conn     *net.UnixConn
	seq      uint64
}

// ask returns the books of the broker at socket, within its patience. With an
// empty socket it only closes the connection.
func (c *brokerClient) ask(socket string) (s wire.Stats, err error) {
	end := time.Now().Add(cmp.Or(c.patience, brokerPatience))
	if socket != c.socket {
		c.close()
	}
	if socket == "" {
		return s, nil
	}
	if c.conn != nil {
		if s, err = c.exchange(end); err == nil || os.IsTimeout(err) {
			return s, err
		}
		// The broker was restarted, or closed an idle connection.
	}
	conn, err := net.DialTimeout("unixpacket", socket, time.Until(end))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return s, errNoBroker
	}
	if err != nil {
		return s, fmt.Errorf("connect to the broker: %w", err)
	}
	c.socket, c.conn = socket, conn.(*net.UnixConn)
	return c.exchange(end)
}

// exchange asks over the connection, and closes it on failure: a late answer
// could not be matched to its question.
func (c *brokerClient) exchange(end time.Time) (s wire.Stats, err error) {
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.conn.SetDeadline(end); err != nil {
		return s, fmt.Errorf("ask the broker: %w", err)
	}
	c.seq++
	if _, err := c.conn.Write(wire.Header{Type: wire.TypeStats, Seq: c.seq}.Append(nil)); err != nil {
		return s, fmt.Errorf("ask the broker: %w", err)
	}
	frame, control := make([]byte, wire.FrameMax), make([]byte, unix.CmsgSpace(4))
	n, cn, _, _, err := c.conn.ReadMsgUnix(frame, control)
	if err != nil {
		return s, fmt.Errorf("read the broker's answer: %w", err)
	}
	file := descriptor(control[:cn])
	if file != nil {
		defer func() { _ = file.Close() }()
	}
	h, payload, err := wire.Decode(frame[:n])
	switch {
	case err != nil:
		return s, fmt.Errorf("read the broker's answer: %w", err)
	case h.Type == wire.TypeErr:
		var refused wire.Err
		refused.Decode(payload)
		if refused.Code == wire.CodeLimit {
			return s, fmt.Errorf("%w: %s", errStarved, wire.Text(refused.Text[:]))
		}
		return s, fmt.Errorf("the broker refuses: %v: %s", refused.Code, wire.Text(refused.Text[:]))
	case h.Type != wire.TypeStatsReply || h.Seq != c.seq || file == nil:
		return s, fmt.Errorf("the broker answers %v to a request for statistics", h.Type)
	}
	return s, readStats(file, &s)
}

func (c *brokerClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.socket, c.conn = "", nil
}

// descriptor returns the file passed with a message; nil if there is none.
func descriptor(control []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "broker's statistics") // the buffer has room for one
}

// readStats decodes the books in a memory file from its beginning, wherever the
// broker's last write left the file's position.
func readStats(file *os.File, s *wire.Stats) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("read the broker's statistics: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxBrokerStats {
		return fmt.Errorf("the broker's statistics are %d bytes in a %v; expected a file of at most %d bytes",
			info.Size(), info.Mode().Type(), maxBrokerStats)
	}
	if err := json.NewDecoder(io.NewSectionReader(file, 0, info.Size())).Decode(s); err != nil {
		return fmt.Errorf("read the broker's statistics: %w", err)
	}
	return nil
}
