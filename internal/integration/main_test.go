package integration

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/internal/fixture"
)

func TestDemoServesEightGPUs(t *testing.T) {
	t.Parallel()
	a := start(t, "--demo").ready()
	fixture.EqualSlices(t, a.scrape().family("nvgpu_up"), []float64{1, 1, 1, 1, 1, 1, 1, 1}, "nvgpu_up is")
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
			if !strings.HasPrefix(line, "#") && seen[series] {
				t.Errorf("%s has %s twice", path, series)
			}
			seen[series] = true
		}
		fixture.AtLeast(t, len(seen), 300, "%s has … series", path)
	}
	a.endsWell()
}

// The tenants of a simulated host have books, unless a broker with its own
// books runs.
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
		if status, _ := start(t, "--demo=h100", flag).listening().get("/debug/pprof/cmdline"); status != want {
			t.Errorf("%s: status %d, want %d", flag, status, want)
		}
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
		"--help":              usage, "-h": usage, "--demo --help": usage,
		"--version": "gpusteward, version", "-V": "gpusteward, version",
	} {
		status, out, errs := gpusteward(t, strings.Fields(args)...)
		if status != 0 || !strings.HasPrefix(out, want) || errs != "" ||
			strings.Contains(out, "require-driver") != (want == usage) {
			t.Errorf("%s: exit status %d, %.200s, %s; want %q", args, status, out, errs, want)
		}
	}
}

// The exit statuses in the units, after which a restart is useless.
const exitUsage, exitConfig = 64, 78

func TestMistakesOnTheCommandLineEndWithAdvice(t *testing.T) {
	t.Parallel()
	taken := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { taken.Close() })
	for name, c := range map[string]struct {
		status int
		args   []string
		want   []string
	}{
		"unknown flag":    {exitUsage, []string{"--bogus"}, []string{"--bogus", "gpusteward --help"}},
		"unknown command": {exitUsage, []string{"bogus"}, []string{"bogus", "gpusteward --help"}},
		"flag given twice": {exitUsage, []string{"--config.file=a", "--config.file=b"},
			[]string{"config.file", "cannot be repeated"}},
		"demo given twice":     {exitUsage, []string{"--demo", "--demo=h100"}, []string{"demo", "cannot be repeated"}},
		"log level":            {exitUsage, []string{"--log.level=loud"}, []string{"loud", "debug,info,warn,error"}},
		"seed":                 {exitUsage, []string{"--demo", "--demo.seed=x"}, []string{`"x"`}},
		"command half given":   {exitUsage, []string{"config"}, []string{"subcommand of 'config'"}},
		"check without a file": {exitUsage, []string{"config", "check"}, []string{"FILE"}},
		"unknown scenario":     {1, []string{"--demo=nope"}, append(scenarios.Names(), "--demo", `"nope"`)},
		"empty scenario":       {1, []string{"--demo="}, append(scenarios.Names(), "--demo")},
		"scenario not there": {1, []string{"--demo=testdata/none.yml"},
			[]string{"--demo", "testdata/none.yml", "no such file"}},
		"key of a scenario": {1, []string{"--demo=testdata/scenario/bad_key.yml"},
			[]string{"testdata/scenario/bad_key.yml:5", `"modle"`, "model, load"}},
		"value of a scenario": {1, []string{"--demo=testdata/scenario/bad_value.yml"},
			[]string{"bad_value.yml", "gpus[0].model", "h1000", "h200"}},
		"hosts without demo": {1, []string{"--demo.hosts=3"}, []string{"--demo.hosts=3", "require --demo"}},
		"no hosts":           {1, []string{"--demo", "--demo.hosts=0"}, []string{"--demo.hosts=0", "1 to 1000"}},
		"too many hosts":     {1, []string{"--demo", "--demo.hosts=1001"}, []string{"--demo.hosts=1001", "1 to 1000"}},
		"hosts that enforce": {1, []string{"--demo", "--demo.hosts=3", "--role=enforce"},
			[]string{"--demo.hosts", "--role=enforce"}},
		"hosts of what": {1, []string{"--demo=nope", "--demo.hosts=3"}, []string{"--demo", `"nope"`}},
		"config not there": {exitConfig, []string{"--config.file=testdata/none.yml"},
			[]string{"--config.file", "testdata/none.yml", "no such file"}},
		"config unreadable": {exitConfig, []string{"--config.file=testdata"},
			[]string{"--config.file", "testdata", "is a directory"}},
		"config wrong": {exitConfig, []string{"--config.file=internal/config/testdata/invalid/unknown_key.yml"},
			[]string{"unknown_key.yml:3", `"fats"`}},
		"web config not there": {exitConfig, []string{"--web.config.file=testdata/none.yml", "--demo"},
			[]string{"--web.config.file", "testdata/none.yml"}},
		"no socket": {1, []string{"--demo", "--web.systemd-socket"}, []string{"socket"}},
		"port taken": {1, []string{"--demo", "--web.listen-address=" + taken.Addr().String()},
			[]string{"--web.listen-address", taken.Addr().String(), "another gpusteward"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if c.args[0] != "config" && !strings.Contains(fmt.Sprint(c.args), "listen-address") {
				c.args = append(c.args, loopback)
			}
			var out bytes.Buffer
			log := new(transcript)
			fixture.Equal(t, run(ctx, c.args, &out, log), c.status, "exit status")
			text := strings.ReplaceAll(log.String(), `\"`, `"`)
			for _, want := range c.want {
				fixture.Contains(t, text, want, "the message")
			}
			if strings.Contains(text, "goroutine ") || out.Len() > 0 {
				t.Errorf("a trace, or something on standard output:\n%s%s", text, &out)
			}
		})
	}
}
