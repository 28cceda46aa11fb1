//go:build gpu

package suspend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
)

// TestGPUFaultsOfSuspended has a thread of a suspended process call what makes the driver's
// library fault. The guard holds it, and it goes on when the process has its state back.
func TestGPUFaultsOfSuspended(t *testing.T) {
	for _, call := range []string{"none", "cuStreamQuery", "cuEventQuery", "cuEventElapsedTime", "cuStreamSynchronize",
		"cuEventSynchronize", "cuCtxSynchronize"} {
		t.Run(call, func(t *testing.T) {
			e := begin(t, 0, "calls.py", call)
			pid := e.cmd.Process.Pid
			count := func(order string) string {
				time.Sleep(200 * time.Millisecond) // many calls
				e.tell(order)
				if !e.out.Scan() {
					return "the process ended"
				}
				return strings.TrimPrefix(e.out.Text(), "count ")
			}
			s := suspender(t)
			s.Guard = &Guards{}
			defer s.Close()
			s.suspend(t, e, listed(t, pid))
			before, during := count("begin"), count("count")
			held := s.Holds(pid)
			where := heldAt(pid)
			s.resume(t, e)
			after, last := count("count"), count("count")
			t.Logf("%s: suspended %s, %s; held %v in %q; resumed %s, %s", call, before, during, held, where, after, last)
			if strings.Contains(last, "ended") || after == last || held != (call != "none") {
				t.Errorf("%s: it is not held, or does not go on", call)
			}
		})
	}
}

// heldAt returns the program counters of the threads of a process that are held, and their
// mappings.
func heldAt(pid int) (all []string) {
	var maps []*procfs.ProcMap
	if process, err := procfs.NewProc(pid); err == nil {
		maps, _ = process.ProcMaps()
	}
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, task := range tasks {
		stat, _ := os.ReadFile(filepath.Join(task, "stat"))
		at, _ := os.ReadFile(filepath.Join(task, "syscall"))
		var stack, counter uint64
		if n, _ := fmt.Sscanf(string(at), "-1 0x%x 0x%x", &stack, &counter); n != 2 || !strings.Contains(string(stat), ") t ") {
			continue
		}
		all = append(all, fmt.Sprintf("%#x", counter))
		for _, m := range maps {
			if uint64(m.StartAddr) <= counter && counter < uint64(m.EndAddr) {
				all = append(all, m.Pathname)
			}
		}
	}
	return all
}
