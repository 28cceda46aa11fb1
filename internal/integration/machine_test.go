package integration

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// machine is the root directory of the host that agents run on, unless a test
// has another for them. They find nothing of this machine but its processes.
var machine string

// bare makes a directory the root of a host without a driver and without
// configuration, whose kernel has logged nothing.
func bare(root string) error {
	return errors.Join(os.Chmod(root, 0o755), os.Mkdir(filepath.Join(root, "dev"), 0o755),
		os.WriteFile(filepath.Join(root, "dev/kmsg"), nil, 0o644), os.Mkdir(filepath.Join(root, "sys"), 0o755),
		os.Symlink("/proc", filepath.Join(root, "proc")))
}

// records returns texts as records of the kernel's log. They came one after the
// other, the last one an interval ago.
func records(interval time.Duration, texts []string) string {
	var log strings.Builder
	for i, text := range texts {
		at := time.Duration(fixture.Monotonic()) - time.Duration(len(texts)-i)*interval
		fmt.Fprintf(&log, "4,%d,%d,-;%s\n", i, at.Microseconds(), text)
	}
	return log.String()
}

// onFaulty is the environment variable that has all tests run on a machine whose
// kernel has logged every fault that there is, as real hosts do. A test that
// reads this machine's log fails then. It requires root.
const onFaulty = "GPUSTEWARD_TEST_ON_FAULTY_MACHINE"

// beFaulty begins this program anew, in a mount namespace with such a log. It
// does not return, unless that fails.
func beFaulty() error {
	lines, err := os.ReadFile("../../health/incident/testdata/kernel-lines.tsv")
	if err != nil {
		return err
	}
	var texts []string
	for row := range strings.Lines(string(lines)) {
		texts = append(texts, strings.Split(row, "\t")[1])
	}
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return err
	}
	path := filepath.Join(dir, "kmsg")
	runtime.LockOSThread() // the namespace is that of a thread
	for _, do := range []func() error{
		func() error { return os.WriteFile(path, []byte(records(time.Millisecond, texts)), 0o644) },
		func() error { return unix.Unshare(unix.CLONE_NEWNS) },
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Mount(path, "/dev/kmsg", "", unix.MS_BIND, "") },
		func() error { return os.RemoveAll(dir) },
		func() error { return os.Unsetenv(onFaulty) },
		func() error { return syscall.Exec("/proc/self/exe", os.Args, os.Environ()) },
	} {
		if err := do(); err != nil {
			return fmt.Errorf("%s: %w", onFaulty, err)
		}
	}
	return nil
}
