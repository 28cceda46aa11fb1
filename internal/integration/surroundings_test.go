package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

// drives makes the kernel report a GPU with the device node /dev/nvidiaMINOR.
func (f fakeDriver) drives(gpu, minor int) {
	f.t.Helper()
	f.set(module, "999.1\n")
	f.set(slot(gpu), fmt.Sprintf("Model: \t\t Fake GPU\nDevice Minor: \t %d\nGPU Excluded:\t No\n", minor))
}

// TestMissingDeviceNodes repeats the answers of a driver, 580.159.04, without
// its device nodes: OPERATING_SYSTEM, or success and no GPU.
func TestMissingDeviceNodes(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		defines []string
		gpus    string
		call    string
	}{
		"no nvidiactl":    {[]string{"-DINIT=17"}, "1", "nvmlInit: operating_system"},
		"an older driver": {[]string{"-DINIT=9"}, "1", "nvmlInit: driver_not_loaded"},
		"no nvidia3":      {nil, "0", "the driver lists no GPU"},
	} {
		tests[name] = func(t *testing.T) {
			f, m := newDriver(t, c.defines...), newManager(t)
			f.drives(0, 3)
			f.set("gpus", c.gpus)
			a := spawn(t, append(f.environment(), m.environment(0)...), f.flags()...).listening()
			const logged = "no driver, retrying"
			eventually(t, "it is logged", func() bool { return a.log.find(logged) != nil })
			said, _ := a.log.find(logged)["err"].(string)
			for _, want := range []string{c.call, machine + "/dev/nvidiactl, " + machine + "/dev/nvidia3 missing, " +
				"though the kernel module is loaded", "nvidia-modprobe -c 255 -c 3 as root", "NoNewPrivileges", "--gpus all"} {
				fixture.Contains(t, said, want, "the log")
			}
			if status, why := a.get("/-/ready"); status != http.StatusServiceUnavailable ||
				!strings.Contains(why, said) {
				t.Errorf("/-/ready: %d %s", status, why)
			}
			eventually(t, "systemd is told", func() bool { return m.count("STATUS="+said) == 1 })
			if status, out := f.checks("--standalone"); status != 3 || !strings.Contains(out, said) {
				t.Errorf("gpusteward check: exit status %d, %s", status, out)
			}
			a.sees("the driver was tried again",
				func(s series) bool { return sum(s.family("gpusteward_nvml_calls_total", `call="nvmlInit"`)) > 3 })
			fixture.Equal(t, strings.Count(a.log.String(), said), 1, "it is logged … times")
			f.clear(filepath.Dir(filepath.Dir(slot(0))), module) // nothing is missing any more
			f.set("loaded", "")
			f.set("gpus", "1")
			a.ready()
			a.well(0)
			a.endsWell()
		}
	}
	together(t, tests)
}

// TestMissingDeviceNodeOfOneGPU: the other GPUs are read.
func TestMissingDeviceNodeOfOneGPU(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	f.drives(0, 3)
	f.drives(1, 4)
	f.set("gpus", "1")
	a := f.spawn().ready()
	a.well(0)
	a.turns(3)
	const told = "the driver lists only the GPUs that have device nodes"
	if why, _ := a.log.find(told)["err"].(string); !strings.Contains(why, "/dev/nvidia4") ||
		strings.Count(a.log.String(), told) != 1 {
		t.Errorf("%q, told %d times", why, strings.Count(a.log.String(), told))
	}
	f.set("gpus", "2") // first: the agent may look again between the removals
	f.clear(filepath.Dir(slot(0)), filepath.Dir(slot(1)), module)
	a.well(0, 1)
}

// A stateDirectory is a way to make a state directory unusable, and the repair.
type stateDirectory struct {
	spoil, mend func(t *testing.T, dir string)
	uid         int
	want        []string // in the log
}

// TestUnwritableStateDirectory: GPUs are still read, the failure is
// logged once, and the state is written once that is possible.
func TestUnwritableStateDirectory(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount, and be another")
	}
	must := func(t *testing.T, err error) {
		t.Helper()
		fixture.Must(t, err)
	}
	mount := func(flags uintptr, data string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			fixture.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", flags, data))
			if flags&syscall.MS_REMOUNT == 0 {
				t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
			}
		}
	}
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]stateDirectory{
		"read-only": {mount(syscall.MS_RDONLY, ""), mount(syscall.MS_REMOUNT, ""), 0,
			[]string{"read-only file system", "ReadWritePaths="}},
		"full": {func(t *testing.T, dir string) {
			mount(0, "size=4k")(t, dir)
			must(t, os.WriteFile(filepath.Join(dir, "large"), make([]byte, 4096), 0o600))
		}, func(t *testing.T, dir string) {
			must(t, os.Remove(filepath.Join(dir, "large")))
			mount(syscall.MS_REMOUNT, "size=1m")(t, dir)
		}, 0, []string{"no space left on device", "df -i"}},
		"another's": {func(t *testing.T, dir string) { must(t, os.Chmod(dir, 0o700)) },
			func(t *testing.T, dir string) { must(t, os.Chown(dir, 65534, 65534)) }, 65534,
			[]string{"permission denied", "belongs to root, group root, mode 0700", "chown or chmod it"}},
		"not to be made": {func(t *testing.T, dir string) {
			must(t, os.Remove(dir))
			must(t, os.Chown(filepath.Dir(dir), 0, 0))
		}, func(t *testing.T, dir string) { must(t, os.Mkdir(dir, 0o755)); must(t, os.Chown(dir, 65534, 65534)) },
			65534, []string{"permission denied", "belongs to root, group root, mode 0755"}},
	} {
		tests[name] = func(t *testing.T) {
			// Not t.TempDir, which is closed to others.
			dir, err := os.MkdirTemp("", "state")
			must(t, err)
			t.Cleanup(func() { os.RemoveAll(dir) })
			must(t, os.Chmod(dir, 0o755))
			f := fakeDriver{t, dir}
			f.install()
			f.has(1)
			args := append(f.flags(), loopback)
			must(t, exec.Command("chown", "-R", fmt.Sprint(c.uid), dir).Run())
			state := f.path("state")
			must(t, os.Mkdir(state, 0o755))
			c.spoil(t, state)
			cmd := exec.Command("/proc/self/exe", args...)
			cmd.Env = append(os.Environ(), f.environment()...)
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(c.uid),
				Gid: uint32(c.uid)}}
			a := launch(t, cmd).ready()
			a.well(0)
			const inventory, health, journal = "cannot save the inventory, retrying: a GPU missing at the next start " +
				"will not be noticed",
				"cannot save the state of health, retrying: a restart of the agent will forget latched faults",
				"cannot write the journal, retrying: events stay in memory"
			for _, message := range []string{inventory, health, journal} {
				eventually(t, message, func() bool { return a.log.find(message) != nil })
				why, _ := a.log.find(message)["err"].(string)
				for _, want := range c.want {
					fixture.If(t, !strings.Contains(why, want) || !strings.Contains(why, state),
						"%s: %s; want %q and the path", message, why, want)
				}
			}
			a.sees("the agent is under pressure, and its journal late", func(s series) bool {
				return s[`gpusteward_pressure_ratio{resource="state"}`] == 2 &&
					sum(s.family("gpusteward_journal_late_total")) > 0
			})
			a.turns(2)
			c.mend(t, state)
			for _, file := range []string{"inventory.json", "health.json", "events.jsonl"} {
				eventually(t, file+" is written", func() bool {
					info, err := os.Stat(filepath.Join(state, file))
					return err == nil && info.Size() > 0
				})
			}
			a.sees("no pressure", func(s series) bool { return s[`gpusteward_pressure_ratio{resource="state"}`] == 0 })
			if events, err := os.ReadFile(filepath.Join(state, "events.jsonl")); err != nil ||
				!strings.Contains(string(events), "The agent started.") {
				t.Errorf("the first event was lost: %v\n%s", err, events)
			}
			for _, message := range []string{inventory, health, journal} {
				fixture.Equal(t, strings.Count(a.log.String(), message), 1, "%q is told … times", message)
			}
			a.endsWell()
		}
	}
	together(t, tests)
}
