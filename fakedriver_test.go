package main

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpusteward/collectors"
)

// A fakeDriver is a directory with a libnvidia-ml.so.1 made from
// testdata/nvml.c; files in the directory change what it does.
type fakeDriver struct {
	t   *testing.T
	dir string
}

// noDriver returns a directory with a libnvidia-ml.so.1 that cannot be
// loaded, so that the tests see no driver even where there is one.
func noDriver(t *testing.T) fakeDriver {
	t.Helper()
	f := fakeDriver{t, t.TempDir()}
	f.touch("libnvidia-ml.so.1")
	return f
}

// newDriver returns a driver built with the given -D flags.
func newDriver(t *testing.T, defines ...string) fakeDriver {
	t.Helper()
	f := noDriver(t)
	f.install(defines...)
	return f
}

func (f fakeDriver) install(defines ...string) {
	f.t.Helper()
	build := filepath.Join(f.t.TempDir(), "nvml.so")
	args := append([]string{"-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", build, "testdata/nvml.c"}, defines...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		f.t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	if err := os.Rename(build, filepath.Join(f.dir, "libnvidia-ml.so.1")); err != nil {
		f.t.Fatal(err)
	}
}

func (f fakeDriver) touch(name string) {
	f.t.Helper()
	rewrite(f.t, filepath.Join(f.dir, name), "")
}

// environment has an agent load this driver.
func (f fakeDriver) environment() []string {
	return []string{"LD_LIBRARY_PATH=" + f.dir, "FAKE_DRIVER=" + f.dir}
}

// Return codes of nvmlInit, and what an operator is to be told about them.
var driverFailures = map[string]struct {
	define string
	want   []string
}{
	"no library":       {"", []string{"library_not_found", "install the NVIDIA driver"}},
	"not loaded":       {"-DINIT=9", []string{"driver_not_loaded", "modprobe nvidia"}},
	"no permission":    {"-DINIT=4", []string{"no_permission", "/dev/nvidia", "run as root or join the group"}},
	"version mismatch": {"-DINIT=18", []string{"lib_rm_version_mismatch", "different versions", "reboot"}},
}

func failing(t *testing.T, define string) fakeDriver {
	t.Helper()
	if define == "" {
		return noDriver(t)
	}
	return newDriver(t, define)
}

func TestADriverWithFewFunctionsIsServed(t *testing.T) {
	t.Parallel()
	var optIn []string
	for _, c := range collectors.All() {
		if c.OptIn {
			optIn = append(optIn, c.Name)
		}
	}
	everything := write(t, "collectors:\n  fast: 100ms\n  enable: ["+strings.Join(optIn, ", ")+"]\n")
	a := spawn(t, newDriver(t).environment(), "--config.file="+everything).ready()
	s := a.scrape()
	for series, want := range map[string]float64{
		`nvgpu_up{gpu="0",uuid="GPU-fake"}`:                                           1,
		`nvgpu_temperature_celsius{gpu="0",sensor="gpu",uuid="GPU-fake"}`:             42,
		`nvgpu_power_watts{gpu="0",kind="instant",scope="gpu",uuid="GPU-fake"}`:       123.456,
		`nvgpu_memory_bytes{gpu="0",state="used",uuid="GPU-fake"}`:                    30000,
		`gpusteward_missing_symbol{symbol="nvmlDeviceGetFieldValues"}`:                1,
		`gpusteward_missing_symbol{symbol="nvmlDeviceGetEccMode"}`:                    1,
		`gpusteward_unsupported{feature="nvgpu_clock_hertz",gpu="0",uuid="GPU-fake"}`: 1,
		`gpusteward_collect_success{collector="temperature"}`:                         1,
		`gpusteward_driver_up`: 1,
	} {
		if got := s[series]; got != want {
			t.Errorf("%s = %v, want %v", series, got, want)
		}
	}
	if n := len(s.family("nvgpu_info", `name="Fake GPU"`, `pci_bus_id="00000000:9B:00.0"`, `minor="3"`)); n != 1 {
		t.Errorf("%d nvgpu_info with the GPU's identity, want one", n)
	}
	if n := len(s.family("gpusteward_missing_symbol")); n < 30 {
		t.Errorf("%d missing symbols; every collector should have met one", n)
	}
	if n := len(s.family("gpusteward_collect_errors_total")); n != 0 {
		t.Errorf("a missing function counts as a failure of %d collectors", n)
	}
	turns := func() float64 {
		return a.scrape()[`gpusteward_nvml_calls_total{call="nvmlDeviceGetTemperature",return="success"}`]
	}
	eventually(t, "many turns", func() bool { return turns() > 10 })
	if status := a.stop(); status != 0 {
		t.Errorf("exit status %d, want 0 (127: an unguarded call)", status)
	}
}

func TestWithoutADriverTheAgentWaitsAndSaysWhy(t *testing.T) {
	t.Parallel()
	for name, c := range driverFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t)
			a := spawn(t, append(failing(t, c.define).environment(), m.environment(0)...)).listening()
			eventually(t, "READY=1, so that a boot does not wait for a driver", func() bool { return m.count("READY=1") == 1 })
			status, why := a.get("/-/ready")
			if status != http.StatusServiceUnavailable {
				t.Errorf("/-/ready: status %d, want 503", status)
			}
			log, _ := a.log.find("no driver, trying again")["err"].(string)
			for _, want := range c.want {
				if !strings.Contains(why, want) || !strings.Contains(log, want) {
					t.Errorf("%q is not in both /-/ready: %s\nand the log: %s", want, why, log)
				}
			}
			if m.count("STATUS=nvmlInit: "+c.want[0]) != 1 {
				t.Errorf("systemd is not told why: %q", m.got)
			}
			s := a.scrape()
			if up, known := s["gpusteward_driver_up"]; up != 0 || !known || len(s.family("gpusteward_build_info")) != 1 || len(s.family("nvgpu_up")) != 0 {
				t.Errorf("gpusteward_driver_up %v (%v); want 0, the agent's own metrics and no GPU", up, known)
			}
			missing := name == "no library" || name == "not loaded"
			if said := strings.Contains(a.log.String(), "--demo serves a simulated host"); said != missing {
				t.Errorf("the log proposes --demo: %v, want %v", said, missing)
			}
			if status := a.stop(); status != 0 {
				t.Errorf("exit status %d, want 0", status)
			}
		})
	}
}

func TestADriverThatComesLaterNeedsNoRestart(t *testing.T) {
	t.Parallel()
	for name, come := range map[string]func(fakeDriver){
		"library": func(f fakeDriver) { f.install() },
		"module":  func(f fakeDriver) { f.touch("loaded") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := failing(t, map[string]string{"module": "-DINIT=9"}[name])
			m := newManager(t)
			a := spawn(t, append(f.environment(), m.environment(0)...)).listening()
			eventually(t, "the agent has looked for a driver", func() bool { return m.count("STATUS=nvmlInit: ") == 1 })
			if status, why := a.get("/-/ready"); status == http.StatusOK {
				t.Errorf("ready without a driver: %s", why)
			}
			come(f)
			a.ready()
			if up := a.scrape().family("nvgpu_up"); !slices.Equal(up, []float64{1}) {
				t.Errorf("nvgpu_up = %v, want 1 of one GPU", up)
			}
			eventually(t, "systemd is told that all is well now", func() bool { return m.count("STATUS=reading GPUs") == 1 })
			if status := a.stop(); status != 0 {
				t.Errorf("exit status %d, want 0", status)
			}
		})
	}
}

func TestRequireDriverEndsWithoutOne(t *testing.T) {
	t.Parallel()
	for name, c := range driverFailures {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := spawn(t, failing(t, c.define).environment(), "--require-driver")
			if status := a.wait(); status != 1 {
				t.Errorf("exit status %d, want 1", status)
			}
			for _, want := range append(c.want, "--require-driver") {
				if !strings.Contains(a.log.String(), want) {
					t.Errorf("the log lacks %q", want)
				}
			}
		})
	}
}

func TestRequireDriverRunsWithOne(t *testing.T) {
	t.Parallel()
	a := spawn(t, newDriver(t).environment(), "--require-driver").ready()
	if status := a.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
}

func TestACallThatHangsInTheDriverStopsNoScrape(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	a := spawn(t, f.environment(), "--config.file=testdata/config/quick.yml").ready()
	f.touch("hang")
	stuck := func() []float64 {
		return a.scrape().family("gpusteward_worker_stuck", `reason="nvmlDeviceGetTemperature"`)
	}
	eventually(t, "the call that hangs is named", func() bool { return slices.Equal(stuck(), []float64{1}) })
	s := a.scrape()
	if up := s.family("nvgpu_up"); !slices.Equal(up, []float64{0}) || len(s.family("nvgpu_temperature_celsius")) != 0 {
		t.Errorf("nvgpu_up = %v and temperatures %v; want 0 and nothing stale", up, s.family("nvgpu_temperature_celsius"))
	}
	if status := a.stop(); status != 0 {
		t.Errorf("exit status %d, want 0", status)
	}
}
