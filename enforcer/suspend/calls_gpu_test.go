//go:build gpu

package suspend

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/internal/fixture"
)

// TestGPUSuspendedCalls has a thread call the driver while its process is being
// suspended, and only once it is. It prints which calls wait, and which end the
// process. A process that calls nothing lives.
func TestGPUSuspendedCalls(t *testing.T) {
	out := fixture.Value(exec.Command("python3", program("calls.py")).Output())(t)
	for call := range strings.Lines(string(out)) {
		call = strings.TrimSpace(call)
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s,late=%v", call, late), func(t *testing.T) { suspendedCalls(t, call, late) })
		}
	}
}

func suspendedCalls(t *testing.T, call string, late bool) {
	e := begin(t, 0, "calls.py", call)
	count := func(order string) string {
		e.tell(order)
		if !e.out.Scan() {
			return "the process ended"
		}
		return strings.TrimPrefix(e.out.Text(), "count ")
	}
	settled := func() string { // a thread that does not wait makes many calls meanwhile
		time.Sleep(100 * time.Millisecond)
		return count("count")
	}
	s := suspender(t)
	s.Alive = func(of action.Target) bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", of.PID))
		return err == nil && !strings.Contains(string(stat), ") Z ")
	}
	if !late {
		count("begin")
		settled()
	}
	s.send(t, e, listed(t, e.cmd.Process.Pid))
	if end := s.result(t); end.Err != nil { // of the process, too
		t.Logf("%s, late %v: %v", call, late, end.Err)
		if call == "none" {
			t.Error("a process that calls nothing is not suspended")
		}
		return
	}
	if late {
		count("begin")
	}
	away := settled() + ", " + settled()
	s.resume(t, e)
	back, last := settled(), settled()
	_ = e.cmd.Process.Kill()
	t.Logf("%s, late %v: suspended %s; resumed %s, %s; %v", call, late, away, back, last, e.cmd.Wait())
	if call == "none" && strings.Contains(last, "ended") {
		t.Errorf("a process that calls nothing ends: %v", e.cmd.ProcessState)
	}
}
