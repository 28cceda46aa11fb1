//go:build servers

package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

var (
	jobRounds = flag.Int("job.rounds", 1, "`times` that each fault is injected")
	jobFault  = flag.String("job.fault", "stop", "`fault` of a rank of the large job: an option of ranks.c")
	jobWell   = flag.Duration("job.well", 18*time.Second, "`time` for which the large job is well")
)

// python runs testdata/train.py: the paths of its libraries are those of /usr.
const python = "/usr/bin/python3"

// stubs has the simulated driver and NCCL.
const stubs = "enforcer/hook/build/stub"

// A jobHost is a host of simulated GPUs, of which real processes are the ranks of jobs under the hook. Its
// agent enforces, and sends alerts to a real Alertmanager.
type jobHost struct {
	*testing.T
	agent        *agent
	runtime, gpu string // the agent's directory; the file of the simulated GPUs
	alertmanager string
	driver       fakeDriver
	gpus         int
	processes    map[int]string // of each GPU, as the driver lists them
}

func newJobHost(t *testing.T, gpus int, needs ...string) *jobHost {
	t.Helper()
	installed(t, append(needs, "prometheus-alertmanager")...)
	takesCore(t)
	fixture.Must(t, fixture.MakeHook("enforcer/hook", "all", "stub"))
	dir := fixture.ShortDir(t)
	f := newDriver(t)
	f.has(gpus)
	for i := range gpus {
		f.set(fmt.Sprint("uuid.", i), fmt.Sprintf("GPU-67707573-7465-7761-7264-2d73747562%02x", i))
	}
	h := &jobHost{T: t, runtime: dir, gpu: filepath.Join(dir, "gpu"), driver: f, gpus: gpus,
		processes: map[int]string{}}
	_, h.alertmanager = startReceiver(t)
	config := fixture.Config(t, fmt.Sprintf("health: {alertmanagers: [%s]}\nenforcer:\n  enabled: true\n"+
		"  tenants: [{name: research, select: [{users: [%d]}]}]\n", h.alertmanager, os.Getuid()))
	h.agent = spawn(t, f.environment(), "--config.file="+config, "--runtime.dir="+dir).ready()
	h.agent.sees("the broker", func(s series) bool { return s["gpusteward_broker_up"] == 1 })
	return h
}

// A rank is a process of a job.
type rank struct {
	pid int
	out *transcript
}

// rank starts a program on a GPU, under the hook. It ends with the test.
func (h *jobHost) rank(gpu int, command ...string) rank {
	h.Helper()
	cmd := exec.Command(os.Args[0], append([]string{"exec", "--require-broker", "--runtime.dir=" + h.runtime,
		"--library=enforcer/hook/build/libgpusteward.so", "--"}, command...)...)
	cmd.Env = append(os.Environ(), asAgent+"="+machine, "LD_LIBRARY_PATH="+stubs, "GS_STUB_FILE="+h.gpu,
		"GS_STUB_GPUS="+strconv.Itoa(h.gpus))
	r := rank{out: new(transcript)}
	cmd.Stdout, cmd.Stderr = r.out, r.out
	fixture.Must(h, cmd.Start())
	r.pid = cmd.Process.Pid
	h.processes[gpu] += fmt.Sprintln(r.pid, 1<<30)
	h.driver.set(fmt.Sprint("processes.", gpu), h.processes[gpu])
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	h.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if h.Failed() {
			h.Logf("%q:\n%.300s", command, r.out)
		}
	})
	return r
}

// says returns the numbers of the last line that begins with the word; none: there is no such line.
func (r rank) says(word string) (numbers []int64) {
	for line := range strings.Lines(r.out.String()) {
		if f := strings.Fields(line); strings.HasSuffix(line, "\n") && len(f) > 0 && f[0] == word {
			numbers = []int64{}
			for _, text := range f[1:] {
				n, _ := strconv.ParseInt(text, 10, 64)
				numbers = append(numbers, n)
			}
		}
	}
	return numbers
}

// alerts returns Alertmanager's alerts of a name, by GPU.
func (h *jobHost) alerts(name string) map[string]known {
	h.Helper()
	all := map[string]known{}
	for _, a := range alertsAt(h.T, h.alertmanager) {
		if a.Labels["alertname"] == name {
			all[a.Labels["gpu"]] = a
		}
	}
	return all
}

// An injected fault is one of a rank, and its alert has the reason.
type injected struct {
	name, reason string
	signal       syscall.Signal // that injects it; 0: the program does it itself
}

var jobFaults = []injected{{"loader", "absent", 0}, {"skip", "absent", 0}, {"unlike", "unlike", 0},
	{"endless", "kernel", 0}, {"stop", "stopped", syscall.SIGSTOP}, {"die", "ended", syscall.SIGKILL}}

// option has the program inject the fault itself, if no signal does.
func (f injected) option() string {
	if f.signal != 0 {
		return ""
	}
	return f.name
}

// TestChainOfHangs lets jobs of two Python processes hang, each by another fault of its second rank, beside a
// job that is well. Alertmanager is told which rank it is, why, and where it stands.
func TestChainOfHangs(t *testing.T) {
	t.Parallel()
	took := map[string][]time.Duration{}
	for range *jobRounds {
		t.Run("", func(t *testing.T) {
			for name, d := range hangs(t) {
				took[name] = append(took[name], d)
			}
		})
	}
	for _, f := range jobFaults {
		if all := took[f.name]; len(all) > 0 {
			t.Logf("%s: %d of %d alerts right, the last after %.1f s, the first after %.1f s", f.name, len(all), *jobRounds,
				slices.Max(all).Seconds(), slices.Min(all).Seconds())
		}
	}
}

// hangs injects each fault once, and returns how long its alert took.
func hangs(t *testing.T) map[string]time.Duration {
	h := newJobHost(t, 16, python)
	text := content(t, "testdata/train.py")
	start := func(gang, ranks, rank, gpu int, fault string) rank {
		return h.rank(gpu, python, "testdata/train.py", fmt.Sprint(gang), fmt.Sprint(ranks), fmt.Sprint(rank),
			fmt.Sprint(gpu), fault)
	}
	var first, culprit []rank
	for i, f := range jobFaults {
		first, culprit = append(first, start(i+1, 2, 0, 2*i, "")), append(culprit, start(i+1, 2, 1, 2*i+1, f.option()))
	}
	for i := range 4 {
		start(100, 4, i, 12+i, "")
	}
	began := make([]int64, len(jobFaults)) // 0: the fault is still to come
	missing, took := map[string]string{}, map[string]time.Duration{}
	defer func() {
		if t.Failed() {
			t.Log("missing: ", missing)
		}
	}()
	within(t, "every culprit is named", func() bool {
		clear(missing)
		alerts := h.alerts("JobHang")
		for i, f := range jobFaults {
			switch said := culprit[i].says("fault"); {
			case began[i] != 0:
			case f.signal != 0 && first[i].says("ready") != nil:
				began[i] = fixture.Monotonic()
				fixture.Must(t, syscall.Kill(culprit[i].pid, f.signal))
			case f.signal == 0 && said != nil:
				began[i] = said[0]
			}
			a := alerts[fmt.Sprint(2*i+1)]
			if took[f.name] == 0 && strings.Contains(a.Annotations["description"], f.says()) {
				took[f.name] = time.Duration(fixture.Monotonic() - began[i])
			}
			if wrong := f.missing(a, lineOf(text, f.name)); wrong != "" { // a busy host tells the line later
				missing[f.name] = wrong
			}
		}
		return len(missing) == 0
	})
	for name, d := range took { // a minute is for jobs of which nothing is known
		fixture.AtMost(t, d, time.Minute, "%s: the alert took", name)
	}
	fixture.Equal(t, len(h.alerts("JobHang")), len(jobFaults), "there are alerts about others, too")
	return took
}

// says returns how an alert tells of the fault.
func (f injected) says() string {
	return ": rank 1, reason " + f.reason + " (" + wire.HangReasons[f.reason] + ")"
}

// missing returns what the alert does not say of the fault; empty: nothing.
func (f injected) missing(a known, at string) string {
	want := f.says()
	if f.reason != "ended" {
		want += ", where /"
	}
	if says := a.Annotations["description"]; !strings.Contains(says, want) || !strings.Contains(says, at) {
		return fmt.Sprintf("%q lacks %q or %q", says, want, at)
	}
	if a.Labels["node"] != hostName() || a.Labels["tenant"] != "research" || a.Labels["workload"] == "" {
		return fmt.Sprint(a.Labels)
	}
	return ""
}

// lineOf returns the line of the program that has the comment with the fault; empty: none has.
func lineOf(program, fault string) string {
	n := 0
	for line := range strings.Lines(program) {
		n++
		_, stands, _ := strings.Cut(line, "# stands: ")
		if slices.Contains(strings.Split(strings.TrimSpace(stands), ", "), fault) {
			return fmt.Sprintf("/testdata/train.py:%d in ", n)
		}
	}
	return ""
}

// TestChainOfManyRanks lets one of 64 ranks on eight GPUs fail, after a
// compilation, evaluations and checkpoints of which nothing is told.
func TestChainOfManyRanks(t *testing.T) {
	t.Parallel()
	const ranks, gpus, culprit, step = 64, 8, 37, 250 * time.Millisecond
	h := newJobHost(t, gpus)
	at := int64(*jobWell / step)
	all := make([]rank, ranks)
	for i := range all {
		command := []string{stubs + "/ranks", "--gang=1", fmt.Sprint("--ranks=", ranks), fmt.Sprint("--rank=", i),
			fmt.Sprint("--gpu=", i%gpus), fmt.Sprint("--step-ms=", step.Milliseconds()), "--buckets=2", "--kernels=1",
			"--gpu-part=5", "--compile=3000"}
		switch i {
		case 0:
			command = append(command, "--checkpoint=4000", "--evaluate=3", "--at=15", "--every=60")
		case culprit:
			command = append(command, "--"+*jobFault, fmt.Sprint("--at=", at))
		default:
			command = append(command, "--evaluate=3", "--at=15", "--every=60")
		}
		all[i] = h.rank(i%gpus, command...)
	}
	stepped := func(r rank) int64 { return append(r.says("step"), 0, 0)[1] }
	within(t, "they train", func() bool { return stepped(all[0]) > 0 })
	began, cpu := time.Now(), statOf(t, h.agent.pid).CPUTime()
	fixture.Until(t, *jobWell*4+farther, "the job comes to its fault", func() bool {
		alerts := h.alerts("JobHang")
		fixture.Stop(t, len(alerts) > 0, "a job that is well hangs: %v", alerts)
		return stepped(all[culprit]) >= at-1
	})
	stat := statOf(t, h.agent.pid)
	well, used := time.Since(began), stat.CPUTime()-cpu
	gpu := fmt.Sprint(culprit % gpus)
	var a known
	within(t, "the culprit is named", func() bool {
		a = h.alerts("JobHang")[gpu]
		return a.Annotations["description"] != ""
	})
	took := time.Duration(fixture.Monotonic() - all[culprit].says("step")[0])
	t.Logf("%s of one of %d ranks: the alert came after %.1f s: %s", *jobFault, ranks, took.Seconds(),
		a.Annotations["description"])
	t.Logf("the agent used %.1f %% of a processor and %d MiB for %d ranks, over %.0f s", 100*used/well.Seconds(),
		stat.ResidentMemory()>>20, ranks, well.Seconds())
	if others := h.alerts("JobHang"); len(others) != 1 ||
		!strings.Contains(a.Annotations["description"], fmt.Sprintf(": rank %d, reason ", culprit)) {
		t.Errorf("Alertmanager has %v, want one alert about rank %d", others, culprit)
	}
}

// statOf returns what the kernel counts of a process.
func statOf(t *testing.T, pid int) procfs.ProcStat {
	t.Helper()
	p := fixture.Value(procfs.NewProc(pid))(t)
	return fixture.Value(p.Stat())(t)
}

// TestChainOfStragglers has a Prometheus with the shipped rules find the slow one
// of eight ranks, and nobody in a job beside it.
func TestChainOfStragglers(t *testing.T) {
	t.Parallel()
	const ranks, culprit = 8, 5
	h := newJobHost(t, 2*ranks, "prometheus")
	for gang := range 2 {
		for i := range ranks {
			command := []string{stubs + "/ranks", fmt.Sprint("--gang=", gang+1), fmt.Sprint("--ranks=", ranks),
				fmt.Sprint("--rank=", i), fmt.Sprint("--gpu=", gang*ranks+i), "--step-ms=200", "--buckets=2", "--kernels=1"}
			if gang == 0 && i == culprit {
				command = append(command, "--slow=60", "--at=1")
			}
			h.rank(gang*ranks+i, command...)
		}
	}
	rules := fixture.Value(filepath.Abs("alerts/stragglers.rules.yml"))(t)
	dir, began := t.TempDir(), time.Now()
	fixture.Rewrite(t, filepath.Join(dir, "prometheus.yml"), fmt.Sprintf(`
global: {scrape_interval: 5s, evaluation_interval: 5s}
alerting: {alertmanagers: [{static_configs: [{targets: [%q]}]}]}
rule_files: [%s]
scrape_configs: [{job_name: gpusteward, static_configs: [{targets: [%q]}]}]
`, strings.TrimPrefix(h.alertmanager, "http://"), rules, strings.TrimPrefix(h.agent.url, "http://")))
	startServer(t, "prometheus", "--config.file="+filepath.Join(dir, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(dir, "data"))
	var alerts map[string]known
	fixture.Until(t, 3*farther, "a straggler is named", func() bool {
		alerts = h.alerts("JobStraggler")
		return len(alerts) > 0
	})
	a := alerts[fmt.Sprint(culprit)]
	t.Logf("named after %.0f s: %s", time.Since(began).Seconds(), a.Annotations["summary"])
	fixture.If(t, len(alerts) != 1 || a.Labels["rank"] != fmt.Sprint(culprit) || a.Labels["tenant"] != "research",
		"named %v, want rank %d of the first job", alerts, culprit)
}
