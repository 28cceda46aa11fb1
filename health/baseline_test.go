package health

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A GPU drifts if a setting differs from its earlier value or from its
// siblings'. A host with whole and divided GPUs does not drift.
func TestConfigDrift(t *testing.T) {
	host := func(mode, workload string, shows func(gpu int) float64) *derived.Snapshot {
		var all []collectors.Sample
		for i := range 8 {
			gpu, uuid := fmt.Sprint(i), fmt.Sprint("GPU-", i)
			info := make([]string, len(device.Info.Labels))
			for at, l := range device.Info.Labels {
				info[at] = map[string]string{"gpu": gpu, "uuid": uuid, "name": "H100"}[l]
			}
			all = append(all, collectors.Sample{Metric: device.Info, Labels: info, Value: 1},
				on(gpu, device.ModeEnabled, shows(i), mode))
			if workload != "" {
				all = append(all, on(gpu, workloads.WorkloadMemory, 1e9, workload, ""))
			}
		}
		return derived.NewSnapshot(all)
	}
	odd := func(gpu int) float64 { return collectors.Bool(gpu == 7) }
	none, all := func(int) float64 { return 0 }, func(int) float64 { return 1 }
	for _, c := range []struct {
		mode          string
		before, after func(int) float64
		was, is       string // the workload on the GPUs
		drifts        bool
	}{
		{"ecc", odd, odd, "", "", true},
		{"mig", odd, odd, "", "", false},
		{"mig", none, odd, "job", "job", true},
		{"mig", none, odd, "", "", false},
		{"mig", none, odd, "job", "other", false},
		{"persistence", none, odd, "", "", true}, // unlike its peers
		{"persistence", none, all, "job", "job", false},
		{"ecc", none, none, "job", "job", false},
	} {
		b, seen := baselines{}, &observed{settings: map[string]map[string]observation{}}
		b.drift(host(c.mode, c.was, c.before), seen, birth)
		for range 2 { // the drift persists
			b.drift(host(c.mode, c.is, c.after), seen, birth)
		}
		s := host(c.mode, "", c.after)
		b.drift(s, seen, birth)
		found := slices.ContainsFunc(s.Of(ConfigDrift), func(x collectors.Sample) bool { return x.Value == 1 })
		fixture.Equal(t, found, c.drifts, "%s of %q, then %q: drift", c.mode, c.was, c.is)
	}
}

// If other jobs come and go beside a job, one of them may have changed a setting.
func TestSettingsChangedByAnotherJob(t *testing.T) {
	o := observed{settings: map[string]map[string]observation{}}
	at := func(minutes int, jobs ...string) time.Time {
		o.watch(map[incident.Entity][]string{{GPU: "0"}: jobs}, birth.Add(time.Duration(minutes)*time.Minute))
		return o.turned
	}
	for i, jobs := range [][]string{{"a"}, {"a"}, {"a", "a"}} {
		got := at(i, jobs...)
		fixture.If(t, !got.IsZero(), "%q at %d: turned at %v", jobs, i, got)
	}
	if got := at(3, "b", "a"); !got.Equal(birth.Add(3 * time.Minute)) {
		t.Errorf("one came: turned at %v", got)
	}
}

// TestJobSettingHoldsForATime changes a GPU's setting under a permanent workload, some time after another job came to
// the host. The change counts as the job's if that was at most an hour ago, and for four hours.
func TestJobSettingHoldsForATime(t *testing.T) {
	limit := func(watts float64) collectors.Sample { return on("0", device.PowerLimit, watts, "enforced") }
	ecc := func(v float64) collectors.Sample { return on("0", device.ModeEnabled, 1-v/700, "ecc") }
	for name, c := range map[string]struct {
		setting func(watts float64) collectors.Sample
		after   time.Duration // from the job to the change
		alone   bool          // no other job comes
		held    time.Duration // time since the change
		drifts  bool
	}{
		"at once":                      {limit, 0, false, 0, false},
		"after an hour":                {limit, time.Hour, false, 0, false},
		"after more than an hour":      {limit, time.Hour + step, false, 0, true},
		"for nearly four hours":        {limit, step, false, 4*time.Hour - step, false},
		"for four hours":               {limit, step, false, 4 * time.Hour, true},
		"no other job has come":        {limit, 0, true, 0, true},
		"a setting that is never lent": {ecc, 0, false, 0, true},
	} {
		b, o, drifts := baselines{}, &observed{settings: map[string]map[string]observation{}}, false
		look := func(watts float64, at time.Time, jobs ...string) {
			all := []collectors.Sample{c.setting(watts)}
			for _, job := range jobs {
				all = append(all, on("0", workloads.WorkloadMemory, 1e9, job, ""))
			}
			s := derived.NewSnapshot(all)
			b.drift(s, o, at)
			drifts = s.Of(ConfigDrift)[0].Value == 1
		}
		jobs := []string{"stays", "comes"}
		if c.alone {
			jobs = jobs[:1]
		}
		look(700, birth, "stays")
		came := birth.Add(time.Minute)
		look(700, came, jobs...)
		changed := came.Add(c.after)
		for passed := time.Duration(0); passed <= c.held; passed += max(step, c.held/8) {
			look(600, changed.Add(passed), jobs...)
		}
		look(600, changed.Add(c.held), jobs...)
		fixture.Equal(t, drifts, c.drifts, "%s: drift", name)
		look(700, changed.Add(c.held+step), jobs...)
		fixture.If(t, drifts, "%s: it drifts where it is set back", name)
	}
}

// TestNodePersistenceDoesNotHideOtherDrift lets a GPU lose both persistence
// mode and ECC. The node reports the former, and the GPU the latter.
func TestNodePersistenceDoesNotHideOtherDrift(t *testing.T) {
	b, o := baselines{}, &observed{settings: map[string]map[string]observation{}}
	var s *derived.Snapshot
	for i, v := range []float64{1, 0} {
		s = derived.NewSnapshot([]collectors.Sample{on("0", workloads.WorkloadMemory, 1e9, "stays", ""),
			on("0", device.ModeEnabled, v, "ecc"), on("0", device.ModeEnabled, v, "persistence")})
		b.drift(s, o, birth.Add(time.Duration(i)*step))
	}
	for gpu, want := range map[string]string{"": "persistence off on", "0": "ecc off on"} {
		for _, x := range s.Of(ConfigDrift) {
			text := x.Labels[2] + " " + x.Labels[3] + " " + x.Labels[4]
			fixture.If(t, x.Labels[0] == gpu && (x.Value == 1) != (text == want), "GPU %q: %s: %v", gpu, text, x.Value)
		}
	}
}

// TestSettingsOfMostGPUs checks how many GPUs of a model define a usual
// setting: more than two thirds of at least four. Of two GPUs, both must agree.
func TestSettingsOfMostGPUs(t *testing.T) {
	for _, c := range []struct {
		has    string // by GPU
		usual  string // empty: they do not agree
		unlike bool
	}{
		{"1", "", true}, {"11", "", false}, {"111", "", false}, {"1111", "1", false}, {"1110", "1", true},
		{"1100", "", true}, {"11110", "1", true}, {"11100", "", true},
		{"111100", "", true}, {"111110", "1", true}, {"11111000", "", true}, {"11111100", "1", true},
		{"000001", "0", true}, {"111 1", "1", false}, {"111 ", "", false},
	} {
		all := map[incident.Entity]baseline{{GPU: "9"}: {"model": "other", "ecc": "0"}}
		for i, v := range c.has {
			all[gpuEntity(fmt.Sprint(i))] = baseline{"model": "H100", "ecc": string(v)}
			if v == ' ' {
				delete(all[gpuEntity(fmt.Sprint(i))], "ecc")
			}
		}
		usual, agreed := common(all, "H100", "ecc")
		if agreed != (c.usual != "") || agreed && usual != c.usual || uniform(all, "H100", "ecc") == c.unlike {
			t.Errorf("%q: %q is usual: %v, and all are alike: %v", c.has, usual, agreed, uniform(all, "H100", "ecc"))
		}
	}
}

// TestSettingsUnlikePeersAreNamed changes one setting of one of eight
// GPUs, and expects only its name, with the peers' value.
func TestSettingsUnlikePeersAreNamed(t *testing.T) {
	mode := func(name string) func(odd bool) collectors.Sample {
		return func(odd bool) collectors.Sample {
			return on("", device.ModeEnabled, collectors.Bool(!odd), name)
		}
	}
	shows := map[string]func(odd bool) collectors.Sample{
		"ecc": mode("ecc"), "persistence": mode("persistence"), "accounting": mode("accounting"),
		"power_limit": func(odd bool) collectors.Sample {
			return on("", device.PowerLimit, 700-100*collectors.Bool(odd), "enforced")
		},
		"vbios": func(odd bool) collectors.Sample {
			labels := make([]string, len(device.Info.Labels))
			labels[slices.Index(device.Info.Labels, "name")] = "H100"
			labels[slices.Index(device.Info.Labels, "vbios")] = map[bool]string{false: "96.00", true: "96.01"}[odd]
			return collectors.Sample{Metric: device.Info, Labels: labels, Value: 1}
		},
	}
	want := map[string][2]string{"ecc": {"off", "on"}, "persistence": {"off", "on"}, "accounting": {"off", "on"},
		"power_limit": {"600 W", "700 W"}, "vbios": {"96.01", "96.00"}}
	for odd, has := range want {
		var all []collectors.Sample
		for gpu := range 8 {
			for name, show := range shows {
				sample := show(name == odd && gpu == 7)
				sample.Labels[0], sample.Labels[1] = fmt.Sprint(gpu), fmt.Sprint("GPU-", gpu)
				all = append(all, sample)
			}
			for _, other := range []string{"requested", "default"} { // they only help to judge
				all = append(all, on(fmt.Sprint(gpu), device.PowerLimit, 700, other))
			}
		}
		s := derived.NewSnapshot(all)
		baselines{}.drift(s, &observed{settings: map[string]map[string]observation{}}, birth)
		looked := 0
		for _, sample := range s.Of(ConfigDrift) {
			gpu, name, value, expected := sample.Labels[0], sample.Labels[2], sample.Labels[3], sample.Labels[4]
			if gpu == "" {
				continue // the node's persistence
			}
			looked++
			drifts := gpu == "7" && name == odd
			fixture.If(t, (sample.Value == 1) != drifts || drifts && [2]string{value, expected} != has,
				"%s differs: %s of GPU %s is %s, expected %s: %v", odd, name, gpu, value, expected, sample.Value)
		}
		fixture.Equal(t, looked, 8*len(want), "%s differs: settings were looked at", odd)
	}
}

// TestSettingSurvivesARestart changes settings under a workload, before the agent is replaced or meanwhile. An
// administrator may have changed a limit meanwhile.
func TestSettingSurvivesARestart(t *testing.T) {
	for name, c := range map[string]struct {
		setting      string
		then, later  float64 // the setting before and after the restart
		drift, after float64
	}{
		"ECC meanwhile":     {"ecc", 1, 0, 0, 1},
		"a limit meanwhile": {"power_limit", 1, 0, 0, 0},
		"MIG meanwhile":     {"mig", 1, 0, 0, 0},
		"a limit before":    {"power_limit", 0, 0, 1, 1},
	} {
		w := newWorld(t, Checks()...)
		drift := func(v float64) float64 {
			all := []collectors.Sample{on("0", collectors.Up, 1), on("0", workloads.WorkloadMemory, 1e9, "pod:a", ""),
				on("0", device.ModeEnabled, v, c.setting)}
			if c.setting == "power_limit" {
				all[2] = on("0", device.PowerLimit, v, "enforced")
			}
			_, s := w.look(step, nil, all...)
			for _, sample := range s.Of(ConfigDrift) {
				if sample.Labels[2] == c.setting {
					return sample.Value
				}
			}
			return -1
		}
		fixture.Equal(t, drift(1), 0, "%s: at first", name)
		fixture.Equal(t, drift(c.then), c.drift, "%s: before the restart", name)
		w.restart("same")
		fixture.Equal(t, drift(c.later), c.after, "%s: after the restart", name)
	}
}

// TestAcknowledgedSettingsAreNormal lets an operator accept the drift of one GPU, or that of the node.
func TestAcknowledgedSettingsAreNormal(t *testing.T) {
	t.Parallel()
	for entity, want := range map[incident.Entity]string{{GPU: "0"}: " 1", {GPU: "1"}: " 0", {}: ""} {
		w := newWorld(t, Checks()...)
		drifting := func(ecc, n float64) (gpus string) {
			for range int(n) {
				var all []collectors.Sample
				for gpu, v := range map[string]float64{"0": ecc, "1": ecc, "2": 1} {
					all = append(all, on(gpu, collectors.Up, 1), on(gpu, device.ModeEnabled, v, "ecc"),
						on(gpu, workloads.WorkloadMemory, 1e9, "pod:a", ""))
				}
				slices.SortStableFunc(all,
					func(a, b collectors.Sample) int { return len(a.Metric.Name) - len(b.Metric.Name) })
				_, s := w.look(step, nil, all...)
				gpus = ""
				for _, gpu := range []string{"0", "1", "2"} {
					if valueOf(s, ConfigDrift, gpu, "ecc", "off", "on") == 1 {
						gpus += " " + gpu
					}
				}
			}
			return gpus
		}
		if before, after := drifting(1, 2), drifting(0, 20); before != "" || after != " 0 1" {
			t.Fatalf("findings concern GPUs %q, and %q after the change", before, after)
		}
		if entity == (incident.Entity{}) { // the node's own drift, which is absent here
			w.engine.normal.accept(entity, w.engine.latest)
		} else if ev, err := w.engine.Ack(driftCheck, entity, w.now); err != nil || ev.Kind != incident.KindAck {
			t.Errorf("%v: %+v, %v", entity, ev, err)
		}
		fixture.Equal(t, drifting(0, 20), want, "%v was acknowledged: of GPUs", entity)
	}
}

// TestAcknowledgedLinkIsNormal lets an operator accept a link of 8 lanes. The next agent knows that, and still finds a
// link of 4 lanes, or of 8 once there were 16.
func TestAcknowledgedLinkIsNormal(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, Checks()...), newStage(1)
	has := func(lanes float64) string {
		s.gpus[0].lanes = lanes
		for range 40 {
			w.steps(1, s.samples()...)
		}
		for _, f := range w.engine.Findings() {
			if f.Check == "pcie_degraded" && f.State != incident.Recovering {
				return fmt.Sprint(f.Severity, " ", f.Message)
			}
		}
		return ""
	}
	const warning = "warning The PCIe link of GPU 0 runs with fewer lanes than it can: now 8, best 16."
	for _, port := range []float64{8, 16, 1} { // a virtual machine's port may say 1
		s.gpus[0].port = port
		fixture.Equal(t, has(8) == warning, port != 8, "it warns below a port of %g lanes", port)
	}
	fixture.Value(w.engine.Ack("pcie_degraded", incident.Entity{GPU: "0"}, w.now))(t)
	fixture.Equal(t, has(8), "", "acknowledged")
	w.restart("other")
	fixture.Equal(t, has(8), "", "after a boot")
	fixture.Equal(t, has(4), strings.Replace(strings.Replace(strings.Replace(warning, "warning", "critical", 1), "now 8", "now 4", 1),
		"best 16", "best 8", 1), "with 4")
	fixture.Equal(t, has(16), "", "with 16")
	fixture.Equal(t, has(8), strings.Replace(warning, "warning", "critical", 1), "with 8 again")
	fixture.Value(w.engine.Ack("pcie_degraded", incident.Entity{GPU: "0"}, w.now))(t)
	fixture.Equal(t, has(8), "", "acknowledged again")
}

// TestAcknowledgedAbsenceIsNormal lets an operator accept that the driver never listed one of four GPUs on the bus. Two
// are found again.
func TestAcknowledgedAbsenceIsNormal(t *testing.T) {
	t.Parallel()
	w, s := newWorld(t, Checks()...), newStage(3)
	found := func(onBus int) string {
		s.onBus = onBus
		for range 70 {
			w.steps(1, s.samples()...)
		}
		return w.failing()
	}
	fixture.Equal(t, found(4), "gpu_absent node degraded", "at first")
	fixture.Value(w.engine.Ack("gpu_absent", incident.Entity{}, w.now))(t)
	w.restart("other")
	fixture.Equal(t, found(4), "", "acknowledged")
	fixture.Equal(t, found(5), "gpu_absent node degraded", "one more")
}

// TestAbsent checks which GPUs count as absent: each listed one is told by its module, or by L for a card of another
// model.
func TestAbsent(t *testing.T) {
	for _, c := range fixture.Rows(t, "testdata/absent.tsv") {
		name, listed, mode := c[0], c[1], strings.TrimPrefix(c[5], "-")
		number := func(i int) float64 { return fixture.Value(strconv.ParseFloat(c[i], 64))(t) }
		all := []collectors.Sample{{Metric: collectors.Devices, Value: float64(len(listed))},
			{Metric: links.PCIDevices, Labels: []string{"nvswitch"}, Value: number(4)},
			{Metric: links.PCIDevicesWithheld, Value: number(3)}}
		if onBus := number(2); onBus >= 0 {
			all = append(all, collectors.Sample{Metric: links.PCIDevices, Labels: []string{"gpu"}, Value: onBus})
		}
		for i, module := range strings.Split(listed, "") {
			info, gpu := make([]string, len(device.Info.Labels)), fmt.Sprint(i)
			info[0], info[1], info[infoLabel("name")], info[infoLabel("module_id")] = gpu, "GPU-"+gpu, "H100", module
			if module == "L" {
				info[infoLabel("name")] = "L4"
			}
			all = append(all, collectors.Sample{Metric: device.Info, Labels: info, Value: 1})
			if mode != "" {
				all = append(all, on(gpu, device.VirtualizationInfo, 1, mode))
			}
		}
		slices.SortStableFunc(all, func(a, b collectors.Sample) int { return strings.Compare(a.Metric.Name, b.Metric.Name) })
		s := derived.NewSnapshot(all)
		baselines{}.absent(s)
		fixture.Equal(t, valueOf(s, DevicesAbsent, ""), number(6), "%s: absent GPUs", name)
	}
}

// TestPersistenceIsTheNodes checks when the node reports that persistence mode is off: on all GPUs, if most had it on.
func TestPersistenceIsTheNodes(t *testing.T) {
	for _, c := range []struct {
		before, after string  // by GPU: on, off, or unknown
		want          float64 // -1: no report
	}{
		{"1", "0", 1}, {"1", "1", 0}, {"0", "0", -1}, {"11", "00", 1}, {"11", "01", 0}, {"10", "00", 0},
		{"110", "000", 1}, {"1100", "0000", 0},
		{"1110", "0000", 1}, {"11", "0 ", 0}, {"11", "  ", 0},
	} {
		b, seen := baselines{}, &observed{settings: map[string]map[string]observation{}}
		look := func(modes string) float64 {
			var all []collectors.Sample
			for i, mode := range modes {
				labels := make([]string, len(device.Info.Labels))
				labels[0], labels[1],
					labels[slices.Index(device.Info.Labels, "name")] = fmt.Sprint(i), fmt.Sprint("GPU-", i), "H100"
				all = append(all, collectors.Sample{Metric: device.Info, Labels: labels, Value: 1})
				if mode != ' ' {
					all = append(all, on(fmt.Sprint(i), device.ModeEnabled, float64(mode-'0'), "persistence"))
				}
			}
			s := derived.NewSnapshot(all)
			b.drift(s, seen, birth)
			told := map[string]float64{}
			for _, x := range s.Of(ConfigDrift) {
				if gpu := x.Labels[0]; gpu != "" && x.Labels[2] == persistence {
					if _, twice := told[gpu]; twice || x.Value == 1 && c.want == 1 && c.before[gpu[0]-'0'] == '1' {
						t.Errorf("%q, then %q: it is GPU %s's too", c.before, c.after, gpu)
					}
					told[gpu] = x.Value
				}
			}
			return valueOf(s, ConfigDrift, "", persistence, "off", "on")
		}
		look(c.before)
		fixture.Equal(t, look(c.after), c.want, "%q, then %q", c.before, c.after)
	}
}

// TestDriftNamesItsSettings holds that the sentence about a GPU's drift names
// the settings that differ now, with their values and units.
func TestDriftNamesItsSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Checks()...)
	settings := []struct {
		metric   *collectors.Metric
		labels   []string
		from, to float64
		text     string
	}{
		{device.ModeEnabled, []string{"ecc"}, 1, 0, "setting ecc, value off, expected on"},
		{device.ModeEnabled, []string{"mig"}, 0, 1, "setting mig, value on, expected off"},
		{device.PowerLimit, []string{"enforced"}, 700, 500.5, "setting power_limit, value 500.5 W, expected 700 W"},
		{device.ComputeMode, nil, 0, 3, "setting compute_mode, value exclusive process, expected default"},
	}
	for drifting := range len(settings) + 1 {
		all, message := []collectors.Sample{on("0", collectors.Up, 1), on("0", workloads.WorkloadMemory, 1e9, "pod:a", "")}, ""
		for i, s := range settings {
			all = append(all, on("0", s.metric, map[bool]float64{false: s.from, true: s.to}[i < drifting], s.labels...))
		}
		w.steps(20, all...)
		for _, f := range w.engine.Findings() {
			if f.Check == driftCheck && f.Entity == gpuEntity("0") {
				message = f.Message
			}
		}
		for i, s := range settings {
			fixture.Equal(t, strings.Contains(message, s.text), i < drifting, "%q tells %q", message, s.text)
		}
	}
}
