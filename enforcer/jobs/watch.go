package jobs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpusteward/enforcer/stack"
	"gpusteward/internal/procs"
)

// A watch observes from outside whether a quiet process does anything.
type watch struct {
	use
	looks   int
	idle    int // looks in a row in which it did nothing
	blocked int // looks in a row in which the kernel let it wait for a disk or a file system
}

// use is what a process and its descendants have used so far.
type use struct {
	state  byte   // of its main thread, as in /proc/PID/stat; 0: unknown
	ticks  uint64 // of processors, hundredths of a second
	bytes  uint64 // read and written
	halted bool   // one of them is stopped or traced,
	disk   bool   // or waits for a disk or a file system
}

// files are what those of processes tell at a look, by PID.
type files struct {
	uses  map[int]used
	opens map[int]opens // empty: it was not time for that
}

// used is what a process has used, or why that is not known.
type used struct {
	use
	err error
}

// A reader is a process of which files are to be read.
type reader struct {
	pid   int
	party string
	late  int // looks in a row at which they were not
}

// reads reads what a look needs of the files of processes. Meanwhile others observe: the mutex is locked only to find
// out which.
func (o *Observer) reads(at int64) (f files) {
	o.mu.Lock()
	all := map[int]reader{} // a process may have many sessions
	for _, p := range o.processes {
		if p.ended == 0 && p.quiet(at) >= lookFrom {
			all[p.pid] = reader{p.pid, p.party, o.late[p.pid]}
		}
	}
	suspects := map[*member]bool{}
	if o.RAS != "" {
		suspects = o.nccl.suspects()
	}
	for m := range suspects {
		all[m.PID] = reader{m.PID, m.party, o.late[m.PID]}
	}
	var members []reader
	if len(suspects) > 0 && at-o.nccl.looked >= int64(lookEvery) {
		o.nccl.looked = at
		for pid, m := range o.nccl.members {
			members = append(members, reader{pid: pid, party: m.party})
		}
	}
	o.mu.Unlock()
	f.uses = usesOf(o.procfs(), slices.Collect(maps.Values(all)), allFiles)
	f.opens = opensOfAll(o.procfs(), members, serverFiles)
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.late
	o.late = map[int]int{}
	for pid, u := range f.uses {
		if errors.Is(u.err, procs.ErrLate) {
			o.late[pid] = before[pid] + 1
		}
	}
	return f
}

// usesOf reads the files of processes, as long as there are some left: of each party, and of all. Those that were late
// most often come first.
func usesOf(procfs string, all []reader, most int) map[int]used {
	slices.SortFunc(all, func(a, b reader) int { return cmp.Or(cmp.Compare(b.late, a.late), cmp.Compare(a.pid, b.pid)) })
	uses, read := map[int]used{}, map[string]int{} // files, by party
	for _, r := range all {
		left := min(mostFiles-read[r.party], most)
		before := left
		var u used
		u.use, _, u.err = useOf(procfs, r.pid, &left)
		read[r.party] += before - left
		most -= before - left
		uses[r.pid] = u
	}
	return uses
}

// saw takes what a look found. If the kernel does not tell in time, it is late, and nothing changes until the next one.
func (w *watch) saw(u used) (late bool) {
	if errors.Is(u.err, procs.ErrLate) {
		return true
	}
	now := watch{use: u.use, looks: w.looks + 1}
	if now.state == 'D' {
		now.blocked = w.blocked + 1
	}
	busy := now.ticks >= w.ticks+someTicks || now.bytes >= w.bytes+someBytes ||
		now.blocked > 0 && now.blocked <= mostBlocked
	if w.looks > 0 && !busy {
		now.idle = w.idle + 1
	}
	*w = now
	return false
}

// computes reports whether the process may be doing something.
func (w *watch) computes() bool { return w.idle < idleLooks }

// stands reports whether the process is stopped, held by a debugger, or stands in the kernel: it cannot go on
// when its GPU does.
func (w *watch) stands() bool { return w.state == 'T' || w.state == 't' || w.state == 'D' }

// useOf returns what a process and its descendants have used, and their PIDs. It fails if the kernel does not tell yet
// of the process itself, or if more files would have to be read than are left.
func useOf(procfs string, pid int, left *int) (u use, family []int, err error) {
	family = []int{pid}
	for i := 0; i < len(family) && i < maxFamily; i++ {
		if *left <= 0 {
			return u, family[:min(len(family), maxFamily)], procs.ErrLate
		}
		dir := filepath.Join(procfs, strconv.Itoa(family[i]))
		files, failed := procs.ReadFiles(procfs, family[i], []string{"stat", "io", "wchan"})
		if i == 0 {
			err = failed
		}
		stat, broken := procs.ParseStat([]byte(files["stat"]))
		if broken != nil {
			continue // it has ended, or holds who looks at it
		}
		if frozen := files["wchan"] == "do_freezer_trap" || files["wchan"] == "__refrigerator"; frozen {
			stat.State = 'T' // by somebody's cgroup freezer, as docker pause does
		}
		if i == 0 {
			u.state = stat.State
		}
		u.ticks += stat.Ticks
		u.bytes += moved(files["io"])
		u.halted = u.halted || stat.State == 'T' || stat.State == 't'
		u.disk = u.disk || stat.State == 'D'
		family = append(family, children(dir, left)...)
	}
	return u, family[:min(len(family), maxFamily)], err
}

func number(text []byte) uint64 {
	n, _ := strconv.ParseUint(string(text), 10, 64)
	return n
}

// moved returns the bytes that a process read and wrote by system calls, and those of mapped files that it read from
// disks, as its io says.
func moved(io string) (sum uint64) {
	for line := range strings.Lines(io) {
		if name, value, _ := strings.Cut(line, ": "); name == "rchar" || name == "wchar" || name == "read_bytes" {
			sum += number([]byte(strings.TrimSpace(value)))
		}
	}
	return sum
}

// children returns the processes that a process has started.
func children(dir string, left *int) (all []int) {
	tasks, _ := os.ReadDir(filepath.Join(dir, "task"))
	tasks = tasks[:min(len(tasks), maxFamily)]
	*left -= 3 + len(tasks)
	for _, t := range tasks {
		text, _ := os.ReadFile(filepath.Join(dir, "task", t.Name(), "children"))
		for _, child := range bytes.Fields(text) {
			all = append(all, int(number(child)))
		}
	}
	return all
}

// where returns where the main thread of a process stands: the innermost line
// of its own Python code, that of a library if there is none, or the system
// call. It is empty if nothing can be read. Depending on the reason of a hang, another thread comes first.
func (o *Observer) where(pid int, reason string) string {
	ctx, cancel := context.WithTimeout(context.Background(), placeTime)
	defer cancel()
	var p *stack.Process
	for range placeTries { // a busy host lets a reading be late
		some, err := stack.Of(ctx, pid, stack.Options{Procfs: o.procfs()})
		if err == nil && some != nil && len(some.Threads) > 0 {
			p = some
		}
		if p != nil && p.Problem == "" || ctx.Err() != nil {
			break
		}
	}
	if p == nil {
		return ""
	}
	t := p.Threads[max(0, slices.IndexFunc(p.Threads, func(t stack.Thread) bool { return t.TID == pid }))]
	for _, prefer := range better[reason] {
		if prefer(t) {
			break
		}
		if other := slices.IndexFunc(p.Threads, prefer); other >= 0 {
			t = p.Threads[other]
			break
		}
	}
	switch f := ownFrame(t); {
	case len(t.Python) > 0 && reason == "unread" && t.Syscall != "":
		return fmt.Sprintf("%s:%d in %s, in %s", f.File, f.Line, f.Function, t.Syscall)
	case len(t.Python) > 0:
		return fmt.Sprintf("%s:%d in %s", f.File, f.Line, f.Function)
	case t.Native != nil && t.Native.Symbol != "":
		return fmt.Sprintf("%s in %s", t.Native.Symbol, filepath.Base(t.Native.File))
	}
	return t.Syscall
}

// library reports whether a Python file belongs to a library.
func library(file string) bool {
	return strings.HasPrefix(file, "<") || strings.Contains(file, "/site-packages/") ||
		strings.Contains(file, "/dist-packages/") || strings.Contains(file, "/lib/python3")
}

// better tells by the reason of a hang which threads are told rather than the main thread, the best ones first.
var better = map[string][]func(stack.Thread) bool{"kernel": {polls, sleeps}, "deadlock": {polls, sleeps}, "unread": {inOwnCode}}

// polls reports whether a thread may wait for its GPU: who waits polls by default, and the main thread of a server sleeps.
func polls(t stack.Thread) bool { return t.State == "running" && len(t.Python) > 0 }

// sleeps reports whether a thread may wait in the driver, in a launch or in a wait that does not poll.
func sleeps(t stack.Thread) bool {
	return t.Syscall == "futex" && len(t.Python) > 0 && !library(ownFrame(t).File) &&
		filepath.Base(t.Python[0].File) != "threading.py"
}

// inOwnCode reports whether a thread of a server stands in code of its own, rather than wait for clients or for a time.
func inOwnCode(t stack.Thread) bool {
	return len(t.Python) > 0 && !library(ownFrame(t).File) && !slices.Contains(loops, t.Syscall) &&
		filepath.Base(t.Python[0].File) != "selectors.py"
}

// loops are the system calls of threads that wait for clients or for a time. A peer is often awaited in poll.
var loops = []string{"accept", "accept4", "epoll_wait", "epoll_pwait", "epoll_pwait2", "nanosleep", "clock_nanosleep"}

// ownFrame returns the innermost frame of the program's own Python code, or else of a library.
func ownFrame(t stack.Thread) (f stack.Frame) {
	if len(t.Python) > 0 {
		f = t.Python[max(0, slices.IndexFunc(t.Python, func(f stack.Frame) bool { return !library(f.File) }))]
	}
	return f
}
