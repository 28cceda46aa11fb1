package enforcer_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/exporter"
	"gpusteward/internal/fixture"
)

// program builds the agent as a host runs it, unless GS_AGENT names a ready
// one.
var program = sync.OnceValues(func() (string, error) {
	if set := os.Getenv("GS_AGENT"); set != "" {
		return filepath.Abs(set)
	}
	built, err := filepath.Abs("hook/build/gpusteward")
	if out, err := exec.Command("go", "build", "-o", built, "gpusteward").CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build gpusteward: %w\n%s", err, out)
	}
	return built, err
})

// An agent is the program on a simulated host, in a process for each role. The
// name of a program decides whether its tenant is a, b or c.
type agent struct {
	*host
	t    *testing.T
	path string // path of the program
	dir  string

	running *worker // the program that was begun last
	opened  int     // how often its role had opened the driver before
}

// startAgent runs the agent on simulated GPUs. Each mig of them are the MIG
// devices of one GPU; 0: they are GPUs. The tenants' section is the end of its configuration.
func startAgent(t *testing.T, gpus, mig int, fail, tenants string, roles ...string) *agent {
	t.Helper()
	t.Setenv("GS_STUB_GPUS", strconv.Itoa(gpus))
	t.Setenv("GS_STUB_MIG", strconv.Itoa(mig))
	a := &agent{host: stub(t), t: t}
	var err error
	if a.path, err = program(); err != nil {
		t.Fatal(err)
	}
	if a.dir, err = os.MkdirTemp("", "agent"); err != nil { // the names of t.TempDir are too long for a socket
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(a.dir) })
	file := filepath.Join(a.dir, "gpusteward.yml")
	config := "enforcer:\n  enabled: true\n  fail: " + fail + "\n  tenants:\n" + tenants
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	a.socket = filepath.Join(a.dir, "run/broker/broker.sock")
	a.hook = []string{"LD_PRELOAD=" + path(t, "GS_HOOK", "hook/build/libgpusteward.so"),
		"GPUSTEWARD_SOCKET=" + a.socket}
	for _, role := range roles {
		a.begin(role)
	}
	for _, role := range roles {
		a.awaitDriver(role)
	}
	return a
}

// begin starts the program in a role, again if it has ended.
func (a *agent) begin(role string) {
	a.t.Helper()
	a.opened = strings.Count(a.log(role), driverOpen)
	a.running = startWorker(a.t, role, a.driver, "sh", "-c", `exec "$0" "$@" >>`+filepath.Join(a.dir, role+".log")+" 2>&1",
		a.path, "--role="+role, "--config.file="+filepath.Join(a.dir, "gpusteward.yml"),
		"--runtime.dir="+filepath.Join(a.dir, "run"), "--state.dir="+filepath.Join(a.dir, role),
		"--web.listen-address=127.0.0.1:0", "--log.format=json")
}

const driverOpen = `"driver open"`

func (a *agent) awaitDriver(role string) {
	a.t.Helper()
	poll(a.t, 30*time.Second, role+" has no driver",
		func() bool { return strings.Count(a.log(role), driverOpen) > a.opened })
}

// again kills the program, which has all roles, and starts it again.
func (a *agent) again() {
	a.t.Helper()
	a.running.kill()
	a.begin("all")
	a.awaitDriver("all")
}

func (a *agent) log(role string) string {
	text, _ := os.ReadFile(filepath.Join(a.dir, role+".log"))
	return string(text)
}

// run starts one of the stub's programs for a tenant. Its standard error is
// read too.
func (a *agent) run(tenant, of string, argv ...string) *worker {
	a.t.Helper()
	copied := filepath.Join(a.dir, of, tenant)
	if _, err := os.Stat(copied); err != nil {
		text, err := os.ReadFile(path(a.t, "GS_"+strings.ToUpper(of), "hook/build/stub/"+of))
		if err != nil {
			a.t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			a.t.Fatal(err)
		}
		fixture.Program(a.t, copied, text)
	}
	return startWorker(a.t, tenant, append(a.hook, a.driver...),
		append([]string{"sh", "-c", `exec "$0" "$@" 2>&1`, copied}, argv...)...)
}

// job starts the load generator as a tenant's program on a simulated GPU.
func (a *agent) job(tenant string, gpu int, options ...string) *worker {
	a.t.Helper()
	return a.run(tenant, "load", append([]string{"--wait-start", "--report-ms=5", "--gpu=" + strconv.Itoa(gpu)},
		options...)...)
}

// hold lets a tenant's program take memory and keep it. It returns the program
// and its bytes.
func (a *agent) hold(tenant string, gpu int, options ...string) (*worker, uint64) {
	a.t.Helper()
	w := a.job(tenant, gpu, append(options, "--burst-ms=0.1", "--sleep-ms=600000")...)
	ready(a.t, w)
	w.tell("go")
	return w, taken(a.t, w)
}

// ask returns the agent's answer at its control socket.
func (a *agent) ask(path string) string {
	text, err := exporter.Ask(context.Background(), filepath.Join(a.dir, "run"), "", path)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// metric waits until a series has a value.
func (a *agent) metric(series string, want float64) {
	a.t.Helper()
	line, got := regexp.MustCompile(`(?m)^`+regexp.QuoteMeta(series)+` (\S+)$`), ""
	poll(a.t, 20*time.Second, fmt.Sprintf("%s is not %g", series, want), func() bool {
		m := line.FindStringSubmatch(a.ask("/metrics"))
		if m == nil {
			return false
		}
		got = m[1]
		v, err := strconv.ParseFloat(got, 64)
		return err == nil && v == want
	})
}

// absent fails if a series begins with the text.
func (a *agent) absent(series string) {
	a.t.Helper()
	if all := a.ask("/metrics"); strings.Contains(all, "\n"+series) || !strings.Contains(all, "\nnvgpu_") {
		a.t.Errorf("there is a series %s, or no metrics", series)
	}
}

// slice returns the UUID of a simulated MIG device, as CUDA and NVML report it.
func slice(i int) string { return fmt.Sprintf("MIG-67707573-7465-7761-7264-2d73747562%02x", i) }

// anchor lets a tenant's program work on a MIG device, and waits until its
// quota holds. By then the agent has read the list of devices.
func (a *agent) anchor(tenant string, gpu int) *worker {
	a.t.Helper()
	w := a.job(tenant, gpu, "--kernel-us=500", "--seconds=600")
	ready(a.t, w)
	w.tell("go")
	a.metric(`nvgpu_quota_sessions{gpu="",tenant="`+tenant+`",uuid="`+slice(gpu)+`"}`, 1)
	return w
}

func onMIG(t *testing.T, name string, roles []string) {
	const limit = 64*mib + 1
	a := startAgent(t, 2, 2, "open", `
    - {name: a, select: [{executables: ["*/a"]}], gpus: [{gpu: ["`+name+
		`"], guarantee: 30 %, memory: `+strconv.Itoa(limit)+`}]}
    - {name: b, select: [{executables: ["*/b"]}], gpus: [{gpu: ["`+name+`"], guarantee: 70 %}]}
    - {name: c, select: [{executables: ["*/c"]}]}
`, roles...)
	c := a.anchor("c", 1)

	first, most := a.hold("a", 0, "--alloc-mib=128", "--alloc-step-mib=1")
	second, last := a.hold("a", 0, "--alloc-mib=1", fmt.Sprintf("--alloc-step-mib=%.20f", 1./mib))
	if most != limit-1 || last != 1 {
		t.Errorf("the tenant takes %d and %d bytes of %d", most, last, limit)
	}
	other, beyond := a.hold("a", 1, "--alloc-mib=128", "--alloc-step-mib=1")
	if beyond != 128*mib {
		t.Errorf("it takes %d MiB of 128 on the other device, where it has no cap", beyond/mib)
	}
	book := func(name string, gpu int) string {
		return `nvgpu_quota_` + name + `{gpu="",tenant="a",uuid="` + slice(gpu) + `"}`
	}
	a.metric(book("memory_used_bytes", 0), limit)
	a.metric(book("memory_limit_bytes", 0), limit)
	a.metric(book("memory_peak_bytes", 0), limit)
	a.metric(book("sessions", 0), 2)
	a.metric(book("memory_used_bytes", 1), 128*mib)
	a.absent(book("memory_limit_bytes", 1))
	a.metric(book("compute_guarantee_ratio", 0), .3)
	a.metric(book("compute_guarantee_ratio", 1), 0)
	a.metric(`nvgpu_broker_faults_total{kind="ungoverned"}`, 0)
	rows := []*regexp.Regexp{regexp.MustCompile(`(?m)^a +0:1 +2 .*30-100% +0\.1/0\.1 +hook`),
		regexp.MustCompile(`(?m)^c +0:2 +1 .* hook`)}
	poll(t, 20*time.Second, "the status does not name the devices", func() bool {
		out, err := exec.Command(a.path, "status", "--runtime.dir="+filepath.Join(a.dir, "run")).Output()
		return err == nil && rows[0].Match(out) && rows[1].Match(out)
	})
	want := fmt.Sprint("0 ", limit, 0, limit, " -")
	if got := a.run("a", "smi", "dlsym", "v1", "mig").hear(t, time.Minute, "0 "); got != want {
		t.Errorf("NVML tells the tenant %q of the device, want %q", got, want)
	}
	for _, w := range []*worker{first, second, other} {
		w.kill()
	}
	a.metric(book("memory_used_bytes", 0), 0)

	const seconds = 8
	var parts []part
	for tenant, target := range map[string]float64{"a": .3, "b": .7} {
		parts = append(parts, part{a.job(tenant, 0, "--kernel-us=200", fmt.Sprintf("--seconds=%d", seconds)), "go",
			target, 200e-6})
	}
	ready(t, parts[0].worker, parts[1].worker)
	from := fixture.Monotonic()
	f := a.measure(t, "30-70 on a MIG device", seconds, parts...)
	to := fixture.Monotonic()
	f.show()
	alone := typical([]*series{a.truth.of(c.cmd.Process.Pid)}, from, to)[0]
	if f.one.median > 2 || alone < .95 {
		t.Errorf("they have %.3f of the device, want %.1f of the first; the tenant of the other one has %.3f of a "+
			"typical second of that", f.share, parts[0].target, alone)
	}
}
