//go:build tools

package stack

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

var (
	pythons = flag.String("stack.pythons", "/usr/bin/python3", "interpreters to read, with commas between them")
	record  = flag.Bool("stack.record", false, "write what is read to testdata")
)

// ranks starts testdata/ranks.py, and returns its PID and what Python says of it.
func ranks(t testing.TB, python string, args ...string) (pid int, r recording) {
	t.Helper()
	begin := "exec(compile(open('testdata/ranks.py').read(), 'ranks.py', 'exec'))" // without this machine's path
	cmd := exec.Command(python, append([]string{"-c", begin}, args...)...)
	stdin := fixture.Value(cmd.StdinPipe())(t)
	stdout := fixture.Value(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	err := cmd.Start()
	fixture.Stop(t, err != nil, "%v (make tools installs Python)", err)
	t.Cleanup(func() { stdin.Close(); cmd.Wait() })
	line := fixture.Value(bufio.NewReader(stdout).ReadString('\n'))(t)
	fixture.Must(t, json.Unmarshal([]byte(line), &r))
	return cmd.Process.Pid, r
}

// TestRealPython compares what is read with what Python itself says of its threads.
func TestRealPython(t *testing.T) {
	for python := range strings.SplitSeq(*pythons, ",") {
		t.Run(python, func(t *testing.T) {
			pid, r := ranks(t, python)
			p, err := Of(t.Context(), pid, Options{})
			moves := func(t Thread) bool { return t.Syscall != "read" || t.State != "sleeping" || t.WaitChannel == "" }
			for err == nil && slices.ContainsFunc(p.Threads, moves) { // the last ones may still be on their way
				p, err = Of(t.Context(), pid, Options{})
			}
			fixture.Stop(t, err != nil || p.Problem != "" || p.Python == nil || !p.Python.Verified ||
				!strings.HasPrefix(r.Version, p.Python.Version), "%v %+v", err, p)
			var got []pythonStack
			for _, th := range p.Threads {
				got = append(got, pythonStack{th.TID, th.Python, th.Problem})
				fixture.If(t, th.Native == nil || th.Native.Symbol != "read" || th.Native.Offset == 0 ||
					!strings.Contains(th.Native.File, "/libc.so"), "%+v", th)
			}
			agrees(t, got, r.Stacks)
			if *record {
				r.record(t, pid)
			}
		})
	}
}

// BenchmarkOf reads eight threads of 20 frames each.
func BenchmarkOf(b *testing.B) {
	pid, _ := ranks(b, strings.Split(*pythons, ",")[0], "count", counter(b))
	spent := func() (sum time.Duration) { // with the children that read
		for _, of := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
			var u unix.Rusage
			fixture.Must(b, unix.Getrusage(of, &u))
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
		return sum
	}
	before := spent()
	for b.Loop() {
		if p, err := Of(b.Context(), pid, Options{}); err != nil || p.Problem != "" || len(p.Threads[1].Python) != 20 {
			b.Fatal(err, p)
		}
	}
	b.ReportMetric((spent()-before).Seconds()*1e9/float64(b.N), "cpu-ns/op")
}

// ran is the processor time of threads, by the directories of procfs that match.
func ran(b *testing.B, pattern string) (sum time.Duration) {
	b.Helper()
	files := fixture.Value(filepath.Glob(pattern + "/schedstat"))(b)
	for _, f := range files {
		n := fixture.Value(strconv.ParseInt(strings.Fields(small(f) + " 0")[0], 10, 64))(b)
		sum += time.Duration(n)
	}
	return sum
}

func counter(b *testing.B) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "count")
	fixture.Must(b, os.WriteFile(path, make([]byte, 8), 0o644))
	return path
}

// BenchmarkTarget measures how much less a thread of that process counts in its processor time while the process is
// read without a pause, over windows with and without a reader by turns.
func BenchmarkTarget(b *testing.B) {
	path := counter(b)
	pid, _ := ranks(b, strings.Split(*pythons, ",")[0], "count", path)
	counted := func(meanwhile func()) float64 {
		text := func() uint64 {
			n := fixture.Value(os.ReadFile(path))(b)
			return binary.LittleEndian.Uint64(n)
		}
		threads := fmt.Sprintf("/proc/%d/task/*", pid) // the others stand still
		before, start := text(), ran(b, threads)
		for over := time.After(250 * time.Millisecond); ; {
			select {
			case <-over:
				return float64(text()-before) / (ran(b, threads) - start).Seconds()
			default:
				meanwhile()
			}
		}
	}
	var slower []float64
	reads := 0
	for b.Loop() {
		alone := counted(func() { time.Sleep(time.Millisecond) })
		read := counted(func() {
			reads++
			if _, err := Of(b.Context(), pid, Options{}); err != nil {
				b.Fatal(err)
			}
		})
		slower = append(slower, 100*(1-read/alone))
	}
	slices.Sort(slower)
	b.ReportMetric(slower[len(slower)/2], "%slower")
	b.ReportMetric(float64(reads)/float64(b.N)*4, "reads/s")
}

// record reads the process once more, and writes what was read to testdata.
func (r recording) record(t *testing.T, pid int) {
	t.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	all := fixture.Value(mappings(dir))(t)
	program := fixture.Value(os.Readlink(filepath.Join(dir, "exe")))(t)
	pages := fixture.Value(os.Open(filepath.Join(dir, "pagemap")))(t)
	defer pages.Close()
	mounted := mountsOf("/proc", dir)
	mem := &process{pid, pages, all, mounted}
	files := newBinaries(dir, all, mounted, mem)
	defer files.close()
	w, err := findPython(mem, files, program)
	fixture.Stop(t, err != nil || w == nil, "%v", err)
	o := fixture.Value(files.object(w.file))(t)
	r.Symbols = fixture.Value(o.find(symbols...))(t)
	memory := recorder{mem, image{}}
	w = fixture.Value(newInterpreter(memory, r.Symbols))(t)
	stacks := fixture.Value(w.stacks(r.known()))(t)
	agrees(t, stacks, r.Stacks)
	r.Memory = memory.segments()
	text := fixture.Value(json.MarshalIndent(r, "", " "))(t)
	fixture.Must(t, os.WriteFile("testdata/"+r.Version+".json", append(text, '\n'), 0o644))
}
