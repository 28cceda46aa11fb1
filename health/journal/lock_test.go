package journal

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// TestLockOfKilledAgent has a lock that outlives the process that took it, as it does while
// one of its threads hangs in the driver, or a child of it has not begun yet.
func TestLockOfKilledAgent(t *testing.T) {
	t.Parallel()
	space := fixture.Value(os.Readlink("/proc/self/ns/pid"))(t)
	lives, ended := exec.Command("sleep", "600"), exec.Command("true")
	for _, cmd := range []*exec.Cmd{lives, ended} {
		fixture.Must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	zombie := ended.Process.Pid
	fixture.Must(t, unix.Waitid(unix.P_PID, zombie, nil, unix.WEXITED|unix.WNOWAIT, nil))
	gone := exec.Command("true")
	fixture.Must(t, gone.Run())
	for name, c := range map[string]struct {
		owner string
		taken bool
	}{
		"it lives":                {fmt.Sprintf("%d %s\n", lives.Process.Pid, space), false},
		"it was killed":           {fmt.Sprintf("%d %s\n", zombie, space), true},
		"it has ended":            {fmt.Sprintf("%d %s\n", gone.Process.Pid, space), true},
		"it is in a container":    {fmt.Sprintf("%d pid:[1]\n", zombie), false},
		"it is of a version ago":  {"", false},
		"somebody wrote the file": {"everybody " + space, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "events.lock")
			held := fixture.Value(lockNow(path, os.O_RDWR|os.O_CREATE))(t)
			defer unlock(held)
			fixture.Must(t, fixture.Error(held.WriteString(c.owner)))
			file, err := lockFile(path)
			if err == nil != c.taken || !c.taken && !errors.Is(err, errLocked) {
				t.Fatalf("%v, want it taken: %v", err, c.taken)
			}
			if !c.taken {
				return
			}
			if _, err := lockFile(path); !errors.Is(err, errLocked) {
				t.Errorf("another one: %v", err)
			}
			unlock(file)
			if file, err = lockFile(path); err != nil {
				t.Fatalf("the next one: %v", err)
			}
			unlock(file)
		})
	}
}

// TestLockOnAFullDisk has no room for the name of the owner.
func TestLockOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Skip("only root can mount a small file system:", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, 4096), 0o600))
	path := filepath.Join(dir, "events.lock")
	file := fixture.Value(lockFile(path))(t)
	defer unlock(file)
	if _, err := lockFile(path); !errors.Is(err, errLocked) {
		t.Errorf("another one: %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) > 0 {
		t.Errorf("the disk is not full: %q, %v", text, err)
	}
}

func TestKilled(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		"Name:\tgpusteward\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n":      false,
		"Name:\tgpusteward\nState:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n":    false,
		"Name:\tgpusteward\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n":    true,
		"Name:\tgpusteward\nState:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n":    true,
		"Name:\tgpusteward\nState:\tS (sleeping)\nSigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\n":      false,
		"Name:\tgpusteward\nState:\tZ (zombie)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n":        true,
		"Name:\tZ\nState:\tR (running)\nSigPnd:\t0000000000000000\nShdPnd:\tffff\nSigBlk:\tffffffffffffffff\n": true,
		"Name:\tgpusteward\nState:\tS (sleeping)\nSigBlk:\t0000000000000100\nSigCgt:\tfffffffffffffeff\n":      false,
		"": false,
	} {
		fixture.Equal(t, killed([]byte(status)), want, "%q", status)
	}
}
