package integration

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// recovery is the longest time until everything works again.
const recovery = 10 * time.Second

// back checks that the GPUs are well and the agent is ready soon after the repair.
func (a *agent) back(mended time.Time, gpus ...int) {
	a.t.Helper()
	waited, own := a.waited(), map[string]time.Duration{}
	fixture.Waited(os.Getpid(), own)
	eventually(a.t, "the agent is ready again", func() bool {
		status, _ := a.get("/-/ready")
		return status == http.StatusOK
	})
	a.well(gpus...)
	took, beside := time.Since(mended), waited()+fixture.Waited(os.Getpid(), own) // this process asks the agent
	a.t.Logf("back after %v, and the two waited for a processor for %v of it", took.Round(10*time.Millisecond),
		beside.Round(10*time.Millisecond))
	fixture.AtMost(a.t, took-beside, recovery, "back after %v: beyond its waits", took)
}

// begun returns how often the agent's process has started the program.
func (a *agent) begun() int { return strings.Count(a.log.String(), `"message":"gpusteward starts"`) }

// unready waits until /-/ready says why the agent is not ready.
func (a *agent) unready(why string) {
	a.t.Helper()
	eventually(a.t, "/-/ready says "+why, func() bool {
		status, said := a.get("/-/ready")
		return status == http.StatusServiceUnavailable && strings.Contains(said, why)
	})
}

func noDriverUp(s series) bool {
	up, known := s["gpusteward_driver_up"]
	return known && up == 0 && len(s.family("nvgpu_temperature_celsius")) == 0
}

func TestTransientFaultsNeedNoRestart(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		files [][2]string // with their contents, in the order in which they come
		seen  func(s series) bool
		why   string // of /-/ready
		well  []int  // throughout
	}{
		"lost": {[][2]string{{"lost.1", ""}}, func(s series) bool { return s.down("gpu_is_lost", 1) }, "", []int{0, 2}},
		"reset required": {[][2]string{{"reset.1", ""}}, func(s series) bool { return s.down("reset_required", 1) },
			"", []int{0, 2}},
		"all lost": {[][2]string{{"lost.0", ""}, {"lost.1", ""}, {"lost.2", ""}},
			func(s series) bool { return s.down("gpu_is_lost", 0, 1, 2) }, "", nil},
		"nodes gone": {[][2]string{{"nodes", ""}}, func(s series) bool { return s.down("unknown", 0, 1, 2) }, "", nil},
		"nodes gone, and none to open": {[][2]string{{"return.nvmlInit_v2", "999"}, {"nodes", ""}},
			noDriverUp, "nvmlInit: unknown", nil},
		"unloaded": {[][2]string{{"unloaded", ""}}, noDriverUp, "driver_not_loaded", nil},
		"version":  {[][2]string{{"kernel", "999.2"}}, noDriverUp, "lib_rm_version_mismatch", nil},
		"opens, but no more": {[][2]string{{"return.nvmlDeviceGetTemperature", "1"}}, // UNINITIALIZED
			func(s series) bool { return s["gpusteward_nvml_generation"] >= 3 }, "", nil},
	} {
		tests[name] = func(t *testing.T) {
			f := newDriver(t)
			f.has(3)
			a := f.spawn().ready()
			a.well(0, 1, 2)
			began := a.scrape()["process_start_time_seconds"]
			w := observe(a, 1, func(s series) string { return s.ill(c.well...) })
			for _, file := range c.files {
				f.set(file[0], file[1])
			}
			a.sees("the fault", c.seen)
			if c.why != "" {
				a.unready(c.why)
				fixture.Equal(t, f.number("sessions"), 0, "… sessions of NVML without a driver")
				// It keeps trying, and does not restart for nothing.
				a.sees("the driver was tried again", func(s series) bool {
					return s[`gpusteward_nvml_calls_total{call="nvmlInit",return="success"}`] == 1 &&
						sum(s.family("gpusteward_nvml_calls_total", `call="nvmlInit"`)) > 3
				})
			}
			mended := time.Now()
			for _, file := range c.files {
				f.clear(file[0])
			}
			a.back(mended, 0, 1, 2)
			w.saw(t)
			if now := a.scrape()["process_start_time_seconds"]; now != began || a.begun() != 1 {
				t.Errorf("the program was begun %d times, in a process of %v and one of %v", a.begun(), began, now)
			}
			fixture.Equal(t, f.number("sessions"), 1, "sessions of NVML")
			a.endsWell()
		}
	}
	together(t, tests)
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}

// address waits until the agent has started n times, and takes its new address.
func (a *agent) address(n int) {
	a.t.Helper()
	const listening = `"message":"Listening on"`
	eventually(a.t, "the agent listens again", func() bool {
		return strings.Count(a.log.String(), listening) >= n || a.hasEnded()
	})
	for line := range strings.Lines(a.log.String()) {
		var entry struct{ Address, Message string }
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "Listening on" {
			a.url = "http://" + entry.Address
		}
	}
}

// TestReplacedLibraryIsLoadedInTheSameProcess has an agent with an address of its own, and one with systemd's
// socket: a client that connects while the process restarts itself waits there, and is not refused.
func TestReplacedLibraryIsLoadedInTheSameProcess(t *testing.T) {
	t.Parallel()
	together(t, map[string]func(t *testing.T){
		"own address": func(t *testing.T) {
			f := newDriver(t)
			f.has(2)
			a := f.spawn().ready()
			f.replaced(a, func(n int) { a.address(n) })
		},
		"systemd's socket": func(t *testing.T) {
			f := newDriver(t)
			f.has(2)
			l := onLoopback(t)
			cmd := activated([]*os.File{socketOf(t, l)}, append([]string{"--web.systemd-socket"}, f.flags()...)...)
			cmd.Env = append(cmd.Env, f.environment()...)
			a := launch(t, cmd)
			a.url = "http://" + l.Addr().String()
			f.replaced(a, func(n int) { eventually(t, "it began anew", func() bool { return a.begun() == n }) })
		},
	})
}

// replaced replaces the library of an agent twice, and waits for the agent's new starts.
func (f fakeDriver) replaced(a *agent, started func(n int)) {
	t := f.t
	t.Helper()
	a.well(0, 1)
	version := func(v string) bool {
		return len(a.scrape().family("nvgpu_driver_info", `driver_version="`+v+`"`)) == 1
	}
	fixture.Equal(t, version("999.1"), true, "not 999.1 to begin with")
	began := a.scrape()["process_start_time_seconds"]
	for n, v := range []string{"999.2", "999.3"} {
		under := v == "999.3" // a hanging call: nothing can be closed until it returns
		if under {
			f.set("hang.1", "")
			a.sees("it hangs", func(s series) bool { return s.down("nvmlDeviceGetTemperature", 1) })
		}
		f.install(`-DVERSION="` + v + `"`)
		f.set("kernel", v)
		f.set(module, v+"\n")
		if under {
			a.unready("gpu 1 hangs in nvmlDeviceGetTemperature")
			a.sees("no driver", noDriverUp)
		}
		replaced := time.Now()
		f.clear("hang.1")
		started(n + 2)
		a.back(replaced, 0, 1)
		fixture.Equal(t, version(v), true, "%s is not served", v)
		now := a.scrape()["process_start_time_seconds"]
		fixture.If(t, now != began || a.hasEnded(), "it is another process: begun at %v, not %v", now, began)
	}
	fixture.Equal(t, a.begun(), 3, "the program was begun … times")
	a.endsWell()
}

func TestInventorySurvivesARestart(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	with := func(gpus int, check func(a *agent)) {
		t.Helper()
		f.has(gpus)
		a := f.spawn().ready()
		check(a)
		a.endsWell()
	}
	with(4, func(a *agent) { a.well(0, 1, 2, 3) })
	fixture.Must(t, fixture.Error(os.Stat(f.path("state/inventory.json"))))
	f.set("hang.2", "nvmlDeviceGetHandleByIndex_v2")
	with(4, func(a *agent) {
		a.well(0, 1, 3)
		a.sees("the one that hangs is known", func(s series) bool {
			return len(s.family("nvgpu_up", `gpu="2"`, `uuid="GPU-fake-2"`)) == 1 &&
				s.down("nvmlDeviceGetHandleByIndex", 2) && s["nvgpu_devices_expected"] == 4
		})
		f.clear("hang.2")
	})
	with(3, func(a *agent) {
		a.well(0, 1, 2)
		a.sees("the fourth is missed", func(s series) bool {
			up, known := s[`nvgpu_up{gpu="3",uuid="GPU-fake-3"}`]
			return known && up == 0 && s.down("not_listed", 3) && s["nvgpu_devices"] == 3 &&
				s["nvgpu_devices_expected"] == 4
		})
	})
	f.set("uuid.3", "GPU-new")
	with(4, func(a *agent) {
		a.well(0, 1, 2, 3)
		if s := a.scrape(); s["nvgpu_devices_expected"] != 4 || len(s.family("nvgpu_up", "GPU-fake-3")) != 0 {
			t.Errorf("the replaced GPU has %v", s.family("nvgpu_up", "GPU-fake-3"))
		}
	})
}

func TestBadInventoryIsReportedAndReplaced(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, spoil := range map[string]func(f fakeDriver){
		"corrupt":    func(f fakeDriver) { f.set("state/inventory.json", `{"gpus": [{"uuid"`) },
		"other":      func(f fakeDriver) { f.set("state/inventory.json", `[3]`) },
		"unreadable": func(f fakeDriver) { f.set("state/inventory.json/file", "") },
		"unwritable": func(f fakeDriver) { f.set("state", "") },
	} {
		tests[name] = func(t *testing.T) {
			f := newDriver(t)
			spoil(f)
			a := f.spawn().ready()
			a.well(0)
			eventually(t, "a warning", func() bool { return strings.Contains(a.log.String(), "inventory") })
			fixture.Equal(t, a.scrape()["nvgpu_devices_expected"], 1, "GPUs expected")
			if name != "unwritable" {
				eventually(t, "a good inventory", func() bool {
					kept, _ := os.ReadFile(f.path("state/inventory.json"))
					return strings.Contains(string(kept), `"GPU-fake"`)
				})
				fixture.Must(t, fixture.Error(os.Stat(f.path("state/inventory.json.bad"))))
			}
			a.endsWell()
		}
	}
	together(t, tests)
}
