package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

const reference = "deploy/gpusteward.yml"

// check runs "gpusteward config check FILE".
func check(t *testing.T, path string, more ...string) (status int, out, errors string) {
	t.Helper()
	return gpusteward(t, append([]string{"config", "check", path}, more...)...)
}

// TestConfigCheck: the command says whether a file is valid.
func TestConfigCheck(t *testing.T) {
	t.Parallel()
	if status, out, errors := check(t, reference); status != 0 || out != reference+" is good.\n" || errors != "" {
		t.Errorf("status %d, %q, %q", status, out, errors)
	}
	bad := fixture.Config(t, "collectors: {fats: 1s}\n")
	if status, out, errors := check(t, bad); status != 1 || out != "" || !strings.HasPrefix(errors, bad+":1: ") {
		t.Errorf("status %d, %q, %q", status, out, errors)
	}
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
	if status != 0 || errors != "" {
		t.Fatalf("status %d, %q", status, errors)
	}
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
	if status, out, errors := check(t, "internal/config/testdata/invalid/enforcer_tie.yml", "--explain="+"1"); status != 1 ||
		out != "" || !strings.Contains(errors, "neither is more specific") {
		t.Errorf("a bad file: status %d, %q, %q", status, out, errors)
	}
}

func TestConfigCheckWarnsOfUnknownUsers(t *testing.T) {
	t.Parallel()
	path := fixture.Config(t, "enforcer:\n  tenants:\n    - {name: a, select: [{groups: [root]}, {users: [no-such-user]}]}\n")
	status, out, errors := check(t, path)
	if want := path + " is good.\nwarning: enforcer.tenants[0].select[1].users: " +
		"\"no-such-user\" selects nothing: "; status != 0 || !strings.HasPrefix(out, want) || errors != "" {
		t.Errorf("status %d, %q, %q; want 0 and %q", status, out, errors, want)
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
		if status != 0 || errors != "" || !strings.Contains(out, want) {
			t.Errorf("status %d, %q; it does not say %q:\n%s", status, errors, want, out)
		}
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
