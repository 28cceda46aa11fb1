// Package procs reads the files in /proc/PID at which the kernel can block a reader: most
// files and links block while the process's memory is locked, or, in newer kernels, while
// it executes a program, and a process can make that last for ever. Each look runs on a
// thread of its own. If the kernel is seen to block the thread, the caller gets an error at
// once, and the next caller with the same question gets the late answer. Blocked threads
// end with this process. The files cgroup, comm, schedstat and status, the lists of
// descriptors and tasks, and children never block: any package reads them. Only child
// processes (package worker) read cmdline, environ and mem: these read memory, which may
// be on a file system that never answers, and the end of this process would not interrupt
// that.
package procs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/worker"
)

// ErrHeld is the error of a look that the kernel blocks.
var ErrHeld = errors.New("the kernel blocks readers of the process, as it does while the process executes a program")

// ErrLate is an ErrHeld of a look that is late, and may not be blocked. The same question may have its
// answer soon.
var ErrLate = fmt.Errorf("%w, for a moment at least", ErrHeld)

// Bounds of the looks that are late, each a thread. As many again may have an answer.
const (
	maxHeld   = 128
	freeParty = 16               // a party (Whose) has one in so many of the free ones, so few parties leave the others none
	keepFor   = 30 * time.Second // an answer that nobody has asked for again
)

// A patience is how long a caller waits for a look.
type patience bool

const (
	loop  patience = false // until its thread is seen to sleep in the kernel in the same place twice, 1 ms apart
	apart patience = true  // until the kernel is seen to hold it, as a Witness does
)

func (p patience) witness() *worker.Witness {
	if p == apart {
		return &worker.Witness{}
	}
	return &worker.Witness{Every: time.Millisecond, Enough: 1}
}

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
func lookAt(p patience, k kind, procfs string, pid int, names ...string) ([]found, error) {
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	var is unix.Statfs_t
	if unix.Statfs(procfs, &is) != nil || is.Type != unix.PROC_SUPER_MAGIC {
		return look(k, dir, names), nil // files that block nobody
	}
	return looks.ask(p, k, dir, names)
}

// one looks at one name.
func one(p patience, k kind, procfs string, pid int, name string) ([]byte, error) {
	all, err := lookAt(p, k, procfs, pid, name)
	if err != nil {
		return nil, err
	}
	return all[0].text, all[0].err
}

// some looks at names, and leaves out those that fail. It fails if it cannot look at any.
func some(p patience, k kind, procfs string, pid int, names []string) (map[string]string, error) {
	all, err := lookAt(p, k, procfs, pid, names...)
	texts := map[string]string{}
	for i, f := range all {
		if f.err == nil {
			texts[names[i]] = string(f.text)
		}
	}
	return texts, err
}

// ReadFiles returns the contents of those files of a process that can be read, by name.
func ReadFiles(procfs string, pid int, names []string) (map[string]string, error) {
	return some(loop, files, procfs, pid, names)
}

// Readlink returns where a link of a process points.
func Readlink(procfs string, pid int, name string) (string, error) {
	target, err := one(loop, links, procfs, pid, name)
	return string(target), err
}

// AwaitLink is Readlink for callers that can wait the second that it takes to see that the kernel blocks
// the look. A loop must not.
func AwaitLink(procfs string, pid int, name string) (string, error) {
	target, err := one(apart, links, procfs, pid, name)
	return string(target), err
}

// Readlinks returns where those links of a process point that can be read, by name.
func Readlinks(procfs string, pid int, names []string) (map[string]string, error) {
	return some(loop, links, procfs, pid, names)
}

// AwaitLinks is Readlinks for callers that can wait, like AwaitLink.
func AwaitLinks(procfs string, pid int, names []string) (map[string]string, error) {
	return some(apart, links, procfs, pid, names)
}

// Owner returns who owns the file that a link of a process points at, and its mode.
func Owner(procfs string, pid int, name string) (user, mode uint32, err error) {
	text, err := one(loop, owners, procfs, pid, name)
	if err == nil {
		_, err = fmt.Sscan(string(text), &user, &mode)
	}
	return user, mode, err
}

// State returns the state of a process, from its file status: R, S, D, T and so on. It is 0 if there is
// no such process.
func State(procfs string, pid int) byte {
	status, _ := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "status"))
	if state := StatusLine(status, "State"); len(state) > 0 {
		return state[0][0]
	}
	return 0
}

// A keeper makes looks, and knows those that are late. Its methods may be called concurrently.
type keeper struct {
	most int // looks that are late
	mu   sync.Mutex
	late map[string]*sent // by what is looked at
}

var looks = keeper{most: maxHeld}

// A sent look is on a thread of its own.
type sent struct {
	process int          // descriptor of the process's directory, which finds no other process; -1: none
	task    chan string  // has the thread's directory once it looks
	found   chan []found // has room

	what, of string    // what is looked at, and whose process it is; once it is late
	since    time.Time // that it is late; zero: it is not
	held     bool      // the kernel is seen to hold it
}

// ask makes a look, or has the answer of one that was late. It fails if the kernel holds the look, or
// as many of its party's as it may hold.
func (k *keeper) ask(p patience, kind kind, dir string, names []string) ([]found, error) {
	if all, err := k.earlier(kind, dir, names); all != nil || err != nil {
		return all, err
	}
	l := &sent{task: make(chan string, 1), found: make(chan []found, 1)}
	l.process, _ = unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0) // none: it has ended
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		l.task <- fmt.Sprintf("/proc/self/task/%d", unix.Gettid())
		all := look(kind, dir, names)
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.found <- all; !l.since.IsZero() && len(names) > 1 { // it may be large, and is not kept
			k.forget(l)
		}
	}()
	w := p.witness()
	again := time.NewTicker(w.Interval())
	defer again.Stop()
	for task := ""; ; {
		select {
		case all := <-l.found:
			_ = unix.Close(l.process)
			return all, nil
		case task = <-l.task:
		case <-again.C:
			if task == "" || !w.Held(task) {
				continue
			}
			if err := k.await(l, task, kind, dir, names); err != nil {
				return nil, err
			}
		}
	}
}

func key(kind kind, dir string, names []string) string {
	return fmt.Sprintf("%s %s %q", kind, dir, names)
}

// err returns why there is no answer. The caller has locked the keeper.
func (l *sent) err() error {
	if l.held {
		return fmt.Errorf("%s: %w", l.what, ErrHeld)
	}
	return fmt.Errorf("%s: %w", l.what, ErrLate)
}

// earlier returns the answer of a look that was late. It fails if that has none yet, or if too many
// looks are late. Without an error and an answer, there is to be a new look.
func (k *keeper) earlier(kind kind, dir string, names []string) ([]found, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.late) == 0 {
		return nil, nil
	}
	if l := k.late[key(kind, dir, names)]; l != nil {
		if len(l.found) == 0 {
			return nil, l.err()
		}
		same := unix.Faccessat(l.process, "status", unix.F_OK, 0) == nil
		if k.forget(l); same {
			return <-l.found, nil
		}
	}
	mine, all, of := 0, 0, party(dir)
	for _, l := range k.late {
		switch {
		case len(l.found) == 0:
			if all++; l.of == of {
				mine++
			}
		case time.Since(l.since) > keepFor || len(k.late) > 2*k.most: // it has no thread any more
			k.forget(l)
		}
	}
	if all >= k.most || mine >= max(1, (k.most-all+mine)/freeParty) {
		return nil, fmt.Errorf("%s: %w: %d other looks at processes of its owner are late, and %d in all", dir, ErrHeld, mine, all)
	}
	return nil, nil
}

// await records that a look is late, unless it has just ended. Its error says that there is no answer.
func (k *keeper) await(l *sent, task string, kind kind, dir string, names []string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(l.found) > 0 {
		return nil
	}
	if l.what = key(kind, dir, names); k.late[l.what] != nil {
		l.what += " " + task // of two callers that asked at the same time, one gets the answer
	}
	if k.late == nil {
		k.late = map[string]*sent{}
	}
	l.of, l.since, k.late[l.what] = party(dir), time.Now(), l
	go k.judge(l, task)
	return l.err()
}

// judge finds whether the kernel holds a look that is late.
func (k *keeper) judge(l *sent, task string) {
	var w worker.Witness
	for again := time.Tick(w.Interval()); len(l.found) == 0; <-again {
		if w.Held(task) {
			k.mu.Lock()
			l.held = true
			k.mu.Unlock()
			return
		}
	}
}

// forget forgets a look that was late. The caller has locked the keeper.
func (k *keeper) forget(l *sent) {
	if k.late[l.what] == l {
		_ = unix.Close(l.process)
		delete(k.late, l.what)
	}
}
