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

// driverTask matches the names of the driver's threads and of NVIDIA's
// programs.
var driverTask = regexp.MustCompile(`^(nvidia|nv_|irq/\d+-nvid)`)

// BlockedTasks returns the number of tasks of NVIDIA's driver, kernel threads
// and programs, in uninterruptible sleep. This is normal for a moment; for
// long, it is a hang. It reads one file per process, 4096 at most.
func (k Kernel) BlockedTasks() (int, error) {
	entries, err := fs.ReadDir(k.proc(), ".")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	blocked, left := 0, maxTasks
	var stat [128]byte // holds everything up to the state
	for _, e := range byPID(entries) {
		if left--; left < 0 {
			break
		}
		f, err := k.proc().Open(e + "/stat")
		if err != nil {
			continue // it has ended
		}
		n, _ := f.Read(stat[:])
		_ = f.Close()
		if comm, state := parseStat(stat[:n]); state == 'D' && driverTask.Match(comm) {
			blocked++
		}
	}
	return blocked, nil
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

// parseStat parses the beginning of /proc/PID/stat: "42 (name) S ..."; the name
// can contain any character. A state of 0 means none.
func parseStat(text []byte) (comm []byte, state byte) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open || end+2 >= len(text) {
		return nil, 0
	}
	return text[open+1 : end], text[end+2]
}
