package integration

import (
	"fmt"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"gpusteward/collectors"
	"gpusteward/internal/fixture"
)

// A fakeDriver is a directory with a libnvidia-ml.so.1 made from testdata/nvml.c, which does what files in
// the directory say. It also has the directories of its agents.
type fakeDriver struct {
	t   *testing.T
	dir string
}

// noDriver returns a directory with a libnvidia-ml.so.1 that cannot be loaded,
// so that the tests see no driver even if the host has one.
func noDriver(t *testing.T) fakeDriver {
	t.Helper()
	f := fakeDriver{t, t.TempDir()}
	f.set("libnvidia-ml.so.1", "")
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
	fixture.NVML(f.t, ".", f.path("libnvidia-ml.so.1"), defines...)
}

func (f fakeDriver) path(name string) string { return filepath.Join(f.dir, name) }

// set replaces a file atomically, since the driver may be reading it.
func (f fakeDriver) set(name, contents string) {
	f.t.Helper()
	path := f.path(name)
	fixture.Rewrite(f.t, path+".next", contents)
	fixture.Must(f.t, os.Rename(path+".next", path))
}

// clear removes files, and directories with their contents.
func (f fakeDriver) clear(names ...string) {
	f.t.Helper()
	for _, name := range names {
		fixture.Must(f.t, os.RemoveAll(f.path(name)))
	}
}

// number returns a count of the driver, such as open sessions or stuck calls; 0 before there is one.
func (f fakeDriver) number(name string) int {
	text, _ := os.ReadFile(f.path(name))
	n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
	return n
}

// module and slots are the kernel's files about the driver.
const module, slots = "sys/module/nvidia/version", "proc/driver/nvidia/gpus/"

// slot returns the kernel's file about a GPU that is bound to the driver.
func slot(gpu int) string { return fmt.Sprintf("%s0000:%02x:00.0/information", slots, 0x9b+gpu) }

// has sets the number of GPUs, for the library and then the kernel.
func (f fakeDriver) has(gpus int) {
	f.t.Helper()
	f.set("gpus", strconv.Itoa(gpus))
	f.set(module, "999.1\n")
	for i := range 16 {
		if i < gpus {
			f.set(slot(i), "")
		} else {
			f.clear(filepath.Dir(slot(i)))
		}
	}
}

// environment makes an agent load this driver, and skip the second that the race detector takes to end.
func (f fakeDriver) environment() []string {
	return []string{"LD_LIBRARY_PATH=" + f.dir, "FAKE_DRIVER=" + f.dir, "GORACE=atexit_sleep_ms=0"}
}

// flags make an agent read its GPUs five times a second, and keep its state beside the driver.
func (f fakeDriver) flags() []string {
	f.t.Helper()
	if _, err := os.Stat(f.path("config.yml")); err != nil {
		f.set("config.yml", quickly)
	}
	fixture.Must(f.t, os.MkdirAll(f.path("proc"), 0o755))
	return []string{"--config.file=" + f.path("config.yml"), "--runtime.dir=" + f.path("run"),
		"--state.dir=" + f.path("state"), "--path.procfs=" + f.path("proc"), "--path.sysfs=" + f.path("sys")}
}

// spawn runs an agent with those flags that loads this driver.
func (f fakeDriver) spawn() *agent {
	f.t.Helper()
	return spawn(f.t, f.environment(), f.flags()...)
}

const quickly = "collectors: {fast: 200ms, medium: 200ms}\n"

// Return codes of nvmlInit, and the messages for operators.
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

func TestDriverWithFewFunctions(t *testing.T) {
	t.Parallel()
	var optIn []string
	for _, c := range collectors.All() {
		if c.OptIn {
			optIn = append(optIn, c.Name)
		}
	}
	everything := fixture.Config(t, "collectors:\n  fast: 100ms\n  enable: ["+strings.Join(optIn, ", ")+"]\n")
	a := spawn(t, newDriver(t).environment(), "--config.file="+everything, "--require-driver").ready()
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
		fixture.Equal(t, s[series], want, "%s =", series)
	}
	fixture.Equal(t, len(s.family("nvgpu_info", `name="Fake GPU"`, `pci_bus_id="00000000:9B:00.0"`, `minor="3"`)), 1,
		"nvgpu_info with the GPU's identity")
	fixture.AtLeast(t, len(s.family("gpusteward_missing_symbol")), 30,
		"… missing symbols; every collector should have met one")
	fixture.Equal(t, len(s.family("gpusteward_collect_errors_total")), 0,
		"a missing function counts as a failure of … collectors")
	turns := func() float64 {
		return a.scrape()[`gpusteward_nvml_calls_total{call="nvmlDeviceGetTemperature",return="success"}`]
	}
	eventually(t, "many turns", func() bool { return turns() > 10 })
	a.endsWell()
}

// TestAgentWaitsForADriverAndSaysWhy: a driver that is installed or loaded later needs no restart.
func TestAgentWaitsForADriverAndSaysWhy(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range driverFailures {
		tests[name] = func(t *testing.T) {
			m := newManager(t)
			f := failing(t, c.define)
			a := spawn(t, append(f.environment(), m.environment(0)...)).listening()
			eventually(t, "READY=1, so that a boot does not wait for a driver",
				func() bool { return m.count("READY=1") == 1 })
			status, why := a.get("/-/ready")
			fixture.Equal(t, status, http.StatusServiceUnavailable, "/-/ready: status")
			for _, want := range c.want {
				fixture.Contains(t, why, want, "/-/ready")
				eventually(t, fmt.Sprintf("%q is in the log", want), func() bool {
					log, _ := a.log.find("no driver, retrying")["err"].(string)
					return strings.Contains(log, want)
				})
			}
			eventually(t, "systemd is told why", func() bool { return m.count("STATUS=nvmlInit: "+c.want[0]) == 1 })
			s := a.scrape()
			if up, known := s["gpusteward_driver_up"]; up != 0 || !known ||
				len(s.family("gpusteward_build_info")) != 1 || len(s.family("nvgpu_up")) != 0 {
				t.Errorf("gpusteward_driver_up %v (%v), build %v, nvgpu_up %v; want 0, the agent's own metrics and no GPU", up,
					known, s.family("gpusteward_build_info"), s.family("nvgpu_up"))
			}
			missing := name == "no library" || name == "not loaded"
			fixture.Equal(t, strings.Contains(a.log.String(), "--demo serves a simulated host"), missing,
				"the log proposes --demo")
			if missing {
				if name == "no library" {
					f.install()
				} else {
					f.set("loaded", "")
				}
				a.ready()
				a.sees("the GPU is up", func(s series) bool { return slices.Equal(s.family("nvgpu_up"), []float64{1}) })
				eventually(t, "systemd is told that all is well now",
					func() bool { return m.count("STATUS=reading GPUs") == 1 })
			}
			a.endsWell()
		}
	}
	together(t, tests)
}

func TestRequireDriverEndsWithoutOne(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range driverFailures {
		tests[name] = func(t *testing.T) {
			a := spawn(t, failing(t, c.define).environment(), "--require-driver")
			fixture.Equal(t, a.wait(), 1, "exit status")
			for _, want := range append(c.want, "--require-driver") {
				fixture.Contains(t, a.log.String(), want, "the log")
			}
		}
	}
	together(t, tests)
}

// format checks that /metrics is valid, and returns its series.
func (a *agent) format() series {
	a.t.Helper()
	status, body := a.get("/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(strings.NewReader(body)); err != nil || status != http.StatusOK ||
		!utf8.ValidString(body) {
		a.t.Errorf("/metrics: status %d, %v, UTF-8: %v", status, err, utf8.ValidString(body))
	}
	return parse(body)
}

// absurd returns the series of GPUs with impossible values.
func (s series) absurd() (wrong []string) {
	for key, v := range s {
		name, _, _ := strings.Cut(key, "{")
		most := map[string]float64{"nvgpu_temperature_celsius": 200, "nvgpu_power_watts": 1e5,
			"nvgpu_memory_bytes":       1e15,
			"nvgpu_memory_total_bytes": 1e15, "nvgpu_processes": 1e5, "nvgpu_process_memory_used_bytes": 1e15}[name]
		if strings.HasSuffix(name, "_ratio") {
			most = 1
		}
		if strings.HasPrefix(name, "nvgpu_") && (math.IsNaN(v) || v < 0 || most > 0 && v > most) {
			wrong = append(wrong, fmt.Sprint(key, " ", v))
		}
	}
	slices.Sort(wrong)
	return wrong
}

func TestImpossibleReadingsAreNotShown(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, first := range map[string]bool{"from the start": true, "later": false} {
		tests[name] = func(t *testing.T) {
			f := newDriver(t, "-DFIELDS")
			f.set("gpus", "2")
			f.set("uuid.1", "GPU-\xff\n\"\\")
			f.set("processes.0", "4711 1000\n")
			f.set("utilization.0", "4711 10 10 10 10\n")
			if first {
				f.set("garbage", "")
			}
			a := f.spawn().ready()
			if !first {
				a.well(0, 1)
				f.set("garbage", "")
				a.sees("the garbage is read", func(s series) bool { return s.ill(0, 1) != "" })
			}
			for range 3 {
				a.turns(1)
				if wrong := a.format().absurd(); len(wrong) > 0 {
					t.Errorf("shown: %s", strings.Join(wrong, "\n"))
				}
				a.sees("both GPUs are up", func(s series) bool {
					return slices.Equal(s.family("nvgpu_up"), []float64{1, 1})
				})
			}
			f.clear("garbage")
			a.well(0, 1)
			a.endsWell()
		}
	}
	together(t, tests)
}

// TestCountersEqualTheDrivers: counters of the driver are shown as they
// are, even if they fall, which Prometheus takes for a reset.
func TestCountersEqualTheDrivers(t *testing.T) {
	t.Parallel()
	f := newDriver(t, "-DFIELDS")
	a := f.spawn()
	for i, c := range []struct {
		millijoules, replays string
		want                 [2]float64 // joules, replays
	}{
		{"1000000", "4294967295", [2]float64{1000, 4294967295}},
		{"1000500", "0", [2]float64{1000.5, 0}}, // 32 bits of replays are full
		{"500", "1", [2]float64{.5, 1}},         // the driver was reloaded
		{"0", "0", [2]float64{0, 0}},
		{"18446744073709551615", "1", [2]float64{18446744073709551.615, 1}}, // unsigned, to the last bit
	} {
		f.set("energy.0", c.millijoules)
		f.set("replays.0", c.replays)
		if i == 0 {
			a.ready()
		}
		a.sees(fmt.Sprint(c), func(s series) bool {
			return s[`nvgpu_energy_joules_total{gpu="0",scope="gpu",uuid="GPU-fake"}`] == c.want[0] &&
				s[`nvgpu_pcie_replays_total{gpu="0",uuid="GPU-fake"}`] == c.want[1]
		})
		a.format()
	}
}
