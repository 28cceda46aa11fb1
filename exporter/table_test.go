package exporter

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/workloads"
	"gpusteward/internal/fixture"
)

// states are the states of the golden files, by file name.
var states = map[string]func() State{
	"h100": func() State {
		var s samples
		s.host(1, 1)
		s.h100("0")
		s.workload("unit:train.service", "0", 65.3, .98)
		s.began("unit:train.service", "unit", 54*time.Minute)
		return s.state(func(s *State) { s.Host.Note = "This host is simulated (--demo=h100)." })
	},
	"mixed": func() State {
		var s samples
		s.host(7, 8)
		for _, gpu := range []string{"0", "1", "2"} {
			s.h100(gpu)
			s.workload("slurm:4711.0", gpu, 60, .25)
		}
		s.put(faults.XIDErrors, 1, "1", "GPU-1", "79", "")
		s.put(faults.XIDLast, before(3*time.Minute), "1", "GPU-1", "79")
		s.put(faults.RowRemapPending, 1, "1", "GPU-1")
		s.identity("3", "L4")
		s.put(device.MemoryBytes, 1<<20, "3", "GPU-3", "used")
		s.put(device.MemoryTotal, 24<<30, "3", "GPU-3")
		s.put(device.ClockEventActive, 1, "3", "GPU-3", "gpu_idle")
		s.put(collectors.Unsupported, 1, "3", "GPU-3", activity.GPMActivity.Name)
		s.put(collectors.Unsupported, 1, "0", "GPU-0", device.FanSpeed.Name) // which says nothing of pipes
		for i, why := range []string{"gpu_is_lost", "nvmlDeviceGetTemperature", "reset_required", "not_listed",
			"unknown"} {
			s.down(fmt.Sprint(4+i), why)
		}
		s.workload("pod:serving/llama-0/vllm", "0", 2, 0)
		s.workload("pod:serving/llama-0/vllm", "2", 2, .01)
		s.put(workloads.AllocationInfo, 1, "3", "GPU-3", "pod:idle/nobody/there", "kubelet")
		s.began("slurm:4711.0", "slurm", 51*time.Hour)
		s.began("pod:serving/llama-0/vllm", "pod", 59*time.Second)
		return s.state(nil)
	},
	"jobs": func() State {
		var s samples
		s.host(2, 2)
		for _, gpu := range []string{"0", "1"} {
			s.h100(gpu)
			s.workload("unit:train.service", gpu, 60, .9)
			s.job("unit:train.service", gpu, 1, 0.0482+0.001*float64(len(gpu)))
			s.workload("unit:stuck.service", gpu, 10, 1)
			s.job("unit:stuck.service", gpu, 1, 0.1)
			s.workload("unit:serve.service", gpu, 5, .1)
			s.job("unit:serve.service", gpu, 0, 0)
		}
		s.put(workloads.JobSlowdown, 0.2, "0", "GPU-0", "default", "unit:train.service", "cpu",
			"+0.025 s a step; host +0.021 s; CPU pressure 43 %, usually 3 %")
		s.put(workloads.JobStraggler, 0.14, "1", "GPU-1", "default", "unit:train.service", "1", "host")
		s.put(workloads.SuspendedSeconds, 754, "0", "GPU-0", "default", "unit:notebook.service", "suspended")
		s.put(workloads.SuspendedBytes, 21.3*(1<<30), "0", "GPU-0", "default", "unit:notebook.service")
		s.put(workloads.JobHang, 75, "1", "GPU-1", "default", "unit:stuck.service", "3", "absent",
			"/home/ann/train.py:42 in load")
		return s.state(nil)
	},
	"mig": func() State {
		var s samples
		s.host(1, 1)
		s.h100("0")
		s.mig("0")
		return s.state(nil)
	},
	"drained": func() State {
		var s samples
		s.put(collectors.DriverUp, 0)
		s.put(collectors.Drained, 1)
		s.put(collectors.DevicesExpected, 8)
		return s.state(func(s *State) { s.Host.NotReady = "drained: gpusteward resume lets the agent use the driver again" })
	},
	"no_driver": func() State {
		var s samples
		s.put(collectors.DriverUp, 0)
		s.put(collectors.Drained, 0)
		s.put(collectors.Devices, 0)
		s.put(collectors.DevicesExpected, 8)
		return s.state(func(s *State) { s.Host.NotReady = "nvmlInit_v2: driver_not_loaded" })
	},
	"shared": func() State {
		var s samples
		s.host(1, 1)
		s.h100("0")
		s.put(workloads.BrokerUp, 1)
		s.tenant("0", "serving", 0.7, 0.699, 40, 38.5)
		s.tenant("0", "students", 0.3, 0.301, 0, 12)
		s.tenant("", "default", 1, 0, 8, 0)
		s.quota("0", "serving", .3, "hook", "hook", "kernel")
		s.quota("0", "students", 0, "hook", "none")
		s.stands("students", "slurm:4711.0", "throttle", true, map[string]float64{"compute": 12, "memory": 40})
		s.stands("students", "unit:jupyter-alice.service", "warn", true, map[string]float64{"unhooked": 2})
		s.stands("students", "unit:jupyter-bob.service", "observe", true, nil)
		s.stands("serving", "pod:serving/llama-0/vllm", "observe", false, map[string]float64{"memory": 2})
		return s.state(nil)
	},
	"escalation": func() State {
		var s samples
		s.host(2, 2)
		for _, gpu := range []string{"0", "1"} {
			s.h100(gpu)
			s.tenant(gpu, "research-and-development", .5, .5, 131, 131)
			s.quota(gpu, "research-and-development", .25, "mps", "kernel")
			s.tenant(gpu, "batch", 1, .5, 0, 1)
			s.quota(gpu, "batch", 0, "none", "none", "none")
		}
		for i, level := range []string{"terminate", "pause", "terminate", "throttle"} {
			s.stands("research-and-development", fmt.Sprintf("pod:research/trainer-%d/pytorch-worker-with-a-long-name",
				i), level, i == 2, map[string]float64{"compute": 1200, "reports": 14})
		}
		for i := range 20 {
			s.stands("batch", fmt.Sprint("slurm:", 100+i), "warn", false, map[string]float64{"memory": 2})
		}
		return s.state(nil)
	},
	"brokerless": func() State {
		var s samples
		s.host(1, 1)
		s.put(workloads.BrokerUp, 0)
		return s.state(nil)
	},
	"crowd": func() State {
		var s samples
		s.host(1, 1)
		s.h100("0")
		for i := range 200 {
			s.workload(fmt.Sprintf("pod:crowd/worker-%d/worker", i), "0", 64/float64(i+1), .005)
		}
		return s.state(nil)
	},
	"hostile": func() State {
		var s samples
		s.host(1, 1)
		s.h100("0")
		s.identity("1", hostile)
		s.put(device.MIGInfo, 1, "1", "GPU-1", hostile, hostile, hostile, hostile, hostile, hostile, hostile)
		s.put(faults.XIDErrors, 1, "1", "GPU-1", hostile, "")
		s.put(device.ClockEventActive, 1, "1", "GPU-1", hostile)
		s.down(hostile, hostile)
		s.workload("user:"+hostile, "0", 1, .5)
		s.workload(hostile, hostile, 2, .5)
		s.began(hostile, hostile, time.Hour)
		s.tenant("0", hostile, 0.5, 0.5, 1, 1)
		s.quota("0", hostile, 0.1, hostile)
		s.stands(hostile, hostile, "pause", false, map[string]float64{hostile: 2})
		s.put(device.DriverInfo, 1, hostile, hostile, hostile, hostile)
		return s.state(func(s *State) { s.Host.Name, s.Host.Note, s.Host.NotReady = hostile, hostile, hostile })
	},
}

// hostile is a hostile name: it clears the screen, moves the cursor, begins a line, reverses text, and is too long.
const hostile = "\x1b[2J\x1b]0;owned\a\r\nroot\u202e\u009b31m\x7f\u200b\xff漢字" +
	"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"

// fits fails if a line is too wide, or moves the cursor other than forwards.
func fits(t *testing.T, width int, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		n := utf8.RuneCountInString(line)
		fixture.If(t, n > width, "%d columns, want at most %d: %q", n, width, line)
		fixture.If(t, strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }),
			"not printable: %q", line)
	}
}

func TestTableGolden(t *testing.T) {
	t.Parallel()
	for name, state := range states {
		text := style{width: minWidth}.table(state())
		fixture.Golden(t, "testdata/"+"status_"+name+".txt", text)
		if name == "shared" || name == "escalation" { // their columns move
			fixture.Golden(t, "testdata/"+"status_"+name+"_wide.txt", style{width: 120}.table(state()))
		}
		for _, width := range []int{minWidth, minWidth + 1, 99, 200} {
			fits(t, width, style{width: width}.table(state()))
		}
		fitsWatched(t, state())
	}
}

var paints = regexp.MustCompile("\x1b\\[(0|1|2|31|33)m")

// The text is the same in colour, and names choose no colour.
func TestTableInColour(t *testing.T) {
	t.Parallel()
	for name, state := range states {
		plain, coloured := style{width: minWidth}.table(state()), style{width: minWidth, colour: true}.table(state())
		fixture.Equal(t, paints.ReplaceAllString(coloured, ""), plain, "%s: without its colours it is", name)
		opened, closed := len(paints.FindAllString(coloured, -1)),
			strings.Count(coloured, "\x1b[0m")
		fixture.If(t, opened == 0 || opened != 2*closed, "%s: %d paints, %d ends", name, opened, closed)
	}
	mixed := style{width: minWidth, colour: true}.table(states["mixed"]())
	fixture.Contains(t, strings.ReplaceAll(mixed, "m lost", "mlost"), "\x1b[31mlost: gpu_is_lost", "a lost GPU is red")
}

// FuzzNames: with any name, the status fits and is printable, and its JSON
// means the same after it was escaped for a terminal.
func FuzzNames(f *testing.F) {
	f.Add(hostile)
	f.Add("pod:a/b/c")
	f.Add("\U000e0001\U0010ffff\u2028")
	f.Fuzz(func(t *testing.T, name string) {
		var s samples
		s.identity(name, name)
		s.put(faults.XIDErrors, 1, name, "GPU-"+name, name, name)
		s.workload(name, name, 1, 1)
		s.down("7", name)
		s.tenant("0", name, 1, 1, 1, 1)
		s.quota("0", name, .5, name)
		s.stands(name, name, "pause", true, map[string]float64{name: 2})
		state := s.state(func(s *State) { s.Host.Name, s.Host.Note = name, name })
		fits(t, minWidth, style{width: minWidth}.table(state))
		fitsWatched(t, state)
		text := fixture.Value(json.Marshal(state))(t)
		safe := escaped(string(text))
		fits(t, len(safe), safe)
		var one, two any
		fixture.Must(t, json.Unmarshal(text, &one))
		err := json.Unmarshal([]byte(safe), &two)
		fixture.If(t, err != nil || fmt.Sprint(one) != fmt.Sprint(two), "%q became %q, error %v", text, safe, err)
	})
}

func TestSmallTexts(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Hour: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", time.Hour - 1: "59m",
		time.Hour:        "1h00m",
		24*time.Hour - 1: "23h59m", 24 * time.Hour: "1d00h", 99*24*time.Hour + 5*time.Hour: "99d05h",
	} {
		fixture.Equal(t, age(d), want, "age of %v", d)
	}
	for want, n := range map[string][]int{"": nil, "3": {3}, "0-3,5,7-8": {5, 0, 1, 2, 3, 7, 8}, "1-2": {1, 1, 2, 2}} {
		fixture.Equal(t, ranges(n), want, "%v is written", n)
	}
	for ratio, want := range map[float64]string{0: "░░░░", 1e-9: "█░░░", .5: "██░░", .99: "████", 1: "████", 7: "████",
		-1: "░░░░"} {
		fixture.Equal(t, bar(ratio, 4), want, "%v is drawn", ratio)
	}
	at := func(v float64) *float64 { return &v }
	for want, c := range map[string]Tenant{
		"": {}, "≤50%": {Limit: at(.5)}, "50%": {Guarantee: at(.5), Limit: at(.5)},
		"30-50%": {Guarantee: at(.3), Limit: at(.5)}, "0-100%": {Guarantee: at(0)}, "100%": {Guarantee: at(1)},
	} {
		fixture.Equal(t, c.quota(), want, "%v to %v is written", c.Guarantee, c.Limit)
	}
	fixture.Equal(t, plural(1, "GPU")+plural(0, "GPU")+capital("")+capital("info"), "1 GPU0 GPUsInfo", "words")
}

func TestTableOfUnknownAndLongValues(t *testing.T) {
	st := style{width: minWidth}
	if text := st.table(State{GPUs: []GPU{{UUID: "GPU-a", Reason: "late"}}}); strings.Contains(text, "No process") {
		t.Errorf("the row of a GPU that does not answer is %s", text)
	}
	fixture.Contains(t, st.table(State{GPUs: []GPU{{UUID: "GPU-a", Up: true}}}), "No process uses a GPU.",
		"the row of a GPU without a process is")
	busy := map[string]float64{"sm": .93}
	text := st.table(State{Workloads: []Workload{{Name: "unit:a.service",
		GPUs: []WorkloadGPU{{Utilization: busy}, {Index: 1, Utilization: busy}, {Index: 2}}}}})
	_, row, _ := strings.Cut(text, "unit:")
	fixture.EqualSlices(t, strings.Fields("unit:"+row), []string{"unit:a.service", "0-2", "186%"},
		"the sum of what is known, and nothing for processes")
	var s samples
	s.workload("pod:"+strings.Repeat("long", 15), "0", 1, .5)
	s.put(collectors.Up, 1, "0", "GPU-0")
	if name := strings.Repeat("long", 15); strings.Contains(style{width: 80}.table(s.state(nil)), name) ||
		!strings.Contains(style{width: 120}.table(s.state(nil)), name) {
		t.Error("a long name is cut where there is room, or not cut where there is none")
	}
}

func TestTableInColourMarksWhatMatters(t *testing.T) {
	near, far := 4., 20.
	gpu := func(margin *float64, util float64, held ...string) string {
		return style{width: minWidth, colour: true}.table(State{GPUs: []GPU{{UUID: "GPU-a", Up: true, Margin: margin,
			Temperature: map[string]float64{"gpu": 80},
			Utilization: map[string]float64{"gpu": util}, Throttled: held}}})
	}
	for _, c := range []struct {
		text, want string
		marked     bool
	}{
		{gpu(&near, 1), "\x1b[33m 80 +4", true},
		{gpu(&far, 1), "\x1b[33m", false},
		{gpu(&far, 0), "\x1b[2m GPU-a", true},
		{gpu(&far, 1, "sw_power_cap"), "held", false},
		{gpu(&far, 1, "sw_power_cap", "hw_thermal"), "\x1b[33m   Its clocks are held by power limit, heat (hardware).", true},
	} {
		fixture.Equal(t, strings.Contains(c.text, c.want), c.marked, "%q in %v", c.want, strings.Split(c.text, "\n"))
	}
}
