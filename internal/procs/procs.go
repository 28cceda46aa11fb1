// Package procs looks at other processes in procfs where the kernel can have a reader
// wait: for as long as a process's memory is locked, or, in newer kernels, while it
// executes a program, most files and links of /proc/PID keep their readers, and a process
// can see to it that this never ends. A child process reads them, each on a thread of its
// own, and who looks goes on without an answer. The files cgroup, comm, schedstat and
// status, the lists of descriptors and tasks, and children are read anywhere: they wait
// for nobody.
package procs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/worker"
)

// ErrHeld is the error of a look that the kernel does not let end.
var ErrHeld = errors.New("the kernel has whoever looks at the process wait, as it does while that executes a program")

const (
	work      = "look-at-processes"
	maxHeld   = 64                    // looks that the kernel holds
	maxMemory = 512 << 20             // bytes of a child's memory, of which Go reserves much
	soon      = 50 * time.Millisecond // in which a look ends, unless the host is busy
	busy      = 2 * time.Second       // a look that was begun after it takes less, or the child is given up
	again     = 30 * time.Second      // until a held look is tried once more in another child
)

// reader is the child. The kernel lets it end in nearly all cases.
var reader = worker.Kind{Command: worker.Begins(work), Running: 1, Children: 3, Memory: maxMemory, Confined: true,
	Keeps: []int{unix.CAP_SYS_PTRACE, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_CHECKPOINT_RESTORE}}

// An order is a look at some names in a process's directory.
type order struct {
	ID    uint64
	Kind  kind
	Dir   string
	Names []string
}

// A kind is what is looked at.
type kind string

const (
	files  kind = "read"     // the content
	links  kind = "readlink" // where a link points
	owners kind = "stat"     // who owns what a link points at, and its mode: two numbers
)

// An answer is what the child found, by name.
type answer struct {
	ID    uint64
	Found []found
}

// A found name failed if it has an error.
type found struct {
	Text  []byte        `json:",omitempty"`
	Error string        `json:",omitempty"`
	Errno syscall.Errno `json:",omitempty"` // 0: none
}

// err returns why it failed.
func (f found) err(k kind, path string) error {
	switch {
	case f.Errno != 0:
		return &os.PathError{Op: string(k), Path: path, Err: f.Errno}
	case f.Error != "":
		return errors.New(f.Error)
	}
	return nil
}

// look looks at names in the directory of a process.
func look(k kind, dir string, names []string) []found {
	all := make([]found, len(names))
	for i, name := range names {
		var err error
		switch path := filepath.Join(dir, name); k {
		case files:
			all[i].Text, err = os.ReadFile(path)
		case links:
			var target string
			target, err = os.Readlink(path)
			all[i].Text = []byte(target)
		case owners: // without a question to a file system, which could let it wait for ever
			var is unix.Statx_t
			err = unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS, &is)
			all[i].Text = fmt.Appendf(nil, "%d %d", is.Uid, is.Mode)
		}
		if err != nil {
			all[i].Error = err.Error()
			errors.As(err, &all[i].Errno)
		}
	}
	return all
}

// lookAt has the child look, unless the directory is one of files that hold nobody.
func lookAt(k kind, procfs string, pid int, names ...string) ([]found, error) {
	o := order{Kind: k, Dir: filepath.Join(procfs, strconv.Itoa(pid)), Names: names}
	var is unix.Statfs_t
	if unix.Statfs(procfs, &is) != nil || is.Type != unix.PROC_SUPER_MAGIC {
		return look(k, o.Dir, names), nil
	}
	return child.ask(o)
}

// one looks at one name.
func one(k kind, procfs string, pid int, name string) ([]byte, error) {
	all, err := lookAt(k, procfs, pid, name)
	if err != nil {
		return nil, err
	}
	return all[0].Text, all[0].err(k, filepath.Join(procfs, strconv.Itoa(pid), name))
}

// some looks at names, and leaves out those that fail. It fails if it cannot look at any.
func some(k kind, procfs string, pid int, names []string) (map[string]string, error) {
	all, err := lookAt(k, procfs, pid, names...)
	texts := map[string]string{}
	for i, f := range all {
		if f.err(k, "") == nil {
			texts[names[i]] = string(f.Text)
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

// A server is the child as this process sees it. Its methods may be called concurrently.
type server struct {
	kind    *worker.Kind
	most    int // looks that the kernel holds; then another child takes over, and these end
	mu      sync.Mutex
	conn    net.Conn // nil: there is no child
	cancel  context.CancelFunc
	last    uint64 // order
	waiting map[uint64]chan answer
	held    map[string]*heldLook // by directory
}

// A heldLook is the last one at a process that was given up.
type heldLook struct {
	order uint64 // 0: its child has ended
	at    time.Time
}

var child = server{kind: &reader, most: maxHeld}

// ask has the child make a look.
func (s *server) ask(o order) ([]found, error) {
	for try := 0; ; try++ {
		l, err := s.send(o)
		if err != nil {
			return nil, err
		}
		a, told := l.wait(soon)
		if !told { // a look after it tells whether the child is as slow as that
			next, err := s.send(order{})
			if err != nil {
				return nil, err
			}
			if _, lives := next.wait(busy); !lives {
				next.cancel()
			}
			a, told = l.wait(soon)
		}
		switch {
		case !told:
			s.giveUp(o, l)
			return nil, fmt.Errorf("%s: %w", o.Dir, ErrHeld)
		case a.ID == 0 && try == 0: // the child has ended, maybe for the looks of others
		case a.ID == 0:
			return nil, errors.New("the process that looks at others has ended")
		default:
			return a.Found, nil
		}
	}
}

// A sent look waits for its answer, whose ID is 0 if the child ends first.
type sent struct {
	id     uint64
	answer chan answer
	cancel context.CancelFunc // of the child
}

func (l sent) wait(long time.Duration) (a answer, told bool) {
	late := time.NewTimer(long)
	defer late.Stop()
	select {
	case a = <-l.answer:
		return a, true
	case <-late.C:
		return a, false
	}
}

// send gives the child an order.
func (s *server) send(o order) (sent, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.held[o.Dir]; h != nil && (h.order != 0 || time.Since(h.at) < again) {
		return sent{}, fmt.Errorf("%s: %w", o.Dir, ErrHeld)
	}
	if s.conn == nil {
		if err := s.begin(); err != nil {
			return sent{}, fmt.Errorf("begin a process that looks at others: %w", err)
		}
	}
	s.last++
	o.ID = s.last
	l := sent{o.ID, make(chan answer, 1), s.cancel}
	s.waiting[o.ID] = l.answer
	_ = s.conn.SetWriteDeadline(time.Now().Add(busy))
	if json.NewEncoder(s.conn).Encode(o) != nil {
		s.cancel()
	}
	return l, nil
}

// giveUp waits for a look no longer. The child of too many is given up with them.
func (s *server) giveUp(o order, l sent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[l.id] == nil {
		return // it ended meanwhile
	}
	delete(s.waiting, l.id)
	s.held[o.Dir] = &heldLook{l.id, time.Now()}
	held := 0
	for dir, h := range s.held {
		if h.order != 0 {
			held++
		} else if time.Since(h.at) >= again {
			delete(s.held, dir)
		}
	}
	if held >= s.most {
		s.cancel()
	}
}

// begin begins a child. The caller has locked s.mu.
func (s *server) begin() error {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
	conn, err := net.FileConn(ours)
	_ = ours.Close()
	if err != nil {
		_ = theirs.Close()
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.conn, s.cancel = conn, cancel
	if s.waiting == nil {
		s.waiting, s.held = map[uint64]chan answer{}, map[string]*heldLook{}
	}
	go s.hear(conn)
	go func() {
		defer theirs.Close()
		_, _ = s.kind.Do(ctx, worker.Order{Files: []*os.File{theirs}})
		s.end(conn)
	}()
	return nil
}

// hear takes the answers of a child.
func (s *server) hear(conn net.Conn) {
	for in := json.NewDecoder(conn); ; {
		var a answer
		if in.Decode(&a) != nil {
			return
		}
		s.mu.Lock()
		if l := s.waiting[a.ID]; l != nil {
			delete(s.waiting, a.ID)
			l <- a
		} else {
			maps.DeleteFunc(s.held, func(_ string, h *heldLook) bool { return h.order == a.ID })
		}
		s.mu.Unlock()
	}
}

// end forgets a child that has ended, or was given up.
func (s *server) end(conn net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = conn.Close()
	s.conn = nil
	for id, l := range s.waiting {
		delete(s.waiting, id)
		l <- answer{}
	}
	for _, h := range s.held {
		h.order = 0
	}
}

func init() {
	worker.Register(work, func([]string) error {
		file := os.NewFile(3, "orders")
		conn, err := net.FileConn(file)
		if err != nil {
			return err
		}
		debug.SetMaxThreads(16 * maxHeld)
		return serve(conn)
	})
}

// serve makes looks, each on a thread of its own, until there are no more orders.
func serve(conn net.Conn) error {
	var mu sync.Mutex
	out := json.NewEncoder(conn)
	for in := json.NewDecoder(conn); ; {
		var o order
		if err := in.Decode(&o); err != nil {
			return err
		}
		go func() {
			a := answer{o.ID, look(o.Kind, o.Dir, o.Names)}
			mu.Lock()
			defer mu.Unlock()
			_ = out.Encode(a)
		}()
	}
}
