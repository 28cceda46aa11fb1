package collectors

import (
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

	"gpusteward/collectors/host"
	"gpusteward/internal/wire"
)

// What the broker says of itself and of what tenants have. A tenant is who a
// quota is for; which workloads it is, the policy says.
var (
	BrokerUp               = HostGauge("gpusteward_broker_up", "Whether the broker answers, and can serve whoever comes; only where the enforcer is enabled.")
	BrokerStarved          = HostGauge("gpusteward_broker_starved", "Whether the broker could not serve somebody in the last minute for want of something: descriptors, memory, sessions, time to accept connections.")
	BrokerSessions         = HostGauge("nvgpu_broker_sessions", "Sessions of hooked processes with the broker, by state.", "state")
	BrokerHookInfo         = HostGauge("nvgpu_broker_hook_info", "A version of the hook that sessions run, always 1.", "hook_version", "abi")
	BrokerHookUnknown      = HostGauge("nvgpu_broker_hook_unknown_entries", "Entries of the driver that a program was given and that its hook does not know, the most of one session: the driver is newer than the hook.", "hook_version")
	BrokerRequests         = HostCounter("nvgpu_broker_requests_total", "Messages to the broker, by what they ask and what came of it.", "op", "result")
	BrokerAdmissions       = HostCounter("nvgpu_broker_admissions_total", "Requests for memory that the broker has decided.")
	BrokerAdmissionSeconds = HostCounter("nvgpu_broker_admission_seconds_total", "Time that the broker took to decide them.")
	BrokerFaults           = HostCounter("nvgpu_broker_faults_total", "Things that went wrong between processes and the broker: sessions dropped because they did not read (slow) or asked too much (flood), messages beyond a rate (slowed), times that something was wanting to serve somebody (starved), sessions with GPUs that the broker does not know, where no quota holds (ungoverned).", "kind")
	BrokerHandover         = Counter("nvgpu_broker_handover_seconds_total", "Time of the GPU that went into passing it from one tenant to the next.")
	BrokerTogether         = Counter("nvgpu_broker_together_seconds_total", "Time in which several tenants ran on the GPU at once.")
	BrokerGangs            = Counter("nvgpu_broker_gangs_total", "Tenants that were found to wait for themselves across GPUs: from then on they are held and let go on all of them together.")

	QuotaSessions    = Gauge("nvgpu_quota_sessions", "Sessions of the tenant on the GPU.", "tenant")
	QuotaLimit       = Gauge("nvgpu_quota_compute_limit_ratio", "Most of the GPU's time that the tenant may have; absent where it has no limit.", "tenant")
	QuotaTarget      = Gauge("nvgpu_quota_compute_target_ratio", "Part of the GPU's time that was the tenant's by its weight and limit, over the window.", "tenant", "window")
	QuotaShare       = Gauge("nvgpu_quota_compute_share_ratio", "Part of the GPU's time that the tenant was served, over the window: what it did, in the time that it would have needed alone.", "tenant", "window")
	QuotaCompute     = Counter("nvgpu_quota_compute_seconds_total", "Time in which the tenant's work was on the GPU; what several ran at once is divided.", "tenant")
	QuotaServed      = Counter("nvgpu_quota_served_seconds_total", "Time that the tenant would have needed alone on the GPU for what it did there: what guarantees are kept in.", "tenant")
	QuotaWanted      = Counter("nvgpu_quota_wanted_seconds_total", "Time in which the tenant had work for the GPU, or launches that waited.", "tenant")
	QuotaLag         = Gauge("nvgpu_quota_lag_seconds", "Service that the tenant is owed; below 0 it is ahead.", "tenant").Signed()
	QuotaConvoy      = Counter("nvgpu_quota_convoy_seconds_total", "Time in which the tenant's work on this GPU waited for its work on another, where it was held back.", "tenant")
	QuotaLongest     = Gauge("nvgpu_quota_longest_launch_seconds", "Longest launch of the tenant in the last minutes: nobody beside it can be sure to wait for less.", "tenant")
	QuotaGatePassed  = Counter("nvgpu_quota_gate_passed_total", "Launches of the tenant that were let pass because what they waited for did not come in time.", "tenant")
	QuotaGateErrors  = Counter("nvgpu_quota_gate_errors_total", "Launches of the tenant that could not be governed.", "tenant")
	QuotaTurns       = Counter("nvgpu_quota_turns_total", "Times that the tenant was let run on the GPU after it was held back.", "tenant")
	QuotaOverrun     = Counter("nvgpu_quota_overrun_seconds_total", "Time in which the tenant had work on the GPU long after it was to hold back: kernels that do not end.", "tenant")
	QuotaOverruns    = Counter("nvgpu_quota_overruns_total", "Times that the tenant's work had not drained 50 ms after it was to hold back.", "tenant")
	QuotaWait        = Counter("nvgpu_quota_wait_seconds_total", "Time in which the tenant wanted the GPU and was held back.", "tenant")
	QuotaThrottled   = Counter("nvgpu_quota_compute_throttled_seconds_total", "Time that the tenant's threads waited to launch, as the hook says: several at once count several times.", "tenant")
	QuotaCopied      = Counter("nvgpu_quota_copied_bytes_total", "Bytes that copies of the tenant were asked to move, as the hook says.", "tenant")
	QuotaLaunchWaits = Counter("nvgpu_quota_launch_waits_total", "Times that the tenant wanted the GPU and had to wait until it was let run, if for no time at all.", "tenant")
	QuotaLateWaits   = Counter("nvgpu_quota_launch_waits_late_total", "Times that the tenant waited for longer than its objective until it was let run.", "tenant")

	QuotaMemoryLimit    = Gauge("nvgpu_quota_memory_limit_bytes", "GPU memory that the tenant may have; absent where there is no cap.", "tenant")
	QuotaMemoryUsed     = Gauge("nvgpu_quota_memory_used_bytes", "GPU memory that is charged to the tenant.", "tenant")
	QuotaMemoryReserved = Gauge("nvgpu_quota_memory_reserved_bytes", "GPU memory that was granted to the tenant and is not allocated yet.", "tenant")
	QuotaMemoryPeak     = Gauge("nvgpu_quota_memory_peak_bytes", "Most GPU memory that was charged to the tenant at a time.", "tenant")
	QuotaMemoryDenied   = Counter("nvgpu_quota_memory_denied_total", "Allocations that were refused because of the tenant's cap.", "tenant")
	QuotaUncounted      = Counter("nvgpu_quota_memory_uncounted_total", "Allocations of the tenant that could not be booked: its cap does not hold them.", "tenant")
)

// Bounds of an answer of the broker.
const (
	brokerPatience = time.Second
	maxBrokerStats = 4 << 20 // bytes
)

var _ = Register(Collector{
	Name: "broker",
	Doc:  "Sessions, shares, service and memory of the tenants, as the broker has them, and what the enforcer beside it finds and does, where that is enabled.",
	Tier: Fast,
	Metrics: slices.Concat([]*Metric{BrokerUp, BrokerStarved, BrokerSessions, BrokerHookInfo, BrokerHookUnknown, BrokerRequests, BrokerAdmissions, BrokerAdmissionSeconds, BrokerFaults, BrokerHandover, BrokerTogether, BrokerGangs,
		QuotaSessions, QuotaLimit, QuotaTarget, QuotaShare, QuotaCompute, QuotaServed, QuotaWanted, QuotaLag, QuotaConvoy, QuotaLongest, QuotaGatePassed, QuotaGateErrors, QuotaTurns, QuotaOverrun, QuotaOverruns, QuotaWait, QuotaThrottled,
		QuotaMemoryLimit, QuotaMemoryUsed, QuotaMemoryReserved, QuotaMemoryPeak, QuotaMemoryDenied, QuotaUncounted, QuotaCopied, QuotaLaunchWaits, QuotaLateWaits}, quotaMetrics),
	Kernel: func(host.Kernel) func(out *Readings) {
		var c brokerClient
		return func(out *Readings) {
			ask := out.books
			if ask == nil {
				ask = func() (wire.Stats, error) { return c.ask(out.config.Broker) }
			}
			stats, err := ask()
			if out.books == nil && out.config.Broker == "" {
				return
			}
			starved := stats.Starved || errors.Is(err, errStarved)
			out.Set(BrokerUp, Bool(err == nil && !starved))
			if err == nil || starved {
				out.Set(BrokerStarved, Bool(starved))
			}
			if err == nil {
				out.broker(stats)
			} else if !errors.Is(err, errNoBroker) {
				out.Fail(nvml.ERROR_OPERATING_SYSTEM)
			}
		}
	},
})

// broker puts what the broker says.
func (r *Readings) broker(s wire.Stats) {
	for state, n := range s.Sessions {
		r.Set(BrokerSessions, float64(n), state)
	}
	for _, h := range s.Hooks {
		r.Set(BrokerHookInfo, 1, h.Version, h.ABI)
		r.Set(BrokerHookUnknown, float64(h.Unknown), h.Version)
	}
	for _, q := range s.Requests {
		r.Set(BrokerRequests, float64(q.Count), q.Op, q.Result)
	}
	admissions := uint64(0)
	for _, n := range s.Admission.Counts {
		admissions += n
	}
	r.Set(BrokerAdmissions, float64(admissions))
	r.Set(BrokerAdmissionSeconds, s.Admission.Seconds)
	for kind, n := range s.Faults {
		r.Set(BrokerFaults, float64(n), kind)
	}
	index := map[string]string{} // of GPUs by UUID; a MIG device's is none
	for _, id := range r.known() {
		index[id.UUID] = strconv.Itoa(id.Index)
	}
	for _, g := range s.GPUs {
		r.Set(BrokerHandover, g.HandoverSeconds, index[g.GPU], g.GPU)
		r.Set(BrokerTogether, g.TogetherSeconds, index[g.GPU], g.GPU)
		r.Set(BrokerGangs, float64(g.Gangs), index[g.GPU], g.GPU)
	}
	if s.Enforcer != nil {
		r.escalation(s.Enforcer)
	}
	for _, t := range s.Tenants {
		r.tenant(t, index[t.GPU])
	}
	if s.Enforcer != nil {
		r.quotas(s.Enforcer, index)
	}
}

// tenant puts the books of one tenant on one GPU.
func (r *Readings) tenant(t wire.TenantStats, index string) {
	put := func(m *Metric, v float64, labels ...string) {
		r.Set(m, v, append([]string{index, t.GPU, t.Tenant}, labels...)...)
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

// errNoBroker is that nobody listens at the socket: gpusteward_broker_up says
// so, and no collector has failed.
var errNoBroker = errors.New("no broker")

// errStarved is that the broker cannot answer for want of something.
var errStarved = errors.New("the broker starves")

// A brokerClient asks the broker for its books over one connection, which it
// opens again when the broker has closed it. It belongs to one goroutine.
type brokerClient struct {
	socket string // of conn
	conn   *net.UnixConn
	seq    uint64
}

// ask returns the books of the broker at a socket, within a second. Where there
// is no socket it only closes the connection.
func (c *brokerClient) ask(socket string) (s wire.Stats, err error) {
	end := time.Now().Add(brokerPatience)
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
		// The broker was restarted, or has closed what was idle.
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

// exchange asks over the connection, and closes it where that fails: nobody
// would know what a late answer is to.
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
		return s, fmt.Errorf("hear from the broker: %w", err)
	}
	file := descriptor(control[:cn])
	if file != nil {
		defer func() { _ = file.Close() }()
	}
	h, payload, err := wire.Decode(frame[:n])
	switch {
	case err != nil:
		return s, fmt.Errorf("hear from the broker: %w", err)
	case h.Type == wire.TypeErr:
		var refused wire.Err
		refused.Decode(payload)
		if refused.Code == wire.CodeLimit {
			return s, fmt.Errorf("%w: %s", errStarved, wire.Text(refused.Text[:]))
		}
		return s, fmt.Errorf("the broker refuses: %v: %s", refused.Code, wire.Text(refused.Text[:]))
	case h.Type != wire.TypeStatsReply || h.Seq != c.seq || file == nil:
		return s, fmt.Errorf("the broker answers %v to stats", h.Type)
	}
	return s, readStats(file, &s)
}

func (c *brokerClient) close() {
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.socket, c.conn = "", nil
}

// descriptor returns the file that came with a message; nil if none did.
func descriptor(control []byte) *os.File {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil || len(messages) == 0 {
		return nil
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return nil
	}
	return os.NewFile(uintptr(fds[0]), "broker's statistics") // there is room for one
}

// readStats decodes the books in a memory file, from its beginning, wherever
// the broker's last write has left its position.
func readStats(file *os.File, s *wire.Stats) error {
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("read the broker's statistics: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxBrokerStats {
		return fmt.Errorf("the broker's statistics are %d bytes in a %v; at most %d in a file", info.Size(), info.Mode().Type(), maxBrokerStats)
	}
	if err := json.NewDecoder(io.NewSectionReader(file, 0, info.Size())).Decode(s); err != nil {
		return fmt.Errorf("read the broker's statistics: %w", err)
	}
	return nil
}
