package stack

import (
	_ "embed"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

//go:generate go run generate.go

// syscallRows are the system calls by name, and their numbers on amd64 and
// arm64; "-" where the machine has no such call.
//
//go:embed syscalls.tsv
var syscallRows string

var syscalls = func() map[string]string {
	names := map[string]string{}
	for line := range strings.Lines(syscallRows) {
		f := strings.Fields(line)
		number := f[1]
		if runtime.GOARCH == "arm64" {
			number = f[2]
		}
		names[number] = f[0]
	}
	return names
}()

var states = map[string]string{"R": "running", "S": "sleeping", "D": "uninterruptible", "T": "stopped", "t": "traced",
	"Z": "zombie", "X": "dead", "I": "idle", "P": "parked"}

// tasks reads the threads of the process in dir, its name, and when it started.
func tasks(dir string) (name, start string, all []Thread, omitted int, err error) {
	if name, _, start, err = stat(small(filepath.Join(dir, "stat"))); err != nil {
		return "", "", nil, 0, err
	}
	list, err := os.Open(filepath.Join(dir, "task"))
	if err != nil {
		return "", "", nil, 0, err
	}
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return "", "", nil, 0, err
	}
	var tids []int
	for _, n := range names {
		if tid, err := strconv.Atoi(n); err == nil {
			tids = append(tids, tid)
		}
	}
	slices.Sort(tids)
	omitted = max(0, len(tids)-maxThreads)
	for _, tid := range tids[:len(tids)-omitted] {
		in := func(file string) string { return small(filepath.Join(dir, "task", strconv.Itoa(tid), file)) }
		t := Thread{TID: tid, inner: innermost(in("status"), tid)}
		if t.Name, t.State, _, err = stat(in("stat")); err != nil {
			continue // it has ended
		}
		t.Syscall, t.at = syscallOf(in("syscall"))
		if w := clean(strings.TrimSpace(in("wchan"))); w != "0" {
			t.WaitChannel = w
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return "", "", nil, 0, os.ErrNotExist
	}
	return name, start, all, omitted, nil
}

// small reads a small file of procfs; one that cannot be read is empty.
func small(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 16<<10))
	if err != nil {
		return ""
	}
	return string(text)
}

// stat reads a line of /proc/PID/stat. The name may have brackets and blanks.
func stat(line string) (name, state, start string, err error) {
	begin, end := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if begin < 0 || end < begin {
		return "", "", "", fmt.Errorf("read the line of a thread: %q", line)
	}
	rest := strings.Fields(line[end+1:])
	if len(rest) < 20 {
		return "", "", "", fmt.Errorf("read the line of a thread: %d fields", len(rest))
	}
	state = states[rest[0]]
	if state == "" {
		state = clean(rest[0])
	}
	return clean(line[begin+1 : end]), state, rest[19], nil
}

// innermost returns a thread's ID in its own PID namespace, by which the process
// itself knows the thread.
func innermost(status string, tid int) int {
	for line := range strings.Lines(status) {
		if ids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			if f := strings.Fields(ids); len(f) > 0 {
				if n, err := strconv.Atoi(f[len(f)-1]); err == nil {
					return n
				}
			}
		}
	}
	return tid
}

// syscallOf reads /proc/PID/syscall: the number, six arguments, of which nothing
// is kept, the stack pointer and the instruction pointer. A thread that runs has
// none of them, and one that waits outside of a system call the number -1.
func syscallOf(line string) (name string, at uint64) {
	f := strings.Fields(line)
	if len(f) != 3 && len(f) != 9 {
		return "", 0
	}
	at, err := strconv.ParseUint(f[len(f)-1], 0, 64)
	if err != nil || at == 0 { // a thread of the kernel is in no system call
		return "", 0
	}
	if f[0] == "-1" {
		return "", at
	}
	if name = syscalls[f[0]]; name == "" {
		name = "number " + clean(f[0])
	}
	return name, at
}
