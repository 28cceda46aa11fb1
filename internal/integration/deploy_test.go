package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// healthcheck runs deploy/slurm/healthcheck.sh with a gpusteward that prints verdict and exits with status,
// on a node in a state. It returns the exit status and the arguments of scontrol, one a line.
func healthcheck(t *testing.T, status, verdict, state string, args ...string) (int, string) {
	t.Helper()
	exit, asked, called := slurmScript(t, "healthcheck.sh", "", status, verdict, state, args...)
	fixture.Equal(t, asked, strings.Join(append([]string{"check"}, args...), "\n")+"\n", "gpusteward is called with")
	return exit, called
}

// slurmScript runs a script as healthcheck does, for a job with gpus. It also returns the arguments of gpusteward.
func slurmScript(t *testing.T, script, gpus, status, verdict, state string, args ...string) (exit int, asked,
	called string) {
	t.Helper()
	s := newSlurmd(t)
	s.put("bin/gpusteward", "#!/bin/sh\n"+`printf '%s\n' "$@" >"$DIR/asked"; cat "$DIR/verdict"; exit "$STATUS"`)
	s.put("bin/scontrol", "#!/bin/sh\n"+`[ -n "$STATE" ] || exit 1
if [ "$2" = show ]; then echo "NodeName=$4 Arch=x86_64 State=$STATE ThreadsPerCore=1 Comment=DRAIN"
else printf '%s\n' "$@" >"$DIR/called"; fi`)
	s.put("verdict", verdict)
	cmd := exec.Command("deploy/slurm/"+script, args...)
	cmd.Env = slices.Concat(s.env, []string{"STATUS=" + status, "STATE=" + state, "SLURM_JOB_GPUS=" + gpus})
	out, err := cmd.CombinedOutput()
	fixture.Need(t, cmd.ProcessState == nil, false, "it did not begin: %v", err)
	fixture.Equal(t, len(out), 0, "it says %q", out)
	read := func(name string) string {
		text, _ := os.ReadFile(s.path(name)) // missing: it was not called
		return string(text)
	}
	return cmd.ProcessState.ExitCode(), read("asked"), read("called")
}

func TestSlurmDiagDrainsAFailedNode(t *testing.T) {
	t.Parallel()
	const failed = "CRITICAL - node7: gpu=3 diag_memory: 2 words in 24 passes did not hold what was written\n"
	for name, c := range map[string]struct {
		gpus, status, verdict string
		asked, called         string
	}{
		"no GPUs": {"", "2", failed, "", ""},
		"well":    {"0,3", "0", "OK - node7: 2 GPUs, no fault\n", "diag\n--gpus=0,3\n--fail-on=critical\n--level=2\n", ""},
		"in use": {"3", "3", "UNKNOWN - node7: GPU 3 was not tested: it is in use by process 4711\n",
			"diag\n--gpus=3\n--fail-on=critical\n--level=2\n", ""},
		"failed": {"0,3", "2", failed, "diag\n--gpus=0,3\n--fail-on=critical\n--level=2\n",
			"update\nNodeName=node7\nState=DRAIN\nReason=gpusteward: " + strings.Replace(failed, "=", "?", 1)},
	} {
		if exit, asked, called := slurmScript(t, "diag.sh", c.gpus, c.status, c.verdict, "IDLE",
			"--level=2"); exit != 0 || asked != c.asked || called != c.called {
			t.Errorf("%s: exit status %d, gpusteward is called with %q, want %q; scontrol with %q, want %q", name, exit,
				asked, c.asked, called, c.called)
		}
	}
}

func TestSlurmHealthCheckDrainsACriticalNode(t *testing.T) {
	t.Parallel()
	drained := func(reason string) string {
		return "update\nNodeName=node7\nState=DRAIN\nReason=gpusteward: " + reason + "\n"
	}
	for name, c := range map[string]struct {
		status, verdict, state string
		exit                   int
		called                 string
	}{
		"well":      {"0", "OK - node7: 8 GPUs, no fault\n", "IDLE", 0, ""},
		"warning":   {"1", "WARNING - node7: gpu=1 power_brake: Power.\n", "IDLE", 0, ""},
		"unknown":   {"3", "UNKNOWN - node7: no driver\n", "IDLE", 0, ""},
		"not found": {"127", "", "IDLE", 0, ""},
		"a crash":   {"2", "panic: runtime error\n", "IDLE", 0, ""},
		"critical": {"2", "CRITICAL - node7: GPU 3 is lost (and 1 more)\nemergency gpu=3 ...\n", "MIXED", 0,
			drained("CRITICAL - node7: GPU 3 is lost (and 1 more)")},
		"drained before": {"2", "CRITICAL - node7: GPU 3 is lost\n", "IDLE+DRAIN", 0, ""},
		"draining":       {"2", "CRITICAL - node7: GPU 3 is lost\n", "MIXED+DRAIN+POWERED", 0, ""},
		"hostile": {"2", "CRITICAL - $(reboot) `id` \"x' State=RESUME \\ job\té|;&\n", "IDLE", 0,
			drained(`CRITICAL - ?(reboot) ?id? ?x? State?RESUME ? job????;?`)},
		"long": {"2", "CRITICAL - " + strings.Repeat("a", 500) + "\n", "IDLE", 0,
			drained("CRITICAL - " + strings.Repeat("a", 239))},
		"no Slurm controller": {"2", "CRITICAL - node7: GPU 3 is lost\n", "", 1, ""},
	} {
		exit, called := healthcheck(t, c.status, c.verdict, c.state, "--gpu=0,1", "--only=gpu_lost")
		fixture.If(t, exit != c.exit || called != c.called,
			"%s: exit status %d, want %d; scontrol is called with\n%s, want\n%s", name, exit, c.exit, called, c.called)
	}
}

// The command of node-problem-detector is one of ours, and its result means what the condition says.
func TestNodeProblemDetectorRunsTheCheck(t *testing.T) {
	t.Parallel()
	text := content(t, "deploy/kubernetes/npd-gpusteward.json")
	var config struct {
		Plugin       string `json:"plugin"`
		PluginConfig struct {
			MaxOutputLength int `json:"max_output_length"`
		} `json:"pluginConfig"`
		Conditions []struct{ Type string }
		Rules      []struct {
			Type, Condition, Path string
			Args                  []string
		}
	}
	fixture.Must(t, json.Unmarshal([]byte(text), &config))
	fixture.Stop(t, config.Plugin != "custom" || config.PluginConfig.MaxOutputLength != 80 || len(config.Conditions) != 1 ||
		len(config.Rules) != 1, "%+v", config)
	rule := config.Rules[0]
	fixture.If(t, rule.Type != "permanent" || rule.Condition != config.Conditions[0].Type || rule.Condition != "GPUUnhealthy" ||
		filepath.Base(rule.Path) != "gpusteward" || rule.Args[0] != "check", "%+v", rule)
	for fault, want := range map[string]int{"": 0, "power_brake": 0, "lost": 1} {
		scenario := healthy
		if fault != "" {
			scenario += "faults: [{at: 0s, gpu: 1, kind: " + fault + "}]"
		}
		if status, out, errs := checks(t, append(rule.Args[1:], "--demo="+fixture.Config(t, scenario))...); status != want ||
			len(out) > 81 || errs != "" {
			t.Errorf("%q: exit status %d, want %d: %s%s", fault, status, want, out, errs)
		}
	}
}
