package host

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

const asStranger = "GPUSTEWARD_TEST_IN_A_PID_NAMESPACE"

// TestPIDsOfAnotherNamespaceAreRecognised lets a process ask in its own PID
// namespace, where its PID is not the one in the kernel's log. From outside, it
// has the PID that the kernel logs. The test needs root.
func TestPIDsOfAnotherNamespaceAreRecognised(t *testing.T) {
	if os.Getenv(asStranger) != "" {
		os.Stdout.WriteString("in it " + strconv.FormatBool(InitialPIDs()) + " " + strconv.Itoa(os.Getpid()) + "\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the test ends it
		os.Exit(0)
	}
	if os.Getuid() != 0 {
		t.Skip("the test needs root")
	}
	name, err := os.Readlink("/proc/self/ns/pid")
	if err != nil || InitialPIDs() != (name == "pid:[4026531836]") {
		t.Errorf("in %s: %v, %v", name, InitialPIDs(), err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), asStranger+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	stdin := fixture.Value(cmd.StdinPipe())(t)
	stdout := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	line := make([]byte, 100)
	n, _ := stdout.Read(line)
	fixture.Equal(t, string(bytes.TrimSpace(line[:n])), "in it false 1", "the stranger says")
	proc := fixture.Value(ProcFS("/proc"))(t)
	if p, err := NewTable(Options{Proc: proc}).Lookup(cmd.Process.Pid); err != nil ||
		p.Comm != fmt.Sprintf("%.15s", filepath.Base(os.Args[0])) {
		t.Errorf("from outside it is %+v, %v", p, err)
	}
	stdin.Close()
	fixture.Must(t, cmd.Wait())
}
