package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// ErrGone says that there is no such process, or no longer.
var ErrGone = errors.New("the process is gone")

// Facts are what the kernel says of one process.
type Facts struct {
	Start  uint64    // clock ticks from boot to its start
	Began  time.Time // the same as a time; with a monotonic reading, so that a clock which is set makes nobody older
	UID    int       // the real one
	Comm   string
	Cgroup string // the content of /proc/PID/cgroup
}

// A Proc is where processes are read: /proc, or a simulated host. It is safe
// for concurrent use.
type Proc interface {
	Open(pid int) (Handle, error) // ErrGone if there is no such process
}

// A Handle is one process, and never comes to mean another that has the same
// PID. It belongs to one goroutine.
type Handle interface {
	// Facts never waits. It returns ErrGone once the process is gone.
	Facts() (Facts, error)
	// Environ returns those of the named variables that the process was
	// started with. It may wait for as long as the process holds the lock of
	// its memory, which one that is stuck in the GPU's driver does.
	Environ(names ...string) (map[string]string, error)
	// Alive says whether the process is there, be it as a zombie.
	Alive() bool
	Close()
}

// procFS is a mounted procfs, or a directory that looks like one.
type procFS struct {
	root string
	fs   procfs.FS

	mu   sync.Mutex
	boot time.Time
	read time.Time // when boot was: setting the clock changes it
}

// ProcFS returns the processes of the procfs at root, which is "/proc".
func ProcFS(root string) (Proc, error) {
	fs, err := procfs.NewFS(root)
	if err != nil {
		return nil, err
	}
	return &procFS{root: root, fs: fs}, nil
}

// Hidden says how to see the processes of others where the procfs at root hides
// them from this one, by hidepid= or a unit's ProtectProc=.
func Hidden(root string) error {
	if _, err := os.ReadFile(filepath.Join(root, "1/cgroup")); err == nil {
		return nil
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil // nothing says that it does
	}
	options := ""
	for l := range strings.Lines(string(mounts)) {
		if mount := strings.Fields(l); len(mount) > 3 && mount[1] == filepath.Clean(root) {
			options = mount[3] // the last one counts
		}
	}
	for option := range strings.SplitSeq(options, ",") {
		if way, hides := strings.CutPrefix(option, "hidepid="); hides && way != "0" && way != "off" {
			return fmt.Errorf("%s is mounted with %s, which hides them from this process: set ProtectProc=default in the unit, or run it in the group of the mount's gid= option, or mount without hidepid=", root, option)
		}
	}
	return nil
}

// Open opens the process's directory. While its descriptor is open nothing is
// found through it but that very process, which is what makes a Handle one.
func (p *procFS) Open(pid int) (Handle, error) {
	dir := filepath.Join(p.root, strconv.Itoa(pid))
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, gone(&os.PathError{Op: "open", Path: dir, Err: err})
	}
	proc, err := p.fs.Proc(pid)
	if err != nil {
		_ = unix.Close(fd)
		return nil, gone(err)
	}
	return &procDir{fs: p, dir: dir, fd: fd, proc: proc}, nil
}

// gone makes what the kernel answers for a process that is gone ErrGone.
func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return ErrGone
	}
	return err
}

// booted returns the time of boot, from the procfs at most once a minute.
func (p *procFS) booted() (time.Time, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.read.IsZero() || now.Sub(p.read) > time.Minute {
		stat, err := p.fs.Stat()
		if err != nil {
			return time.Time{}, err
		}
		p.boot, p.read = Rebased(time.Unix(int64(stat.BootTime), 0), now), now
	}
	return p.boot, nil
}

// A procDir is a process's directory. Its files are read by path, and what was
// read is the process's own if that is alive afterwards.
type procDir struct {
	fs   *procFS
	dir  string
	fd   int // of the directory
	proc procfs.Proc
}

func (d *procDir) Facts() (Facts, error) {
	boot, err := d.fs.booted()
	if err != nil {
		return Facts{}, err
	}
	stat, err1 := d.proc.Stat()
	status, err2 := d.proc.NewStatus()
	cgroup, err3 := os.ReadFile(filepath.Join(d.dir, "cgroup"))
	if !d.Alive() {
		return Facts{}, ErrGone
	}
	if err := errors.Join(err1, err2, err3); err != nil {
		return Facts{}, err
	}
	const tick = time.Second / 100 // USER_HZ is 100 wherever NVIDIA has a driver
	return Facts{Start: stat.Starttime, Began: boot.Add(time.Duration(stat.Starttime) * tick),
		UID: int(status.UIDs[0]), Comm: stat.Comm, Cgroup: string(cgroup)}, nil
}

func (d *procDir) Environ(names ...string) (map[string]string, error) {
	environ, err := d.proc.Environ()
	if !d.Alive() {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if _, twice := found[name]; !twice && slices.Contains(names, name) {
			found[name] = value
		}
	}
	return found, nil
}

func (d *procDir) Alive() bool {
	var stat unix.Stat_t
	err := unix.Fstatat(d.fd, "stat", &stat, unix.AT_SYMLINK_NOFOLLOW)
	return !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH)
}

func (d *procDir) Close() { _ = unix.Close(d.fd) }
