package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
	"gpusteward/internal/worker"
)

// ErrGone means that there is no such process, or no longer.
var ErrGone = procs.ErrGone

// Facts are the kernel's data about one process.
type Facts struct {
	Start uint64 // clock ticks from boot to its start
	// Began is the same as a time; its monotonic reading keeps it right when
	// the clock is set.
	Began  time.Time
	UID    int // the real UID
	Comm   string
	Cgroup string // the content of /proc/PID/cgroup
}

// A Proc is a source of processes: /proc, or a simulated host. It is safe for
// concurrent use.
type Proc interface {
	Open(pid int) (Handle, error) // ErrGone if there is no such process
}

// A Handle is one process, and never refers to another process with the same
// PID. It belongs to one goroutine.
type Handle interface {
	// Facts waits no longer than procs does. It returns ErrGone once the process is gone.
	Facts() (Facts, error)
	// Environ returns those of the named variables that the process was started
	// with. It may wait for some seconds for a process that is stuck, as in the GPU's
	// driver, or for those that are.
	Environ(names ...string) (map[string]string, error)
	// Title returns the process's command line, which it can change. It may wait for
	// ever, if the process wants that: it is for processes of the system.
	Title() (string, error)
	// Alive reports whether the process exists, including as a zombie.
	Alive() bool
	Close()
}

// procFS is a mounted procfs, or a directory that looks like one. A field of
// procfs's types, here or in procDir, would make the linker keep all their
// methods, 0.4 MB: reflection could find them.
type procFS struct {
	root string

	mu   sync.Mutex
	boot time.Time
	read time.Time // time of the last read of the boot time, which moves when the clock is set
}

// ProcFS returns the processes of the procfs at root, which is "/proc".
func ProcFS(root string) (Proc, error) {
	if _, err := procfs.NewFS(root); err != nil {
		return nil, err
	}
	return &procFS{root: root}, nil
}

// Hidden returns an error with the remedy if the procfs at root hides the
// processes of others from this one, by hidepid= or a unit's ProtectProc=.
func Hidden(root string) error {
	if _, err := os.ReadFile(filepath.Join(root, "1/cgroup")); err == nil {
		return nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil // no sign of hiding
	}
	options := ""
	for l := range strings.Lines(string(mounts)) {
		if mount := strings.Fields(l); len(mount) > 3 && mount[1] == filepath.Clean(root) {
			options = mount[3] // the last mount counts
		}
	}
	for option := range strings.SplitSeq(options, ",") {
		if way, hides := strings.CutPrefix(option, "hidepid="); hides && way != "0" && way != "off" {
			return fmt.Errorf("%s is mounted with %s, which hides other users' processes: set ProtectProc=default "+
				"in the unit, or run it in the group of the mount's gid= option, or mount without hidepid=", root,
				option)
		}
	}
	return nil
}

// Open opens the process's directory. The open descriptor finds only that very
// process, which is the promise of a Handle.
func (p *procFS) Open(pid int) (Handle, error) {
	dir := filepath.Join(p.root, strconv.Itoa(pid))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone(&os.PathError{Op: "open", Path: dir, Err: err})
	}
	mount, err := procfs.NewFS(p.root)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	proc, err := mount.Proc(pid)
	if err != nil {
		_ = unix.Close(fd)
		return nil, gone(err)
	}
	return &procDir{fs: p, dir: dir, fd: fd, title: proc.CmdLine, whose: func() string { return procs.Whose(p.root, pid) }, stat: func() (f Facts, err error) {
		stat, err1 := procs.ReadStat(p.root, pid)
		status, err2 := proc.NewStatus()
		f.Comm, f.Start, f.UID = stat.Comm, stat.Start, int(status.UIDs[0])
		return f, errors.Join(err1, err2)
	}}, nil
}

// gone translates the kernel's errors for a process that is gone into ErrGone.
func gone(err error) error {
	if procs.Gone(err) {
		return ErrGone
	}
	return err
}

// booted returns the boot time, and reads it from the procfs at most once a
// minute.
func (p *procFS) booted() (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.read.IsZero() || now.Sub(p.read) > time.Minute {
		mount, err := procfs.NewFS(p.root)
		if err != nil {
			return time.Time{}, err
		}
		stat, err := mount.Stat()
		if err != nil {
			return time.Time{}, err
		}
		p.boot, p.read = Rebased(time.Unix(int64(stat.BootTime), 0), now), now
	}
	return p.boot, nil
}

// A procDir is a process's directory. Its files are read by path; they belong
// to the process if it is still alive afterwards.
type procDir struct {
	fs    *procFS
	dir   string
	fd    int                   // of the directory
	stat  func() (Facts, error) // without Began and Cgroup
	title func() ([]string, error)
	whose func() string
}

func (d *procDir) Facts() (Facts, error) {
	boot, err := d.fs.booted()
	if err != nil {
		return Facts{}, err
	}
	f, err1 := d.stat()
	cgroup, err2 := os.ReadFile(filepath.Join(d.dir, "cgroup"))
	if !d.Alive() {
		return Facts{}, ErrGone
	}
	if err := errors.Join(err1, err2); err != nil {
		return Facts{}, err
	}
	const tick = time.Second / 100 // USER_HZ is 100 on all of NVIDIA's platforms
	f.Began, f.Cgroup = boot.Add(time.Duration(f.Start)*tick), string(cgroup)
	return f, nil
}

// environments are the children that read them: a process can have its own where the kernel
// waits for it.
var environments = worker.Kind{Command: worker.Begins(readEnvironment), Running: 1, Children: 4,
	Limit: 2 * time.Second, Memory: 512 << 20, Output: 1 << 20, Confined: true,
	Keeps: []int{unix.CAP_SYS_PTRACE, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH}}

const (
	readEnvironment = "read-environment"
	maxEnvironment  = 16 << 20
)

func init() {
	worker.Register(readEnvironment, func(args []string) error {
		f, err := os.Open(args[0])
		if err != nil {
			return err
		}
		all, err := io.ReadAll(io.LimitReader(f, maxEnvironment))
		if err != nil {
			return err
		}
		found := map[string]string{}
		for variable := range strings.SplitSeq(string(all), "\x00") {
			name, value, _ := strings.Cut(variable, "=")
			if _, twice := found[name]; !twice && slices.Contains(args[1:], name) {
				found[name] = value
			}
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	})
}

func (d *procDir) Environ(names ...string) (found map[string]string, err error) {
	file := filepath.Join(d.dir, "environ")
	if err := unix.Faccessat(unix.AT_FDCWD, file, unix.R_OK, unix.AT_EACCESS); err != nil {
		return nil, gone(&os.PathError{Op: "read", Path: file, Err: err}) // which a child need not find out
	}
	out, err := environments.Do(context.Background(), worker.Order{Args: append([]string{file}, names...), Of: d.whose()})
	if !d.Alive() {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return found, json.Unmarshal(out, &found)
}

func (d *procDir) Title() (string, error) {
	words, err := d.title()
	if !d.Alive() {
		return "", ErrGone
	}
	return strings.TrimSpace(strings.Join(words, " ")), err
}

func (d *procDir) Alive() bool {
	var stat unix.Stat_t
	err := unix.Fstatat(d.fd, "stat", &stat, unix.AT_SYMLINK_NOFOLLOW)
	return !procs.Gone(err)
}

func (d *procDir) Close() { _ = unix.Close(d.fd) }
