//go:build gpu

package enforcer_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/steps"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestGPUTraces records what real programs write into their traces, beside their own timers, for tests that need no
// GPU. GS_JOBS_OUT names the directory of the results: KIND.json[.RANK] by hook/bench/jobs.py, and PID.trace, the
// events as little-endian int64 ns, uint32 id, uint8 kind, uint8 gpu, uint16 thread.
var (
	jobsSeconds = flag.Float64("jobs.seconds", 10, "`seconds` of each program; padding takes twice as many for its steps")
	jobsOnly    = flag.String("jobs.only", "", "`regexp` of the kinds of programs; empty is all")
	jobsBeside  = flag.Int("jobs.beside", 4, "`programs` at a time")
)

var jobKinds = []string{"eager", "tenth", "queue", "compiled", "graph", "accumulate", "amp", "loader", "gpt2",
	"padding", "trainer", "gan", "jax", "triton", "requests", "decode", "notebook", "endless"}

func TestGPUTraces(t *testing.T) {
	out := os.Getenv("GS_JOBS_OUT")
	if out == "" {
		t.Skip("GS_JOBS_OUT names no directory for the traces")
	}
	r := record(t)
	only := regexp.MustCompile("^(" + *jobsOnly + ")$")
	kinds := jobKinds
	if len(products()) > 1 {
		kinds = slices.Concat(gangKinds, []string{"straggler"}, jobKinds)
		*jobsBeside = 1
	}
	var group sync.WaitGroup
	slots := make(chan struct{}, *jobsBeside)
	for _, kind := range kinds {
		if *jobsOnly != "" && !only.MatchString(kind) {
			continue
		}
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := r.run(t, kind, filepath.Join(out, kind+".json")); err != nil {
				t.Errorf("%s: %v", kind, err)
			}
		})
	}
	group.Wait()
	r.write(t, out)
}

// gangKinds are the kinds of programs with a rank on each GPU.
var gangKinds = []string{"ddp", "fsdp"}

func (r *recorder) run(t *testing.T, kind, file string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	seconds := *jobsSeconds
	if kind == "padding" {
		seconds *= 2
	}
	cmd := exec.CommandContext(ctx, "python3", filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "jobs.py"), kind,
		fmt.Sprint(seconds), file)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+r.hook, "GPUSTEWARD_SOCKET="+r.socket)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, text[max(0, len(text)-1500):])
	}
	return nil
}

// write writes the traces, and prints what is in them.
func (r *recorder) write(t *testing.T, out string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for pid, one := range r.events {
		var b bytes.Buffer
		counts := map[wire.EventKind]int{}
		for _, e := range one.events {
			counts[e.Kind]++
			_ = binary.Write(&b, binary.LittleEndian, e)
		}
		fixture.Must(t, os.WriteFile(filepath.Join(out, fmt.Sprintf("%d.trace", pid)), b.Bytes(), 0o644))
		text, _ := json.Marshal(one.communicators[:3])
		fmt.Printf("pid %d: %d events, %d lost, head %d: %v %s\n", pid, len(one.events), one.lost, one.head, counts, text)
	}
}

// TestGPUSteps compares the steps that are found with the timer in each program, one program after the other.
func TestGPUSteps(t *testing.T) {
	good, all := 0, 0
	fmt.Println("kind        steps  found  counted  median ms  median err %  p99 err %  single err %")
	only := regexp.MustCompile("^(" + *jobsOnly + ")$")
	kinds := jobKinds
	if len(products()) > 1 {
		kinds = slices.Concat(gangKinds, kinds)
	}
	for _, kind := range kinds {
		if *jobsOnly != "" && !only.MatchString(kind) {
			continue
		}
		t.Run(kind, func(t *testing.T) {
			r := record(t)
			file := filepath.Join(t.TempDir(), "times")
			fixture.Must(t, r.run(t, kind, file))
			files, _ := filepath.Glob(file + "*") // of each rank
			fixture.Stop(t, len(files) == 0, "it wrote no times")
			for _, file := range files {
				var times struct {
					PID   int
					Began int64
					Ends  []int64
				}
				text, err := os.ReadFile(file)
				if err == nil {
					err = json.Unmarshal(text, &times)
				}
				fixture.Must(t, err)
				found := stepsOf(r.of(t, times.PID))
				if len(times.Ends) == 0 {
					fmt.Printf("%-10s  %5d\n", kind, len(found))
					fixture.Equal(t, len(found), 0, "… steps of a program that has none")
					return
				}
				all++
				if c := compareSteps(times.Began, times.Ends, found); c.print(kind) {
					good++
				}
			}
		})
	}
	fixture.AtLeast(t, 10*good, 9*all,
		"%d of %d kinds are within 0.3 %% (median) and 2 %% (p99) and found within 20 steps, want 9 of 10", good, all)
}

// stepsOf returns what a finder finds that is fed each 100 ms, of patterns that have as
// many steps as an observer wants before it counts them.
func stepsOf(events []wire.Event) []steps.Step {
	const trusted = 40
	var f steps.Finder
	var all []steps.Step
	taken := uint64(0)
	for from := 0; from < len(events); {
		to := from
		for to < len(events) && events[to].At-events[from].At < 100e6 {
			to++
		}
		to = max(to, from+1)
		f.Feed(events[from:to])
		all = f.Steps(taken, all)
		taken, from = f.Finished(), to
	}
	// Withdrawn ones are known at the end, if they are kept that long.
	if late := f.Steps(0, nil); len(all) <= 256 {
		all = late
	}
	of := map[uint8]int{}
	for i := range all {
		of[all[i].Pattern]++
	}
	return slices.DeleteFunc(all, func(s steps.Step) bool { return of[s.Pattern] < trusted })
}

type comparison struct {
	steps, found                     int
	counted, ms, median, p99, single float64
}

// compareSteps compares both times over what both have seen: the steps whose middle lies there. The median of steps
// that differ much from each other moves with a few of them; the median error of single ones does not.
func compareSteps(began int64, ends []int64, found []steps.Step) (c comparison) {
	c.steps, c.found = len(ends), -1
	if len(found) == 0 {
		return c
	}
	first, last := found[0].Begin, min(found[len(found)-1].End, ends[len(ends)-1])
	seen := func(begin, end int64) bool { return first <= begin/2+end/2 && begin/2+end/2 <= last }
	var timer, ours, errs []float64
	for i, end := range ends {
		if seen(began, end) {
			if c.found < 0 {
				c.found = i
			}
			timer = append(timer, float64(end-began))
		}
		began = end
	}
	for i := range found {
		s := &found[i]
		if !seen(s.Begin, s.End) {
			continue
		}
		ours = append(ours, float64(s.Wall()))
		near, _ := slices.BinarySearch(ends, s.Begin/2+s.End/2)
		if near > 0 {
			errs = append(errs, math.Abs(float64(s.Wall())/float64(ends[near]-ends[near-1])-1))
		}
	}
	if len(timer) == 0 || len(ours) == 0 {
		return c
	}
	c.counted = float64(len(ours)) / float64(len(ends)-c.found)
	c.ms = percentile(timer, 0.5) / 1e6
	c.median = 100 * (percentile(ours, 0.5)/percentile(timer, 0.5) - 1)
	c.p99 = 100 * (percentile(ours, 0.99)/percentile(timer, 0.99) - 1)
	c.single = 100 * percentile(errs, 0.5)
	return c
}

func (c comparison) print(kind string) (good bool) {
	good = c.found >= 0 && c.found <= 20 && math.Abs(c.counted-1) <= 0.03 && math.Abs(c.median) <= 0.3 &&
		math.Abs(c.p99) <= 2
	fmt.Printf("%-10s  %5d  %5d  %7.3f  %9.3f  %12.2f  %9.2f  %12.2f  %v\n", kind, c.steps, c.found, c.counted, c.ms,
		c.median, c.p99, c.single, good)
	return good
}

var (
	hangRounds = flag.Int("hangs.rounds", 1, "`times` that a job hangs for each reason, several at once with -test.parallel")
	hangOnly   = flag.String("hangs.only", "", "`regexp` of the reasons; empty is all")
)

// TestGPUHangs lets a data-parallel job on two GPUs hang for each reason, and
// wants its culprit named within 20 s, with the line on which it stands.
func TestGPUHangs(t *testing.T) {
	if len(products()) < 2 {
		t.Skip("needs two GPUs")
	}
	for _, c := range []struct{ fault, reason, where string }{
		{"loader", "absent", "in load_forever"}, {"skip", "absent", "in hanging"}, {"stop", "stopped", "in hanging"},
		{"die", "ended", ""}, {"kernel", "kernel", ".step"}, {"unlike", "unlike", ".step"}, {"deadlock", "deadlock", ".meet"},
	} {
		for range *hangRounds {
			if only := regexp.MustCompile("^(" + *hangOnly + ")$"); *hangOnly == "" || only.MatchString(c.fault) {
				t.Run(c.fault, func(t *testing.T) { t.Parallel(); hangs(t, c.fault, c.reason, c.where) })
			}
		}
	}
}

func hangs(t *testing.T, fault, reason, where string) {
	var o jobs.Observer
	socket := observeWith(t, o.Observe)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "python3", filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "jobs.py"),
		"hang_"+fault, "600", filepath.Join(t.TempDir(), "out"))
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
		"GPUSTEWARD_SOCKET="+socket, "TORCH_NCCL_ASYNC_ERROR_HANDLING=0")
	out := fixture.Value(cmd.StdoutPipe())(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // all ranks
	fixture.Must(t, cmd.Start())
	defer func() { cancel(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "hangs") {
	}
	began := time.Now()
	var found []wire.HangStats
	for time.Since(began) < 40*time.Second && (len(found) == 0 || found[0].Where == "" && where != "") {
		time.Sleep(time.Second)
		_, found = o.Look(func(int) string { return "job" })
	}
	took := time.Since(began)
	if script := os.Getenv("GS_RAS"); script != "" {
		text, _ := exec.Command("bash", "-c", script).CombinedOutput()
		fmt.Printf("%s: RAS says\n%s\n", fault, text)
	}
	fmt.Printf("%s: after %v %+v\n", fault, took, found)
	if len(found) != 1 || found[0].Reason != reason || found[0].Rank != 1 && fault != "deadlock" || took > 20*time.Second ||
		!strings.Contains(found[0].Where, where) {
		stats, _ := o.Look(func(int) string { return "job" })
		text, _ := json.Marshal(stats)
		t.Errorf("after %v: %+v, want rank 1 %s %s\n%s", took, found, reason, where, text)
	}
}

var (
	lateRounds = flag.Int("late.rounds", 5, "stragglers in each of four `jobs`")
	lateWithin = flag.Duration("late.within", time.Minute, "`time` in which a straggler is to be named")
)

// TestGPUStragglers lets one rank of a job do more work on its host, by a tenth to three tenths of a step, then the
// other one, and so on. It wants each named alone, and nobody before.
func TestGPUStragglers(t *testing.T) {
	if len(products()) < 2 {
		t.Skip("needs two GPUs")
	}
	var all late
	for _, kind := range []string{"late_ddp", "late_fsdp", "late_small", "late_ddp"} {
		all.job(t, kind)
	}
	fmt.Printf("stragglers: %d of %d named, %d times another rank, %d causes right; median %.0f s, last %.0f s\n",
		len(all.took), all.injected, all.wrong, all.causes, percentile(all.took, 0.5), percentile(all.took, 1))
	fixture.If(t, len(all.took) < all.injected || all.wrong > 0,
		"%d of %d stragglers are named, %d times another rank", len(all.took), all.injected, all.wrong)
}

// late is what became of the stragglers.
type late struct {
	injected, causes, wrong int
	took                    []float64 // s, of those that were named
}

func (l *late) job(t *testing.T, kind string) {
	var o jobs.Observer
	socket := observeWith(t, o.Observe)
	defer func() { _ = exec.Command("pkill", "-KILL", "-f", "jobs.py "+kind).Run() }()
	fault := filepath.Join(t.TempDir(), "fault")
	fixture.Rewrite(t, fault, "")
	startWorker(t, kind, []string{"LD_PRELOAD=" + fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
		"GPUSTEWARD_SOCKET=" + socket, "GS_FAULT=" + fault}, "python3",
		filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "jobs.py"), kind, "3000", filepath.Join(t.TempDir(), "times"))
	look := func() (steps uint64, named []wire.StragglerStats) {
		time.Sleep(time.Second)
		stats, _ := o.Look(func(int) string { return "job" })
		for _, s := range stats {
			steps += s.Steps
		}
		return steps, o.Stragglers()
	}
	for began := time.Now(); ; {
		steps, named := look()
		if l.wrong += len(named); len(named) > 0 {
			fmt.Printf("%s: %+v before the first one is late\n", kind, named)
		}
		if steps > 200 {
			break
		}
		fixture.Stop(t, time.Since(began) > time.Minute, "%s: %d steps after a minute", kind, steps)
	}
	before := -1 // the rank that was late before, which stays named for some time
	for i := range *lateRounds {
		rank, share, began := i%2, .1+.2*rand.Float64(), time.Now()
		fixture.Rewrite(t, fault, fmt.Sprintf("%d %.3f", rank, share))
		l.injected++
		var named []wire.StragglerStats
		for time.Since(began) < *lateWithin && (len(named) == 0 || named[0].Rank == before) {
			_, named = look()
		}
		switch {
		case len(named) == 1 && named[0].Rank == rank:
			l.took = append(l.took, time.Since(began).Seconds())
			if named[0].Cause == "host" {
				l.causes++
			}
		case len(named) > 0 && named[0].Rank != before:
			l.wrong++
		}
		fmt.Printf("%s: rank %d late by %.0f %% of a step: %+v after %.0f s\n", kind, rank, 100*share, named,
			time.Since(began).Seconds())
		before = rank
	}
}

// TestGPUHangsWithoutHook lets data-parallel jobs without the hook hang, and wants
// the culprit named, which NCCL's RAS service knows.
func TestGPUHangsWithoutHook(t *testing.T) {
	if len(products()) < 2 {
		t.Skip("needs two GPUs")
	}
	a := startRealAgent(t, "  nccl_ras_versions: [\"2.28\"]\n")
	hang := regexp.MustCompile(`(?m)^nvgpu_job_hang\{.*`)
	for _, fault := range []string{"loader", "stop", "skip", "die"} {
		t.Run(fault, func(t *testing.T) {
			w := startWorker(t, fault, []string{"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"}, "setsid", "-w", "python3",
				filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "jobs.py"), "hang_"+fault, "600", filepath.Join(t.TempDir(), "out"))
			defer func() { _ = exec.Command("pkill", "-KILL", "-f", "hang_"+fault).Run() }()
			w.hear(t, time.Minute, "hangs")
			began, said := time.Now(), ""
			for said == "" && time.Since(began) < 8*time.Minute {
				time.Sleep(time.Second)
				said = hang.FindString(a.ask("/metrics"))
			}
			fmt.Printf("%s: after %.0f s %s\n", fault, time.Since(began).Seconds(), said)
			fixture.Contains(t, said, `rank="1"`, "rank 1 hangs, and it says")
			_ = exec.Command("pkill", "-KILL", "-f", "hang_"+fault).Run()
			poll(t, time.Minute, "the hang is still told", func() bool { return !hang.MatchString(a.ask("/metrics")) })
		})
	}
}

var (
	stuckRounds = flag.Int("stuck.rounds", 10, "`times` that each kind of program hangs, all of a kind at once")
	stuckKinds  = flag.String("stuck.kinds", "eager graph stream server", "`kinds` of programs")
)

// TestGPUEndless has programs launch work that does not end, and wants each named within 20 s, and no other.
func TestGPUEndless(t *testing.T) {
	for _, kind := range strings.Fields(*stuckKinds) {
		t.Run(kind, func(t *testing.T) { endlessWork(t, kind) })
	}
}

func endlessWork(t *testing.T, kind string) {
	var o jobs.Observer
	socket := observeWith(t, o.Observe)
	var mu sync.Mutex
	hung := map[int]time.Time{} // by PID
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	for range *stuckRounds {
		cmd, lines := programOf(ctx, t, socket, "jobs.py", "stuck_"+kind, "600", filepath.Join(t.TempDir(), "out"))
		group.Go(func() {
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), "hangs") {
					mu.Lock()
					hung[cmd.Process.Pid] = time.Now()
					mu.Unlock()
				}
			}
			_ = cmd.Wait()
		})
	}
	var took []time.Duration
	named, where := map[int]bool{}, map[string]int{}
	late := func(began time.Time) bool { // those who hang should be named by now
		mu.Lock()
		defer mu.Unlock()
		for _, at := range hung {
			began = at
			if time.Since(at) < 25*time.Second {
				return false
			}
		}
		return len(hung) == *stuckRounds || time.Since(began) > 2*time.Minute
	}
	for began := time.Now(); !late(began) && len(took) < *stuckRounds; time.Sleep(time.Second) {
		_, found := o.Look(func(pid int) string { return fmt.Sprint("job", pid) })
		mu.Lock()
		for _, h := range found {
			if at, is := hung[h.PID]; !named[h.PID] {
				named[h.PID] = true
				took = append(took, time.Since(at))
				line, _, _ := strings.Cut(h.Where, ", a wait for the stream")
				_, flies, _ := strings.Cut(h.Where, "in flight: ")
				where[fmt.Sprintf("%s at %s, in flight: %s", h.Reason, line, flies)]++
				fixture.If(t, !is || h.Reason != "kernel" || !strings.Contains(flies, "spin_kernel"), "%s is said to hang: %+v", kind, h)
			}
		}
		mu.Unlock()
	}
	for pid := range hung {
		if !named[pid] {
			threads, _ := exec.Command(filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "stacks.py"), fmt.Sprint(pid)).Output()
			fmt.Printf("%s: pid %d is not named:\n%s", kind, pid, threads)
		}
	}
	slices.Sort(took)
	fmt.Printf("%s: %d hang and %d of %d are named, after %v: %v\n", kind, len(hung), len(took), *stuckRounds, took, where)
	fixture.If(t, len(took) < *stuckRounds || took[len(took)-1] > 20*time.Second, "%d of %d are named within 20 s",
		len(took), *stuckRounds)
}
