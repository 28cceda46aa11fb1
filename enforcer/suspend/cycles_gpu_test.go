//go:build gpu

package suspend

import (
	"bufio"
	"cmp"
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
	"gpusteward/internal/fixture"
)

var (
	cycles = flag.Int("suspend.cycles", 20, "`number` of times that the program is suspended and resumed")
	gib    = flag.Float64("suspend.gib", 4, "GPU memory of the program in `GiB`")
)

// An exact is a program that does what it is told: exact.py trains, and its result is the same in each run.
type exact struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.Writer
	out *bufio.Scanner
}

// train starts the program as a user.
func train(t *testing.T, uid uint32) *exact { return begin(t, uid, "exact.py", fmt.Sprint(*gib)) }

// begin starts a program of hook/bench that obeys.
func begin(t *testing.T, uid uint32, script, argument string) *exact {
	t.Helper()
	e := &exact{t: t, cmd: exec.Command("python3", program(script), argument)}
	e.cmd.Stderr = os.Stderr
	if uid != 0 {
		e.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
		e.cmd.Env = append(os.Environ(), "HOME=/tmp")
	}
	in := fixture.Value(e.cmd.StdinPipe())(t)
	out := fixture.Value(e.cmd.StdoutPipe())(t)
	e.in, e.out = in, bufio.NewScanner(out)
	fixture.Must(t, e.cmd.Start())
	t.Cleanup(func() { _ = e.cmd.Process.Kill(); _ = e.cmd.Wait() })
	e.hear("ready")
	return e
}

// program returns the path of a program of hook/bench.
func program(name string) string {
	return filepath.Join(cmp.Or(os.Getenv("GS_BENCH"), "../hook/bench"), name)
}

func (e *exact) tell(order string) { fmt.Fprintln(e.in, order) }

// hear returns the rest of the next line, which begins with a word.
func (e *exact) hear(word string) string {
	e.t.Helper()
	fixture.Stop(e.t, !e.out.Scan(), "it ended before it said %s", word)
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
	fixture.Must(t, err)
	for _, line := range strings.Split(string(out), "\n") {
		if who, n, is := strings.Cut(line, ", "); is && who == strconv.Itoa(pid) {
			mib, _ = strconv.Atoi(strings.TrimSpace(n))
		}
	}
	return mib
}

const stepsOfCycle = 50

// TestGPUSuspendCycles suspends a training program at random moments and resumes it. Its parameters are bit for bit
// those of a twin that nobody disturbed, and it loses no step.
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

	beside := begin(t, 0, "gaps.py", "")
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
		fixture.Need(t, e.hear("did"), strconv.Itoa((i+1)*stepsOfCycle), "cycle %d: it did … steps", i)
		if i%10 == 9 {
			fmt.Printf("cycle %d: suspended in %.2f s, resumed in %.2f s\n", i+1, down[i], up[i])
		}
	}
	_ = beside.in.(io.Closer).Close()
	t.Logf("pauses of a program on the same GPU, their number and ms: %s", beside.hear("gaps"))
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
	fixture.AtLeast(t, worst, .99, "%.2f %% of the memory was freed, less than 99 %%", 100*worst)
}

// TestGPUSuspendRates compares the rates of the driver with copies to and from pinned
// memory: with small pages of host memory, with huge ones, and with pages that the
// kernel gives before their first use. The host's setting of huge pages is put back.
func TestGPUSuspendRates(t *testing.T) {
	const setting = "/sys/kernel/mm/transparent_hugepage/enabled"
	was := fixture.Value(os.ReadFile(setting))(t)
	_, chosen, _ := strings.Cut(string(was), "[")
	chosen, _, _ = strings.Cut(chosen, "]")
	t.Cleanup(func() { _ = os.WriteFile(setting, []byte(chosen), 0o644) })
	for _, c := range []struct {
		pages string
		ahead bool
	}{{"never", false}, {"always", false}, {"never", true}, {"always", true}} {
		fixture.Must(t, os.WriteFile(setting, []byte(c.pages), 0o644))
		e := train(t, 0)
		e.tell("go 1")
		e.hear("did")
		if c.ahead {
			e.tell("ahead")
			e.hear("ahead")
		}
		mib := listed(t, e.cmd.Process.Pid)
		s := suspender(t)
		for i := range 2 {
			down, up := s.cycle(t, e, mib)
			t.Logf("huge pages %s, given ahead %v, cycle %d: %.2f and %.2f GiB/s", c.pages, c.ahead, i,
				float64(mib)/1024/down, float64(mib)/1024/up)
		}
		e.tell("copy")
		t.Logf("copies to and from pinned memory: %s GiB/s", e.hear("copy"))
		_ = e.cmd.Process.Kill()
		_ = e.cmd.Wait()
	}
}

// An asker suspends and resumes, and measures.
type asker struct {
	*Suspender
	freed float64 // the part of a program's memory that the last suspension freed
}

// suspender has the GPU for itself. env is added to the environment of its child processes.
func suspender(t *testing.T, env ...string) *asker {
	return &asker{Suspender: &Suspender{Mover: Mover{Call: Helper(filepath.Join(t.TempDir(), "lock"), env...),
		Alive: func(action.Target) bool { return true },
		Free:  func(string) (uint64, bool) { return 1 << 50, true },
		Room:  Host{ProcFS: "/proc", CgroupFS: "/sys/fs/cgroup"}.Room}}}
}

// cycle suspends a program of so many MiB and resumes it, and returns the seconds that both took.
func (s *asker) cycle(t *testing.T, e *exact, mib int) (down, up float64) {
	t.Helper()
	down = s.suspend(t, e, mib)
	s.freed = 1 - float64(listed(t, e.cmd.Process.Pid))/float64(mib)
	return down, s.resume(t, e)
}

var anybody = audit.Subject{Tenant: "t", Workload: "w"}

func (s *asker) suspend(t *testing.T, e *exact, mib int) (took float64) {
	t.Helper()
	s.send(t, e, mib)
	return s.wait(t, Suspended)
}

// send begins to suspend a program of so many MiB.
func (s *asker) send(t *testing.T, e *exact, mib int) {
	t.Helper()
	p := Process{Target: action.Target{PID: e.cmd.Process.Pid, Start: 1}, Memory: map[string]uint64{"GPU": uint64(mib) << 20}}
	fixture.Must(t, s.Suspend(time.Now(), anybody, []Process{p}, "test"))
}

func (s *asker) resume(t *testing.T, e *exact) (took float64) {
	t.Helper()
	fixture.Must(t, s.Resume(time.Now(), anybody, "tested"))
	return s.wait(t, Resuming)
}

// wait returns how long something took that is under way.
func (s *asker) wait(t *testing.T, done Phase) float64 {
	t.Helper()
	end := s.result(t)
	fixture.Stop(t, end.Err != nil || end.Done != done || len(end.Lost) > 0, "%+v", end)
	return end.Took.Seconds()
}

// result returns the end of what is under way.
func (s *asker) result(t *testing.T) End {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		for _, end := range s.Look(time.Now()) {
			return end
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("it took more than 5 minutes")
	return End{}
}
