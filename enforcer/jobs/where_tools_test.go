//go:build tools

package jobs

import (
	"os/exec"
	"path/filepath"
	"testing"

	"gpusteward/internal/fixture"
)

// TestWhere asks where a real process stands, and where one does whose GPU another thread polls or sleeps for.
func TestWhere(t *testing.T) {
	for name, waits := range map[string]string{"polls": "while True: pass", "sleeps": "lock.acquire()"} {
		program := filepath.Join(t.TempDir(), "program.py")
		fixture.Rewrite(t, program, `
import threading, time
lock = threading.Lock()
lock.acquire()
def `+name+`():
    `+waits+`
threading.Thread(target=threading.Event().wait, daemon=True).start()
threading.Thread(target=`+name+`, daemon=True).start()
def waits_for_data():
    print("ready", flush=True)
    time.sleep(600)
waits_for_data()
`)
		child := exec.CommandContext(t.Context(), "python3", program)
		out := fixture.Value(child.StdoutPipe())(t)
		fixture.Must(t, child.Start())
		defer func() {
			_ = child.Process.Kill()
			_ = child.Wait()
		}()
		fixture.Must(t, fixture.Error(out.Read(make([]byte, 5))))
		var o Observer
		fixture.Contains(t, o.where(child.Process.Pid, "absent"), "waits_for_data", "it stands at")
		fixture.Contains(t, o.where(child.Process.Pid, "kernel"), name, "it waits for its GPU at")
	}
}
