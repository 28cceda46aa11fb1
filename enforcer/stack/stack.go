// Package stack reads the stacks of another process's threads from outside: the
// lines of its Python code, and the kernel's view of each thread. It
// never stops the process, writes nothing to it, and reads no argument and no
// variable: only names, files, line tables and the links between frames.
package stack

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
	"gpusteward/internal/worker"
)

// Bounds of what is read of a process, whatever its memory and its files say.
const (
	maxThreads  = 256
	maxList     = 4096 // threads in Python's lists, of which maxThreads are read
	maxFrames   = 64
	maxString   = 256
	maxMemory   = 16 << 20  // bytes of the process's memory
	maxFiles    = 64 << 20  // bytes of the files that it has mapped
	maxMaps     = 16 << 20  // bytes of its list of mappings
	maxChildren = 5         // that read, with those that the kernel holds
	maxSearches = 2         // children that search, likewise
	maxChild    = 512 << 20 // bytes of memory of a child that reads; Go reserves much of it
	maxOutput   = 16 << 20  // bytes of its answers
	tries       = 3
	timeAllowed = 3 * time.Second // far more than it takes, as ranks that wait spin on all processors
)

// Options say where to look.
type Options struct {
	Procfs string // mount point of procfs; empty is /proc
}

// Process is what was found.
type Process struct {
	PID     int      `json:"pid"`
	Name    string   `json:"name"`
	Python  *Python  `json:"python,omitempty"` // nil if it runs none, or none that can be read
	Problem string   `json:"problem,omitempty"`
	Threads []Thread `json:"threads"`
	Omitted int      `json:"threads_omitted,omitempty"`
}

// Python is the interpreter that a process runs.
type Python struct {
	Version  string `json:"version"`
	File     string `json:"file"`
	Verified bool   `json:"verified"` // this package was held against interpreters of this version
}

// Thread is a thread of the kernel, or one that Python lists and the kernel does
// not, or not among those that are read: its TID is 0.
type Thread struct {
	TID         int     `json:"tid"`
	Name        string  `json:"name,omitempty"`
	State       string  `json:"state,omitempty"`
	Syscall     string  `json:"syscall,omitempty"`
	WaitChannel string  `json:"wait_channel,omitempty"` // the kernel's function in which it waits
	Native      *Native `json:"native,omitempty"`
	Python      []Frame `json:"python,omitempty"` // the innermost frame first
	Problem     string  `json:"problem,omitempty"`

	inner int    // its TID in its own PID namespace
	at    uint64 // its instruction pointer; 0 is unknown
}

// Native is the place of a thread's instruction pointer. The offset is from the
// start of the symbol, or of the file where no symbol is known.
type Native struct {
	File   string `json:"file"`
	Symbol string `json:"symbol,omitempty"`
	Offset uint64 `json:"offset"`
}

// Frame is a frame of Python code. The line is 0 where the code has none.
type Frame struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
}

// reader are the children that read. A child is given up if the kernel holds it, as it does
// at a page that is never provided.
var reader = worker.Kind{Command: worker.Begins(work), Running: 1, Children: maxChildren, Limit: timeAllowed,
	Memory: maxChild, Output: maxOutput, Confined: true,
	// To read memory, to reach files that only their owner reaches, and to open a mapped file by its mapping.
	Keeps: []int{unix.CAP_SYS_PTRACE, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_CHECKPOINT_RESTORE}}

// work is a child's order.
const work = "read-stacks"

func init() {
	worker.Register(work, func(args []string) error {
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		return serve(pid, args[1], os.Stdout)
	})
}

// Held returns how many readings the kernel holds at the moment.
func Held() int { return reader.Held() }

// Of reads the stacks of a process. It waits for the readings before it, and then takes 3 s
// at most. A file or a list of mappings can hang as the process does; Of then returns the
// rest.
func Of(ctx context.Context, pid int, o Options) (*Process, error) {
	if o.Procfs == "" {
		o.Procfs = "/proc"
	}
	if self, err := os.Readlink(filepath.Join(o.Procfs, "self")); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil, fmt.Errorf("%s is of another PID namespace: give the procfs of this one as --path.procfs", o.Procfs)
	}
	id := strconv.Itoa(pid)
	out, late := reader.Do(ctx, worker.Order{Args: []string{id, o.Procfs}, Of: procs.Whose(o.Procfs, pid)})
	p, err := heard(out)
	if err != nil {
		return nil, err
	}
	if errors.Is(late, context.DeadlineExceeded) {
		held := new(worker.Full)
		text := fmt.Sprintf("reading took longer than %v, as it does when a file system or the process's memory hangs: "+
			"try again", timeAllowed)
		if errors.As(late, &held) {
			text = fmt.Sprintf("the kernel holds %d earlier readings, of this user's processes or as many as there may "+
				"be: end the processes that were read", held.Children)
		}
		late = errors.New(text)
	}
	switch {
	case late == nil && p == nil:
		return nil, errors.New("nothing was read")
	case late == nil:
		return p, nil
	case p == nil, errors.Is(late, context.Canceled):
		return nil, late
	}
	p.Problem = late.Error()
	return p, nil
}

// An answer is what a child writes, each time that more is known.
type answer struct {
	Process *Process `json:"process"`
	Failed  string   `json:"failed"`
}

// heard returns the last of a child's answers that is complete.
func heard(out []byte) (p *Process, err error) {
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var a answer
		if d.Decode(&a) != nil {
			return p, nil
		}
		if a.Failed != "" {
			return nil, errors.New(a.Failed)
		}
		p = a.Process
	}
}

// serve reads a process, and writes answers.
func serve(pid int, procfs string, to io.Writer) error {
	p, write := &Process{PID: pid}, json.NewEncoder(to)
	var failed error
	read(pid, procfs, func(add part) {
		if failed != nil {
			return
		}
		if err := add(p); err != nil {
			failed = errors.Join(err, write.Encode(answer{Failed: err.Error()}))
			return
		}
		failed = write.Encode(answer{Process: p})
	})
	return nil
}

// part adds a partial reading to a process.
type part func(*Process) error

// read reads a process part by part. The parts that no file system and no lock of the
// process's memory can delay come first.
func read(pid int, procfs string, give func(part)) {
	fail := func(err error) { give(func(*Process) error { return err }) }
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	process, threads, omitted, err := tasks(dir)
	if err != nil {
		fail(fmt.Errorf("there is no process %d: give the PID of one that runs", pid))
		return
	}
	give(func(p *Process) error {
		p.Name, p.Threads, p.Omitted = clean(process.Comm), slices.Clone(threads), omitted
		return nil
	})
	python, natives, stacks, problem := inside(pid, procfs, dir, threads)
	if now, err := stat(filepath.Join(dir, "stat")); err != nil || now.Start != process.Start {
		fail(fmt.Errorf("process %d ended meanwhile: nothing of it is left to read", pid))
		return
	}
	give(func(p *Process) error {
		p.Python = python
		if problem != nil {
			p.Problem = problem.Error()
		}
		for i := range natives {
			p.Threads[i].Native = natives[i]
		}
		for _, s := range stacks {
			i := slices.IndexFunc(p.Threads, func(t Thread) bool { return s.TID != 0 && t.inner == s.TID })
			switch {
			case i < 0 && len(p.Threads) == maxThreads:
				p.Omitted = max(p.Omitted, 1) // as the kernel's thread was
			case i < 0:
				p.Threads = append(p.Threads, Thread{Python: s.Frames, Problem: s.Problem})
			default:
				p.Threads[i].Python, p.Threads[i].Problem = s.Frames, s.Problem
			}
		}
		return nil
	})
}

// inside reads what the process's mappings and its memory say.
func inside(pid int, procfs, dir string, threads []Thread) (
	python *Python, natives []*Native, stacks []pythonStack, problem error) {
	all, err := mappings(dir)
	if err != nil {
		return nil, nil, nil, permission(pid, err)
	}
	if len(all) == 0 {
		return nil, nil, nil, fmt.Errorf("process %d has no memory: it is a thread of the kernel, or has ended", pid)
	}
	pages, err := os.Open(filepath.Join(dir, "pagemap"))
	if err != nil {
		return nil, nil, nil, permission(pid, err)
	}
	defer pages.Close()
	mounted := mountsOf(procfs, dir)
	mem := &bounded{memory: &process{pid, pages, all, mounted}, left: maxMemory}
	files := newBinaries(dir, all, mounted, mem)
	defer files.close()
	defer func() { // last, as it may take what is left to read of files
		for _, t := range threads {
			natives = append(natives, files.place(t.at))
		}
	}()
	program, _ := os.Readlink(filepath.Join(dir, "exe"))
	w, err := findPython(mem, files, program)
	if err != nil || w == nil {
		return nil, nil, nil, permission(pid, err)
	}
	known := map[int]bool{}
	for _, t := range threads {
		known[t.inner] = true
	}
	stacks, err = w.stacks(known)
	python = &Python{Version: w.version, File: clean(w.file), Verified: w.verified && runtime.GOARCH == "amd64"}
	return python, nil, stacks, permission(pid, err)
}

// clean bounds a text of the process, and removes what a terminal or a log would
// interpret.
func clean(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, s)
	if len(s) <= maxString {
		return s
	}
	return strings.ToValidUTF8(s[:maxString-len("…")], "") + "…"
}
