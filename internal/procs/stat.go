package procs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"golang.org/x/sys/unix"
)

// ErrGone means that the process does not exist, or has ended.
var ErrGone = errors.New("the process is gone")

// Gone reports whether an error about a process, of this package's or of the kernel's, means that the
// process is gone.
func Gone(err error) bool {
	return errors.Is(err, ErrGone) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// Stat is what the line in the file stat says of a process or a thread.
type Stat struct {
	Comm    string // may contain anything
	State   byte   // R, S, D, T and so on
	Parent  int
	Group   int    // its process group
	Kernel  bool   // it is a thread of the kernel
	Exiting bool   // it is about to end
	Ticks   uint64 // of processors that it has used, hundredths of a second
	Start   uint64 // clock ticks from boot to its start; with the PID, its identity
}

// Flags of a process (linux/sched.h).
const (
	pfExiting = 0x00000004
	pfKthread = 0x00200000
)

// ParseStat reads a line of stat.
func ParseStat(line []byte) (s Stat, err error) {
	begin, end := bytes.IndexByte(line, '('), bytes.LastIndexByte(line, ')')
	fields := bytes.Fields(line[end+1:])
	if begin < 0 || end < begin || len(fields) < 20 {
		return s, fmt.Errorf("read stat: %d fields", len(fields))
	}
	number := func(field int) (n uint64) {
		n, failed := strconv.ParseUint(string(fields[field]), 10, 64)
		err = errors.Join(err, failed)
		return n
	}
	flags := number(6)
	s = Stat{Comm: string(line[begin+1 : end]), State: fields[0][0], Parent: int(number(1)), Group: int(number(2)),
		Kernel: flags&pfKthread != 0, Exiting: flags&pfExiting != 0, Ticks: number(11) + number(12), Start: number(19)}
	return s, err
}

// ReadStat reads the stat of a process.
func ReadStat(procfs string, pid int) (Stat, error) { return readStat(loop, procfs, pid) }

// AwaitStat is ReadStat for callers that can wait, like AwaitLink.
func AwaitStat(procfs string, pid int) (Stat, error) { return readStat(apart, procfs, pid) }

func readStat(p patience, procfs string, pid int) (Stat, error) {
	line, err := one(p, files, procfs, pid, "stat")
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(line)
}

// Pidfd opens a pidfd of the process that has a PID. The caller closes it. Pidfd calls same once the
// pidfd is open: it returns an error unless the process is the intended one. ErrGone means that the
// process has ended since.
func Pidfd(pid int, same func() error) (int, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1, fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	if err = same(); err == nil && Ended(fd) {
		err = ErrGone
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Ended reports whether all threads of the pidfd's process have ended.
func Ended(pidfd int) bool {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
		if err != unix.EINTR { // an interrupted poll says nothing about the process
			return n > 0 || err != nil
		}
	}
}
