package action

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// Bounds of the search before a cgroup is frozen.
const (
	maxFrozenProcesses = 16384
	maxFrozenGroups    = 512
	maxCgroupFile      = 1 << 20 // bytes
)

// A Frozen is a cgroup that we froze.
type Frozen struct {
	Path string `json:"path"` // in its hierarchy
	V1   bool   `json:"v1,omitempty"`
	ID   uint64 `json:"id"` // the inode: another cgroup may get the path later
}

// A cgroup is an open cgroup: reads and writes reach it even if another cgroup
// has its path by now.
type cgroup struct {
	Frozen
	root *os.Root
}

// errStrange means that the cgroup does not belong to the workload alone.
var errStrange = errors.New("the cgroup is not the workload's alone")

// A freezer finds cgroups in the kernel's hierarchies, by /proc and /sys/fs/cgroup.
type freezer struct{ procfs, cgroupfs string }

// hierarchy returns the mount point of a hierarchy with a freezer.
func (f freezer) hierarchy(v1 bool) string {
	if v1 {
		return filepath.Join(f.cgroupfs, "freezer")
	}
	if _, err := os.Stat(filepath.Join(f.cgroupfs, "cgroup.controllers")); err != nil {
		return filepath.Join(f.cgroupfs, "unified") // both versions are mounted
	}
	return f.cgroupfs
}

// groupOf returns the path of a process's cgroup in a hierarchy with a freezer.
func (f freezer) groupOf(pid int, v1 bool) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.procfs, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	controller := ""
	if v1 {
		controller = "freezer"
	}
	path, ok := procs.Cgroup(string(text), controller)
	if !ok {
		return "", errors.New("the kernel has no such freezer")
	}
	return path, nil
}

// freezable opens a cgroup if its place in the hierarchy allows freezing it;
// alone judges its processes. fs.ErrNotExist means that it is gone.
func (f freezer) freezable(path string, v1 bool) (*cgroup, error) {
	own, err := f.groupOf(os.Getpid(), v1)
	switch {
	case err != nil:
		return nil, fmt.Errorf("find the enforcer's own cgroup: %w", err)
	case path == "/":
		return nil, fmt.Errorf("%w: it is the root", errStrange)
	case strings.HasSuffix(path, " (deleted)"):
		return nil, fmt.Errorf("open cgroup %s: %w", path, fs.ErrNotExist)
	case strings.Contains(path+"/", "/../"):
		return nil, fmt.Errorf("%w: it is out of sight", errStrange)
	case strings.HasPrefix(own+"/", path+"/"):
		return nil, fmt.Errorf("%w: the enforcer is in it", errStrange)
	}
	g, err := f.openGroup(path, v1)
	if err != nil {
		return nil, err
	}
	if _, err = g.asked(); err != nil {
		g.close()
		if again, left := f.reopen(g.Frozen); left == nil { // the file is missing, not the cgroup
			again.close()
			return nil, errors.New("the cgroup has no freezer")
		}
		return nil, err
	}
	return g, nil
}

// openGroup opens a cgroup, which the caller closes.
func (f freezer) openGroup(path string, v1 bool) (*cgroup, error) {
	root, err := os.OpenRoot(filepath.Join(f.hierarchy(v1), path))
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	g := &cgroup{Frozen: Frozen{Path: path, V1: v1}, root: root}
	info, err := root.Stat(".")
	if err != nil {
		g.close()
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		g.ID = st.Ino
	}
	return g, nil
}

func (g *cgroup) close() { _ = g.root.Close() }

// alone returns the processes in the cgroup and below it, if check says that
// all of them are the workload's.
func (g *cgroup) alone(spared map[int]string, check func(pid int) bool) (map[int]bool, error) {
	cgroups, members := 0, map[int]bool{}
	err := fs.WalkDir(g.root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			return nil
		}
		text := ""
		if err == nil {
			text, err = g.read(filepath.Join(path, "cgroup.procs"))
		}
		if err != nil && path != "." && gone(err) {
			return nil // removed meanwhile, therefore empty
		} else if err != nil {
			return fmt.Errorf("list cgroup: %w", err)
		}
		for line := range strings.Lines(text) {
			pid, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
			if err != nil || pid <= 0 || spared[pid] != "" || check == nil || !check(pid) {
				return fmt.Errorf("%w: process %d is in it", errStrange, pid)
			}
			members[pid] = true
		}
		if cgroups++; cgroups > maxFrozenGroups || len(members) > maxFrozenProcesses {
			return fmt.Errorf("%w, as far as can be told: there are too many in it", errStrange)
		}
		return nil
	})
	return members, err
}

// gone reports whether an error means that a cgroup no longer exists.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV)
}

func (g *cgroup) read(name string) (string, error) {
	f, err := g.root.Open(name)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	text, err := io.ReadAll(io.LimitReader(f, maxCgroupFile))
	if len(text) == maxCgroupFile {
		err = fmt.Errorf("read %s: it is too long", name)
	}
	return string(text), err
}

func (g *cgroup) write(name, text string) error {
	f, err := g.root.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// asked reports whether somebody wants this cgroup frozen; a cgroup above it
// does not count.
func (g *cgroup) asked() (bool, error) {
	name := "cgroup.freeze"
	if g.V1 {
		name = "freezer.self_freezing"
	}
	text, err := g.read(name)
	return strings.TrimSpace(text) == "1", err
}

// set orders the kernel to freeze or thaw the cgroup, and does not wait for the
// result.
func (g *cgroup) set(frozen bool) error {
	switch {
	case g.V1 && frozen:
		return g.write("freezer.state", "FROZEN")
	case g.V1:
		return g.write("freezer.state", "THAWED")
	case frozen:
		return g.write("cgroup.freeze", "1")
	}
	return g.write("cgroup.freeze", "0")
}

// frozen reports whether everything in the cgroup stands still.
func (g *cgroup) frozen() (bool, error) {
	if g.V1 {
		text, err := g.read("freezer.state")
		return strings.TrimSpace(text) == "FROZEN", err
	}
	text, err := g.read("cgroup.events")
	return strings.Contains("\n"+text, "\nfrozen 1\n"), err
}

// reopen opens a cgroup that we froze; fs.ErrNotExist means that it is gone,
// even if another one has its path.
func (f freezer) reopen(was Frozen) (*cgroup, error) {
	g, err := f.openGroup(was.Path, was.V1)
	if err != nil {
		return nil, err
	}
	if g.ID != was.ID {
		g.close()
		return nil, fmt.Errorf("open cgroup %s: it is another: %w", was.Path, fs.ErrNotExist)
	}
	return g, nil
}

// thaw thaws a cgroup that we froze. A cgroup that is gone is no error.
func (f freezer) thaw(was Frozen) error {
	g, err := f.reopen(was)
	if err == nil {
		err = g.set(false)
		g.close()
	}
	if err != nil && !gone(err) {
		return fmt.Errorf("thaw cgroup %s: %w", was.Path, err)
	}
	return nil
}
