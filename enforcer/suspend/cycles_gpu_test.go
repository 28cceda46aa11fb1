//go:build gpu

package suspend

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
)

var (
	cycles = flag.Int("suspend.cycles", 20, "`number` of times that the program is suspended and resumed")
	gib    = flag.Float64("suspend.gib", 4, "GPU memory of the program in `GiB`")
)

// An exact is a program that trains, and whose result is the same in each run.
type exact struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// train starts the program as a user.
func train(t *testing.T, uid uint32) *exact {
	t.Helper()
	bench := os.Getenv("GS_BENCH")
	if bench == "" {
		bench = "../hook/bench"
	}
	e := &exact{t: t, cmd: exec.Command("python3", filepath.Join(bench, "exact.py"), fmt.Sprint(*gib))}
	e.cmd.Stderr = os.Stderr
	if uid != 0 {
		e.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		e.cmd.Env = append(os.Environ(), "HOME=/tmp")
	}
	in, err := e.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	e.in, e.out = in, bufio.NewScanner(out)
	if err := e.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.cmd.Process.Kill(); _ = e.cmd.Wait() })
	e.hear("ready")
	return e
}

func (e *exact) tell(order string) { fmt.Fprintln(e.in, order) }

// hear returns the rest of the next line, which begins with a word.
func (e *exact) hear(word string) string {
	e.t.Helper()
	if !e.out.Scan() {
		e.t.Fatalf("it ended before it said %s", word)
	}
	rest, is := strings.CutPrefix(e.out.Text(), word)
	if !is {
		e.t.Fatalf("it said %q instead of %s", e.out.Text(), word)
	}
	return strings.TrimSpace(rest)
}

// listed returns the GPU memory in MiB that nvidia-smi lists for a process.
func listed(t *testing.T, pid int) (mib int) {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if who, n, is := strings.Cut(line, ", "); is && who == strconv.Itoa(pid) {
			mib, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return mib
}

const stepsOfCycle = 50

// TestGPUSuspendCycles suspends a training program at random moments and resumes
// it. Its parameters are bit for bit those of a twin that nobody disturbed, and
// it loses no step.
func TestGPUSuspendCycles(t *testing.T) {
	twin := train(t, 0)
	for range *cycles {
		twin.tell(fmt.Sprint("go ", stepsOfCycle))
		twin.hear("did")
	}
	twin.tell("hash")
	want := twin.hear("hash")
	twin.tell("copy")
	t.Logf("copies to and from pinned memory, GiB/s: %s", twin.hear("copy"))
	_ = twin.cmd.Process.Kill()

	e := train(t, 0)
	e.tell("go 0") // its context and its memory are there
	e.hear("did")
	pid := e.cmd.Process.Pid
	s := suspender(t)
	var down, up []float64
	worst := 1.
	for i := range *cycles {
		before := listed(t, pid)
		e.tell(fmt.Sprint("go ", stepsOfCycle))
		time.Sleep(time.Duration(rand.Float64() * float64(200*time.Millisecond))) // a moment of its work
		took, back := s.cycle(t, e, before)
		down, up = append(down, took), append(up, back)
		worst = min(worst, s.freed)
		if did := e.hear("did"); did != strconv.Itoa((i+1)*stepsOfCycle) {
			t.Fatalf("cycle %d: it did %s steps", i, did)
		}
		if i%10 == 9 {
			fmt.Printf("cycle %d: suspended in %.2f s, resumed in %.2f s\n", i+1, down[i], up[i])
		}
	}
	e.tell("hash")
	if got := e.hear("hash"); got != want {
		t.Errorf("after %d cycles its state is %s, and that of its twin %s", *cycles, got, want)
	}
	t.Logf("the first took %.2f and %.2f s", down[0], up[0])
	slices.Sort(down)
	slices.Sort(up)
	t.Logf("%d cycles of %.0f GiB: suspended in %.2f s (median; %.2f to %.2f), resumed in %.2f s (%.2f to %.2f); at least "+
		"%.2f %% of the memory freed", *cycles, *gib, down[len(down)/2], down[0], down[len(down)-1], up[len(up)/2], up[0],
		up[len(up)-1], 100*worst)
	if worst < .99 {
		t.Errorf("%.2f %% of the memory was freed, less than 99 %%", 100*worst)
	}
}

// An asker suspends and resumes, and measures.
type asker struct {
	*Suspender
	freed float64 // the part of a program's memory that the last suspension freed
}

// suspender has the GPU for itself. env is added to the environment of its child
// processes.
func suspender(t *testing.T, env ...string) *asker {
	return &asker{Suspender: &Suspender{Call: Helper(filepath.Join(t.TempDir(), "lock"), env...),
		Alive: func(action.Target) bool { return true },
		Free:  func(string) (uint64, bool) { return 1 << 50, true },
		Room:  Host{ProcFS: "/proc", CgroupFS: "/sys/fs/cgroup"}.Room}}
}

// cycle suspends a program of so many MiB and resumes it, and returns the
// seconds that both took.
func (s *asker) cycle(t *testing.T, e *exact, mib int) (down, up float64) {
	t.Helper()
	of, pid := audit.Subject{Tenant: "t", Workload: "w"}, e.cmd.Process.Pid
	p := Process{action.Target{PID: pid, Start: 1}, map[string]uint64{"GPU": uint64(mib) << 20}}
	if err := s.Suspend(time.Now(), of, []Process{p}, "test"); err != nil {
		t.Fatal(err)
	}
	down = s.wait(t, Suspended)
	s.freed = 1 - float64(listed(t, pid))/float64(mib)
	if err := s.Resume(time.Now(), of, "tested"); err != nil {
		t.Fatal(err)
	}
	return down, s.wait(t, Resuming)
}

// wait returns how long something took that is under way.
func (s *asker) wait(t *testing.T, done Phase) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		for _, end := range s.Look(time.Now()) {
			if end.Err != nil || end.Done != done || len(end.Lost) > 0 {
				t.Fatalf("%+v", end)
			}
			return end.Took.Seconds()
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("it took more than 5 minutes")
	return 0
}
