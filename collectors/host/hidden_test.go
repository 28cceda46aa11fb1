package host

import (
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

// asNobody calls f on a thread of an unprivileged user, which ends with f.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends
		_, _, failed := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
		for _, call := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
			if failed == 0 {
				_, _, failed = syscall.RawSyscall(call, 65534, 65534, 65534)
			}
		}
		if failed == 0 {
			f()
		}
		done <- failed
	}()
	fixture.Need(t, <-done, 0, "the failures are")
}

func TestHidden(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can mount procfs")
	}
	for options, want := range map[string]string{"": "", "hidepid=1": "hidepid=", "hidepid=2": "hidepid="} {
		dir, err := os.MkdirTemp("", "proc") // t.TempDir is closed to other users
		fixture.Must(t, err)
		t.Cleanup(func() { os.Remove(dir) })
		fixture.Must(t, os.Chmod(dir, 0o755))
		if err := syscall.Mount("proc", dir, "proc", 0, options); err != nil {
			t.Skip("cannot mount procfs here:", err)
		}
		t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
		fixture.Must(t, Hidden(dir))
		asNobody(t, func() { err = Hidden(dir) })
		if (err == nil) != (want == "") ||
			err != nil && (!strings.Contains(err.Error(), dir+" is mounted with "+want) ||
				!strings.Contains(err.Error(), "ProtectProc=default")) {
			t.Errorf("%q: %v", options, err)
		}
	}
	fixture.Must(t, Hidden(t.TempDir()))
}
