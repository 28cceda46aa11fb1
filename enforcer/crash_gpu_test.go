//go:build gpu

package enforcer_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/profile"
	"gpusteward/internal/fixture"
	"gpusteward/internal/stack"
)

var (
	faultRounds = flag.Int("faults.rounds", 10, "`times` that each kind of fault is provoked")
	faultBeside = flag.Int("faults.beside", 4, "`programs` at a time")
)

// A provoked fault is what a program said of it, and what is recorded.
type provoked struct {
	how, kernel    string
	address, bytes uint64
	profiled       []string // kernels that torch.profiler has seen
	last           string   // line of the program
	pid            int
	record         *crash.Record
}

// programOf starts a program of hook/bench under the hook, and returns it with its output.
func programOf(ctx context.Context, t *testing.T, socket string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	args[0] = filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), args[0])
	cmd := exec.CommandContext(ctx, "python3", args...)
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
		"GPUSTEWARD_SOCKET="+socket)
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	return cmd, bufio.NewScanner(out)
}

// TestGPUFaultsAreExplained provokes faults, with the driver's own lines in the kernel's log (it needs
// /dev/kmsg), and wants the sentence about the address right, and the culprit among the suspects.
func TestGPUFaultsAreExplained(t *testing.T) {
	r := crash.Recorder{Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	r.Open()
	socket := observeWith(t, r.Observe)
	fixture.Running(t, func(ctx context.Context) error { return kernel.NewKernelLog("/dev/kmsg").Follow(ctx, r.Kernel) })
	fixture.Running(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			r.Look(func(int) (string, string) { return "", "" })
			time.Sleep(200 * time.Millisecond)
		}
		return nil
	})
	var all []*provoked
	for _, how := range []string{"torch", "compile", "graph", "triton", "jax", "cupy", "beyond", "before", "freed", "wild",
		"misaligned", "trap", "assert"} {
		for range map[bool]int{false: *faultRounds, true: 1}[len(all) < 6] {
			all = append(all, &provoked{how: how})
		}
	}
	slots := make(chan struct{}, *faultBeside)
	var group sync.WaitGroup
	for seed, p := range all {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			p.provoke(t, &r, socket, seed)
		})
	}
	group.Wait()
	n := map[string]int{}
	for _, p := range all {
		if !strings.HasPrefix(p.last, "failed") {
			n["unharmed"]++
			continue
		}
		n["faults"]++
		if p.record == nil {
			t.Errorf("%s: no record of pid %d, %s", p.how, p.pid, p.last)
			continue
		}
		want, is := map[string]string{"beyond": fmt.Sprintf("beyond the end of an allocation of %d MiB", p.bytes>>20),
			"before": fmt.Sprintf("before the beginning of an allocation of %d MiB", p.bytes>>20), "misaligned": "", "trap": "",
			"freed": "lies in memory that was freed", "assert": ""}[p.how]
		if !is {
			want = "is in no allocation of this program"
		}
		if want == "" || slices.ContainsFunc(p.record.XIDs, func(x crash.XID) bool { return strings.Contains(x.Says, want) }) {
			n["right"]++
		} else {
			t.Errorf("%s at %#x: %q, want %q: %+v", p.how, p.address, p.record.Says, want, p.record.XIDs)
		}
		if slices.ContainsFunc(p.record.Suspects, func(s crash.Suspect) bool { return strings.Contains(s.Kernel, p.kernel) }) {
			n["suspected"]++
		} else {
			t.Errorf("%s: the suspects are %+v, want %s: %+v", p.how, p.record.Suspects, p.kernel, p.record.Head)
		}
		if len(p.record.Suspects) == 1 {
			n["alone"]++
		}
		p.names()
	}
	fmt.Println(n)
}

// provoke runs the program, and waits for the record of its fault.
func (p *provoked) provoke(t *testing.T, r *crash.Recorder, socket string, seed int) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd, lines := programOf(ctx, t, socket, "faults.py", p.how, fmt.Sprint(seed))
	p.pid = cmd.Process.Pid
	for lines.Scan() {
		p.last = lines.Text()
		var name string
		if json.Unmarshal(lines.Bytes(), &name) == nil {
			p.profiled = append(p.profiled, name)
		}
		_, _ = fmt.Sscanf(p.last, "fault %d %d %s", &p.address, &p.bytes, &p.kernel)
	}
	_ = cmd.Wait()
	for range 30 {
		for _, h := range r.Heads(0) {
			if text, ok, _ := r.Record(0, h.ID); ok && h.PID == p.pid {
				_ = json.Unmarshal(text, &p.record)
			}
		}
		if p.record != nil && len(p.record.XIDs) > 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// names prints the kernels of the record after a framework's work, and whether torch.profiler saw them.
func (p *provoked) names() {
	counts := map[string]int{}
	for _, l := range p.record.Launches {
		counts[l.Kernel]++
	}
	for name, n := range counts {
		if plain, err := exec.Command("c++filt", name).Output(); err == nil && p.kernel == "touch" && p.bytes == 0 {
			name = strings.TrimSpace(string(plain))
			fmt.Printf("%s: profiled %v, %d x %.150s\n", p.how, slices.Contains(p.profiled, name), n, name)
		}
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
	for began := time.Now(); time.Since(began) < 2*time.Minute && len(took) < *stuckRounds; time.Sleep(time.Second) {
		_, found := o.Look(func(pid int) string { return fmt.Sprint("job", pid) })
		mu.Lock()
		for _, h := range found {
			if at, is := hung[h.PID]; !named[h.PID] {
				named[h.PID] = true
				took = append(took, time.Since(at))
				line, _, _ := strings.Cut(h.Where, ", a wait for the stream")
				where[h.Reason+" at "+line]++
				fixture.If(t, !is || h.Reason != "kernel", "%s is said to hang: %+v", kind, h)
			}
		}
		mu.Unlock()
	}
	for pid := range hung {
		if p, err := stack.Of(ctx, pid, stack.Options{}); !named[pid] && err == nil {
			for _, th := range p.Threads {
				fmt.Printf("%s: pid %d is not named: %s in %q, %+v, %+v\n", kind, pid, th.State, th.Syscall, th.Native, th.Python)
			}
		}
	}
	slices.Sort(took)
	fmt.Printf("%s: %d hang and %d of %d are named, after %v: %v\n", kind, len(hung), len(took), *stuckRounds, took, where)
	fixture.If(t, len(took) < *stuckRounds || took[len(took)-1] > 20*time.Second, "%d of %d are named within 20 s",
		len(took), *stuckRounds)
}

// TestGPUProfiles compares the profile of each kind of program with what torch.profiler sees of it a moment later: the
// shares of its five dearest kernels are to be within 5 points, under the same names.
func TestGPUProfiles(t *testing.T) {
	for _, kind := range []string{"eager", "compiled", "amp", "accumulate", "gan", "gpt2", "padding", "trainer", "triton", "decode"} {
		t.Run(kind, func(t *testing.T) { profiled(t, kind) })
	}
}

func profiled(t *testing.T, kind string) {
	var r profile.Recorder
	var b *broker.Broker
	socket := observedBy(t, &b, r.Observe)
	r.Time, r.Look = b.Time, b.ShowTraces
	file := filepath.Join(t.TempDir(), "out")
	t.Setenv("GS_PROFILED", file+".profile")
	cmd, _ := programOf(t.Context(), t, socket, "jobs.py", kind, "20", file)
	began := func() bool {
		return slices.ContainsFunc(b.Sessions(), func(s broker.Session) bool { return len(s.GPUs) > 0 })
	}
	fixture.Until(t, time.Minute, "it has no session", began)
	time.Sleep(8 * time.Second) // it imports and compiles
	p := fixture.Value(r.Profile(t.Context(), 0, cmd.Process.Pid, 3*time.Second, false))(t)
	_ = cmd.Wait()
	var theirs map[string]float64
	fixture.Must(t, json.Unmarshal(fixture.Value(os.ReadFile(file+".profile"))(t), &theirs))
	all, ours := 0.0, map[string]float64{}
	for _, us := range theirs {
		all += us
	}
	for _, k := range p.Kernels {
		plain, _ := exec.Command("c++filt", k.Name).Output()
		ours[strings.TrimSpace(string(plain))] += k.Share
	}
	names := slices.SortedFunc(maps.Keys(theirs), func(a, b string) int { return cmp.Compare(theirs[b], theirs[a]) })
	for _, name := range names[:min(len(names), 5)] {
		fmt.Printf("%s: %.1f %% by torch.profiler, %.1f %% by us: %.120s\n", kind, 100*theirs[name]/all, 100*ours[name], name)
		fixture.AtMost(t, math.Abs(theirs[name]/all-ours[name]), 0.05, "the difference of the shares of %s", name)
	}
}
