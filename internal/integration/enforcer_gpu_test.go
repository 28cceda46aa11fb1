//go:build gpu

package integration

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

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
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser

	mu    sync.Mutex
	at    []time.Time // arrival of its steps
	ns    []int64     // the same, on the GPU's clock
	steps []float64   // total of completed steps
	said  []string    // other lines
}

// job starts a command in the cgroup of a unit.
func (m *measured) job(unit string, argv ...string) *job {
	t := m.t
	t.Helper()
	group := "/sys/fs/cgroup/system.slice/" + unit
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatalf("make a cgroup (it needs root and cgroup v2): %v", err)
	}
	j := &job{t: t, cmd: exec.Command("sh", append([]string{"-c", `echo $$ > "$0/cgroup.procs"; exec "$@"`, group},
		argv...)...)}
	j.cmd.Stderr = os.Stderr
	j.in = fixture.Value(j.cmd.StdinPipe())(t)
	out := fixture.Value(j.cmd.StdoutPipe())(t)
	fixture.Must(t, j.cmd.Start())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		j.read(out)
	}()
	t.Cleanup(func() {
		_ = os.WriteFile(group+"/cgroup.freeze", []byte("0"), 0o600)
		j.end()
		<-ended
		_ = j.cmd.Wait()
		for began := time.Now(); os.Remove(group) != nil && time.Since(began) < 5*time.Second; {
			time.Sleep(50 * time.Millisecond)
		}
	})
	return j
}

// end kills the job.
func (j *job) end() { _ = j.cmd.Process.Kill() }

func (j *job) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var ns int64
		var n float64
		_, err := fmt.Sscanf(lines.Text(), "step %d %g", &ns, &n)
		j.mu.Lock()
		if err == nil {
			j.at, j.ns, j.steps = append(j.at, time.Now()), append(j.ns, ns), append(j.steps, n)
		} else {
			j.said = append(j.said, lines.Text())
		}
		j.mu.Unlock()
	}
}

// hear waits for a line that begins with a word, and removes it.
func (j *job) hear(word string, within time.Duration) string {
	j.t.Helper()
	for began := time.Now(); time.Since(began) < within; time.Sleep(5 * time.Millisecond) {
		j.mu.Lock()
		at := slices.IndexFunc(j.said, func(l string) bool { return strings.HasPrefix(l, word) })
		if at >= 0 {
			line := j.said[at]
			j.said = slices.Delete(j.said, at, at+1)
			j.mu.Unlock()
			return line
		}
		j.mu.Unlock()
	}
	j.t.Fatalf("within %v it did not say %q", within, word)
	return ""
}

// last returns the arrival of its last step.
func (j *job) last() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.at) == 0 {
		return time.Time{}
	}
	return j.at[len(j.at)-1]
}

// by returns the steps completed by ns.
func (j *job) by(ns int64) float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	i, _ := slices.BinarySearch(j.ns, ns)
	switch {
	case len(j.ns) == 0 || i == 0:
		return 0
	case i == len(j.ns):
		return j.steps[i-1]
	}
	part := float64(ns-j.ns[i-1]) / float64(j.ns[i]-j.ns[i-1])
	return j.steps[i-1] + part*(j.steps[i]-j.steps[i-1])
}

// least returns the smallest part that j had of the steps of both, over all
// windows of 10 s that begin a second apart, from settle after both had begun.
func (j *job) least(other *job) (part float64, all []string) {
	j.mu.Lock()
	from, to := j.ns[0], j.ns[len(j.ns)-1]
	j.mu.Unlock()
	other.mu.Lock()
	from, to = max(from, other.ns[0])+int64(time.Second), min(to, other.ns[len(other.ns)-1])
	other.mu.Unlock()
	part = math.Inf(1)
	for at := from; at+int64(10*time.Second) <= to; at += int64(time.Second) {
		end := at + int64(10*time.Second)
		mine, others := j.by(end)-j.by(at), other.by(end)-other.by(at)
		part, all = min(part, mine/(mine+others)), append(all, fmt.Sprintf("%.2f", 100*mine/(mine+others)))
	}
	return part, all
}

// TestGPUEnforcer has the agent keep a greedy tenant (limit 30 %, cap 8 GiB)
// from a guaranteed one (70 %), find a process that evades the hook, pause its
// workload and let it continue. A third process without a quota is left alone.
// The test runs once with one process, and once with two, one of which has only
// the privileges that it needs. GS_HOOK and GS_BENCH name the hook and the
// directory of worker.py.
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
			"--library=" + given(t, "GS_HOOK", "enforcer/hook/build/libgpusteward.so"), "--", "python3"}
	}
	bench := given(t, "GS_BENCH", "enforcer/hook/bench")
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
			if err := enforcer.Wait(); err != nil {
				t.Errorf("the enforcer did not live to be stopped: %v", err)
			}
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
	fmt.Fprintln(greedy.in, "take")
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
		fmt.Fprintln(j.in, "prepare", kind)
		both = append(both, j)
	}
	for _, j := range both {
		j.hear("ready", 2*time.Minute)
		fmt.Fprintln(j.in, "run", kind, seconds)
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
	if len(windows) < 10 || part < .69 {
		m.t.Errorf("%s: the guaranteed tenant had less than 69 %% of a window of 10 s", kind)
	}
}

// given returns the path in a variable, or else a file of the tree, as an
// absolute path.
func given(t *testing.T, variable, tree string) string {
	t.Helper()
	if set := os.Getenv(variable); set != "" {
		tree = set
	}
	path, err := filepath.Abs(tree)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return path
}

// evades has a process of the greedy workload evade the hook.
func (m *measured) evades(hooked []string, bench string, third *job) {
	t := m.t
	both := m.workers(hooked, bench, "eager", 100)
	guaranteed, greedy := both[0], both[1]
	goesOn := func(j *job) bool { return time.Since(j.last()) < 500*time.Millisecond }
	until(t, 20*time.Second, "both work", func() bool { return goesOn(guaranteed) && goesOn(greedy) })
	began := time.Now()
	evader := m.job("gpst-greedy.service", "python3", "-c", light)
	on := func() bool { // the driver lists it once it has a context
		out, _ := exec.Command("nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader").Output()
		return slices.Contains(strings.Fields(string(out)), fmt.Sprint(evader.cmd.Process.Pid))
	}
	until(t, time.Minute, "the evader is on the GPU", on)
	listed := time.Now()
	until(t, 10*time.Second, "it is reported", func() bool {
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
	fmt.Printf("paused %v after it was reported\n", until(t, 2*time.Minute, "the workload is paused", level("pause")).
		Truncate(time.Millisecond))
	until(t, 5*time.Second, "both of its processes stand still",
		func() bool { return time.Since(greedy.last()) > time.Second && time.Since(evader.last()) > time.Second })
	if !goesOn(guaranteed) || !goesOn(third) {
		t.Error("the guaranteed tenant or the ungoverned process does not go on")
	}
	fmt.Printf("it went on %v later\n", until(t, 30*time.Second, "the workload goes on",
		func() bool { return goesOn(greedy) && goesOn(evader) }).Truncate(time.Millisecond))
	evader.end()
	until(t, time.Minute, "it is at observe again", func() bool {
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
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := 1; i < len(j.at); i++ {
		longest = max(longest, j.at[i].Sub(j.at[i-1]))
	}
	return longest
}
