package workloads

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sys/unix"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// books are the books of a broker: one tenant on a known GPU, another on a GPU that the driver does not list.
var books = wire.Stats{
	Sessions:  map[string]int{"active": 3, "stale": 1},
	Hooks:     []wire.HookStats{{Version: "0.1", ABI: "1.0", Sessions: 4, Unknown: 2}},
	Requests:  []wire.RequestStats{{Op: "reserve", Result: "ok", Count: 7}, {Op: "hello", Result: "tenant", Count: 2}},
	Admission: wire.Durations{Bounds: []float64{1e-5}, Counts: []uint64{6, 1}, Seconds: 0.5},
	Faults:    map[string]uint64{"flood": 3},
	GPUs:      []wire.GPUStats{{GPU: "GPU-a", HandoverSeconds: 1.5, TogetherSeconds: 2.5, Gangs: 2}},
	Tenants: []wire.TenantStats{
		{Tenant: "a", GPU: "GPU-a", Sessions: 3, Weight: 3, Limit: 0.5,
			Share1s: wire.ShareStats{Target: 0.3, Actual: 0.31}, Share10s: wire.ShareStats{Target: 0.4, Actual: 0.41},
			ServedSeconds: 8, WantedSeconds: 9, LagSeconds: -0.02, ConvoySeconds: 0.7, LongestSeconds: 0.003,
			GatePassed: 18, GateErrors: 19, Uncounted: 6, SliceSeconds: 0.0005, SlicesRefused: 4, Pace: 0.24,
			ChargedSeconds: 10, Turns: 11, OverrunSeconds: 12, WaitSeconds: 13, ThrottledSeconds: 14, CopiedBytes: 15,
			Waits: 17, LateWaits: 16,
			MemoryCap: 100, MemoryUsed: 60, MemoryReserved: 20, MemoryPeak: 70, MemoryDenied: 5},
		{Tenant: "b", GPU: "GPU-unknown", Sessions: 1, Weight: 1, Limit: 1},
	},
	Enforcer: &wire.EnforcerStats{
		Quotas: []wire.QuotaStats{
			{Tenant: "a", GPU: "GPU-a", Quota: quota.Quota{Guarantee: 0.3, Bandwidth: 0.6, Reserved: 50,
				LaunchWait: quota.Wait(20 * time.Millisecond)}, Charge: at(-0.04), Bus: at(0.2),
				QoS: []wire.QoSStats{{Objective: "compute", Windows: 21, Violations: 2},
					{Objective: "memory", Windows: 22, Violations: 0}},
				Holders: []wire.Holder{{Resource: "compute", Backend: "hook"},
					{Resource: "memory", Backend: "kernel"}}},
			{Tenant: "b", GPU: "GPU-unknown", Quota: quota.Free()},
		},
		Workloads: []wire.WorkloadStats{
			{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", Processes: 4, Unhooked: 2, Under: 1, Drift: at(-4096),
				Violations: map[string]uint64{"memory": 31, "unhooked": 32}},
			{Tenant: "b", Workload: "unit:x", GPU: "GPU-unknown"},
		},
		Escalation: []wire.EscalationStats{{Tenant: "b", Workload: "unit:x", Level: "observe"},
			{Tenant: "a", Workload: "unit:w", Level: "pause", Shadow: true}},
		Actions: []wire.ActionStats{{Tenant: "a", Workload: "unit:w", Action: "pause", Result: "shadow", Count: 3}},
		MPS: []wire.MPSStats{{PID: 1, UID: 1001, Tenant: "a", Threads: 0.25, Clients: 2},
			{PID: 2, UID: 1001, Tenant: "a", Threads: 0.5, Clients: 3}, {PID: 3, UID: 0}},
		Gemini: []wire.GeminiStats{{Listen: "127.0.0.1:50052", GPU: "GPU-a", Clients: 2, BadLines: 1,
			Requests: map[string]uint64{"quota": 41}, Faults: map[string]uint64{"expired": 42},
			Tenants: []wire.GeminiTenant{{Guarantee: 0.1, Charge: at(0.9),
				TenantStats: wire.TenantStats{Tenant: "gemini:a", GPU: "GPU-a", Sessions: 2, Limit: 0.9,
					Share10s:       wire.ShareStats{Target: 0.1, Actual: 0.11},
					ChargedSeconds: 43, WaitSeconds: 44, Turns: 45, MemoryCap: 46, MemoryUsed: 47,
					MemoryDenied: 48}}}}},
		Jobs: []wire.JobStats{{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", PID: 7, Stepping: true, Steps: 2,
			Seconds: wire.Exponential{Buckets: map[int]uint64{-8: 1, 0: 1}, Count: 2, Sum: 1.5}, Median: 0.75,
			Parts: map[string]float64{"host": 51}, Outside: 52, Slow: map[string]uint64{"power": 53},
			Slowdown: &wire.Slowdown{Seconds: 0.5, Usual: 0.375, Cause: "power", Evidence: "the clock fell"},
			Launches: 54, Graphs: 55, Waits: 56, CopiedBytes: 57, Allocations: 58, Collectives: 59,
			CollectiveBytes: 60, Busy: 61, Lost: 62, Communicators: []wire.CommunicatorStats{
				{ID: "00000000000000c0", Rank: 3, Ranks: 8, Entered: 63, Measured: 64, Seconds: 65, Paused: 67}}}},
		Hangs: []wire.HangStats{{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", PID: 7, Rank: 3, Reason: "absent",
			Where: "train.py:42 in step", Seconds: 66, Waiting: 7}},
		Kernels: []wire.KernelStats{{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", Kernel: "gemm<float>", Seconds: 32.5}},
		Unread:  []wire.UnreadStats{{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", Seconds: 31}},
		Stragglers: []wire.StragglerStats{{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", PID: 7, Rank: 3, Cause: "power",
			Lost: 0.68}},
		Suspended: []wire.SuspendedStats{{Tenant: "a", Workload: "unit:w", GPU: "GPU-a", Phase: "suspended", Seconds: 69,
			Bytes: 70}},
		Suspensions: wire.SuspensionStats{Suspended: 71, Resumed: 72, SuspendSeconds: 73, ResumeSeconds: 74,
			Refused: map[string]uint64{"mps": 75}, Broken: 76},
		Held:       []wire.HeldStats{{Tenant: "a", Workload: "unit:w", Cause: "paused", Stands: true}},
		Overcommit: []wire.OvercommitStats{{GPU: "GPU-a", Turn: 77, Waiting: 78, Longest: 79}},
	},
}

func at(v float64) *float64 { return &v }

// A fakeBroker answers each request with answer.
type fakeBroker struct {
	socket   string
	accepted chan struct{} // one for each connection
}

func brokerThat(t *testing.T, answer func(c *net.UnixConn, h wire.Header) error) *fakeBroker {
	t.Helper()
	dir := fixture.ShortDir(t)
	b := &fakeBroker{socket: filepath.Join(dir, "s"), accepted: make(chan struct{}, 16)}
	l := fixture.Value(net.Listen("unixpacket", b.socket))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.accepted <- struct{}{}
			go func() {
				defer c.Close()
				for frame := make([]byte, wire.FrameMax); ; {
					n, err := c.Read(frame)
					if err != nil {
						return
					}
					h, _, err := wire.Decode(frame[:n])
					if err != nil || h.Type != wire.TypeStats || answer(c.(*net.UnixConn), h) != nil {
						return
					}
				}
			}()
		}
	}()
	return b
}

// reply sends a frame, with a memory file that holds text.
func reply(c *net.UnixConn, frame []byte, text []byte) error {
	fd, err := unix.MemfdCreate("books", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, text); err != nil {
		return err
	}
	_, _, err = c.WriteMsgUnix(frame, unix.UnixRights(fd), nil)
	return err
}

// answers is a broker's answer to a request.
func answers(h wire.Header) []byte {
	return wire.Header{Type: wire.TypeStatsReply, Seq: h.Seq}.Append(nil)
}

// readBroker runs passes of the collector, and returns the readings of the last.
func readBroker(read func(*collectors.Readings), socket string) *collectors.Readings {
	out := &collectors.Readings{Now: time.Now(), Config: &collectors.Config{Broker: socket},
		Known: func() []gpu.ID { return []gpu.ID{{Index: 4, UUID: "GPU-a"}} }}
	read(out)
	return out
}

// brokerCollector returns the read of the broker's collector, with patience for a busy machine.
func brokerCollector() func(*collectors.Readings) {
	return readBooks(&brokerClient{patience: time.Minute})
}

// TestGoldenBooks expects each number of the books, of which no two are alike, in its series.
func TestGoldenBooks(t *testing.T) {
	q := &books.Enforcer.Quotas[0].Quota
	for _, term := range quota.Terms {
		for _, some := range []string{"0.7", "1s"} { // of a term that the books lack
			if _, told := term.Told(q); !told {
				_ = term.At(q).UnmarshalText([]byte(some))
			}
		}
	}
	text := fixture.Value(json.Marshal(books))(t)
	b := brokerThat(t, func(c *net.UnixConn, h wire.Header) error { return reply(c, answers(h), text) })
	read := brokerCollector()
	readBroker(read, b.socket)
	out := readBroker(read, b.socket)
	got := hosttest.Series(out.Samples)
	var series strings.Builder
	for _, name := range slices.Sorted(maps.Keys(got)) {
		fmt.Fprintf(&series, "%s %v\n", name, got[name])
	}
	fixture.Golden(t, "testdata/broker.prom", series.String())
	for name := range got {
		fixture.If(t, strings.Contains(name, `tenant="b"`) &&
			(strings.Contains(name, "limit") || strings.Contains(name, "objective") ||
				strings.Contains(name, "drift") || strings.Contains(name, "bandwidth")),
			"%s is present, though the books lack it", name)
	}
	fixture.Equal(t, len(got), len(out.Samples), "a scrape with duplicates is refused: the different series are")
	fixture.Equal(t, fmt.Sprint(int(out.Failure), len(b.accepted)), "0 1", "after two passes, the failure and connections are")
	for _, m := range metricsOf("broker") {
		fixture.If(t, !slices.ContainsFunc(out.Samples, func(s collectors.Sample) bool { return s.Metric == m }),
			"%v is declared but not put", m)
	}
}

func metricsOf(name string) []*collectors.Metric {
	i := slices.IndexFunc(collectors.All(), func(c *collectors.Collector) bool { return c.Name == name })
	return collectors.All()[i].Metrics
}

func TestMissingBrokerIsReported(t *testing.T) {
	read := brokerCollector()
	if out := readBroker(read, ""); len(out.Samples) != 0 || out.Failure != nvml.SUCCESS {
		t.Errorf("with the enforcer disabled: %v, %v", out.Samples, out.Failure)
	}
	stale := filepath.Join(t.TempDir(), "s")
	if l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: stale, Net: "unixpacket"}); err == nil {
		l.SetUnlinkOnClose(false)
		l.Close()
	}
	for _, socket := range []string{filepath.Join(t.TempDir(), "none"), stale} {
		out := readBroker(read, socket)
		if got := hosttest.Series(out.Samples); len(got) != 1 || got["gpusteward_broker_up{}"] != 0 ||
			out.Failure != nvml.SUCCESS {
			t.Errorf("%s: %v, %v; want gpusteward_broker_up 0 alone", socket, got, out.Failure)
		}
	}
}

// TestStarvedBrokerIsDown has a broker that reports a shortage, and one that cannot even do that.
func TestStarvedBrokerIsDown(t *testing.T) {
	says := func(c *net.UnixConn, h wire.Header) error { return reply(c, answers(h), []byte(`{"starved": true}`)) }
	refuses := func(c *net.UnixConn, h wire.Header) error {
		_, err := c.Write((&wire.Err{Code: wire.CodeLimit, Type: uint32(h.Type)}).Append(wire.Header{Type: wire.TypeErr,
			Seq: h.Seq}.Append(nil)))
		return err
	}
	for name, answer := range map[string]func(*net.UnixConn, wire.Header) error{"says so": says, "refuses": refuses} {
		got := hosttest.Series(readBroker(brokerCollector(), brokerThat(t, answer).socket).Samples)
		if up, there := got["gpusteward_broker_up{}"]; !there || up != 0 || got["gpusteward_broker_starved{}"] != 1 {
			t.Errorf("a broker that %s: %v", name, got)
		}
	}
}

func TestReturningBrokerIsFound(t *testing.T) {
	b := brokerThat(t, func(c *net.UnixConn, h wire.Header) error {
		return errors.Join(reply(c, answers(h), []byte("{}")), errors.New("closes after each answer"))
	})
	read := brokerCollector()
	for i := range 3 {
		if out := readBroker(read, b.socket); hosttest.Series(out.Samples)["gpusteward_broker_up{}"] != 1 {
			t.Errorf("pass %d: %v", i, hosttest.Series(out.Samples))
		}
	}
}

func TestInvalidAnswersOfTheBroker(t *testing.T) {
	for name, answer := range map[string]func(c *net.UnixConn, h wire.Header) error{
		"not JSON": func(c *net.UnixConn, h wire.Header) error { return reply(c, answers(h), []byte("{")) },
		"too long": func(c *net.UnixConn, h wire.Header) error {
			return reply(c, answers(h), make([]byte, maxBrokerStats+1))
		},
		"nothing with it": func(c *net.UnixConn, h wire.Header) error {
			_, err := c.Write(answers(h))
			return err
		},
		"a pipe": func(c *net.UnixConn, h wire.Header) error {
			r, w, err := os.Pipe()
			if err != nil {
				return err
			}
			defer r.Close()
			defer w.Close()
			_, _, err = c.WriteMsgUnix(answers(h), unix.UnixRights(int(r.Fd())), nil)
			return err
		},
		"another's answer": func(c *net.UnixConn, h wire.Header) error {
			h.Seq++
			return reply(c, answers(h), []byte("{}"))
		},
		"no frame": func(c *net.UnixConn, h wire.Header) error { return reply(c, []byte("hello"), []byte("{}")) },
		"refused": func(c *net.UnixConn, h wire.Header) error {
			e := wire.Err{Code: wire.CodeDenied, Type: uint32(wire.TypeStats)}
			_, err := c.Write(e.Append(wire.Header{Type: wire.TypeErr, Seq: h.Seq}.Append(nil)))
			return err
		},
	} {
		out := readBroker(brokerCollector(), brokerThat(t, answer).socket)
		if got := hosttest.Series(out.Samples); len(got) != 1 || got["gpusteward_broker_up{}"] != 0 ||
			out.Failure == nvml.SUCCESS {
			t.Errorf("%s: %v, failure %v; want gpusteward_broker_up 0 alone, and a failure", name, got, out.Failure)
		}
	}
}

func TestASilentBrokerIsNotAwaited(t *testing.T) {
	b := brokerThat(t, func(*net.UnixConn, wire.Header) error { return nil })
	c := brokerClient{patience: 20 * time.Millisecond}
	_, err := c.ask(b.socket)
	fixture.If(t, !os.IsTimeout(errors.Unwrap(err)), "the answer is %v", err)
	fixture.Equal(t, c.conn != nil, false, "the connection was kept: the next request would get the late answer")
}

// TestManyTenantsAreBounded checks that a broker with too many tenants costs series, and that these are counted.
func TestManyTenantsAreBounded(t *testing.T) {
	s := wire.Stats{}
	for i := range 1000 {
		s.Tenants = append(s.Tenants, wire.TenantStats{Tenant: fmt.Sprint(i), GPU: "GPU-a", Limit: 1})
	}
	text := fixture.Value(json.Marshal(s))(t)
	b := brokerThat(t, func(c *net.UnixConn, h wire.Header) error { return reply(c, answers(h), text) })
	if out := readBroker(brokerCollector(), b.socket); len(out.Samples) != collectors.MaxSeries || len(out.Dropped) == 0 {
		t.Errorf("%d series, dropped %v", len(out.Samples), out.Dropped)
	}
}

// TestQuotaTermHasASeries checks that a term needs its row, and nothing in this package.
func TestQuotaTermHasASeries(t *testing.T) { // not parallel: the table is shared
	before := termMetrics
	defer func() { termMetrics = before }()
	term := &quota.Term{Key: "patience", At: func(q *quota.Quota) quota.Value { return &q.LaunchWait }}
	patience := new(collectors.Metric)
	*patience = *QuotaLaunchObjective // not declared, because other tests do not know it
	patience.Name = "nvgpu_quota_patience_seconds"
	termMetrics = slices.Concat(before, []termMetric{{term, patience}})
	patient, free := quota.Free(), quota.Free()
	patient.LaunchWait = quota.Wait(7 * time.Second)
	out := &collectors.Readings{Now: time.Now(), Known: func() []gpu.ID { return nil }}
	rows := []wire.QuotaStats{{Tenant: "a", GPU: "GPU-a", Quota: patient}, {Tenant: "b", GPU: "GPU-a", Quota: free}}
	putBroker(out, wire.Stats{Enforcer: &wire.EnforcerStats{Quotas: rows}}, newJobs())
	got := hosttest.Series(out.Samples)
	fixture.Equal(t, got[`nvgpu_quota_patience_seconds{gpu="",tenant="a",uuid="GPU-a"}`], 7, "its value is")
	v, told := got[`nvgpu_quota_patience_seconds{gpu="",tenant="b",uuid="GPU-a"}`]
	fixture.If(t, told, "its value without a setting is %v", v)
}

// TestManyWorkloadsAreBounded checks that new workloads cannot displace tenants, and that the highest levels are shown.
func TestManyWorkloadsAreBounded(t *testing.T) {
	e := &wire.EnforcerStats{Quotas: []wire.QuotaStats{{Tenant: "a", GPU: "GPU-a",
		Quota: quota.Quota{Guarantee: 0.5, Bandwidth: 1}}}}
	for i := range 5000 {
		name := fmt.Sprint("unit:", i)
		e.Workloads = append(e.Workloads,
			wire.WorkloadStats{Tenant: "a", Workload: name, GPU: "GPU-a", Violations: map[string]uint64{"memory": 1}})
		e.Escalation = append(e.Escalation, wire.EscalationStats{Tenant: "a", Workload: name, Level: "observe"})
		e.Actions = append(e.Actions,
			wire.ActionStats{Tenant: "a", Workload: name, Action: "warn", Result: "done", Count: 1})
	}
	e.Escalation[4999].Level = "terminate"
	out := &collectors.Readings{Now: time.Now(), Known: func() []gpu.ID { return nil }}
	putBroker(out, wire.Stats{Enforcer: e, Tenants: []wire.TenantStats{{Tenant: "a", GPU: "GPU-a", Limit: 1}}}, newJobs())
	got := hosttest.Series(out.Samples)
	for _, name := range []string{`nvgpu_quota_rung{rung="terminate",tenant="a",workload="unit:4999"}`,
		`nvgpu_quota_compute_guarantee_ratio{gpu="",tenant="a",uuid="GPU-a"}`,
		`nvgpu_quota_sessions{gpu="",tenant="a",uuid="GPU-a"}`} {
		_, ok := got[name]
		fixture.If(t, !ok, "%s is missing", name)
	}
	for m, want := range map[*collectors.Metric]int{QuotaLevel: 5000 - maxEscalated, QuotaActions: 5000 - maxActions,
		UnhookedProcesses: 5000 - maxAudited} {
		fixture.Equal(t, out.Dropped[m], want, "%v: dropped", m)
	}
	fixture.AtMost(t, len(out.Samples), collectors.MaxSeries/2, "series")
}

// TestBooksFromElsewhere checks that the option Books replaces the socket.
func TestBooksFromElsewhere(t *testing.T) {
	for _, socket := range []string{"", "/nowhere/broker.sock"} {
		c := collectors.DefaultConfig()
		c.Broker = socket
		hosttest.With(t, "gpus: [{}]\n", func(o *collectors.Options) {
			o.Config = c
			o.Books = func() (wire.Stats, error) { return books, nil }
		}, func(t *testing.T, h *collectors.Host) {
			time.Sleep(5 * time.Second)
			fixture.Equal(t, value(h, BrokerUp), 1, "with the socket %q the broker is up", socket)
			fixture.Equal(t, value(h, QuotaTurns, "", "GPU-a", "a"), 11,
				"with the socket %q the tenant had … turns", socket)
		})
	}
}

// value returns a sample of h, or -1 if there is none.
func value(h *collectors.Host, m *collectors.Metric, labels ...string) float64 {
	for _, s := range h.Samples() {
		if s.Metric == m && (labels == nil || slices.Equal(s.Labels, labels)) {
			return s.Value
		}
	}
	return -1
}
