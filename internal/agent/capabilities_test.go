package agent

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// asConfined is the environment variable that makes the test binary confine
// itself and print its remaining capabilities.
const asConfined = "GPUSTEWARD_TEST_AS_CONFINED"

func TestMain(m *testing.M) {
	if os.Getenv(asConfined) != "" {
		if err := confine(enforcing); err != nil {
			panic(err)
		}
		status, _ := os.ReadFile("/proc/self/status")
		os.Stdout.Write(status)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestConfine(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asConfined+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, set := range []string{"Prm", "Eff", "Bnd"} {
		if has := capabilities(t, set, string(out)); has != permitted(t)&uint64(mask(enforcing)) {
			t.Errorf("Cap%s has others than the enforcing ones, or lacks one:\n%s", set, out)
		}
	}
	if !strings.Contains(string(out), "NoNewPrivs:\t1") {
		t.Errorf("it could get others again:\n%s", out)
	}
}

// capabilities returns a set of capabilities from a process's status.
func capabilities(t *testing.T, set, status string) uint64 {
	t.Helper()
	m := regexp.MustCompile(`Cap` + set + `:\s*(\w+)`).FindStringSubmatch(status)
	if m == nil {
		t.Fatalf("no Cap%s in %s", set, status)
	}
	has, err := strconv.ParseUint(m[1], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return has
}

// permitted returns the capabilities that this process may have: root in a
// container lacks some.
func permitted(t *testing.T) uint64 {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	return capabilities(t, "Prm", string(status))
}
