package collectors

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/gpu/sim"
)

// golden compares got with a file, or writes the file under -update.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(want) == got {
		return
	}
	is, was := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for _, l := range was {
		if !slices.Contains(is, l) {
			t.Errorf("%s: gone: %s", name, l)
		}
	}
	for _, l := range is {
		if !slices.Contains(was, l) {
			t.Errorf("%s: new: %s", name, l)
		}
	}
	t.Errorf("%s differs; published names are frozen. If the change is intended: make generate", name)
}

func TestGolden(t *testing.T) {
	for _, name := range []string{"models", "mig", "vgpu"} {
		t.Run(name, func(t *testing.T) {
			In(t, name, DefaultConfig(), func(t *testing.T, h *Host) {
				Advance(65 * time.Second) // every tier has run
				var b strings.Builder
				m := Series(h.Samples())
				for _, k := range slices.Sorted(maps.Keys(m)) {
					if strings.HasPrefix(k, "gpusteward_nvml_calls") {
						continue // TestTiersSayHowOftenTheDriverIsAsked checks the number of calls
					}
					fmt.Fprintf(&b, "%s %v\n", k, m[k])
				}
				golden(t, name+".prom", b.String())
			})
		})
	}
}

func TestReadyAfterTheFirstWholeSnapshot(t *testing.T) {
	In(t, "mixed", DefaultConfig(), func(t *testing.T, h *Host) {
		if err := h.Ready(); err != nil {
			t.Error("not ready after the first pass:", err)
		}
		for i := range 8 {
			Want(t, h, 1, Up, fmt.Sprint(i))
		}
		Want(t, h, 8, Devices, "")
		Want(t, h, 8, DevicesExpected, "")
		Want(t, h, 1, NVMLGeneration, "")
	})
}

func TestNotReadyBeforeTheDriverIsOpen(t *testing.T) {
	nv, err := sim.New(Scenario(t, "idle"), sim.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := NewHost(Options{NVML: nv, Config: DefaultConfig(), Log: slog.Default()}).Ready(); !errors.Is(err,
		ErrOpening) {
		t.Errorf("Ready() = %v, want %v", err, ErrOpening)
	}
}

func TestNumbersBehave(t *testing.T) {
	for _, name := range []string{"mixed", "faults", "models", "mig"} {
		t.Run(name, func(t *testing.T) {
			c := DefaultConfig()
			c.Enable = []string{"gpm_media", "nvlink_quality"}
			In(t, name, c, func(t *testing.T, h *Host) {
				before := map[string]float64{}
				for range 240 {
					Advance(time.Second)
					now := Series(h.Samples())
					kinds := map[string]Type{}
					for _, m := range Metrics() {
						kinds[m.Name] = m.Type
					}
					for k, v := range now {
						family, _, _ := strings.Cut(k, "{")
						if was, ok := before[k]; ok && kinds[family] == CounterType && v < was {
							t.Fatalf("%s fell from %v to %v", k, was, v)
						}
						if strings.HasSuffix(family, "_ratio") && (v < 0 || v > 1) {
							t.Fatalf("%s = %v, want 0 to 1", k, v)
						}
					}
					before = now
				}
			})
		})
	}
}

// TestATurnEndsForAllItsPasses delays a turn by a call that hangs for a while:
// what was read before the call counts as old from the end of the turn on.
func TestATurnEndsForAllItsPasses(t *testing.T) {
	In(t, "gpus: [{}]\nfaults: [{kind: wedge, call: nvmlDeviceGetUtilizationRates, at: 19500ms, for: 2200ms}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(21900 * time.Millisecond)
		delayed := 0
		for _, p := range h.Passes() {
			switch {
			case p.GPU != 0:
				continue
			case p.Collector.Tier == Fast && !p.Ended.Equal(p.Turn):
				t.Errorf("%s: its turn ended at %v, want %v", p.Collector.Name, p.Ended, p.Turn)
			case p.Ended.After(p.Turn) || p.Ended.Before(p.Began):
				t.Errorf("%s began at %v and ended at %v", p.Collector.Name, p.Began, p.Ended)
			}
			if p.Ended.Sub(p.Began) > time.Second {
				delayed++
			}
		}
		if delayed == 0 {
			t.Error("no pass was delayed, so the test proves nothing")
		}
	})
}

func TestAWedgedGPUHarmsNoOther(t *testing.T) {
	In(t, "wedged", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(19 * time.Second)
		Want(t, h, 1, Up, "3")
		Advance(6 * time.Second) // the call hangs from 20 s on
		Want(t, h, 0, Up, "3")
		if s := h.Samples(); !slices.ContainsFunc(s, func(s Sample) bool {
			return s.Metric == WorkerStuck && s.Labels[0] == "3" && strings.HasPrefix(s.Labels[2], "nvml")
		}) {
			t.Error("no series names the call in which gpu 3 hangs")
		}
		for _, m := range []*Metric{Temperature, Info, Energy, MemoryTotal} {
			for _, s := range h.Samples() {
				if s.Metric == m && s.Labels[0] == "3" {
					t.Errorf("gpu 3 hangs and still shows %v", m)
				}
			}
		}
		for i := range 8 {
			if i == 3 {
				continue
			}
			Want(t, h, 1, Up, fmt.Sprint(i))
			if age, _ := Get(t, h, SnapshotAge, fmt.Sprint(i)); age > 2 {
				t.Errorf("gpu %d is %v s old beside a wedged one", i, age)
			}
		}
		Want(t, h, 0, CollectSuccess, "", "temperature")
		Advance(60 * time.Second) // it returns at 80 s
		Want(t, h, 1, Up, "3")
		Want(t, h, 1, CollectSuccess, "", "temperature")
	})
}

func TestLostGPUStaysVisibleAndComesBack(t *testing.T) {
	In(t, "gpus: [{model: h100}, {model: h100}]\n"+
		"faults: [{at: 10s, for: 30s, gpu: 1, kind: lost}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(5 * time.Second)
		_, had := Get(t, h, Temperature, "1", "gpu")
		Advance(10 * time.Second)
		if !had {
			t.Error("gpu 1 had no temperature before its fault")
		}
		Want(t, h, 0, Up, "1")
		Want(t, h, 1, WorkerStuck, "1", "gpu_is_lost")
		WantNone(t, h, Temperature, "1", "gpu")
		Want(t, h, 1, Up, "0")
		Want(t, h, 2, DevicesExpected, "")
		Advance(35 * time.Second)
		Want(t, h, 1, Up, "1")
		WantNone(t, h, WorkerStuck, "1", "gpu_is_lost")
	})
}

func TestDriverGoneAndBack(t *testing.T) {
	In(t, "gpus: [{model: h100}]\n"+
		"faults: [{at: 10s, for: 20s, kind: driver_gone}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(5 * time.Second)
		Want(t, h, 1, DriverUp, "")
		Advance(10 * time.Second)
		Want(t, h, 0, DriverUp, "")
		Want(t, h, 1, DevicesExpected, "")
		if h.Ready() == nil {
			t.Error("ready without a driver")
		}
		Advance(25 * time.Second) // it is back at 30 s: open again within 10 s
		Want(t, h, 1, DriverUp, "")
		Want(t, h, 2, NVMLGeneration, "")
		Want(t, h, 1, Up, "0")
	})
}

func TestDriverThatLoadsLater(t *testing.T) {
	In(t, "gpus: [{model: h100}]\n"+
		"faults: [{at: 0s, for: 60s, kind: driver_gone}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(30 * time.Second)
		if err := h.Driver(); err == nil || !strings.Contains(err.Error(), "nvmlInit") {
			t.Errorf("Driver() = %v, want an error of nvmlInit", err)
		}
		if idle := time.Since(h.Progress()); idle > OpenMost {
			t.Errorf("no progress for %v while the host waits for a driver", idle)
		}
		Advance(40 * time.Second)
		if err := h.Ready(); err != nil {
			t.Error("not ready 10 s after the driver was loaded:", err)
		}
	})
}

func TestFailedCallLeavesNoSeries(t *testing.T) {
	const source = "gpus: [{model: h100}]\n" +
		"faults: [{at: 5s, for: 20s, gpu: 0, kind: error, call: nvmlDeviceGetTemperature, return: ERROR_UNKNOWN}]\n"
	In(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(4 * time.Second)
		if _, ok := Get(t, h, Temperature, "0", "gpu"); !ok {
			t.Fatal("no temperature at the start")
		}
		Advance(4 * time.Second)
		WantNone(t, h, Temperature, "0", "gpu")
		if _, ok := Get(t, h, Temperature, "0", "memory"); !ok {
			t.Error("the reading beside the failed one is gone too")
		}
		Want(t, h, 0, CollectSuccess, "", "temperature")
		Want(t, h, 1, CollectSuccess, "", "clocks")
		if n, _ := Get(t, h, CollectErrors, "", "temperature", "unknown"); n < 2 {
			t.Errorf("%v passes failed, want at least 2", n)
		}
		if n, _ := Get(t, h, NVMLCalls, "", "nvmlDeviceGetTemperature", "unknown"); n < 2 {
			t.Errorf("%v calls failed, want at least 2", n)
		}
		Advance(20 * time.Second)
		Want(t, h, 1, CollectSuccess, "", "temperature")
	})
}

func TestUnsupportedIsAnAnswer(t *testing.T) {
	In(t, "gpus: [{model: h100-vm}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(12 * time.Second)
		WantNone(t, h, FanSpeed, "0", "0")
		Want(t, h, 1, Unsupported, "0", FanSpeed.Name)
		Want(t, h, 1, CollectSuccess, "", "fans")
		WantNone(t, h, CollectErrors, "", "fans", "not_supported")
	})
}

// TestNoDuplicateSeries checks every series of every scenario.
func TestNoDuplicateSeries(t *testing.T) {
	c := DefaultConfig()
	c.PerProcess, c.PerLink = true, true
	for _, r := range All() {
		if r.OptIn {
			c.Enable = append(c.Enable, r.Name)
		}
	}
	for _, name := range sim.Scenarios() {
		t.Run(name, func(t *testing.T) {
			In(t, name, c, func(t *testing.T, h *Host) {
				for range 120 {
					Advance(time.Second)
					seen := map[string]bool{}
					for _, s := range h.Samples() {
						key := s.Metric.Name + "\x00" + strings.Join(s.Labels, "\x00")
						if seen[key] {
							t.Fatalf("duplicate series: %v %q", s.Metric, s.Labels)
						}
						seen[key] = true
					}
				}
			})
		})
	}
}

// TestAWedgedPeerDelaysNobody has every GPU ask for the paths to the others.
func TestAWedgedPeerDelaysNobody(t *testing.T) {
	c := DefaultConfig()
	c.Enable = []string{"topology"}
	In(t, "wedged", c, func(t *testing.T, h *Host) {
		wedged := Told(h, Up, "gpu", "3")["uuid"]
		peers := func(index string) map[string]float64 { return Of(h, TopologyPeer, index, "peer_uuid") }
		asked := 0
		for range 78 {
			Advance(time.Second)
			for i := range 8 {
				if i == 3 {
					continue
				}
				Want(t, h, 1, Up, fmt.Sprint(i))
				if age, _ := Get(t, h, SnapshotAge, fmt.Sprint(i)); age > 1 {
					t.Fatalf("gpu %d is %v s old", i, age)
				}
			}
			for _, p := range h.Passes() {
				if p.Collector.Name != "topology" || p.Began.Before(time.Now().Add(-time.Second)) || h.Hanging(3) == "" {
					continue
				}
				asked++
				if _, there := peers(strconv.Itoa(p.GPU))[wedged]; there {
					t.Errorf("gpu %d asked for the path to a GPU that hangs", p.GPU)
				}
			}
		}
		if asked == 0 {
			t.Error("no GPU asked during the hang, so the test proves nothing")
		}
		Advance(70 * time.Second)
		if n := peers("0"); len(n) != 7 || n[wedged] != 1 {
			t.Errorf("after the hang gpu 0 has the peers %v", n)
		}
	})
}

// TestRecovery loses everything once and gets it back, and checks that nothing
// else goes wrong meanwhile. It identifies GPUs by UUID, because the removal of
// one changes the indices of the next.
func TestRecovery(t *testing.T) {
	const lasts, notice, comeBack = 20 * time.Second, 5 * time.Second, 10 * time.Second
	faults := []struct {
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
	In(t, "recovery", DefaultConfig(), func(t *testing.T, h *Host) {
		var uuids []string
		for i := range 3 {
			uuids = append(uuids, Told(h, Up, "gpu", strconv.Itoa(i))["uuid"])
		}
		began, counted := time.Now(), map[string]float64{}
		for time.Since(began) < 300*time.Second {
			Advance(250 * time.Millisecond)
			now, up, why := time.Since(began), map[string]float64{}, map[string]string{}
			for _, s := range h.Samples() {
				key := s.Metric.Name + "\x00" + strings.Join(s.Labels[min(1, len(s.Labels)):], "\x00")
				switch s.Metric {
				case Up:
					up[s.Labels[1]] = s.Value
				case WorkerStuck:
					why[s.Labels[1]] = s.Labels[2]
				case WorkloadSM, WorkloadMemoryBusy, WorkloadEnergy, BusySeconds, XIDErrors:
					if s.Value < counted[key] {
						t.Fatalf("after %v %v %q fell from %v to %v", now, s.Metric, s.Labels, counted[key], s.Value)
					}
					counted[key] = s.Value
				}
			}
			for i, uuid := range uuids {
				may, must := false, ""
				for _, f := range faults {
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
			if len(up) != len(uuids) {
				t.Fatalf("after %v there are %v", now, up)
			}
		}
		for _, m := range []*Metric{WorkloadSM, WorkloadEnergy, BusySeconds} {
			for i, uuid := range uuids {
				if v := Of(h, m, strconv.Itoa(i), "uuid")[uuid]; v < 60 {
					t.Errorf("%v of gpu %d is %v after five minutes", m, i, v)
				}
			}
		}
	})
}

func TestExpensivePassesOfGPUsDoNotOverlap(t *testing.T) {
	In(t, "gpus: [{model: h100, count: 2}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(45 * time.Second)
		var began []time.Time
		for _, p := range h.Passes() {
			if p.Collector.Name == "energy" {
				began = append(began, p.Began)
			}
		}
		if len(began) != 2 || began[1].Sub(began[0]).Abs() != 5*time.Second {
			t.Errorf("the energy of two GPUs was read at %v, want 5 s apart", began)
		}
	})
}
