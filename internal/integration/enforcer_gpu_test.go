//go:build gpu

package integration

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/bench/worker"
	"gpusteward/internal/fixture"
)

// light uses 1 % of the GPU and prints each step.
const light = `
import time, torch
a = torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)
while True:
    a @ a; torch.cuda.synchronize()
    print("step", time.monotonic_ns(), 1, flush=True)
    time.sleep(0.05)
`

// A job is a program in a cgroup such as systemd makes for a service.
type job struct {
	*worker.Worker
	t *testing.T
}

// job starts a command in the cgroup of a unit.
func (m *measured) job(unit string, argv ...string) *job {
	t := m.t
	t.Helper()
	group := "/sys/fs/cgroup/system.slice/" + unit
	err := os.MkdirAll(group, 0o755)
	fixture.Stop(t, err != nil, "make a cgroup (it needs root and cgroup v2): %v", err)
	j := &job{fixture.Value(worker.Start(unit, exec.Command("sh", append([]string{"-c",
		`echo $$ > "$0/cgroup.procs"; exec "$@"`, group}, argv...)...)))(t), t}
	t.Cleanup(func() {
		_ = os.WriteFile(group+"/cgroup.freeze", []byte("0"), 0o600)
		j.Kill()
		for began := time.Now(); os.Remove(group) != nil && time.Since(began) < 5*time.Second; {
			time.Sleep(50 * time.Millisecond)
		}
	})
	return j
}

// end kills the job.
func (j *job) end() { _ = j.Cmd.Process.Kill() }

// hear waits for a line that begins with a word.
func (j *job) hear(word string, within time.Duration) string {
	j.t.Helper()
	return fixture.Value(j.Listen(within, word))(j.t)
}

// done returns the steps so far.
func (j *job) done() worker.Series {
	s, _ := j.Measured()
	return s
}

// since returns how long ago its last step was; an hour: it has done none.
func (j *job) since() time.Duration {
	s := j.done()
	if len(s.At) == 0 {
		return time.Hour
	}
	return time.Duration(fixture.Monotonic() - s.At[len(s.At)-1])
}

// least returns the smallest part that j had of the steps of both, over all
// windows of 10 s that begin a second apart, from settle after both had begun.
func (j *job) least(other *job) (part float64, all []string) {
	one, two := j.done(), other.done()
	from, to := max(one.At[0], two.At[0])+int64(time.Second), min(one.At[len(one.At)-1], two.At[len(two.At)-1])
	part = math.Inf(1)
	for at := from; at+int64(10*time.Second) <= to; at += int64(time.Second) {
		end := at + int64(10*time.Second)
		mine, others := one.By(end)-one.By(at), two.By(end)-two.By(at)
		part, all = min(part, mine/(mine+others)), append(all, fmt.Sprintf("%.2f", 100*mine/(mine+others)))
	}
	return part, all
}

// TestGPUEnforcer has the agent keep a greedy tenant (limit 30 %, cap 8 GiB) from a guaranteed one (70 %),
// find a process that evades the hook, pause its workload and let it continue. A third process without a
// quota is left alone. The test runs once with one process, and once with two, one of which has only the
// privileges that it needs. GS_HOOK and GS_BENCH name the hook and the directory of worker.py.
func TestGPUEnforcer(t *testing.T) {
	agent := binary(t)
	config := filepath.Join(t.TempDir(), "gpusteward.yml")
	fixture.Rewrite(t, config, `enforcer:
  enabled: true
  ladder: {mode: pause, shadow: false, confirm: 3, of: 5, hold: 6s}
  tenants:
    - {name: guaranteed, select: [{units: [gpst-guaranteed.service]}], guarantee: 70 %}
    - {name: greedy, select: [{units: [gpst-greedy.service]}], guarantee: 30 %, limit: 30 %, memory: 8 GiB}
`)
	hooked := func(m *measured) []string {
		return []string{agent, "exec", "--runtime.dir=" + m.runtime,
			"--library=" + fixture.Given(t, "GS_HOOK", "enforcer/hook/build/libgpusteward.so"), "--", "python3"}
	}
	bench := fixture.Given(t, "GS_BENCH", "enforcer/hook/bench")
	t.Run("one process", func(t *testing.T) {
		m := startMeasured(t, agent, "--config.file="+config)
		m.capped(hooked(m), bench)
		m.guarantees(hooked(m), bench, "eager")
	})
	t.Run("two processes", func(t *testing.T) {
		dir := t.TempDir()
		enforcer := exec.Command(agent, "--role=enforce", "--config.file="+config, "--runtime.dir="+dir,
			"--state.dir="+t.TempDir())
		enforcer.Stderr = os.Stderr
		fixture.Must(t, enforcer.Start())
		t.Cleanup(func() {
			enforcer.Process.Signal(os.Interrupt)
			err := enforcer.Wait()
			fixture.If(t, err != nil, "the enforcer did not live to be stopped: %v", err)
		})
		m := startMeasured(t, agent, "--role=observe", "--config.file="+config, "--runtime.dir="+dir)
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", enforcer.Process.Pid))
		for line := range strings.Lines(string(status)) {
			if strings.HasPrefix(line, "CapPrm") || strings.HasPrefix(line, "VmRSS") {
				fmt.Print("the enforcer: ", line)
			}
		}
		third := m.job("gpst-third.service", "python3", "-c", light)
		m.guarantees(hooked(m), bench, "graph2")
		m.evades(hooked(m), bench, third)
	})
}

// capped has the greedy tenant allocate memory until it gets no more.
func (m *measured) capped(hooked []string, bench string) {
	t := m.t
	greedy := m.job("gpst-greedy.service", append(hooked, filepath.Join(bench, "memory.py"))...)
	greedy.hear("ready", time.Minute)
	greedy.Tell("take")
	memory := greedy.hear("memory", time.Minute)
	fmt.Println("greedy, cap of 8 GiB:", memory)
	var held, reserved uint64
	var raised string
	if _, err := fmt.Sscanf(memory, "memory %d %d %s", &held, &reserved, &raised); err != nil ||
		raised != "OutOfMemoryError" || reserved > 8<<30 || held < 8<<30*98/100 {
		t.Errorf("want OutOfMemoryError with nearly 8 GiB and not a byte more")
	}
	greedy.end()
}

// workers starts a worker of each tenant, which all work for so many seconds.
func (m *measured) workers(hooked []string, bench, kind string, seconds int) (both []*job) {
	for _, unit := range []string{"gpst-guaranteed.service", "gpst-greedy.service"} {
		j := m.job(unit, append(hooked, filepath.Join(bench, "worker.py"))...)
		j.Tell("prepare " + kind)
		both = append(both, j)
	}
	for _, j := range both {
		j.hear("ready", 2*time.Minute)
		j.Tell(fmt.Sprint("run ", kind, " ", seconds))
	}
	return both
}

// guarantees has both tenants do all they can, and compares their parts.
func (m *measured) guarantees(hooked []string, bench, kind string) {
	both := m.workers(hooked, bench, kind, 25)
	for _, j := range both {
		j.hear("total", time.Minute)
	}
	part, windows := both[0].least(both[1])
	fmt.Printf("%s: of %d windows of 10 s, the guaranteed tenant had at least %.2f %%: %s\n", kind, len(windows),
		100*part, strings.Join(windows, " "))
	for _, tenant := range []string{"guaranteed", "greedy"} {
		turns, _ := m.value("nvgpu_quota_turns_total", `tenant="`+tenant+`"`)
		overruns, _ := m.value("nvgpu_quota_overruns_total", `tenant="`+tenant+`"`)
		seconds, _ := m.value("nvgpu_quota_overrun_seconds_total", `tenant="`+tenant+`"`)
		fmt.Printf("%s: %.0f turns so far, %.0f of them overran, %.2f s beyond their ends\n", tenant, turns,
			overruns, seconds)
	}
	for _, j := range both {
		j.end()
	}
	fixture.If(m.t, len(windows) < 10 || part < .69,
		"%s: the guaranteed tenant had less than 69 %% of a window of 10 s", kind)
}

// evades has a process of the greedy workload evade the hook.
func (m *measured) evades(hooked []string, bench string, third *job) {
	t := m.t
	both := m.workers(hooked, bench, "eager", 100)
	guaranteed, greedy := both[0], both[1]
	goesOn := func(j *job) bool { return j.since() < 500*time.Millisecond }
	fixture.Until(t, 20*time.Second, "both work", func() bool { return goesOn(guaranteed) && goesOn(greedy) })
	began := time.Now()
	evader := m.job("gpst-greedy.service", "python3", "-c", light)
	on := func() bool { // the driver lists it once it has a context
		out, _ := exec.Command("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader").Output()
		return slices.Contains(strings.Fields(string(out)), fmt.Sprint(evader.Cmd.Process.Pid))
	}
	fixture.Until(t, time.Minute, "the evader is on the GPU", on)
	listed := time.Now()
	fixture.Until(t, 10*time.Second, "it is reported", func() bool {
		n, _ := m.value("nvgpu_unhooked_processes", `tenant="greedy"`, `gpst-greedy.service`)
		return n >= 1
	})
	reported := time.Since(listed)
	fmt.Printf("a process without the hook was on the GPU %v after its start, and reported %v later\n",
		listed.Sub(began).Truncate(time.Millisecond), reported.Truncate(time.Millisecond))
	fixture.AtMost(t, reported, 2*time.Second, "it was reported after")
	level := func(name string) func() bool {
		return func() bool {
			v, _ := m.value("nvgpu_quota_rung", `tenant="greedy"`, `rung="`+name+`"`)
			return v == 1
		}
	}
	fmt.Printf("paused %v after it was reported\n", fixture.Until(t, 2*time.Minute, "the workload is paused", level("pause")).
		Truncate(time.Millisecond))
	fixture.Until(t, 5*time.Second, "both of its processes stand still",
		func() bool { return greedy.since() > time.Second && evader.since() > time.Second })
	fixture.If(t, !goesOn(guaranteed) || !goesOn(third),
		"the guaranteed tenant or the ungoverned process does not go on")
	fmt.Printf("it went on %v later\n", fixture.Until(t, 30*time.Second, "the workload goes on",
		func() bool { return goesOn(greedy) && goesOn(evader) }).Truncate(time.Millisecond))
	evader.end()
	fixture.Until(t, time.Minute, "it is at observe again", func() bool {
		v, known := m.value("nvgpu_quota_rung", `tenant="greedy"`, `rung="observe"`)
		return v == 1 || !known
	})
	fixture.AtMost(t, third.gap(), time.Second, "the ungoverned process stood still for")
	if v, there := m.value("nvgpu_quota_actions_total", "gpst-third"); there {
		t.Errorf("%v actions on the ungoverned process", v)
	}
}

// gap returns the longest time between two steps.
func (j *job) gap() (longest time.Duration) {
	at := j.done().At
	for i := 1; i < len(at); i++ {
		longest = max(longest, time.Duration(at[i]-at[i-1]))
	}
	return longest
}
