package stack

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
	"gpusteward/internal/worker"
)

// A victim has library mapped from the first file, and where that would have Python's state, the second one, or memory
// of which it never provides a page. A broker reads the processes that it is told, all at once, writes what it found
// and how many threads it then has, and goes on. After as many answers as the first argument says, the rest is late.
func init() {
	worker.Register("victim", func(args []string) error {
		page, at := os.Getpagesize(), uintptr(1)<<40
		overlaid := func(at uintptr, path string, offset int) error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			return fixture.Mapped(at, f.Fd(), offset)
		}
		err := overlaid(at, args[0], 0)
		if err == nil && args[1] == "" {
			err = fixture.Missing(at + 2*uintptr(page))
		} else if err == nil {
			err = overlaid(at+2*uintptr(page), args[1], page)
		}
		fmt.Println("ready", err)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return err
	})
	worker.Register("broker", func(args []string) error {
		var all sync.WaitGroup
		var answers atomic.Int32
		enough, _ := strconv.Atoi(args[0])
		ctx, late := context.WithCancelCause(context.Background())
		for _, arg := range args[1:] {
			all.Go(func() {
				pid, _ := strconv.Atoi(arg)
				p, err := Of(ctx, pid, Options{})
				if err != nil {
					p = &Process{Problem: err.Error()}
				}
				fmt.Printf("%d %d %s\n", pid, len(p.Threads), p.Problem)
				if answers.Add(1) == int32(enough) {
					late(context.DeadlineExceeded)
				}
			})
		}
		all.Wait()
		tasks, _ := os.ReadDir("/proc/self/task")
		fmt.Println("held", Held(), len(tasks))
		select {}
	})
}

// begin starts this program to do work as a user until the test ends.
func begin(t *testing.T, user uint32, work string, args ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append(worker.Begins(work), args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	cmd.Stderr = os.Stderr
	_ = fixture.Value(cmd.StdinPipe())(t)
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	return cmd, bufio.NewReader(out)
}

// victim returns the PID of one of a user's.
func victim(t *testing.T, user uint32, args ...string) int {
	t.Helper()
	cmd, out := begin(t, user, "victim", args...)
	fixture.Equal(t, fixture.Value(out.ReadString('\n'))(t), "ready <nil>\n", "a victim is")
	return cmd.Process.Pid
}

// libraryFile returns the path of library as a file.
func libraryFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "libpythonx.so")
	fixture.Must(t, os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755)) // which others reach
	fixture.Must(t, os.WriteFile(path, append(library(), make([]byte, 8192)...), 0o644))
	return path
}

// TestMemoryThatIsNeverThere reads processes whose Python is on a page that is never
// provided. Each is told of at once, with the reason, and nothing is held.
func TestMemoryThatIsNeverThere(t *testing.T) {
	stuck, reads, _ := fixture.Stuck(t, library())
	for name, c := range map[string]struct{ file, state, want string }{
		"a page of FUSE":        {libraryFile(t), stuck, "is not there before a file system or the process itself provides"},
		"a page of userfaultfd": {libraryFile(t), "", "is not there before a file system or the process itself provides"},
		"a library on FUSE":     {filepath.Join(filepath.Dir(stuck), "libpythonx.so"), stuck, "its file system (fuse) is not read"},
	} {
		p, err := Of(t.Context(), victim(t, 0, c.file, c.state), Options{})
		fixture.If(t, err != nil || len(p.Threads) == 0 || !strings.Contains(p.Problem, c.want),
			"%s: %v %+v", name, err, p)
	}
	fixture.Equal(t, Held(), 0, "readings that the kernel holds")
	fixture.Equal(t, reads(), 0, "reads of FUSE beyond its first page")
}

// TestBrokerBesideTheHeld has a broker read 50 processes with a page of FUSE, ten of root's whose library is on an
// overlay of FUSE, which the kernel does hold, and one that is as it should be. All are told of, one reading is held,
// and the broker ends when it is told to.
func TestBrokerBesideTheHeld(t *testing.T) {
	stuck, _, letGo := fixture.Stuck(t, library())
	overlay := t.TempDir()
	if err := unix.Mount("overlay", overlay, "overlay", unix.MS_RDONLY,
		"lowerdir="+filepath.Dir(stuck)+":"+t.TempDir()); err != nil {
		t.Skipf("SKIPPED: no overlay of FUSE here: %v", err)
	}
	t.Cleanup(func() { letGo(); unix.Unmount(overlay, unix.MNT_DETACH) })
	plain := libraryFile(t)
	want := map[int]string{}
	for range 50 {
		want[victim(t, 6001, plain, stuck)] = "some of its memory is not there"
	}
	for range 10 {
		want[victim(t, 0, filepath.Join(overlay, "libpythonx.so"), plain)] = "the kernel holds|reading took longer than"
	}
	well := victim(t, 6002, plain, plain)
	want[well] = "Python"
	pids := []string{strconv.Itoa(len(want) - 9)} // the other nine of root's wait
	for pid := range want {
		pids = append(pids, strconv.Itoa(pid))
	}
	broker, out := begin(t, 0, "broker", pids...)
	began := time.Now()
	for n := 0; ; n++ {
		line := fixture.Value(out.ReadString('\n'))(t)
		var pid, threads int
		if held, _ := fmt.Sscanf(line, "held %d %d", &pid, &threads); held == 2 {
			fixture.Equal(t, n, len(want), "processes that are told of")
			fixture.Equal(t, pid, 1, "readings that are held")
			fixture.AtMost(t, threads, 30, "threads")
			t.Logf("%d threads", threads)
			break
		}
		_, err := fmt.Sscanf(line, "%d %d", &pid, &threads)
		ok := false
		for part := range strings.SplitSeq(want[pid], "|") {
			ok = ok || strings.Contains(line, part)
		}
		if !ok || err != nil {
			t.Errorf("%s, want %q", line, want[pid])
		}
		if pid == well {
			t.Logf("after %v: %s", time.Since(began), line)
		}
	}
	told := time.Now()
	fixture.Must(t, broker.Process.Signal(syscall.SIGTERM))
	_ = broker.Wait()
	t.Logf("all were read after %v, and SIGTERM was obeyed after %v", told.Sub(began), time.Since(told))
}
