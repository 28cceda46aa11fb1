//go:build gpu

package enforcer_test

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/profile"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

var profileKinds = flag.String("profile.kinds", "eager compiled amp accumulate gan gpt2 padding trainer triton loader",
	"`kinds` of programs")

// TestGPUProfiles compares the profile of each kind of program with what torch.profiler sees of it a moment later: the
// shares of its five dearest kernels are to be within 5 points, under the same names.
func TestGPUProfiles(t *testing.T) {
	for _, kind := range strings.Fields(*profileKinds) {
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
	cmd, lines := programOf(t.Context(), t, socket, "jobs.py", kind, "20", file)
	for lines.Scan() && lines.Text() != "began" { // it has imported and compiled
	}
	var p profile.Profile
	var from, until int64
	for range 2 { // the first steps load and measure kernels
		from = wire.Monotonic()
		p = fixture.Value(r.Profile(t.Context(), 0, cmd.Process.Pid, 4*time.Second, false))(t)
	}
	until = wire.Monotonic()
	_ = cmd.Wait()
	tellCost(t, kind, file, from, until)
	var theirs map[string][2]float64 // us and launches
	fixture.Must(t, json.Unmarshal(fixture.Value(os.ReadFile(file+".profile"))(t), &theirs))
	all, ours := 0.0, map[string]profile.Kernel{}
	for _, is := range theirs {
		all += is[0]
	}
	for _, k := range p.Kernels {
		plain, _ := exec.Command("c++filt", k.Name).Output()
		name := strings.TrimSpace(string(plain))
		sum := ours[name]
		sum.Share, sum.Samples, sum.Total, sum.Launches = sum.Share+k.Share, sum.Samples+k.Samples, sum.Total+k.Total, sum.Launches+k.Launches
		ours[name] = sum
	}
	fmt.Printf("%s: %d launches, %d lost, %d kernels\n", kind, p.Launches, p.Lost, len(p.Kernels))
	names := slices.SortedFunc(maps.Keys(theirs), func(a, b string) int { return cmp.Compare(theirs[b][0], theirs[a][0]) })
	for _, name := range names[:min(len(names), 5)] {
		is, k := theirs[name], ours[name]
		fmt.Printf("%s: %.1f %%, %.1f us by torch.profiler, %.1f %%, %.1f us by us (%d samples): %.120s\n", kind, 100*is[0]/all,
			is[0]/is[1], 100*k.Share, 1e6*k.Total/float64(k.Launches), k.Samples, name)
		fixture.AtMost(t, math.Abs(is[0]/all-k.Share), 0.05, "the difference of the shares of %s", name)
	}
}

// tellCost tells how long steps take while a profile runs, and just after it.
func tellCost(t *testing.T, kind, file string, from, until int64) {
	var steps struct{ Ends []int64 }
	fixture.Must(t, json.Unmarshal(fixture.Value(os.ReadFile(file))(t), &steps))
	var with, without []float64 // ms
	for i, end := range steps.Ends[min(1, len(steps.Ends)):] {
		switch took := float64(end-steps.Ends[i]) / 1e6; {
		case steps.Ends[i] > from && end < until:
			with = append(with, took)
		case steps.Ends[i] > until && end < until+1e9:
			without = append(without, took)
		}
	}
	slices.Sort(with)
	slices.Sort(without)
	if len(with) > 0 && len(without) > 0 {
		fmt.Printf("%s: a step takes %.3f ms with a profile and %.3f ms without (medians of %d and %d)\n", kind, with[len(with)/2],
			without[len(without)/2], len(with), len(without))
	}
}
