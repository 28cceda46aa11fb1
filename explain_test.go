package main

import (
	"bytes"
	"fmt"
	"gpusteward/enforcer/policy"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
)

// explainPID runs "gpusteward config check FILE --explain=PID".
func explainPID(t *testing.T, path, pid string) (status int, out, errors string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(t.Context(), []string{"config", "check", path, "--explain=" + pid}, &o, &e)
	return status, o.String(), e.String()
}

func TestConfigCheckExplainsAProcess(t *testing.T) {
	t.Parallel()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := write(t, fmt.Sprintf(`enforcer:
  tenants:
    - {name: mine, select: [{users: [%d], executables: ["*.test"]}], guarantee: 50 %%, gpus: [{gpu: [1], guarantee: 10 %%}], ladder: {mode: throttle}}
    - {name: everybody, select: [{executables: ["*"]}]}
    - {name: batch}
`, os.Getuid()))
	status, out, errors := explainPID(t, path, fmt.Sprint(os.Getpid()))
	if status != 0 || errors != "" {
		t.Fatalf("status %d, %q", status, errors)
	}
	for _, want := range []string{
		path + " is good.\n", "enforcer.enabled is false", fmt.Sprintf("process %d\n", os.Getpid()), fmt.Sprint(os.Getuid()), "executable: " + exe, "workload: ",
		"so it is of mine and not of everybody: executables", "for whoever asks (gpusteward exec --tenant): batch\n",
		"on GPU 1: guarantee 10 %", "on every other GPU: guarantee 50 %", "ladder: up to throttle, shadow",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
}

func TestConfigCheckExplainsNobody(t *testing.T) {
	t.Parallel()
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	good := write(t, "")
	for pid, want := range map[string]string{
		"0": "--explain=0: a process's number is above 0", "-1": "above 0", "self": "--explain=self: ", "99999999999999999999": "above 0",
		fmt.Sprint(gone.Process.Pid): ": there is no such process\n",
	} {
		if status, out, errors := explainPID(t, good, pid); status != 1 || out != good+" is good.\n" || !strings.Contains(errors, want) {
			t.Errorf("%s: status %d, %q, %q; want 1 and %q", pid, status, out, errors, want)
		}
	}
	if status, out, errors := explainPID(t, "testdata/config/invalid/enforcer_tie.yml", "1"); status != 1 || out != "" || !strings.Contains(errors, "neither is more specific") {
		t.Errorf("a bad file: status %d, %q, %q", status, out, errors)
	}
}

func TestConfigCheckWarnsOfStrangers(t *testing.T) {
	t.Parallel()
	path := write(t, "enforcer:\n  tenants:\n    - {name: a, select: [{groups: [root]}, {users: [no-such-user]}]}\n")
	status, out, errors := check(t, path)
	if want := path + " is good.\nwarning: enforcer.tenants[0].select[1].users: nobody is selected by \"no-such-user\": "; status != 0 || !strings.HasPrefix(out, want) || errors != "" {
		t.Errorf("status %d, %q, %q; want 0 and %q", status, out, errors, want)
	}
}

// The example of a tenant in the reference works when its comment is taken away.
func TestReferenceConfigHasAGoodExample(t *testing.T) {
	t.Parallel()
	source, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(source), "  #   - name: serving\n")
	example, _, _ = strings.Cut(example, "  # Unit: ")
	if !found {
		t.Fatal("there is no example")
	}
	c, err := loadConfig(write(t, "enforcer:\n  tenants:\n    - name: serving\n"+strings.ReplaceAll("\n"+example, "\n  # ", "\n  ")[1:]))
	if err != nil {
		t.Fatal(err)
	}
	rules := c.Enforcer.table(nil).Rules
	none, memory, steps := 0., uint64(10<<30), TenantLadder{}.steps(defaultEnforcerConfig().Ladder)
	steps.Mode, steps.Shadow = policy.Throttle, false
	want := policy.Rule{
		Name: "serving", Select: []policy.Selector{{Units: []string{"triton*.service"}}, {Pods: []string{"inference/*"}}},
		Terms: policy.Terms{Priority: policy.PriorityHigh, Quota: policy.Quota{Guarantee: .5, Limit: .8, Memory: 40 << 30, Reserved: 20 << 30,
			LaunchWait: 20 * time.Millisecond, Bandwidth: .6}},
		Steps: steps,
		GPUs:  []policy.Override{{GPUs: []string{"0", "3"}, Guarantee: &none, Memory: &memory}},
	}
	if len(rules) != 3 || !reflect.DeepEqual(rules[0], want) || rules[2].Priority != policy.PriorityIdle || rules[1].Priority != policy.PriorityNormal || rules[1].Steps.Confirm != 3 {
		t.Errorf("the tenants are\n%+v\nwant first\n%+v", rules, want)
	}
}
