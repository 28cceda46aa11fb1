package workloads

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// A board is a GPU with the processes and the samples that a test sets. It draws 100 W.
type board struct {
	compute, graphics, mps []nvml.ProcessInfo
	use                    func(since time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return)
	asked                  []time.Time // the start of each requested period of use
}

const boardWatts = 100

// open returns the board as a GPU.
func (b *board) open(t testing.TB) *gpu.Device {
	t.Helper()
	d := hosttest.Mock()
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return boardWatts * 1000, nvml.SUCCESS }
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return b.compute, nvml.SUCCESS }
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return b.graphics, nvml.SUCCESS }
	d.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return b.mps, nvml.SUCCESS }
	d.GetProcessUtilizationFunc = func(since uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		b.asked = append(b.asked, time.UnixMicro(int64(since)))
		if b.use == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return b.use(time.UnixMicro(int64(since)))
	}
	return hosttest.Open(t, d)
}

// A stage runs the processes collector on a board, turn by turn, with invented processes. It needs a bubble's clock.
type stage struct {
	gpu       *gpu.Device
	read      collectors.Read
	config    collectors.Config
	facts     map[int]host.Facts
	table     *host.Table
	allocated []host.Allocation
	totals    map[string]float64
	last      *collectors.Readings
	begun     uint64 // number of processes so far
}

func perform(t testing.TB, b *board) *stage {
	t.Helper()
	s := &stage{gpu: b.open(t), config: collectors.DefaultConfig(), facts: map[int]host.Facts{}, totals: map[string]float64{}}
	s.table = host.NewTable(host.Options{Proc: host.ProcFunc(func(pid int) (host.Facts, map[string]string, bool) {
		f, ok := s.facts[pid]
		return f, nil, ok
	})})
	s.read = openUsers(s.gpu)
	return s
}

// is starts a process of a systemd unit.
func (s *stage) is(pid int, unit string) {
	s.begun++
	s.facts[pid] = host.Facts{Start: s.begun, Comm: "python3", Cgroup: "0::/system.slice/" + unit + "\n"}
}

// pass runs the collector once.
func (s *stage) pass() *collectors.Readings {
	s.last = &collectors.Readings{Now: time.Now(), Config: &s.config, Processes: s.table, Prefix: []string{"0", "GPU-a"},
		Totals:      s.totals,
		Allocations: func() host.Allocated { return host.Allocated{All: s.allocated} }}
	s.read(s.gpu, s.last)
	return s.last
}

// passes runs it once a second for that many seconds.
func (s *stage) passes(seconds int) {
	for range seconds {
		time.Sleep(time.Second)
		s.pass()
	}
}

// value returns the value of a series in the last pass, NaN if it is missing.
func (s *stage) value(m *collectors.Metric, labels ...string) float64 {
	for _, p := range s.last.Samples {
		if p.Metric == m && slices.Equal(p.Labels[2:], labels) {
			return p.Value
		}
	}
	return math.NaN()
}

func (s *stage) has(t *testing.T, m *collectors.Metric, want float64, labels ...string) {
	t.Helper()
	if v := s.value(m, labels...); math.Abs(v-want) > 1e-9 || math.IsNaN(v) != math.IsNaN(want) {
		t.Errorf("%v %q = %v, want %v", m, labels, v, want)
	}
}

// runs returns a process as the driver lists it outside MIG.
func runs(pid int, memory uint64) nvml.ProcessInfo {
	return nvml.ProcessInfo{Pid: uint32(pid), UsedGpuMemory: memory, GpuInstanceId: gpu.NoInstance,
		ComputeInstanceId: gpu.NoInstance}
}

// did returns a sample of a process.
func did(pid int, at time.Time, sm, memory, encoder, decoder uint32) nvml.ProcessUtilizationSample {
	return nvml.ProcessUtilizationSample{Pid: uint32(pid), TimeStamp: uint64(at.UnixMicro()), SmUtil: sm,
		MemUtil: memory, EncUtil: encoder, DecUtil: decoder}
}

// works lets each of pids use that percentage of the SMs until now.
func works(percent uint32, pids ...int) func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return func(time.Time) (all []nvml.ProcessUtilizationSample, ret nvml.Return) {
		for _, pid := range pids {
			all = append(all, did(pid, time.Now(), percent, 0, 0, 0))
		}
		return all, nvml.SUCCESS
	}
}

var noon = time.Unix(1_700_000_000, 123_456_789)

// TestRequestForUse lets the driver answer once, 5 s after the last counted sample.
func TestRequestForUse(t *testing.T) {
	ago := func(d time.Duration) time.Time { return noon.Add(-d) }
	one := func(s ...nvml.ProcessUtilizationSample) []nvml.ProcessUtilizationSample { return s }
	for name, c := range map[string]struct {
		seen    time.Time
		samples []nvml.ProcessUtilizationSample
		ret     nvml.Return
		since   time.Duration // before noon, start of the requested period
		window  time.Duration
		use     engines // of process 7
		fails   nvml.Return
	}{
		"busy": {ago(5 * time.Second), one(did(7, ago(50*time.Millisecond), 40, 30, 20, 10)), 0,
			5 * time.Second, 4950 * time.Millisecond, engines{.4, .3, .2, .1}, 0},
		"twice in the list": {ago(5 * time.Second), one(did(7, ago(0), 25, 0, 0, 0), did(7, ago(0), 50, 0, 0, 1)), 0,
			5 * time.Second, 5 * time.Second, engines{.75, 0, 0, .01}, 0},
		"newest sample old": {ago(5 * time.Second), one(did(7, ago(3*time.Second), 40, 0, 0, 0)), 0, 5 * time.Second,
			4800 * time.Millisecond, engines{.4}, 0},
		"sample of to-morrow": {ago(5 * time.Second), one(did(7, noon.Add(time.Hour), 40, 0, 0, 0)), 0, 5 * time.Second,
			4800 * time.Millisecond, engines{.4}, 0},
		"not a percentage": {ago(5 * time.Second), one(did(7, ago(0), 101, 100, 1<<31, 7)), 0, 5 * time.Second,
			5 * time.Second, engines{0, 1, 0, .07}, 0},
		"idle": {ago(5 * time.Second), nil, nvml.ERROR_NOT_FOUND, 5 * time.Second,
			4800 * time.Millisecond, engines{}, 0},
		"idle since long": {ago(5 * time.Second), nil, nvml.ERROR_INSUFFICIENT_SIZE, 5 * time.Second,
			4800 * time.Millisecond, engines{}, 0},
		"no samples kept": {ago(5 * time.Second), nil, nvml.ERROR_NO_DATA, 5 * time.Second, 4800 * time.Millisecond,
			engines{}, 0},
		"never asked": {time.Time{}, one(did(7, ago(0), 40, 0, 0, 0)), 0, time.Second, time.Second, engines{.4},
			0},
		"long not asked": {ago(12*time.Second + 1), one(did(7, ago(0), 40, 0, 0, 0)), 0, time.Second, time.Second,
			engines{.4}, 0},
		"just remembered": {ago(12 * time.Second), one(did(7, ago(0), 40, 0, 0, 0)), 0, 12 * time.Second,
			12 * time.Second, engines{.4}, 0},
		"clock set back": {noon.Add(time.Hour), one(did(7, ago(0), 40, 0, 0, 0)), 0, time.Second, time.Second,
			engines{.4}, 0},
		"unsupported": {ago(5 * time.Second), nil, nvml.ERROR_NOT_SUPPORTED, 5 * time.Second, 0, engines{},
			nvml.ERROR_NOT_SUPPORTED},
		"failure": {ago(5 * time.Second), nil, nvml.ERROR_UNKNOWN, 5 * time.Second, 0, engines{},
			nvml.ERROR_UNKNOWN},
	} {
		b := board{use: func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) { return c.samples, c.ret }}
		u := usage{seen: c.seen}
		window, ret := u.ask(b.open(t), noon)
		if since := noon.Sub(b.asked[0]); (since - c.since).Abs() > 2*time.Microsecond {
			t.Errorf("%s: asked about the last %v, want %v", name, since, c.since)
		}
		if ret != c.fails || (window-c.window).Abs() > 2*time.Microsecond || u.latest[7] != c.use {
			t.Errorf("%s: window %v, use %v, %v; want %v, %v, %v", name, window, u.latest[7], ret, c.window, c.use,
				c.fails)
		}
	}
}

// TestUsageFollowsTheWallClock: the end of the counted samples is compared with
// the driver's times, and a monotonic clock would ignore that those were set.
func TestUsageFollowsTheWallClock(t *testing.T) {
	var u usage
	u.ask((&board{}).open(t), time.Now())
	fixture.Equal(t, u.seen, u.seen.Round(0), "the time up to which it was seen, without the clock that only advances")
}

// TestUsageWindowsAreAdjacent lets the driver sample, and the collector ask, at random times: every sample counts once,
// and the windows cover all of the time.
func TestUsageWindowsAreAdjacent(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		between := func(from, to time.Duration) time.Duration { return from + time.Duration(r.Int64N(int64(to-from))) }
		var times []time.Time
		for at := noon; at.Before(noon.Add(10 * time.Minute)); at = at.Add(between(50*time.Millisecond, 2*useLag)) {
			if r.IntN(40) == 0 {
				at = at.Add(between(0, 30*time.Second)) // idle
			}
			times = append(times, at.Truncate(time.Microsecond))
		}
		var u usage
		counted := map[time.Time]int{}
		now := noon
		b := board{use: func(since time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			var newest time.Time
			for _, at := range times {
				if at.After(since) && !at.After(now) && now.Sub(at) <= collectors.SampleDepth {
					counted[at]++
					newest = at
				}
			}
			if newest.IsZero() {
				return nil, nvml.ERROR_NOT_FOUND
			}
			return []nvml.ProcessUtilizationSample{did(7, newest, 50, 0, 0, 0)}, nvml.SUCCESS
		}}
		g := b.open(t)
		_, ret := u.ask(g, now)
		fixture.Stop(t, ret != nvml.SUCCESS, "%v", ret)
		first, sum := u.seen, time.Duration(0)
		for now.Before(noon.Add(9 * time.Minute)) {
			now = now.Add(between(100*time.Millisecond, 11*time.Second))
			window, _ := u.ask(g, now)
			sum += window
		}
		if whole := u.seen.Sub(first); (sum-whole).Abs() > time.Millisecond || now.Sub(u.seen) > useLag {
			t.Fatalf("seed %d: the windows are %v of %v, and end %v ago", seed, sum, whole, now.Sub(u.seen))
		}
		for _, at := range times {
			if n := counted[at]; at.After(first) && !at.After(u.seen) && n != 1 {
				t.Fatalf("seed %d: a sample counts %d times", seed, n)
			}
		}
	}
}

func TestUsageOfAYoungProcessIsReadEachTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{}
		s := perform(t, b)
		asks := func(turns int) int {
			before := len(b.asked)
			s.passes(turns)
			return len(b.asked) - before
		}
		fixture.Equal(t, asks(30), 0, "asked … times without a process")
		b.compute = []nvml.ProcessInfo{runs(1, 1)}
		fixture.Equal(t, asks(10), 10, "asked … times in the first 10 s of a process")
		asks(10)
		fixture.Equal(t, asks(60), 12, "asked … times a minute about an old process")
		b.graphics = []nvml.ProcessInfo{runs(2, 1)}
		fixture.Equal(t, asks(10), 10, "asked … times in the first 10 s of a process beside an old one")
		b.graphics = nil
		asks(10)
		fixture.Equal(t, asks(60), 12, "asked … times a minute after it ended")
		b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		asks(10)
		fixture.Equal(t, asks(60), 12, "asked … times a minute without an answer")
	})
}

// TestUnreadableUsageIsAbsent checks every turn, not only those in which
// the driver is asked, and that a failure loses no time.
func TestUnreadableUsageIsAbsent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &board{compute: []nvml.ProcessInfo{runs(1, 1)}, use: works(50, 1)}
		s := perform(t, b)
		s.is(1, "a.service")
		s.passes(20)
		before := s.value(WorkloadSM, "unit:a.service")
		for _, ret := range []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_NOT_SUPPORTED} {
			b.use = func(time.Time) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, ret }
			failed := false
			for i := range 8 {
				time.Sleep(time.Second)
				out := s.pass()
				shown := slices.ContainsFunc(out.Samples,
					func(s collectors.Sample) bool { return s.Metric == WorkloadUse || s.Metric == WorkloadSM })
				if failed = failed || out.Failure == ret || len(out.Unsupported) > 0; failed && shown {
					t.Fatalf("turn %d after %v: use is shown", i, gpu.ReturnName(ret))
				}
				if failed && (out.Failure != ret) != gpu.Unsupported(ret) {
					t.Fatalf("turn %d after %v: the failure is %v", i, gpu.ReturnName(ret), gpu.ReturnName(out.Failure))
				}
				s.has(t, WorkloadMemory, 1, "unit:a.service", "")
			}
			fixture.Need(t, failed, true, "%v was not noticed in 8 s", gpu.ReturnName(ret))
			b.use = works(50, 1)
			s.passes(12)
		}
		fixture.Near(t, s.value(WorkloadSM, "unit:a.service")-before, 20, 3, "… s of 40 s at half")
	})
}
