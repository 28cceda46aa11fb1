package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// asConfined is the environment variable that makes the test binary confine
// itself and print what it has left.
const asConfined = "GPUSTEWARD_TEST_AS_CONFINED"

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
		m := regexp.MustCompile(`Cap` + set + `:\s*(\w+)`).FindStringSubmatch(string(out))
		if m == nil || strings.TrimLeft(m[1], "0") != "80020" { // CAP_SYS_PTRACE is 19, CAP_KILL 5
			t.Errorf("Cap%s is not CAP_KILL and CAP_SYS_PTRACE alone:\n%s", set, out)
		}
	}
	if !strings.Contains(string(out), "NoNewPrivs:\t1") {
		t.Errorf("it could get others again:\n%s", out)
	}
}
