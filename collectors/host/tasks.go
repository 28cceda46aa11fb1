package host

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
)

// maxTasks bounds the processes that are read, lowest PIDs first; the kernel's
// own threads are among these.
const maxTasks = 4096

// driverTask matches the names of the driver's kernel threads.
var driverTask = regexp.MustCompile(`^(nvidia|nv[-_]|UVM |irq/\d+-nvid)`)

// kernelThread is the flag PF_KTHREAD of a task.
const kernelThread = 0x200000

// BlockedTasks returns the number of kernel threads of NVIDIA's driver in
// uninterruptible sleep. This is normal for a moment; for long, it is a hang.
// It reads one file per process, 4096 at most.
func (k Kernel) BlockedTasks() (int, error) {
	entries, err := fs.ReadDir(k.proc(), ".")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	blocked, all := 0, byPID(entries)
	for _, pid := range all[:min(len(all), maxTasks)] {
		if state, ok := k.driverTask(pid); ok && state == 'D' {
			blocked++
		}
	}
	return blocked, nil
}

// DriverTask reports whether a PID is that of a kernel thread of NVIDIA's
// driver. Programs are not, whatever their names are: each chooses its own.
func (k Kernel) DriverTask(pid int) bool {
	_, ok := k.driverTask(strconv.Itoa(pid))
	return ok
}

// driverTask returns the state of a kernel thread of the driver; false for any
// other task, and for one that has ended.
func (k Kernel) driverTask(pid string) (state byte, ok bool) {
	f, err := k.proc().Open(pid + "/stat")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	var stat [192]byte // holds everything up to the flags
	n, _ := f.Read(stat[:])
	comm, state, flags := parseStat(stat[:n])
	return state, flags&kernelThread != 0 && driverTask.Match(comm)
}

// byPID returns the names of entries that are PIDs, lowest first.
func byPID(entries []fs.DirEntry) []string {
	var all []string
	for _, e := range entries {
		if _, err := strconv.ParseUint(e.Name(), 10, 32); err == nil {
			all = append(all, e.Name())
		}
	}
	slices.SortFunc(all, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	return all
}

// parseStat parses the beginning of /proc/PID/stat: "42 (name) S 1 42 42 0 -1
// 4194560 ...", whose last number here is the task's flags. The name can contain
// any character. A state of 0 means none.
func parseStat(text []byte) (comm []byte, state byte, flags uint64) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open || end+2 >= len(text) {
		return nil, 0, 0
	}
	if fields := bytes.Fields(text[end+1:]); len(fields) > 6 {
		flags, _ = strconv.ParseUint(string(fields[6]), 10, 64)
	}
	return text[open+1 : end], text[end+2], flags
}
