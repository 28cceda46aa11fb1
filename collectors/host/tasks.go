package host

import (
	"cmp"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// maxTasks bounds the processes that are read, lowest PIDs first; the kernel's
// own threads are among these.
const maxTasks = 4096

// driverTask matches the names of the driver's kernel threads.
var driverTask = regexp.MustCompile(`^(nvidia|nv[-_]|UVM |irq/\d+-nvid)`)

// kthreadd is the parent of the kernel's threads, and of no program.
const kthreadd = "2"

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
// other task, and for one that has ended. A program can block
// readers of its stat for ever, but not readers of its status.
func (k Kernel) driverTask(pid string) (state byte, ok bool) {
	f, err := k.proc().Open(pid + "/status")
	if err != nil {
		return 0, false
	}
	defer f.Close()
	var text [256]byte // holds everything up to the parent
	n, _ := f.Read(text[:])
	name, parent := "", ""
	for line := range strings.Lines(string(text[:n])) {
		switch key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":\t"); {
		case key == "Name":
			name = value // in which the kernel writes the end of a line as \n
		case key == "State" && value != "":
			state = value[0]
		case key == "PPid" && strings.HasSuffix(line, "\n"):
			parent = value
		}
	}
	return state, parent == kthreadd && driverTask.MatchString(name)
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
