package stack

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

func TestSyscalls(t *testing.T) {
	futex, tgkill := strconv.Itoa(unix.SYS_FUTEX), strconv.Itoa(unix.SYS_TGKILL)
	for line, want := range map[string]struct {
		name string
		at   uint64
	}{
		futex + " 0x7f 0x80 0x0 0x0 0x0 0xffffffff 0x7ffd 0x7f8a": {"futex", 0x7f8a},
		tgkill + " 0x7 0x7 0x6 0x0 0x0 0x0 0x7ffd 0x7f8a":         {"tgkill", 0x7f8a},
		"9999 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f8a":              {"number 9999", 0x7f8a},
		"-1 0x7ffd 0x7f8a\n":                                      {"", 0x7f8a},
		"running\n":                                               {"", 0},
		"0 0x0 0x0 0x0 0x0 0x0 0x0 0x0 0x0":                       {"", 0},
		"":                                                        {"", 0},
		"1 2 x":                                                   {"", 0},
	} {
		name, at := syscallOf(line)
		fixture.If(t, name != want.name || at != want.at, "%q: %q at %#x, want %+v", line, name, at, want)
	}
}

func TestStates(t *testing.T) {
	for state, want := range map[byte]string{'S': "sleeping", 'D': "uninterruptible", '?': "?", 0x1b: "\uFFFD"} {
		fixture.Equal(t, stateOf(state), want, "%q", state)
	}
}

func TestMaps(t *testing.T) {
	all, err := parseMaps(strings.NewReader(`55cd9ba5b000-55cd9ba5d000 r--p 00000000 fe:00 2477         /usr/bin/py thon
7f0000000000-7f0000001000 r-xp 00002000 fe:00 2478             /usr/lib/libpython3.11.so.1.0 (deleted)
7f0000002000-7f0000003000 rw-p 00000000 00:00 0 
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0              [vsyscall]
`))
	want := []mapping{{0x55cd9ba5b000, 0x55cd9ba5d000, 0, "fe:00", 2477, "/usr/bin/py thon"},
		{0x7f0000000000, 0x7f0000001000, 0x2000, "fe:00", 2478, "/usr/lib/libpython3.11.so.1.0 (deleted)"},
		{0x7f0000002000, 0x7f0000003000, 0, "00:00", 0, ""},
		{0xffffffffff600000, 0xffffffffff601000, 0, "00:00", 0, "[vsyscall]"}}
	fixture.If(t, err != nil || !slices.Equal(all, want), "%v\n got %v\nwant %v", err, all, want)
	for _, bad := range []string{"x\n", "2000-1000 r--p 0 0:0 0\n", "1000-2000 r--p\n"} {
		fixture.Fails(t, fixture.Error(parseMaps(strings.NewReader(bad))), "", "%q", bad)
	}
}

func TestStackOfThisProcess(t *testing.T) {
	t.Parallel()
	p, err := Of(t.Context(), os.Getpid(), Options{})
	fixture.Stop(t, err != nil || p.PID != os.Getpid() || p.Python != nil || p.Problem != "" || len(p.Threads) < 2,
		"%v %+v", err, p)
}

func TestStackOfNoProcess(t *testing.T) {
	t.Parallel()
	elsewhere := t.TempDir()
	fixture.Must(t, os.Symlink("1", filepath.Join(elsewhere, "self")))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		ctx    context.Context
		pid    int
		procfs string
		want   string
	}{
		"no process":     {t.Context(), 1<<31 - 2, "", "there is no process 2147483646"},
		"process 0":      {t.Context(), 0, "", "there is no process 0"},
		"another procfs": {t.Context(), os.Getpid(), elsewhere, "another PID namespace"},
		"no procfs":      {t.Context(), os.Getpid(), filepath.Join(elsewhere, "x"), "another PID namespace"},
		"ended":          {ended, os.Getpid(), "", "context canceled"},
	} {
		fixture.Fails(t, fixture.Error(Of(c.ctx, c.pid, Options{Procfs: c.procfs})), c.want, "%s", name)
	}
}

// held makes a procfs with process 7, whose list of mappings cannot be read on
// until meanwhile has returned. It is called when that reading has begun.
func held(t *testing.T, meanwhile func(dir string)) (procfs string) {
	t.Helper()
	procfs = t.TempDir()
	dir := filepath.Join(procfs, "7")
	maps := filepath.Join(dir, "maps")
	fixture.Must(t, errors.Join(os.MkdirAll(filepath.Join(dir, "task/7"), 0o755),
		os.Symlink(strconv.Itoa(os.Getpid()), filepath.Join(procfs, "self")),
		os.WriteFile(filepath.Join(dir, "stat"), []byte(rank), 0o644),
		os.WriteFile(filepath.Join(dir, "task/7/stat"), []byte(rank), 0o644),
		unix.Mkfifo(maps, 0o600)))
	go func() {
		f, err := os.OpenFile(maps, os.O_WRONLY, 0) // waits for the reader
		meanwhile(dir)
		if err == nil {
			f.Close()
		}
	}()
	return procfs
}

const rank = "7 (rank) D 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"

// TestHang holds the list of mappings back: what was read before is returned, but not to somebody who asks no more.
func TestHang(t *testing.T) {
	t.Parallel()
	for _, why := range []error{errors.New("it hangs"), context.Canceled} {
		ctx, late := context.WithCancelCause(t.Context())
		procfs := held(t, func(string) {
			late(why)
			<-t.Context().Done()
		})
		p, err := Of(ctx, 7, Options{Procfs: procfs})
		if errors.Is(why, context.Canceled) {
			fixture.Equal(t, errors.Is(err, why), true, "it failed by its end: %v", err)
		} else if err != nil || p.Name != "rank" || len(p.Threads) != 1 || p.Threads[0].State != "uninterruptible" ||
			p.Problem != "it hangs" {
			t.Errorf("%v %+v", err, p)
		}
	}
}

// TestReusedPID ends the process while it is read, and begins another.
func TestReusedPID(t *testing.T) {
	t.Parallel()
	procfs := held(t, func(dir string) {
		another := strings.Replace(rank, "4711", "4712", 1)
		fixture.Must(t, os.WriteFile(filepath.Join(dir, "stat"), []byte(another), 0o644))
	})
	p, err := Of(t.Context(), 7, Options{Procfs: procfs})
	fixture.If(t, err == nil || err.Error() != "process 7 ended meanwhile: nothing of it is left to read",
		"%v %+v", err, p)
}

// TestManyThreads reads the threads of a made procfs with more of them than are read.
func TestManyThreads(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(tid, file, text string) { fixture.Rewrite(t, filepath.Join(dir, "task", tid, file), text) }
	line := "(rank) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20"
	for i := range maxThreads + 9 {
		write(strconv.Itoa(i+1), "stat", strconv.Itoa(i+1)+" "+line)
	}
	write("3", "status", "NSpid:\t3\t30\n")
	write("3", "wchan", "futex_wait_queue")
	write("4", "wchan", "0")
	write("5", "stat", "")
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "stat"), []byte("1 "+line), 0o644))
	process, all, omitted, err := tasks(dir)
	if err != nil || process.Comm != "rank" || process.Start != 4711 || omitted != 9 || len(all) != maxThreads-1 {
		t.Fatalf("%v %+v %d %d", err, process, omitted, len(all))
	}
	if all[2].WaitChannel != "futex_wait_queue" || all[2].inner != 30 || all[3].WaitChannel != "" || all[4].TID != 6 {
		t.Errorf("%+v", all[2:5])
	}
}

func TestText(t *testing.T) {
	p := &Process{PID: 4711, Name: "python3", Python: &Python{Version: "3.14.2", File: "/usr/bin/python3.14"},
		Problem: "it is late", Omitted: 2, Threads: []Thread{
			{TID: 4711, Name: "python3", State: "sleeping", Syscall: "futex", WaitChannel: "futex_wait_queue",
				Native: &Native{"/usr/lib/libc.so.6", "pthread_cond_wait", 0x1f},
				Python: []Frame{{"step", "train.py", 12}, {"<module>", "train.py", 0}}},
			{TID: 4712, Name: "nccl", State: "running", Native: &Native{"[anonymous]", "", 0x10},
				Problem: "inconsistent, tried 3 times"},
			{Python: slices.Repeat([]Frame{{"f", "x.py", 1}}, maxFrames)}}}
	want := `process 4711 (python3), Python 3.14.2, 5 threads (2 left out)
not verified: gpusteward was never tested with this version of Python on this architecture
not all of it was read: it is late

thread 4711 (python3), sleeping, system call futex, in the kernel's futex_wait_queue
    libc.so.6 pthread_cond_wait+0x1f
    train.py:12 step
    train.py:? <module>

thread 4712 (nccl), running
    Python: inconsistent, tried 3 times
    [anonymous]+0x10

a Python thread whose TID is not known
` + strings.Repeat("    x.py:1 f\n", maxFrames) + "    outer frames are left out\n"
	fixture.Equal(t, p.Text(), want, "text")
	for _, want := range []string{`"wait_channel": "futex_wait_queue"`, `"function": "step"`, `"verified": false`} {
		fixture.Contains(t, p.JSON(), want, "… is not in")
	}
}

func TestLines(t *testing.T) {
	for name, c := range map[string]struct {
		form  lines
		table []byte
		at    map[int]int // line by place; -1 is a place that the table does not reach
	}{
		"3.9": {lnotab, []byte{4, 1, 255, 0, 1, 127, 0, 73, 2, 0xfb}, map[int]int{
			-1: 10, 0: 10, 3: 10, 4: 11, 258: 11, 259: 11, 260: 211, 261: 211, 262: 206, 900: 206}},
		"3.10": {linetable, []byte{4, 1, 2, 0x80, 0, 127, 2, 0xfb}, map[int]int{
			-2: 10, 0: 11, 3: 11, 4: 0, 6: 133, 7: 133, 8: -1}},
		"3.11": {locations, []byte{0x80, 0, 0x80 | 10<<3 | 1, 1, 2, 0x80 | 15<<3,
			0x80 | 14<<3, 0x40 | 32, 8, 1, 2, 3, 0x80 | 13<<3 | 7, 7},
			map[int]int{-2: 10, 0: 10, 2: 10, 4: 10, 6: 0, 8: 282, 10: 279, 25: 279, 26: -1}},
		"3.11, no head": {locations, []byte{0}, map[int]int{0: -1}},
		"3.11, cut":     {locations, []byte{0x80 | 14<<3}, map[int]int{0: 10, 2: -1}},
		"3.11, without end": {locations, append([]byte{0x80 | 13<<3}, bytes.Repeat([]byte{0x7f}, 9)...),
			map[int]int{0: -1}},
		"3.11, a line before": {locations, []byte{0x80 | 13<<3, 0x40 | 63, 1}, map[int]int{0: -1}},
		"3.10, a line before": {linetable, []byte{2, 0xf0}, map[int]int{0: -1}},
		"3.9, a line before":  {lnotab, []byte{0, 0xf0}, map[int]int{0: -1}},
	} {
		for at, want := range c.at {
			line, ok := c.form(c.table, 10, at)
			if !ok {
				line = -1
			}
			fixture.Equal(t, line, want, "%s: the line at %d", name, at)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte{4, 1, 255, 0, 1, 127, 0, 73, 2, 0xfb}, 10, 300)
	f.Add([]byte{0x80 | 14<<3, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f}, 1, 1<<40)
	f.Fuzz(func(t *testing.T, table []byte, first, at int) {
		first = int(int32(first))
		for _, form := range []lines{lnotab, linetable, locations} {
			line, ok := form(table, first, at)
			fixture.If(t, ok && line < 0 && first > 0, "line %d", line)
		}
	})
}
