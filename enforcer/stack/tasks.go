package stack

import (
	"cmp"
	_ "embed"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"gpusteward/internal/procs"
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

var states = map[byte]string{'R': "running", 'S': "sleeping", 'D': "uninterruptible", 'T': "stopped", 't': "traced",
	'Z': "zombie", 'X': "dead", 'I': "idle", 'P': "parked"}

// tasks reads the stat and the threads of the process in dir.
func tasks(dir string) (process procs.Stat, all []Thread, omitted int, err error) {
	if process, err = stat(filepath.Join(dir, "stat")); err != nil {
		return process, nil, 0, err
	}
	list, err := os.Open(filepath.Join(dir, "task"))
	if err != nil {
		return process, nil, 0, err
	}
	defer list.Close()
	names, err := list.Readdirnames(-1)
	if err != nil {
		return process, nil, 0, err
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
		of := filepath.Join(dir, "task", strconv.Itoa(tid))
		in := func(file string) string { return small(filepath.Join(of, file)) }
		s, err := stat(filepath.Join(of, "stat"))
		if err != nil {
			continue // it has ended
		}
		t := Thread{TID: tid, Name: clean(s.Comm), State: stateOf(s.State), inner: procs.Inner([]byte(in("status")), tid)}
		t.Syscall, t.at = syscallOf(in("syscall"))
		if w := clean(strings.TrimSpace(in("wchan"))); w != "0" {
			t.WaitChannel = w
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return process, nil, 0, os.ErrNotExist
	}
	return process, all, omitted, nil
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

// stat reads the stat of a process or a thread.
func stat(path string) (procs.Stat, error) { return procs.ParseStat([]byte(small(path))) }

// stateOf returns a state in words.
func stateOf(state byte) string { return cmp.Or(states[state], clean(string(rune(state)))) }

// syscallOf reads /proc/PID/syscall: the number, six arguments, of which nothing
// is kept, the stack pointer and the instruction pointer. A thread that runs has
// none of them. One that waits outside of a system call has the number -1.
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
