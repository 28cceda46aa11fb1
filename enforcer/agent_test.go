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

// program builds the agent as a host runs it, unless GS_AGENT names a ready one.
var program = sync.OnceValues(func() (string, error) {
	if set := os.Getenv("GS_AGENT"); set != "" {
		return filepath.Abs(set)
	}
	if err := fixture.ReadByOthers(".."); err != nil {
		return "", err
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
	return startAgentOn(t, stub(t, fmt.Sprint("GS_STUB_GPUS=", gpus), fmt.Sprint("GS_STUB_MIG=", mig)),
		"  fail: "+fail+"\n  tenants:\n"+tenants, roles...)
}

// startAgentOn runs the agent on a host. The section of the enforcer is the end of its configuration.
func startAgentOn(t *testing.T, h *host, enforcer string, roles ...string) *agent {
	t.Helper()
	a := &agent{host: h, t: t}
	a.path = fixture.Value(program())(t)
	a.dir = fixture.ShortDir(t)
	t.Cleanup(func() {
		for _, role := range roles {
			if t.Failed() {
				t.Log(a.log(role))
			}
		}
	})
	fixture.Rewrite(t, filepath.Join(a.dir, "gpusteward.yml"), "enforcer:\n  enabled: true\n"+enforcer)
	a.socket = filepath.Join(a.dir, "run/broker/broker.sock")
	a.hook = []string{"LD_PRELOAD=" + fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
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
	a.running.Kill()
	a.begin("all")
	a.awaitDriver("all")
}

func (a *agent) log(role string) string {
	text, _ := os.ReadFile(filepath.Join(a.dir, role+".log"))
	return string(text)
}

// run starts one of the stub's programs for a tenant. Its standard error is read too.
func (a *agent) run(tenant, of string, argv ...string) *worker {
	a.t.Helper()
	copied := filepath.Join(a.dir, of, tenant)
	if _, err := os.Stat(copied); err != nil {
		text := fixture.Value(os.ReadFile(fixture.Given(a.t, "GS_"+strings.ToUpper(of), "hook/build/stub/"+of)))(a.t)
		fixture.Must(a.t, os.MkdirAll(filepath.Dir(copied), 0o755))
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

// hold lets a tenant's program take memory and keep it. It returns the program and its bytes.
func (a *agent) hold(tenant string, gpu int, options ...string) (*worker, uint64) {
	a.t.Helper()
	w := a.job(tenant, gpu, append(options, "--burst-ms=0.1", "--sleep-ms=600000")...)
	goes(a.t, w)
	return w, taken(a.t, w)
}

// ask returns the agent's answer at its control socket.
func (a *agent) ask(path string) string {
	text, err := exporter.Agent{RuntimeDir: filepath.Join(a.dir, "run")}.Ask(context.Background(), path)
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
