//go:build gpu

package enforcer_test

import (
	"cmp"
	"encoding/json"
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
)

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
	cmd, lines := programOf(t.Context(), t, socket, "jobs.py", kind, "20", file)
	for lines.Scan() && lines.Text() != "began" { // it has imported and compiled
	}
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
