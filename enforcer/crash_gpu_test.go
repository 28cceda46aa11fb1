//go:build gpu

package enforcer_test

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer/crash"
	"gpusteward/internal/fixture"
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
		looks := time.NewTicker(200 * time.Millisecond)
		defer looks.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-looks.C:
				r.Look(func(int) (string, string) { return "", "" })
			}
		}
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
