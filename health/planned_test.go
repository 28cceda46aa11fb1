package health

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// valueOf returns the value of a metric's only sample with these labels after the GPU's; -1 if there is none.
func valueOf(s *derived.Snapshot, m *collectors.Metric, gpu string, labels ...string) float64 {
	for _, x := range s.Of(m) {
		if (gpu == "" || x.Labels[0] == gpu) && slices.Equal(x.Labels[min(len(x.Labels), 2):], labels) {
			return x.Value
		}
	}
	return -1
}

// TestGPUsOfVirtualMachines holds that a GPU counts as away because of its bound driver, and for no other reason.
func TestGPUsOfVirtualMachines(t *testing.T) {
	type device struct {
		kind, driver string
		bound        float64
	}
	for _, c := range []struct {
		device
		away         float64
		devices, has int
	}{
		{device{"gpu", "nvidia", 1}, 0, 0, 1},
		{device{"gpu", "nvidia", 0}, 0, 0, 0},
		{device{"gpu", "", 0}, 0, 0, 0},
		{device{"gpu", "nouveau", 1}, 0, 0, 0},
		{device{"gpu", "vfio-pci", 1}, 1, 1, 0},
		{device{"gpu", "nvgrace_gpu_vfio_pci", 1}, 1, 1, 0},
		{device{"gpu", "nvgrace-gpu-vfio-pci", 1}, 1, 1, 0},
		{device{"gpu", "pci-stub", 1}, 1, 1, 0},
		{device{"gpu", "pciback", 1}, 1, 1, 0},
		{device{"gpu", "uio_pci_generic", 1}, 1, 1, 0},
		{device{"nvswitch", "vfio-pci", 1}, 0, 0, 0},
		{device{"gpu", "vfio-pci", 0}, 0, 0, 0},
	} {
		bound := on("1", links.PCIDeviceBound, c.bound, "0000:07:00.0", c.kind, c.driver)
		s := derived.NewSnapshot([]collectors.Sample{on("0", collectors.Up, 1), on("1", collectors.Up, 0), bound})
		driven := hand(s)
		if driven != c.has || valueOf(s, Away, "1") != c.away || valueOf(s, Away, "0") != 0 ||
			valueOf(s, DevicesAway, "") != float64(c.devices) {
			t.Errorf("%+v: away %v, %v of the host, %d driven, and the other is %v", c.device, valueOf(s, Away, "1"),
				valueOf(s, DevicesAway, ""), driven, valueOf(s, Away, "0"))
		}
	}
}

// TestReturningGPUSettles checks for how long the links of a returning GPU train, by the reason of its absence. Times
// are seconds. A GPU is "up", or the reason why it is not, or "" if it is not listed.
func TestReturningGPUSettles(t *testing.T) {
	type look struct {
		at   int
		gpu  string
		want float64
	}
	for name, looks := range map[string][]look{
		"there from the beginning": {{0, "up", 0}, {10, "up", 0}},
		"not there at the beginning": {{0, "", -1}, {10, "up", 1}, {300, "up", 1}, {309, "up", 1},
			{310, "up", 0}, {320, "up", 0}},
		"was late":           {{0, "up", 0}, {10, "late", 0}, {20, "up", 0}},
		"hung in a call":     {{0, "up", 0}, {10, "nvmlDeviceGetPowerUsage", 0}, {20, "up", 0}},
		"was lost":           {{0, "up", 0}, {10, "gpu_is_lost", -1}, {20, "up", 1}, {319, "up", 1}, {320, "up", 0}},
		"was not listed":     {{0, "up", 0}, {10, "not_listed", -1}, {20, "up", 1}},
		"lost, late and up":  {{0, "up", 0}, {10, "gpu_is_lost", -1}, {20, "late", -1}, {30, "up", 1}},
		"late since it came": {{0, "", -1}, {10, "up", 1}, {20, "late", 1}, {310, "up", 0}},
		"came twice": {{0, "", -1}, {10, "up", 1}, {200, "gpu_is_lost", -1}, {210, "up", 1},
			{310, "up", 1}, {509, "up", 1}, {510, "up", 0}},
	} {
		var p plans
		for _, l := range looks {
			samples := []collectors.Sample{on("0", collectors.Up, 1)}
			switch l.gpu {
			case "":
			case "up":
				samples = append(samples, on("1", collectors.Up, 1))
			default:
				samples = append(samples, on("1", collectors.Up, 0), on("1", collectors.WorkerStuck, 1, l.gpu))
			}
			s := derived.NewSnapshot(samples)
			p.explain(s, birth.Add(time.Duration(l.at)*time.Second))
			if got := valueOf(s, Settling, "1"); got != l.want || valueOf(s, Settling, "0") != 0 {
				t.Errorf("%s: %s after %d s: settling %v, want %v; the other %v, want 0", name, l.gpu, l.at, got,
					l.want, valueOf(s, Settling, "0"))
			}
		}
	}
	var p plans
	gpu := on("0", collectors.Up, 1)
	p.reset(incident.EntityOf(gpu, nil), birth)
	for after, want := range map[time.Duration]float64{time.Second: 1, settleFor - time.Second: 1, settleFor: 0} {
		p := plans{begun: true, here: map[incident.Entity]bool{incident.EntityOf(gpu, nil): true},
			fresh: maps.Clone(p.fresh)}
		s := derived.NewSnapshot([]collectors.Sample{gpu})
		p.explain(s, birth.Add(after))
		fixture.Equal(t, valueOf(s, Settling, "0"), want, "%v after a reset: settling", after)
	}
}

// TestReloadingDriverHasTime checks for how long a silent driver counts as reloading.
func TestReloadingDriverHasTime(t *testing.T) {
	for _, c := range []struct {
		before, driven float64
		after          time.Duration
		want           float64
	}{
		{1, 0, 0, 1}, {1, 0, 9 * time.Minute, 1}, {1, 0, 10 * time.Minute, 1}, {1, 0, 10*time.Minute + time.Second, 0},
		{1, 1, 2 * time.Minute, 1}, {1, 1, 3 * time.Minute, 1}, {1, 1, 3*time.Minute + time.Second, 0},
		{0, 0, time.Second, 0}, {0, 1, time.Second, 0}, // it never answered
	} {
		var p plans
		look := func(up float64, at time.Duration) float64 {
			s := derived.NewSnapshot([]collectors.Sample{{Metric: collectors.DriverUp, Value: up},
				on("0", links.PCIDeviceBound, c.driven, "0000:07:00.0", "gpu", "nvidia")})
			p.explain(s, birth.Add(at))
			return valueOf(s, Reloading, "")
		}
		fixture.Equal(t, look(c.before, 0), 0, "%+v: reloading … at the beginning", c)
		fixture.Equal(t, look(0, c.after), c.want, "%+v: reloading", c)
	}
}

// TestWarmAirAffectsMostGPUs checks when the room is too hot, and no GPU: by
// the GPUs' margins, or by their temperatures and limits.
func TestWarmAirAffectsMostGPUs(t *testing.T) {
	for _, c := range []struct {
		margins []float64
		want    float64
	}{
		{[]float64{5, 5, 5, 20}, 1}, {[]float64{5, 5, 6, 20}, 0}, {[]float64{6, 6, 6, 6}, 0},
		{[]float64{-3, 0, 5, 5}, 1},
		{[]float64{5, 5}, 1}, {[]float64{5, 20}, 0}, {[]float64{1}, 0},
	} {
		for _, byLimit := range []bool{false, true} {
			var all []collectors.Sample
			for i, margin := range c.margins {
				gpu := fmt.Sprint(i)
				all = append(all, on(gpu, collectors.Up, 1))
				if !byLimit {
					all = append(all, on(gpu, device.TemperatureMargin, margin))
					margin = 50 // its own report counts for more
				}
				all = append(all, on(gpu, device.Temperature, 90-margin, "gpu"),
					on(gpu, device.Temperature, 10, "memory"),
					on(gpu, device.TemperatureThreshold, 90, "gpu_max"),
					on(gpu, device.TemperatureThreshold, 200, "shutdown"))
			}
			slices.SortStableFunc(all, func(a, b collectors.Sample) int { return len(a.Metric.Name) - len(b.Metric.Name) })
			s := derived.NewSnapshot(all)
			new(plans).explain(s, birth)
			fixture.Equal(t, valueOf(s, HotAisle, ""), c.want, "margins %v, by the limit %v", c.margins, byLimit)
		}
	}
	s := derived.NewSnapshot([]collectors.Sample{on("0", device.Temperature, 90, "gpu"),
		on("1", device.Temperature, 90, "gpu")})
	fixture.Equal(t, hotAisle(s), false, "GPUs that do not say how hot they may become are hot:")
}

// TestChassisBrake holds how many GPUs with a brake are half of a chassis, and that
// an agent goes by the time for which it has watched.
func TestChassisBrake(t *testing.T) {
	for _, c := range []struct {
		now, seconds []float64
		after        time.Duration
		want         float64
	}{
		{[]float64{1, 1, 0, 0}, []float64{0, 0, 0, 0}, 0, 1}, {[]float64{1, 0, 0, 0}, []float64{9, 0, 0, 0}, step, 0},
		{[]float64{1, 1, 1, 0, 0, 0, 0, 0}, make([]float64, 8), 0, 0}, {[]float64{1}, []float64{9}, step, 0},
		{[]float64{0, 0}, []float64{15, 30}, 30 * time.Second, .25}, {[]float64{0, 0}, []float64{90, 90}, time.Minute, 1},
		{[]float64{0, 0}, []float64{150, 75}, 5 * time.Minute, .25}, {[]float64{0, 0}, []float64{75, 75}, time.Hour, .25},
	} {
		m, s := newMemory(birth), derived.NewSnapshot(nil)
		for n := range 2 {
			var all []collectors.Sample
			for i := range c.now {
				all = append(all, on(fmt.Sprint(i), device.ClockEventActive, c.now[i], "hw_power_brake"),
					on(fmt.Sprint(i), device.ClockEventSeconds, float64(n)*c.seconds[i], "hw_power_brake"))
			}
			s, m.now = derived.NewSnapshot(all), birth.Add(time.Duration(n)*c.after)
			m.chassis(s)
		}
		fixture.Equal(t, valueOf(s, ChassisBrake, ""), c.want, "%v, then %v seconds after %v", c.now, c.seconds, c.after)
	}
}

// TestChassisBrakeAfterARestart replaces the agent while the brake of all GPUs comes and goes. Prometheus, which saw
// each GPU's brake from the beginning, judges by the new agent's ratio: the brake is no GPU's own.
func TestChassisBrakeAfterARestart(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	brake := slices.DeleteFunc(Checks(), func(c *Check) bool { return c.ID != "power_brake" })
	for _, c := range []struct{ on, of int }{{1, 1}, {2, 6}, {4, 12}, {10, 18}} { // steps
		for restart := 60; restart < 60+c.of; restart++ {
			agent, prometheus, seconds := newWorld(t, brake...), newWorld(t, brake...), 0.0
			prometheus.engine.every = time.Hour // it has the agent's ratio
			for i := range 60 + 3*c.of {
				if i == restart {
					agent.restart("same")
				}
				braked, all := collectors.Bool(i%c.of < c.on), []collectors.Sample(nil)
				seconds += braked * step.Seconds()
				for _, of := range []collectors.Sample{on("", device.ClockEventActive, braked, "hw_power_brake"),
					on("", device.ClockEventSeconds, seconds, "hw_power_brake")} {
					for gpu := range 4 {
						all = append(all, on(fmt.Sprint(gpu), of.Metric, of.Value, "hw_power_brake"))
					}
				}
				_, s := agent.look(step, nil, all...)
				prometheus.steps(1, append(all, s.Of(ChassisBrake)...)...)
				for _, f := range slices.Concat(agent.engine.Findings(), prometheus.engine.Findings()) {
					fixture.Need(t, f.Entity, incident.Entity{}, "%+v: %d s after %d: %s", c, 10*(i-restart), restart, f.Message)
				}
			}
			fixture.AtLeast(t, min(len(agent.engine.Findings()), len(prometheus.engine.Findings())), 1, "%+v: the node's", c)
			agent.now = agent.now.Add(brakes.window) // what was before is long ago
			agent.restart("same")
			_, s := agent.look(0, nil, on("0", device.ClockEventActive, 0, "hw_power_brake"))
			fixture.Equal(t, valueOf(s, ChassisBrake, ""), 0, "%+v: after a long absence", c)
		}
	}
}

// TestStalledAgent checks when old samples are the agent's own fault.
func TestStalledAgent(t *testing.T) {
	for _, c := range []struct {
		gpus []string // "up", or the reason why not
		want float64
	}{
		{[]string{"late", "late"}, 1}, {[]string{"late", "nvmlDeviceGetPowerUsage"}, 1},
		{[]string{"late", "late", "gpu_is_lost"}, 1},
		{[]string{"late"}, 0}, {[]string{"late", "up"}, 0}, {[]string{"up", "late", "late"}, 0},
		{[]string{"nvmlInit", "nvmlInit"}, 0},
		{[]string{"late", "gpu_is_lost"}, 0}, {[]string{"gpu_is_lost", "not_listed"}, 0}, {[]string{"up", "up"}, 0},
	} {
		var all []collectors.Sample
		for i, reason := range c.gpus {
			all = append(all, on(fmt.Sprint(i), collectors.Up, collectors.Bool(reason == "up")))
		}
		for i, reason := range c.gpus {
			if reason != "up" {
				all = append(all, on(fmt.Sprint(i), collectors.WorkerStuck, 1, reason))
			}
		}
		s := derived.NewSnapshot(all)
		new(plans).explain(s, birth)
		fixture.Equal(t, valueOf(s, Starved, ""), c.want, "%q: starved", c.gpus)
	}
	s := derived.NewSnapshot(nil)
	if new(plans).explain(s, birth); valueOf(s, Starved, "") != -1 || valueOf(s, HotAisle, "") != -1 ||
		valueOf(s, Reloading, "") != -1 || valueOf(s, DevicesAway, "") != 0 {
		t.Errorf("of a host without GPUs is said what nobody knows")
	}
}

// TestProgramsEndedByADrain holds that an XID 45 of a program that was ended while
// the agent was drained is no warning, and counts for nothing.
func TestProgramsEndedByADrain(t *testing.T) {
	w, s := newWorld(t, Checks()...), newStage(1)
	for i, c := range []struct {
		drained   float64
		wait, ago time.Duration
		code      int
		planned   bool
	}{
		{0, step, 0, 45, false}, {1, step, 0, 45, true}, {1, step, 0, 48, false}, {1, 5 * time.Minute, 0, 45, true},
		{0, step, 0, 45, true}, {0, 40 * time.Second, 0, 45, true}, {0, step + 1, 0, 45, false}, {1, step, 0, 45, true},
		{1, step, step / 2, 45, true}, {1, step, 3 * step, 45, false},
	} {
		s.drained = c.drained
		events := []incident.Event{happened(fmt.Sprint(i), incident.WhatXID, c.code, "0", w.now.Add(c.wait-c.ago))}
		want := events[0].Severity
		if c.planned {
			want = incident.Info
		}
		w.step(c.wait, events, s.samples()...)
		if e := events[0]; e.Severity != want || (e.Follows != "") != c.planned {
			t.Errorf("%d: XID %d is %v, follows %q; planned: %v", i, c.code, e.Severity, e.Follows, c.planned)
		}
	}
}
