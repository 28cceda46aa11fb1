package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/enforcer/stack"
	"gpusteward/exporter"
	"gpusteward/internal/fixture"
)

func TestDemoServesEightGPUs(t *testing.T) {
	t.Parallel()
	a := start(t, "--demo").ready()
	eventually(t, "eight GPUs are read", func() bool {
		return slices.Equal(a.scrape().family("nvgpu_up"), []float64{1, 1, 1, 1, 1, 1, 1, 1})
	})
	if entry := a.log.find("these GPUs are simulated"); entry["scenario"] != "demo" || entry["level"] != "warn" {
		t.Errorf("--demo is not announced as the scenario demo: %v", entry)
	}
	if entry := a.log.find("the live page is served"); entry["url"] != a.url {
		t.Errorf("the page at %s is announced as %v", a.url, entry["url"])
	}
	if _, page := a.get("/"); !strings.Contains(page, "simulated") {
		t.Error("the landing page does not say that the host is simulated")
	}
	// No response has a series twice: Prometheus drops the second one, and warns.
	eventually(t, "the agent has judged", func() bool { return a.scrape().family("nvgpu_below_peak") != nil })
	for _, path := range []string{"/metrics", "/metrics/dcgm"} {
		_, page := a.get(path)
		seen := map[string]bool{}
		for line := range strings.Lines(page) {
			series := line[:max(0, strings.LastIndexByte(line, ' '))]
			fixture.If(t, !strings.HasPrefix(line, "#") && seen[series], "%s has %s twice", path, series)
			seen[series] = true
		}
		fixture.AtLeast(t, len(seen), 300, "%s has … series", path)
	}
	a.endsWell()
}

// The tenants of a simulated host have books, unless a broker with its own books runs.
func TestDemoHasTenants(t *testing.T) {
	t.Parallel()
	simulated := start(t, "--demo").ready()
	eventually(t, "there are books of tenants", func() bool {
		s := simulated.scrape()
		return s["gpusteward_broker_up"] == 1 && len(s.family("nvgpu_quota_compute_share_ratio", `tenant="triton"`,
			`window="10s"`)) == 1 &&
			len(s.family("nvgpu_qos_windows_total", `tenant="research"`, `objective="compute"`)) == 6 &&
			len(s.family("nvgpu_unhooked_processes", `workload="unit:triton.service"`)) == 1
	})
	real := start(t, "--demo", "--config.file="+fixture.Config(t, "enforcer: {enabled: true}\n")).ready()
	eventually(t, "the broker answers", func() bool { return real.scrape()["gpusteward_broker_up"] == 1 })
	fixture.EqualSlices(t, real.scrape().family("nvgpu_quota_sessions"), nil,
		"beside a broker that runs there are simulated books")
}

func TestProfilesAreServedOnlyOnDemand(t *testing.T) {
	t.Parallel()
	for flag, want := range map[string]int{"--web.pprof": http.StatusOK, "--no-web.pprof": http.StatusNotFound} {
		status, _ := start(t, "--demo=h100", flag).listening().get("/debug/pprof/cmdline")
		fixture.If(t, status != want, "%s: status %d, want %d", flag, status, want)
	}
}

// TestHelpAndVersion go to standard output. The help of the program has the
// flags of the agent, which the help of a command lacks.
func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	const usage = "usage: gpusteward [<flags>] <command>"
	for args, want := range map[string]string{
		"help status":         "usage: gpusteward status [<flags>]\n\nShow the GPUs",
		"status --help":       "usage: gpusteward status [<flags>]\n\nShow the GPUs",
		"config check --help": "usage: gpusteward config check [<flags>] <FILE>\n\n",
		"ack --help":          "usage: gpusteward ack <CHECK> <ENTITY>\n\n", "exec --help": "usage: gpusteward exec [<flags>] <COMMAND>...\n\n",
		"--help": usage, "-h": usage, "--demo --help": usage,
		"--version": "gpusteward, version", "-V": "gpusteward, version",
	} {
		status, out, errs := gpusteward(t, strings.Fields(args)...)
		fixture.If(t, status != 0 || !strings.HasPrefix(out, want) || errs != "" ||
			strings.Contains(out, "require-driver") != (want == usage) || strings.Index(out, "--url") > strings.Index(out, "--log.level") && want != usage,
			"%s: exit status %d, %.200s, %s; want %q", args, status, out, errs, want)
	}
}

// The exit statuses in the units, after which a restart is useless.
const exitUsage, exitConfig = 64, 78

// TestMistakesOnTheCommandLineEndWithAdvice gives the command lines of a table: each has an exit status, and texts that the
// message has. A usage error names its flag or argument, and says where to read on.
func TestMistakesOnTheCommandLineEndWithAdvice(t *testing.T) {
	t.Parallel()
	taken := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { taken.Close() })
	known := strings.NewReplacer("PORT", taken.Addr().String(), "SCENARIOS", strings.Join(scenarios.Names(), "\t"))
	for _, row := range fixture.Rows(t, "testdata/mistakes.tsv") {
		row = strings.Split(known.Replace(strings.Join(row, "\t")), "\t")
		t.Run(row[1], func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			args := strings.Fields(row[1])
			if strings.HasPrefix(row[1], "--") && !strings.Contains(row[1], "listen-address") {
				args = append(args, loopback)
			}
			var out bytes.Buffer
			log := new(transcript)
			status := run(ctx, args, &out, log)
			fixture.Equal(t, fmt.Sprint(status), row[0], "exit status")
			text := strings.ReplaceAll(log.String(), `\"`, `"`)
			for _, want := range row[2:] {
				fixture.Contains(t, text, want, "the message")
			}
			usage := status == exitUsage || status == 3
			if strings.Contains(text, "goroutine ") || out.Len() > 0 || strings.Contains(text, "; see gpusteward ") && strings.HasSuffix(text, "--help\n") != usage {
				t.Errorf("a trace, or something on standard output, or no place to read on:\n%s%s", text, &out)
			}
		})
	}
}

// TestCompletion: what can follow, for the scripts of the shells.
func TestCompletion(t *testing.T) {
	t.Parallel()
	dir := fixture.ShortDir(t)
	start(t, "--demo", "--runtime.dir="+dir).ready()
	for words, want := range map[string]string{"check --only": "gpu_lost", "check --except": "ib_port", "ack": "xid_fatal",
		"--demo": "sixteen", "fleet --format": "json", "--runtime.dir " + dir + " suspend": "slurm:4712.0"} {
		eventually(t, words+" completes to "+want, func() bool {
			_, out := exited(t, process(nil, append([]string{"--completion-bash"}, strings.Fields(words)...)...))
			return slices.Contains(strings.Fields(out), want)
		})
	}
}

// TestDump writes the metrics for node_exporter's textfile collector, whole, and leaves no old ones.
func TestDump(t *testing.T) {
	t.Parallel()
	root := fixture.ShortDir(t)
	dir, file := "--runtime.dir="+root, filepath.Join(root, "textfile", "gpusteward.prom")
	dump := func(args ...string) (int, string, string) {
		return gpusteward(t, append([]string{dir, "dump"}, args...)...)
	}
	a := start(t, "--demo=h100", dir).ready()
	_, whole := a.get("/metrics")
	fixture.Stop(t, !strings.Contains(whole, "\ngo_goroutines "),
		"the agent does not tell its goroutines: nothing would be left out")
	if _, err := os.Stat(filepath.Join(root, "broker")); err == nil || strings.Contains(whole, "_broker_") {
		t.Error("something is said of a broker, without the enforcer")
	}
	eventually(t, "orders are taken", func() bool {
		_, err := os.Stat(filepath.Join(root, exporter.ControlSocket))
		return err == nil
	})
	status, text, said := dump()
	fixture.Stop(t, status != 0 || said != "" || !strings.Contains(text, `nvgpu_up{gpu="0",`),
		"exit status %d, %s, %.300s", status, said, text)
	for _, line := range strings.Split(text, "\n") {
		fixture.If(t, line != "" && !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(line, "# HELP "), "# TYPE "), "nvgpu_") &&
			!strings.Contains(line, "gpusteward_"), "it has %s", line)
	}
	if status, text, said := dump("--format=dcgm"); status != 0 || !strings.Contains(text, "DCGM_FI_DEV_GPU_TEMP{") {
		t.Errorf("exit status %d, %s, %.300s", status, said, text)
	}
	status, _, said = dump("--output=" + file)
	fixture.If(t, status != 1 || !strings.Contains(said, "--output: stat "), "without the directory: exit status %d, %s", status, said)
	fixture.Must(t, os.Mkdir(filepath.Dir(file), 0o755))
	status, text, said = dump("--output=" + file)
	content, err := os.ReadFile(file)
	fixture.If(t, status != 0 || text != "" || err != nil || !strings.Contains(string(content), `nvgpu_up{gpu="0",`),
		"exit status %d, %s, %v, %.300s", status, said, err, content)
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	a.stop()
	if status, text, said := dump("--output=" + file); status != 1 || text != "" || !strings.Contains(said, "is gpusteward running") {
		t.Errorf("without an agent: exit status %d, %q, %s", status, text, said)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("old values stay: %v", err)
	}
	status, _, _ = dump("--output=" + filepath.Dir(file))
	if _, err := os.Stat(filepath.Dir(file)); err != nil || status != 1 {
		t.Errorf("exit status %d, or a directory was removed: %v", status, err)
	}
}

// sleeper returns the PID of a process that sleeps until the test ends.
func sleeper(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return strconv.Itoa(cmd.Process.Pid)
}

func TestStack(t *testing.T) {
	t.Parallel()
	pid := sleeper(t)
	status, out, _ := gpusteward(t, "stack", "--json", pid)
	var p stack.Process
	err := json.Unmarshal([]byte(out), &p)
	fixture.If(t, err != nil || status != 0 || strconv.Itoa(p.PID) != pid ||
		len(p.Threads) != 1, "exit status %d, %v:\n%s", status, err, out)
	kernel := t.TempDir() // a procfs of another PID namespace
	fixture.Must(t, os.Symlink("1", filepath.Join(kernel, "self")))
	for name, c := range map[string]struct {
		args      []string
		status    int
		out, errs string
	}{
		"a process":      {[]string{pid}, 0, "process " + pid + " (", ""},
		"no process":     {[]string{"2147483646"}, 1, "", "there is no process 2147483646"},
		"another procfs": {[]string{"--path.procfs=" + kernel, pid}, 1, "", "another PID namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, out, errs := gpusteward(t, append([]string{"stack"}, c.args...)...)
			fixture.If(t, status != c.status || !strings.HasPrefix(out, c.out) || !strings.Contains(errs, c.errs),
				"exit status %d, want %d:\n%s%s", status, c.status, out, errs)
		})
	}
}

// TestStackOfUnreadableProcess reads a process without memory, as the kernel reports it.
func TestStackOfUnreadableProcess(t *testing.T) {
	t.Parallel()
	procfs := t.TempDir()
	line := []byte("7 (rank) Z 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20")
	task := filepath.Join(procfs, "7", "task", "7")
	fixture.Must(t, errors.Join(os.MkdirAll(task, 0o755),
		os.Symlink(strconv.Itoa(os.Getpid()), filepath.Join(procfs, "self")),
		os.WriteFile(filepath.Join(procfs, "7", "stat"), line, 0o644),
		os.WriteFile(filepath.Join(task, "stat"), line, 0o644),
		os.WriteFile(filepath.Join(procfs, "7", "maps"), nil, 0o644)))
	status, out, errs := gpusteward(t, "stack", "--path.procfs="+procfs, "7")
	fixture.If(t, status != 1 || errs != "not all of it was read\n" ||
		!strings.HasPrefix(out, "process 7 (rank), 1 thread\nnot all of it was read: process 7 has no"),
		"exit status %d:\n%s%s", status, out, errs)
}

// check runs "gpusteward config check FILE".
func check(t *testing.T, path string, more ...string) (status int, out, errors string) {
	t.Helper()
	return gpusteward(t, append([]string{"config", "check", path}, more...)...)
}

func TestConfigCheckExplainsAProcess(t *testing.T) {
	t.Parallel()
	exe := fixture.Value(os.Executable())(t)
	path := fixture.Config(t, fmt.Sprintf(`enforcer:
  tenants:
    - {name: mine, select: [{users: [%d], executables: ["*.test"]}], guarantee: 50 %%, gpus: [{gpu: [1], guarantee: 10 %%}], ladder: {mode: throttle}}
    - {name: everybody, select: [{executables: ["*"]}]}
    - {name: batch}
`, os.Getuid()))
	status, out, errors := check(t, path, "--explain="+fmt.Sprint(os.Getpid()))
	fixture.Stop(t, status != 0 || errors != "", "status %d, %q", status, errors)
	for _, want := range []string{
		path + " is good.\n", "enforcer.enabled is false", fmt.Sprintf("process %d\n", os.Getpid()),
		fmt.Sprint(os.Getuid()), "executable: " + exe, "workload: ",
		"so it belongs to mine and not to everybody: executables", "on request (gpusteward exec --tenant): batch\n",
		"on GPU 1: guarantee 10 %", "on every other GPU: guarantee 50 %", "ladder: up to throttle, shadow",
	} {
		fixture.Contains(t, out, want, "it")
	}
}

func TestConfigCheckRefusesBadPIDs(t *testing.T) {
	t.Parallel()
	gone := exec.Command("true")
	fixture.Must(t, gone.Run())
	good := fixture.Config(t, "")
	for pid, want := range map[string]string{
		"0": "--explain=0: give a PID above 0", "-1": "above 0", "self": "--explain=self: ",
		"99999999999999999999":       "above 0",
		fmt.Sprint(gone.Process.Pid): ": there is no such process\n",
	} {
		if status, out, errors := check(t, good, "--explain="+pid); status != 1 || out != good+" is good.\n" ||
			!strings.Contains(errors, want) {
			t.Errorf("%s: status %d, %q, %q; want 1 and %q", pid, status, out, errors, want)
		}
	}
}

// TestConfigCheckWarns of what the agent would log, and of users that this host does not know.
func TestConfigCheckWarns(t *testing.T) {
	t.Parallel()
	path := fixture.Config(t, "web: {max_scrapes: 5}\nhealth: {page: [slow_gpu]}\n"+
		"enforcer:\n  tenants:\n    - {name: a, select: [{groups: [root]}, {users: [no-such-user]}]}\n")
	status, out, errors := check(t, path)
	for _, want := range []string{path + " is good.\nwarning: web.max_scrapes no longer has an effect",
		"\nwarning: health.page is the older name of health.enable_alerts",
		"\nwarning: enforcer.tenants[0].select[1].users: \"no-such-user\" selects nothing: ",
		"\nwarning: enforcer.enabled is false: no quota of a tenant is enforced\n"} {
		fixture.If(t, status != 0 || !strings.Contains(out, want) || errors != "",
			"status %d, %q, %q; want 0 and %q", status, out, errors, want)
	}
}

func TestConfigCheckReadsTenantFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := fixture.Config(t, fmt.Sprintf("enforcer:\n  tenants_dirs: [%s]\n  tenants:\n    - {name: batch}\n", dir))
	more := filepath.Join(dir, "more.yml")
	fixture.Rewrite(t, more, fmt.Sprintf("- {name: mine, binding: true, select: [{users: [%d]}], memory: 30 %%}\n- {name: b, "+
		"select: [{users: [no-such-user]}]}\n", os.Getuid()))
	status, out, errors := check(t, config, "--explain="+fmt.Sprint(os.Getpid()))
	for _, want := range []string{config + " is good.\n" + more + " is good.\n",
		"warning: " + more + "[1].select[0].users: \"no-such-user\" selects nothing: ", "so it belongs to mine",
		"cannot ask for another: mine is binding", "memory 30 % of the GPU's"} {
		fixture.If(t, status != 0 || errors != "" || !strings.Contains(out, want),
			"status %d, %q; it does not say %q:\n%s", status, errors, want, out)
	}
	fixture.Rewrite(t, more, "- {name: mine}\n- name: batch\n")
	if status, out, errors := check(t, config); status != 1 || out != "" ||
		errors != more+":2: [1].name: \"batch\" is the name of tenants[0] too: choose another\n" {
		t.Errorf("status %d, %q, %q", status, out, errors)
	}
}

func TestConfigurationSizeIsBounded(t *testing.T) {
	t.Parallel()
	long := fixture.Config(t, strings.Repeat("# a comment\n", 1<<20))
	for _, args := range [][]string{{"config", "check", long}, {"--demo=" + long}} {
		if status, _, errs := gpusteward(t, append(args, ownDirectories(t, nil)...)...); status == 0 ||
			!strings.Contains(errs, "it has more than 1048576 bytes") {
			t.Errorf("%s: exit status %d: %s", args[0], status, errs)
		}
	}
}
