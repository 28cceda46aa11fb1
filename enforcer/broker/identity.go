package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// An identifier asks the kernel who a process is.
type identifier struct {
	procfs string
	pidfd  func(fd, pid int) (int, error) // of a socket's peer
}

// peer identifies the process that connected, from what the kernel recorded then
// and from where the process is now.
func (i *identifier) peer(f *Facts, fd int, cred *unix.Ucred) (pidfd int, err error) {
	f.PID, f.UID, f.GID = int(cred.Pid), cred.Uid, cred.Gid
	if f.PID <= 0 {
		return -1, errors.New("the process is not in the broker's pid namespace or below it")
	}
	// For clients that waited at systemd's socket: newer kernels decide at
	// connect.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	pidfd, err = i.pidfd(fd, f.PID)
	if errors.Is(err, unix.ENOPROTOOPT) {
		pidfd, err = i.open(*f)
	}
	if err != nil {
		return pidfd, fmt.Errorf("identify process %d: %w", f.PID, err)
	}
	cgroup, err := os.ReadFile(filepath.Join(i.procfs, strconv.Itoa(f.PID), "cgroup"))
	if err != nil {
		return pidfd, fmt.Errorf("read cgroup of %d: %w", f.PID, err)
	}
	f.Cgroup = string(cgroup)
	return pidfd, nil
}

// peerPidfd asks the socket for the client's pidfd, which Linux 6.5 knows.
func peerPidfd(fd, _ int) (int, error) {
	return unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
}

// open opens the pidfd by number. The number may belong to another process
// by now: that process would need the same user, and must have started between
// two looks at the start time.
func (i *identifier) open(f Facts) (int, error) {
	before, err := i.started(f)
	if err != nil {
		return -1, err
	}
	return procs.Pidfd(f.PID, func() error {
		after, err := i.started(f)
		if err == nil && after != before {
			err = procs.ErrGone
		}
		return err
	})
}

// started returns the start time of a process with f's number and user, in
// ticks since boot.
func (i *identifier) started(f Facts) (uint64, error) {
	path := filepath.Join(i.procfs, strconv.Itoa(f.PID), "stat")
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0, err
	}
	if st.Uid != f.UID && st.Uid != 0 {
		return 0, procs.ErrGone
	}
	stat, err := procs.AwaitStat(i.procfs, f.PID) // a connection is accepted apart from the loop
	return stat.Start, err
}

// stopped reports whether a signal or a debugger has stopped the process.
func (s *session) stopped() bool {
	state := procs.State(s.b.options.ProcFS, s.facts.PID) // of one that is gone, nothing is known
	return state == 'T' || state == 't'
}

// FactsOf returns the kernel's facts about the process that has a PID now, from
// a procfs: its ids are the effective ones, as a socket's peer sees them. The
// error is fs.ErrNotExist if there is no such process, and procs.ErrLate if its program is not known yet.
func FactsOf(procfs string, pid int) (Facts, error) {
	f := Facts{PID: pid}
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if errors.Is(err, unix.ESRCH) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return f, fmt.Errorf("read process %d: %w", pid, err)
	}
	for name, id := range map[string]*uint32{"Uid": &f.UID, "Gid": &f.GID} {
		if ids := numbers(procs.StatusLine(status, name)); len(ids) == 4 {
			*id = ids[1]
		}
	}
	f.Groups = numbers(procs.StatusLine(status, "Groups"))
	return f, f.read(procfs, procs.Readlink)
}

// read reads the process's cgroup and program.
func (f *Facts) read(procfs string, readlink func(procfs string, pid int, name string) (string, error)) error {
	cgroup, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(f.PID), "cgroup"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read cgroup of %d: %w", f.PID, err)
	}
	f.Cgroup = string(cgroup)
	switch f.Exe, err = readlink(procfs, f.PID, "exe"); {
	case errors.Is(err, procs.ErrLate):
		return fmt.Errorf("read the program of %d: %w", f.PID, err)
	case err != nil:
		f.Exe = "" // the kernel may refuse it to users other than root, or block readers
	}
	return nil
}

// complete reads the other facts. No other process has the number while the
// pidfd says that the process lives, so that is checked last.
func (i *identifier) complete(f *Facts, lives func() bool) error {
	dir := filepath.Join(i.procfs, strconv.Itoa(f.PID))
	f.Groups = groups(filepath.Join(dir, "status"))
	if err := f.read(i.procfs, procs.AwaitLink); err != nil { // HELLO is served apart from the loop
		return err
	}
	if !lives() {
		return procs.ErrGone
	}
	return nil
}
