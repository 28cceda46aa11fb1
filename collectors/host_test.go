package collectors_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	_ "gpusteward/collectors/all"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/hosttest"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

func TestGolden(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"models", "mig", "vgpu"} {
		t.Run(name, func(t *testing.T) {
			hosttest.In(t, name, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
				hosttest.Advance(65 * time.Second) // every tier has run
				var b strings.Builder
				m := hosttest.Series(h.Samples())
				for _, k := range slices.Sorted(maps.Keys(m)) {
					if strings.HasPrefix(k, "gpusteward_nvml_calls") {
						continue // TestTiersSetTheReadInterval checks the number of calls
					}
					fmt.Fprintf(&b, "%s %v\n", k, m[k])
				}
				fixture.Golden(t, "testdata/"+name+".prom", b.String())
			})
		})
	}
}

func TestReadyAfterTheFirstWholeSnapshot(t *testing.T) {
	hosttest.In(t, "mixed", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		fixture.Must(t, h.Ready())
		for i := range 8 {
			hosttest.Want(t, h, 1, collectors.Up, fmt.Sprint(i))
		}
		hosttest.Want(t, h, 8, collectors.Devices, "")
		hosttest.Want(t, h, 8, collectors.DevicesExpected, "")
		hosttest.Want(t, h, 1, collectors.NVMLGeneration, "")
	})
	hosttest.In(t, "no_gpus", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		fixture.Equal(t, h.Ready(), collectors.ErrNoGPUs, "without GPUs")
	})
}

func TestNotReadyBeforeTheDriverIsOpen(t *testing.T) {
	nv := fixture.Value(sim.New(hosttest.Scenario(t, "idle"), sim.Options{}))(t)
	err := collectors.NewHost(collectors.Options{NVML: nv, Config: collectors.DefaultConfig(), Log: slog.Default()}).Ready()
	fixture.If(t, !errors.Is(err, collectors.ErrOpening), "Ready() = %v, want %v", err, collectors.ErrOpening)
}

// TestPassesShareTheEndOfTheirTurn delays a turn by a call that hangs for a while:
// what was read before the call counts as old from the end of the turn on.
func TestPassesShareTheEndOfTheirTurn(t *testing.T) {
	hosttest.In(t, "gpus: [{}]\nfaults: [{kind: wedge, call: nvmlDeviceGetUtilizationRates, at: 19500ms, for: 2200ms}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(21900 * time.Millisecond)
		delayed := 0
		for _, p := range h.Passes() {
			switch {
			case p.GPU != 0:
				continue
			case p.Collector.Tier == collectors.Fast && !p.Ended.Equal(p.Turn):
				t.Errorf("%s: its turn ended at %v, want %v", p.Collector.Name, p.Ended, p.Turn)
			case p.Ended.After(p.Turn) || p.Ended.Before(p.Began):
				t.Errorf("%s began at %v and ended at %v", p.Collector.Name, p.Began, p.Ended)
			}
			if p.Ended.Sub(p.Began) > time.Second {
				delayed++
			}
		}
		fixture.Equal(t, delayed == 0, false, "no pass was delayed, so the test proves nothing")
	})
}

// TestDelayedTurnSkipsNoCollector delays a turn by less than an interval, and by more: then the next one
// begins late. The one after that reads all again.
func TestDelayedTurnSkipsNoCollector(t *testing.T) {
	for lasts, after := range map[string]time.Duration{"800ms": time.Second, "1900ms": 2 * time.Second} {
		hosttest.In(t, "gpus: [{}]\nfaults: [{kind: wedge, call: nvmlDeviceGetPerformanceState, at: 19500ms, for: "+lasts+"}]\n",
			collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
				fast := func(since func(p collectors.Pass) time.Duration) (longest time.Duration) {
					for _, p := range h.Passes() {
						if p.GPU == 0 && p.Collector.Tier == collectors.Fast {
							longest = max(longest, since(p))
						}
					}
					return longest
				}
				hosttest.Advance(19500*time.Millisecond + after)
				delay := fast(func(p collectors.Pass) time.Duration { return p.Ended.Sub(p.Began) })
				late := fast(func(p collectors.Pass) time.Duration { return p.Began.Sub(p.Began.Truncate(time.Second)) })
				fixture.AtLeast(t, max(delay, late), 100*time.Millisecond,
					"%s: a turn took %v and was %v late, so the test proves nothing", lasts, delay, late)
				hosttest.Advance(time.Second)
				now := time.Now()
				fixture.AtMost(t, fast(func(p collectors.Pass) time.Duration { return now.Sub(p.Began) }), time.Second,
					"%s: a collector was left out: it read … ago", lasts)
			})
	}
}

func TestDriverLoadedLater(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}]\n"+
		"faults: [{at: 0s, for: 60s, kind: driver_gone}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(30 * time.Second)
		fixture.Fails(t, h.Driver(), "nvmlInit", "Driver() =")
		fixture.AtMost(t, time.Since(h.Progress()), collectors.OpenMost,
			"no progress for … while the host waits for a driver")
		hosttest.Advance(40 * time.Second)
		fixture.Must(t, h.Ready())
	})
}

func TestFailedCallLeavesNoSeries(t *testing.T) {
	const source = "gpus: [{model: h100}]\n" +
		"faults: [{at: 5s, for: 20s, gpu: 0, kind: error, call: nvmlDeviceGetTemperature, return: ERROR_UNKNOWN}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(4 * time.Second)
		_, ok := hosttest.Get(t, h, device.Temperature, "0", "gpu")
		fixture.Stop(t, !ok, "no temperature at the start")
		hosttest.Advance(4 * time.Second)
		hosttest.WantNone(t, h, device.Temperature, "0", "gpu")
		_, ok = hosttest.Get(t, h, device.Temperature, "0", "memory")
		fixture.If(t, !ok, "the reading beside the failed one is gone too")
		hosttest.Want(t, h, 0, collectors.CollectSuccess, "", "temperature")
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "clocks")
		n, _ := hosttest.Get(t, h, collectors.CollectErrors, "", "temperature", "unknown")
		fixture.If(t, n < 2, "%v passes failed, want at least 2", n)
		n, _ = hosttest.Get(t, h, collectors.NVMLCalls, "", "nvmlDeviceGetTemperature", "unknown")
		fixture.If(t, n < 2, "%v calls failed, want at least 2", n)
		hosttest.Advance(20 * time.Second)
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "temperature")
	})
}

func TestUnsupportedIsAnAnswer(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100-vm}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		hosttest.WantNone(t, h, device.FanSpeed, "0", "0")
		hosttest.Want(t, h, 1, collectors.Unsupported, "0", device.FanSpeed.Name)
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "fans")
		hosttest.WantNone(t, h, collectors.CollectErrors, "", "fans", "not_supported")
	})
}

// TestHungPeerDoesNotDelayOthers has every GPU ask for the paths to the others.
func TestHungPeerDoesNotDelayOthers(t *testing.T) {
	t.Parallel()
	c := collectors.DefaultConfig()
	c.Enable = []string{"topology"}
	hosttest.In(t, "wedged", c, func(t *testing.T, h *collectors.Host) {
		wedged := hosttest.Told(h, collectors.Up, "gpu", "3")["uuid"]
		peers := func(index string) map[string]float64 { return hosttest.Of(h, links.TopologyPeer, index, "peer_uuid") }
		asked := 0
		for range 78 {
			hosttest.Advance(time.Second)
			for i := range 8 {
				if i == 3 {
					continue
				}
				hosttest.Want(t, h, 1, collectors.Up, fmt.Sprint(i))
				if age, _ := hosttest.Get(t, h, collectors.SnapshotAge, fmt.Sprint(i)); age > 1 {
					t.Fatalf("gpu %d is %v s old", i, age)
				}
			}
			for _, p := range h.Passes() {
				if p.Collector.Name != "topology" || p.Began.Before(time.Now().Add(-time.Second)) || h.Hanging(3) == "" {
					continue
				}
				asked++
				_, there := peers(strconv.Itoa(p.GPU))[wedged]
				fixture.If(t, there, "gpu %d asked for the path to a GPU that hangs", p.GPU)
			}
		}
		fixture.Equal(t, asked == 0, false, "no GPU asked during the hang, so the test proves nothing")
		hosttest.Want(t, h, 0, collectors.CollectSuccess, "", "temperature")
		fixture.Equal(t, len(hosttest.Of(h, device.Info, "3", "uuid")), 0, "gpu 3 hangs, and the series about what it is are")
		hosttest.Advance(70 * time.Second)
		hosttest.Want(t, h, 1, collectors.Up, "3")
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "temperature")
		n := peers("0")
		fixture.If(t, len(n) != 7 || n[wedged] != 1, "after the hang gpu 0 has the peers %v", n)
	})
}

// TestRecovery loses everything once and gets it back, and checks that nothing else goes wrong meanwhile. It identifies
// GPUs by UUID, because the removal of one changes the indices of the next.
func TestRecovery(t *testing.T) {
	t.Parallel()
	const lasts, notice, comeBack = 20 * time.Second, 5 * time.Second, 10 * time.Second
	outages := []struct {
		at   time.Duration
		gpus []int
		why  string // prefix of the reason
	}{
		{20 * time.Second, []int{0}, "nvml"},
		{60 * time.Second, []int{1}, "gpu_is_lost"},
		{100 * time.Second, []int{2}, "reset_required"},
		{140 * time.Second, []int{0, 1, 2}, "unknown"},
		{180 * time.Second, []int{1}, "not_listed"},
		{220 * time.Second, []int{0, 1, 2}, "driver_not_loaded"},
		{260 * time.Second, []int{0, 1, 2}, "lib_rm_version_mismatch"},
	}
	hosttest.In(t, "recovery", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		var uuids []string
		for i := range 3 {
			uuids = append(uuids, hosttest.Told(h, collectors.Up, "gpu", strconv.Itoa(i))["uuid"])
		}
		began, counted := time.Now(), map[string]float64{}
		for time.Since(began) < 300*time.Second {
			hosttest.Advance(250 * time.Millisecond)
			now, up, why := time.Since(began), map[string]float64{}, map[string]string{}
			for _, s := range h.Samples() {
				key := s.Metric.Name + "\x00" + strings.Join(s.Labels[min(1, len(s.Labels)):], "\x00")
				switch s.Metric {
				case collectors.Up:
					up[s.Labels[1]] = s.Value
				case collectors.WorkerStuck:
					why[s.Labels[1]] = s.Labels[2]
				case workloads.WorkloadSM, workloads.WorkloadMemoryBusy, workloads.WorkloadEnergy, activity.BusySeconds, faults.XIDErrors:
					if s.Value < counted[key] {
						t.Fatalf("after %v %v %q fell from %v to %v", now, s.Metric, s.Labels, counted[key], s.Value)
					}
					counted[key] = s.Value
				}
			}
			for i, uuid := range uuids {
				may, must := false, ""
				for _, f := range outages {
					if slices.Contains(f.gpus, i) && now >= f.at && now <= f.at+lasts+comeBack {
						if may = true; now > f.at+notice && now < f.at+lasts {
							must = f.why
						}
					}
				}
				if v, known := up[uuid]; !known || v == 0 && !may || v == 1 && must != "" ||
					v == 0 && must != "" && !strings.HasPrefix(why[uuid], must) {
					t.Fatalf("after %v gpu %d is up: %v, known: %v, because of %q; may be down: %v, should be: %q", now,
						i, v, known, why[uuid], may, must)
				}
			}
			fixture.Need(t, len(up), len(uuids), "after %v there are %v", now, up)
		}
		for _, m := range []*collectors.Metric{workloads.WorkloadSM, workloads.WorkloadEnergy, activity.BusySeconds} {
			for i, uuid := range uuids {
				fixture.AtLeast(t, hosttest.Of(h, m, strconv.Itoa(i), "uuid")[uuid], 60,
					"%v of gpu %d is … after five minutes", m, i)
			}
		}
	})
}

func TestExpensivePassesOfGPUsDoNotOverlap(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100, count: 2}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(45 * time.Second)
		var began []time.Time
		for _, p := range h.Passes() {
			if p.Collector.Name == "energy" {
				began = append(began, p.Began)
			}
		}
		fixture.If(t, len(began) != 2 || began[1].Sub(began[0]).Abs() != 5*time.Second,
			"the energy of two GPUs was read at %v, want 5 s apart", began)
	})
}

// TestNoGPUs: a driver without GPUs is a warning that says where to look.
func TestNoGPUs(t *testing.T) {
	var said bytes.Buffer
	options := func(o *collectors.Options) { o.Log = slog.New(slog.NewTextHandler(&said, nil)) }
	hosttest.With(t, "gpus: []\n", options, func(t *testing.T, _ *collectors.Host) { hosttest.Advance(time.Second) })
	n := strings.Count(said.String(), "level=WARN")
	fixture.If(t, n != 1 || !strings.Contains(said.String(), "lspci"), "%d warnings in\n%s", n, &said)
}
