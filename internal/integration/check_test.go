package integration

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/exporter"
	"gpusteward/health"
	"gpusteward/health/diag"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// healthy is a scenario without a fault; tests append faults.
const healthy = "name: test\ndoc: A host.\ngpus: [{model: h100, load: training, count: 4}]\n"

// checks runs gpusteward check in this process. args must name a demo or an
// agent: otherwise it would start this program, which is a test, to look.
func checks(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	args = append([]string{"check"}, args...)
	return gpusteward(t, append(args, ownDirectories(t, args)...)...)
}

// checkLimit is more than a check may take, whatever the driver does.
const checkLimit = 30 * time.Second

func TestCheckWithoutAnAgent(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		faults string
		args   []string
		status int
		want   []string
	}{
		"well": {"", nil, 0, []string{"OK - ", ": 4 GPUs, no fault\n", "note: without an agent ", "no agent answers"}},
		"lost": {"faults: [{at: 0s, kind: lost, gpu: 3}]", nil, 2,
			[]string{"CRITICAL - ", "\nemergency gpu=3 gpu_lost: The driver says that GPU 3 is lost.",
				"gpusteward ack gpu_lost gpu=3"}},
		"wedge": {"faults: [{at: 0s, kind: wedge, gpu: 2}]", nil, 2,
			[]string{": GPU 2 hangs in nvml", "\ncritical  gpu=2 driver_hang"}},
		"no driver": {"faults: [{at: 0s, for: 1h, kind: driver_gone}]", nil, 2,
			[]string{"driver_not_loaded", "modprobe nvidia"}},
		"warning": {"faults: [{at: 0s, kind: power_brake, gpu: 1}]", nil, 1,
			[]string{"WARNING - ", "gpu=1 power_brake: "}},
		"not that": {"faults: [{at: 0s, kind: power_brake, gpu: 1}]", []string{"--fail-on=critical"}, 0,
			[]string{"OK - ", "no critical fault; 1 warning\n", "\nwarning   gpu=1 "}},
		"narrowed": {"faults: [{at: 0s, kind: power_brake, gpu: 1}]", []string{"--gpu=0,2", "--only=GPUPowerBrake"}, 0,
			[]string{"OK - ", ": 2 GPUs, no fault"}},
		"bad config": {"", []string{"--config.file=internal/config/testdata/invalid/unknown_key.yml"}, 3,
			[]string{"UNKNOWN - ", "unknown_key.yml:3"}},
	} {
		tests[name] = func(t *testing.T) {
			args := slices.Concat(c.args, []string{"--demo=" + fixture.Config(t, healthy+c.faults)})
			eventually(t, fmt.Sprintf("exit status %d and %q", c.status, c.want), func() bool {
				status, out, errs := checks(t, args...)
				fixture.Need(t, errs, "", "it says")
				for _, want := range c.want {
					if status != c.status || !strings.Contains(out, want) {
						t.Logf("exit status %d: %s", status, out) // readings come late on a busy machine
						return false
					}
				}
				return true
			})
		}
	}
	together(t, tests)
}

func TestCheckAsksTheAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := start(t, "--demo="+fixture.Config(t, healthy+"faults: [{at: 1s, kind: lost, gpu: 3}]"),
		"--config.file="+fixture.Config(t, quickly), "--runtime.dir="+dir).ready()
	eventually(t, "without the agent it looks for itself", func() bool {
		var j health.Judgement
		status, out, _ := checks(t, "--standalone", "--format=json", "--demo="+fixture.Config(t, healthy))
		err := json.Unmarshal([]byte(out), &j)
		good := err == nil && status == 0 && j.Source == health.Standalone && j.Status == incident.OK &&
			len(j.GPUs) == 4 && len(j.Unjudged) > 0
		if !good {
			t.Logf("exit status %d, %v:\n%s", status, err, out) // readings come late on a busy machine
		}
		return good
	})
	for _, from := range []string{"--runtime.dir=" + dir, "--url=" + a.url} {
		var j health.Judgement
		eventually(t, "the agent has judged", func() bool {
			status, out, _ := checks(t, "--format=json", from)
			fixture.Must(t, json.Unmarshal([]byte(out), &j))
			return status == 2 && slices.ContainsFunc(j.Findings,
				func(f health.Finding) bool { return f.Check == "gpu_lost" && f.Entity.GPU == "3" })
		})
		fixture.Equal(t, j.Source, health.FromAgent, "%s: source …, %+v", from, j.Findings)
	}
	a.endsWell()
}

// answers serves h at the control socket of the returned directory.
func answers(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	dir := t.TempDir()
	socket := filepath.Join(dir, exporter.ControlSocket)
	fixture.Must(t, os.Mkdir(filepath.Dir(socket), 0o755))
	l := fixture.Value(net.Listen("unix", socket))(t)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
	s.Start()
	t.Cleanup(s.Close)
	return dir
}

func TestCheckValidatesAnswers(t *testing.T) {
	t.Parallel()
	hostile := "job\x1b[2J\u202e\r\nOK - all is well"
	verdict := func(old time.Duration) string {
		v := health.Verdict{Node: "node7", Time: time.Now().Add(-old), Status: incident.Degraded,
			GPUs: []health.Health{{GPU: "0", UUID: "GPU-0"}}, Findings: []health.Finding{
				{Check: "mem_leak", Entity: incident.Entity{GPU: "0", UUID: "GPU-0", Device: hostile},
					Severity: incident.Warning, State: incident.Degraded, Message: hostile + " grows"}}}
		return string(fixture.Value(json.Marshal(v))(t))
	}
	for name, c := range map[string]struct {
		answer string
		status int
		want   string
	}{
		"hostile": {verdict(0), 1, "WARNING - node7: gpu=0,device=job [2J"},
		"stale":   {verdict(time.Minute), 3, "UNKNOWN - node7: the agent's last verdict is 1m"},
		"another": {"<html>", 0, "OK - "}, // it looks for itself
		"hangs":   {"", 0, "OK - "},
	} {
		dir := answers(t, func(w http.ResponseWriter, r *http.Request) {
			fixture.Equal(t, r.URL.Path, "/api/v1/health", "the path that is asked for")
			if fmt.Fprint(w, c.answer); c.answer == "" {
				<-r.Context().Done()
			}
		})
		eventually(t, fmt.Sprintf("%s: exit status %d and %q", name, c.status, c.want), func() bool {
			status, out, _ := checks(t, "--runtime.dir="+dir, "--demo="+fixture.Config(t, healthy))
			fixture.Stop(t, strings.ContainsAny(out, "\x1b\u202e\r") || strings.Contains(out, "\nOK"),
				"%s: %q", name, out)
			t.Logf("%s: exit status %d, %q", name, status, out) // readings come late on a busy machine
			return status == c.status && strings.HasPrefix(out, c.want) &&
				(name != "hangs" || strings.Contains(out, "no agent answers"))
		})
	}
	status, out, _ := checks(t, "--url=http://127.0.0.1:1")
	fixture.If(t, status != 3 || !strings.HasPrefix(out, "UNKNOWN - 127.0.0.1:1: no agent answers"),
		"nobody at --url: exit status %d: %s", status, out)
}

// checks runs gpusteward check as a process of its own, with this driver.
func (f fakeDriver) checks(args ...string) (status int, out string) {
	f.t.Helper()
	return exited(f.t, process(f.environment(), append(append([]string{"check"}, f.flags()...), args...)...))
}

func TestCheckWithADriver(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T){}
	for name, c := range map[string]struct {
		driver  func(t *testing.T) fakeDriver
		set     [2]string
		timeout string // what hangs takes that long
		status  int
		want    []string
	}{
		"none": {noDriver, [2]string{"x", ""}, "20s", 3, []string{"UNKNOWN", "library_not_found",
			"install the NVIDIA driver"}},
		"well": {func(t *testing.T) fakeDriver { return newDriver(t) }, [2]string{"gpus", "2"}, "20s", 0,
			[]string{"OK", "2 GPUs, no fault"}},
		"one GPU hangs": {func(t *testing.T) fakeDriver { return newDriver(t) }, [2]string{"hang.0", ""}, "20s", 2,
			[]string{"CRITICAL", "GPU 0 hangs in nvmlDeviceGetTemperature"}},
		"opening hangs": {func(t *testing.T) fakeDriver { return newDriver(t) }, [2]string{"hang", "nvmlInit_v2"}, "7s", 3,
			[]string{"UNKNOWN", "nvmlInit has not returned"}},
	} {
		tests[name] = func(t *testing.T) {
			f := c.driver(t)
			f.set(c.set[0], c.set[1])
			began := time.Now()
			status, out := f.checks("--timeout=" + c.timeout)
			if took := time.Since(began); status != c.status || took > checkLimit {
				t.Errorf("exit status %d after %v, want %d: %s", status, took, c.status, out)
			}
			for _, want := range c.want {
				fixture.Contains(t, out, want, "the output")
			}
			_, err := os.Stat(f.path("state"))
			fixture.If(t, err == nil, "the state directory was written")
		}
	}
	together(t, tests)
}

// TestCheckBelievesNoNames: users name their programs like messages of the driver, and have them fault, run
// out of memory and hang. A kernel thread that hangs afterwards is a warning.
func TestCheckBelievesNoNames(t *testing.T) {
	t.Parallel()
	f, root := newDriver(t), t.TempDir()
	fixture.Must(t, bare(root))
	f.set("gpus", "1")
	f.set("proc/4711/status", "Name:\tnvidia-evil\nState:\tD\nPPid:\t1\n")
	f.set("proc/731/status", "Name:\tnv_queue\nState:\tD\nPPid:\t2\n")
	logs := func(texts ...string) {
		fixture.Must(t, os.WriteFile(filepath.Join(root, "dev/kmsg"), []byte(records(time.Millisecond, texts)), 0o644))
	}
	evil := []string{"NVRM: GSP hung[4711]: segfault at 8 ip 00005594 sp 00007ffc error 6 in segv[5594+1000]",
		"EDAC MC0: 1 UE [4711]: segfault at 8 ip 00005594 sp 00007ffc error 6 in segv[5594+1000]",
		"NVRM: [4711]: segfault at 8 ip 00005594 sp 00007ffc error 6 in GPU has fallen off the bus[5594+1000]",
		`NVRM: API mismatch: the client 'GSP hung' (pid 4711)\x0aNVRM: has the version 1, but this kernel module`,
		"INFO: task nvidia-evil:4711 blocked for more than 120 seconds.",
		"Memory cgroup out of memory: Killed process 4711 (NVRM: GSP hung) total-vm:1kB, anon-rss:1kB"}
	logs(evil...)
	a := spawn(t, append(f.environment(), asAgent+"="+root), f.flags()...).ready()
	found := func() (all []string) {
		var answer struct{ Events []incident.Event }
		_, text := a.get("/api/v1/events?kind=incident")
		fixture.Must(t, json.Unmarshal([]byte(text), &answer))
		for _, e := range answer.Events {
			if !slices.Contains(all, e.What) {
				all = append(all, e.What)
			}
		}
		slices.Sort(all)
		return all
	}
	eventually(t, "the last line is an incident", func() bool { return slices.Contains(found(), "oom_cgroup") })
	fixture.Equal(t, fmt.Sprint(found()), "[hung_task oom_cgroup]", "incidents")
	if status, out := f.checks("--url=" + a.url); status != 0 {
		t.Errorf("check: exit status %d: %s", status, out)
	}
	logs(append(evil, "INFO: task nv_queue:731 blocked for more than 120 seconds.")...)
	eventually(t, "check warns of the kernel thread", func() bool {
		status, _ := f.checks("--url=" + a.url)
		return status == 1 && slices.Contains(found(), "hung_driver_task")
	})
	a.endsWell()
}

// In a pod the kernel has the pod's name, and Kubernetes has the node's.
func TestNodeName(t *testing.T) {
	t.Parallel()
	named := []string{"NODE_NAME=node7"}
	demo := "--demo=" + fixture.Config(t, healthy)
	// its verdict does not matter
	_, out := exited(t, process(named, "check", "--standalone", demo))
	fixture.If(t, !strings.Contains(out, "node7"), "gpusteward check: %s", out)
	a := spawn(t, named, demo).listening()
	for _, path := range []string{"/", "/api/v1/state", "/api/v1/health"} {
		eventually(t, path+" says node7", func() bool {
			_, body := a.get(path)
			return strings.Contains(body, "node7")
		})
	}
}

// TestTenantFaultsDoNotDrainTheNode has a workload cause XID after XID, and Slurm ask for the node's health.
func TestTenantFaultsDoNotDrainTheNode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	start(t, "--demo="+fixture.Config(t, healthy+"faults: [{at: 1s, kind: xid, gpu: 3, code: 13}, "+
		"{at: 1s, kind: xid, gpu: 3, code: 31}, {at: 1s, kind: xid, gpu: 3, code: 69}]"), "--runtime.dir="+dir).ready()
	status, out := 0, ""
	eventually(t, "its workload is warned of", func() bool {
		status, out, _ = checks(t, "--runtime.dir="+dir)
		return strings.Contains(out, "XIDs of an application")
	})
	if exit, called := healthcheck(t, fmt.Sprint(status), out, "IDLE"); status != 0 || exit != 0 || called != "" {
		t.Errorf("check ends with %d, Slurm is told %q:\n%s", status, called, out)
	}
}

// The answer to an order, from an agent or an impostor, is only text on root's terminal.
func TestOrdersValidateAnswers(t *testing.T) {
	t.Parallel()
	for _, status := range []int{http.StatusOK, http.StatusConflict} {
		dir := answers(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "gone\x1b[2J\x1b]0;owned\a\u202e\u009b31m\r\nby now")
		})
		for _, order := range [][]string{{"drain"}, {"resume"}, {"ack", "gpu_lost", "3"}} {
			_, out, errs := gpusteward(t, append(order, "--runtime.dir="+dir)...)
			said := out + errs
			fixture.Equal(t, strings.ContainsAny(said, "\x1b\a\u202e\u009b\r"), false, "answered %d, it says %q", status, said)
			fixture.If(t, (status != http.StatusOK || order[0] == "ack") &&
				said != "gone\ufffd[2J\ufffd]0;owned\ufffd\ufffd\ufffd31m\ufffd\nby now\n",
				"%v, answered %d, says %q: it left something out", order, status, said)
		}
	}
}

// A command with an agent's directory asks that agent or none.
func TestStatusAsksOnlyTheNamedAgent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	status, out, said := gpusteward(t, "status", "--runtime.dir="+dir)
	want := "no agent answers at " + filepath.Join(dir, exporter.ControlSocket) +
		": is gpusteward running, with this --runtime.dir?"
	if status != 1 || out != "" || !strings.HasPrefix(said, want) || strings.Contains(said, exporter.DefaultURL) {
		t.Errorf("exit status %d: %s%swant %s", status, out, said, want)
	}
}

// diags runs gpusteward diag as a process of its own, with this driver, which has no CUDA.
func (f fakeDriver) diags(env []string, args ...string) (status int, out string) {
	f.t.Helper()
	f.set("libcuda.so.1", "")
	return exited(f.t, process(append(f.environment(), env...), append([]string{"diag"}, args...)...))
}

func TestDiagWithADriver(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		driver    func(t *testing.T) fakeDriver
		env, args []string
		want      string
	}{
		"none": {noDriver, nil, nil, "library_not_found"},
		"no CUDA": {func(t *testing.T) fakeDriver { return newDriver(t) }, nil, nil,
			"GPU 0 was not tested: the CUDA driver is not there"},
		"another GPU": {func(t *testing.T) fakeDriver { return newDriver(t) }, nil, []string{"--gpus=0,17"},
			"GPU 17 is not on this host"},
		"a quota": {noDriver, []string{"LD_PRELOAD=/nonexistent/libgpusteward.so"}, nil, "would measure a quota"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, out := c.driver(t).diags(c.env, c.args...)
			fixture.If(t, status != 3 || !strings.HasPrefix(out, "UNKNOWN - ") || !strings.Contains(out, c.want),
				"exit status %d, want 3 and %q:\n%s", status, c.want, out)
		})
	}
}

func TestDiagAsJSON(t *testing.T) {
	t.Parallel()
	f := newDriver(t)
	f.has(2)
	status, out := f.diags(nil, "--json", "--level=3")
	var r diag.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || status != 3 || r.Source != diag.Source ||
		r.Status != incident.Unknown || r.Level != 3 || len(r.GPUs) != 2 || len(r.Results) != 2 {
		t.Errorf("exit status %d, %v:\n%s", status, err, out)
	}
}
