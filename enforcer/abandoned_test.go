package enforcer_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"gpusteward/internal/wire"
)

// pageOf returns the page of a process's session, read from its memory.
func pageOf(t *testing.T, pid int) wire.Page {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var from int64
		if _, err := fmt.Sscanf(line, "%x-", &from); err == nil && strings.Contains(line, "/memfd:gpusteward-page") {
			page := make(wire.Page, wire.PageSize)
			if _, err := memory.ReadAt(page, from); err != nil {
				t.Fatal(err)
			}
			return page
		}
	}
	t.Fatalf("process %d has no page", pid)
	return nil
}

// killChildren kills a process's children.
func killChildren(t *testing.T, w *worker) {
	t.Helper()
	pid := w.cmd.Process.Pid
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid)) // none if the process is gone
	for _, child := range strings.Fields(string(text)) {
		if n, err := strconv.Atoi(child); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}
