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

// maxTasks bounds the processes that are looked at; those with the lowest PIDs
// are, among which the kernel's own threads are.
const maxTasks = 4096

// driverTask is how the driver's threads, and NVIDIA's programs, are called.
var driverTask = regexp.MustCompile(`^(nvidia|nv_|irq/\d+-nvid)`)

// BlockedTasks returns how many tasks of NVIDIA's driver, threads of the kernel
// and programs, are in uninterruptible sleep: for a moment that is normal, for
// long it is a hang. It reads a file of each process, 4096 at most.
func (k Kernel) BlockedTasks() (int, error) {
	entries, err := fs.ReadDir(k.proc(), ".")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	blocked, left := 0, maxTasks
	var stat [128]byte // has room for what comes before the state
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

// byPID returns the names of entries that are PIDs, the lowest first.
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

// parseStat returns what /proc/PID/stat begins with: "42 (name) S ..."; the
// name may have any character in it. A state of 0 is none.
func parseStat(text []byte) (comm []byte, state byte) {
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 0 || end < open || end+2 >= len(text) {
		return nil, 0
	}
	return text[open+1 : end], text[end+2]
}
