// Package procs looks at other processes in procfs where the kernel can have a reader
// wait: for as long as a process's memory is locked, or, in newer kernels, while it
// executes a program, most files and links of /proc/PID keep their readers, and a process
// can see to it that this never ends. Each look is on a thread of its own. One that the
// kernel is seen to hold is not waited for, and until the kernel lets it go, nobody looks
// at the process again. The sleep of such a thread ends with this process. The files
// cgroup, comm, schedstat and status, the lists of descriptors and tasks, and children are
// read anywhere: they wait for nobody. The files cmdline, environ and mem are for child
// processes (package worker): they read memory, which may be on a file system that never
// answers, and which no end of this process would interrupt.
package procs

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/worker"
)

// ErrHeld is the error of a look that the kernel does not let end.
var ErrHeld = errors.New("the kernel has whoever looks at the process wait, as it does while that executes a program")

// maxHeld bounds the looks that the kernel holds, each a thread.
const maxHeld = 64

// A kind is what is looked at.
type kind string

const (
	files  kind = "read"     // the content
	links  kind = "readlink" // where a link points
	owners kind = "stat"     // who owns what a link points at, and its mode: two numbers
)

// A found name has an error if it failed.
type found struct {
	text []byte
	err  error
}

// look looks at names in the directory of a process.
func look(k kind, dir string, names []string) []found {
	all := make([]found, len(names))
	for i, name := range names {
		f := &all[i]
		switch path := filepath.Join(dir, name); k {
		case files:
			f.text, f.err = os.ReadFile(path)
		case links:
			var target string
			target, f.err = os.Readlink(path)
			f.text = []byte(target)
		case owners: // without a question to a file system, which could let it wait for ever
			var is unix.Statx_t
			f.err = unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &is)
			f.text = fmt.Appendf(nil, "%d %d", is.Uid, is.Mode)
		}
	}
	return all
}

// lookAt looks at names in the directory of a process.
func lookAt(k kind, procfs string, pid int, names ...string) ([]found, error) {
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	var is unix.Statfs_t
	if unix.Statfs(procfs, &is) != nil || is.Type != unix.PROC_SUPER_MAGIC {
		return look(k, dir, names), nil // files that hold nobody
	}
	return looks.ask(k, dir, names)
}

// one looks at one name.
func one(k kind, procfs string, pid int, name string) ([]byte, error) {
	all, err := lookAt(k, procfs, pid, name)
	if err != nil {
		return nil, err
	}
	return all[0].text, all[0].err
}

// some looks at names, and leaves out those that fail. It fails if it cannot look at any.
func some(k kind, procfs string, pid int, names []string) (map[string]string, error) {
	all, err := lookAt(k, procfs, pid, names...)
	texts := map[string]string{}
	for i, f := range all {
		if f.err == nil {
			texts[names[i]] = string(f.text)
		}
	}
	return texts, err
}

// ReadFile returns the content of a file of a process.
func ReadFile(procfs string, pid int, name string) ([]byte, error) {
	return one(files, procfs, pid, name)
}

// ReadFiles returns the contents of those files of a process that can be read, by name.
func ReadFiles(procfs string, pid int, names []string) (map[string]string, error) {
	return some(files, procfs, pid, names)
}

// Readlink returns where a link of a process points.
func Readlink(procfs string, pid int, name string) (string, error) {
	target, err := one(links, procfs, pid, name)
	return string(target), err
}

// Readlinks returns where those links of a process point that can be read, by name.
func Readlinks(procfs string, pid int, names []string) (map[string]string, error) {
	return some(links, procfs, pid, names)
}

// Owner returns who owns the file that a link of a process points at, and its mode.
func Owner(procfs string, pid int, name string) (user, mode uint32, err error) {
	text, err := one(owners, procfs, pid, name)
	if err == nil {
		_, err = fmt.Sscan(string(text), &user, &mode)
	}
	return user, mode, err
}

// Stat returns the Fields of a process's stat.
func Stat(procfs string, pid int) ([][]byte, error) {
	line, err := ReadFile(procfs, pid, "stat")
	return Fields(line), err
}

// Fields returns what a line of stat says after the name of the process, which is in brackets
// and may contain anything: the state is the first field, and the start the 20th.
func Fields(line []byte) [][]byte { return bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:]) }

// State returns the state of a process, which its status tells to all: R, S, D, T and so on.
// It is 0 if there is no such process.
func State(procfs string, pid int) byte {
	status, _ := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "status"))
	_, state, _ := bytes.Cut(status, []byte("\nState:\t"))
	if len(state) == 0 {
		return 0
	}
	return state[0]
}

// Whose returns whose a process is: a user, or a cgroup of root's.
func Whose(procfs string, pid int) string { return owner(filepath.Join(procfs, strconv.Itoa(pid))) }

func owner(dir string) string {
	status, _ := os.ReadFile(filepath.Join(dir, "status")) // none: it has ended
	_, rest, _ := strings.Cut(string(status), "\nUid:")
	user, _, _ := strings.Cut(strings.TrimSpace(rest), "\t")
	if user != "0" {
		return user
	}
	cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	return user + " " + string(cgroup)
}

// A keeper makes looks, and knows those that the kernel holds. Its methods may be called
// concurrently.
type keeper struct {
	most int // looks that the kernel holds
	mu   sync.Mutex
	held map[*sent]bool
}

var looks = keeper{most: maxHeld}

// A sent look is on a thread of its own.
type sent struct {
	dir, of string      // of is known once it is held
	task    chan string // has the thread's directory once it looks
	found   chan []found
}

// ask makes a look. It fails if the kernel holds that, or holds an earlier one at the process,
// or more of its owner's than it may hold of others.
func (k *keeper) ask(kind kind, dir string, names []string) ([]found, error) {
	if err := k.refuses(dir); err != nil {
		return nil, err
	}
	l := &sent{dir: dir, task: make(chan string, 1), found: make(chan []found, 1)}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		l.task <- fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		all := look(kind, dir, names)
		k.mu.Lock()
		delete(k.held, l)
		l.found <- all
		k.mu.Unlock()
	}()
	again := time.NewTicker(worker.LookEvery)
	defer again.Stop()
	var witness worker.Witness
	for task := ""; ; {
		select {
		case all := <-l.found:
			return all, nil
		case task = <-l.task:
		case <-again.C:
			if task != "" && witness.Held(task) && k.giveUp(l) {
				return nil, fmt.Errorf("%s: %w", dir, ErrHeld)
			}
		}
	}
}

func (k *keeper) refuses(dir string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.held) == 0 {
		return nil
	}
	mine, of := 0, owner(dir)
	for l := range k.held {
		if l.dir == dir {
			return fmt.Errorf("%s: %w", dir, ErrHeld)
		}
		if l.of == of {
			mine++
		}
	}
	if free := k.most - len(k.held); mine >= free {
		return fmt.Errorf("%s: %w: %d looks at processes of its owner, and %d are free", dir, ErrHeld, mine, free)
	}
	return nil
}

// giveUp waits for a look no longer, unless it has just ended.
func (k *keeper) giveUp(l *sent) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(l.found) > 0 {
		return false
	}
	if k.held == nil {
		k.held = map[*sent]bool{}
	}
	l.of = owner(l.dir)
	k.held[l] = true
	return true
}
