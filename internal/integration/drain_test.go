package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/exporter"
	"gpusteward/internal/fixture"
)

// begin starts a command of the program with the directories of the driver's agent. said is its output.
func (f fakeDriver) begin(name ...string) (cmd *exec.Cmd, said *bytes.Buffer) {
	f.t.Helper()
	said = new(bytes.Buffer)
	cmd = process(f.environment(), append(name, "--runtime.dir="+f.path("run"))...)
	cmd.Stdout, cmd.Stderr = said, said
	fixture.Must(f.t, cmd.Start())
	return cmd, said
}

// command runs a command to its end. It returns its exit status and output.
func (f fakeDriver) command(name ...string) (int, string) {
	f.t.Helper()
	cmd, said := f.begin(name...)
	_ = cmd.Wait() // its exit status says more
	return cmd.ProcessState.ExitCode(), said.String()
}

// does runs a command that the agent must carry out within limit by its own
// clock. A busy machine takes longer to start the command.
func (f fakeDriver) does(a *agent, name string, limit time.Duration) {
	f.t.Helper()
	cmd, said := f.begin(name)
	_ = cmd.Wait() // its exit status says more
	var took time.Duration
	eventually(f.t, "the agent logs the order "+name, func() (logged bool) {
		took, logged = a.log.order(cmd.Process.Pid)
		return logged
	})
	f.t.Logf("%s took %v", name, took.Round(time.Millisecond))
	status := cmd.ProcessState.ExitCode()
	fixture.If(f.t, status != 0 || took > limit, "%s: exit status %d after %v: %s", name, status, took, said)
}

// order returns how long an agent took for the order of a process, as it logs it.
func (l *transcript) order(pid int) (took time.Duration, logged bool) {
	for line := range strings.Lines(l.String()) {
		var entry struct {
			Message, Took string
			PID           int
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "control" && entry.PID == pid {
			took, err := time.ParseDuration(entry.Took)
			return took, err == nil
		}
	}
	return 0, false
}

// drained checks that NVML is released, and that the agent says so.
func (f fakeDriver) drained(a *agent) {
	f.t.Helper()
	fixture.Equal(f.t, f.number("sessions"), 0, "sessions of NVML while drained")
	a.sees("drained", func(s series) bool {
		// nothing is known of them
		well := len(s.family("nvgpu_health_status")) + len(s.family("nvgpu_node_health_status"))
		return s["gpusteward_drained"] == 1 && len(s.family("nvgpu_up")) == 0 &&
			len(s.family("nvgpu_temperature_celsius")) == 0 && well == 0
	})
	if status, why := a.get("/-/ready"); status != http.StatusServiceUnavailable || !strings.Contains(why, "drained") {
		f.t.Errorf("/-/ready: %d %s", status, why)
	}
}

func TestDrainAndResume(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	f.has(2)
	a := f.spawn().ready()
	a.well(0, 1)
	before := a.threads()
	for _, c := range []struct{ flag, want string }{{"--silence=soon", "is not a duration"}, {"--gpu=1", "needs --silence"},
		{"--gpu=9", `no GPU "9"; its GPUs: 0, 1`}} {
		if status, said := f.command("drain", c.flag); status != 1 || !strings.Contains(said, c.want) {
			t.Errorf("drain %s: exit status %d: %s", c.flag, status, said)
		}
	}
	a.well(0, 1)
	for range 2 {
		for range 2 {
			f.does(a, "drain", 2*time.Second)
			f.drained(a)
		}
		a.reloads()
		f.drained(a)
		f.clear(filepath.Dir(slot(1)), module) // as a reset or a driver upgrade does
		f.has(2)
		for range 2 {
			f.does(a, "resume", 5*time.Second)
			a.back(time.Now(), 0, 1)
		}
		n, sessions := a.scrape()["gpusteward_drained"], f.number("sessions")
		fixture.If(t, n != 0 || sessions != 1, "gpusteward_drained %v, %d sessions; want 0 and 1", n, sessions)
	}
	for _, want := range []string{"drain", "resume"} {
		fixture.Contains(t, a.log.String(), want, "the log")
	}
	f.manyOrders(a)
	fixture.AtMost(t, a.threads(), before+slack, "%d threads grew to", before)
	f.replacedWhileDrained(a)
	f.does(a, "drain", 2*time.Second)
	f.drained(a)
	a.endsWell()
	if status, said := f.command("drain"); status != 1 || !strings.Contains(said, f.path("run")) {
		t.Errorf("drain without an agent: exit status %d: %s", status, said)
	}
}

// manyOrders gives an agent orders all at once.
func (f fakeDriver) manyOrders(a *agent) {
	f.t.Helper()
	var running sync.WaitGroup
	for i := range 32 {
		running.Go(func() {
			ctx, cancel := context.WithTimeout(f.t.Context(), time.Second) // an overtaken one waits
			defer cancel()
			_, err := exporter.Order(ctx, filepath.Join(f.path("run"), exporter.ControlSocket),
				[]string{"drain", "resume"}[i%2], nil)
			fixture.If(f.t, err != nil && strings.Contains(err.Error(), "%!"), "%v", err)
		})
	}
	running.Wait()
	f.does(a, "drain", 2*time.Second)
	f.drained(a)
	f.does(a, "resume", 5*time.Second)
	a.back(time.Now(), 0, 1)
	fixture.Equal(f.t, f.number("sessions"), 1, "after many orders there are … sessions")
}

// replacedWhileDrained replaces the driver of a drained agent.
func (f fakeDriver) replacedWhileDrained(a *agent) {
	f.t.Helper()
	f.does(a, "drain", 2*time.Second)
	f.clear(filepath.Dir(module), slots)
	f.set("unloaded", "")
	f.install(`-DVERSION="999.2"`)
	f.set("kernel", "999.2")
	f.has(2)
	f.set(module, "999.2\n")
	f.clear("unloaded")
	f.drained(a)
	replaced := time.Now()
	f.does(a, "resume", recovery)
	a.address(2)
	a.back(replaced, 0, 1)
	s := a.scrape()
	fixture.If(f.t, len(s.family("nvgpu_driver_info", `driver_version="999.2"`)) != 1 ||
		s["gpusteward_drained"] != 0, "999.2 is not served")
}

func TestBlockedDrain(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		file, call string
		says       []string
	}{
		"temperature": {"hang.1", "", []string{"gpu 1", "nvmlDeviceGetTemperature"}},
		"count":       {"hang", "nvmlDeviceGetCount_v2", []string{"nvmlDeviceGetCount"}},
		"shutdown":    {"hang", "nvmlShutdown", []string{"nvmlShutdown"}},
	} {
		tests[name] = func(t *testing.T) {
			f := newDriver(t)
			f.has(2)
			a := f.spawn().ready()
			a.well(0, 1)
			f.set(c.file, c.call)
			if name != "shutdown" {
				eventually(t, "it hangs", func() bool { return f.number("stuck") == 1 })
			}
			status, said := f.command("drain")
			for _, want := range c.says {
				fixture.If(t, status != 1 || !strings.Contains(said, want),
					"exit status %d, without %q: %s", status, want, said)
			}
			fixture.Equal(t, f.number("sessions"), 1, "sessions while a call hangs")
			f.clear(c.file)
			eventually(t, "the drain is done", func() bool { return f.number("sessions") == 0 })
			f.drained(a)
			f.does(a, "resume", 5*time.Second)
			a.back(time.Now(), 0, 1)
			a.endsWell()
		}
	}
	tests["resumed before it was done"] = func(t *testing.T) {
		f := newDriver(t)
		f.has(2)
		a := f.spawn().ready()
		f.set("hang.1", "")
		a.sees("it hangs", func(s series) bool { return s.down("nvmlDeviceGetTemperature", 1) })
		status, said := f.command("drain")
		fixture.If(t, status != 1, "drain: exit status %d: %s", status, said)
		if status, said := f.command("resume"); status != 1 || !strings.Contains(said, "nvmlDeviceGetTemperature") {
			t.Errorf("resume: exit status %d: %s", status, said)
		}
		f.clear("hang.1")
		a.back(time.Now(), 0, 1)
	}
	tests["while it opens"] = func(t *testing.T) {
		f := newDriver(t)
		f.set("hang", "nvmlInit_v2")
		a := f.spawn().listening()
		eventually(t, "it hangs", func() bool { return f.number("stuck") == 1 })
		status, said := f.command("drain")
		fixture.If(t, status != 1 || !strings.Contains(said, "nvmlInit"), "drain: exit status %d: %s", status, said)
		f.clear("hang")
		a.unready("drained")
		f.drained(a)
		up := a.scrape().family("nvgpu_up")
		fixture.If(t, len(up) != 0 || slices.Contains(up, 1), "nvgpu_up = %v", up)
	}
	together(t, tests)
}
