package enforcer_test

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/profile"
	"gpusteward/exporter"
	"gpusteward/internal/fixture"
	"gpusteward/internal/span"
)

// TestALiveProgramIsProfiled compares what the hook timed with how long the simulated GPU takes for a kernel, for programs
// that queue ahead, that wait for each kernel, and that launch graphs.
func TestALiveProgramIsProfiled(t *testing.T) {
	t.Parallel()
	a := startAgent(t, 1, 0, "open", "    - {name: a, select: [{executables: [\"*/a\"]}]}\ntracing: {sample: 1}\n", "enforce")
	a.hook = append(a.hook, "TRACEPARENT=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	ask := func(pid int, rest string) ([]byte, error) {
		return exporter.AskCrashes(t.Context(), filepath.Join(a.dir, "run"), fmt.Sprintf("/profile?pid=%d&%s", pid, rest))
	}
	var err error
	poll(t, time.Minute, "it does not answer", func() bool {
		_, err = ask(1, "seconds=1")
		return err != nil && !strings.Contains(err.Error(), "crash.sock")
	})
	fixture.Fails(t, err, "no such program of yours is under the hook", "a profile of no session")
	for _, seconds := range []string{"", "0.9", "61", "NaN"} {
		_, err = ask(1, "seconds="+seconds)
		fixture.Fails(t, err, "is not from 1 to 60", "a profile of that length")
	}
	for _, c := range []struct {
		args  string
		took  float64 // s
		graph bool
		has   []string // kinds of spans
	}{
		{"--kernel-us=300 --sync-every=50", 300e-6, false, []string{profile.SpanLaunch, profile.SpanKernel, profile.SpanWait, profile.SpanBusy}},
		{"--kernel-us=300 --sync-every=1", 300e-6, false, []string{profile.SpanKernel}},
		{"--launch=graph --graph-us=2000 --sync-every=5", 2e-3, true, []string{profile.SpanKernel}},
	} {
		w := a.run("a", "load", append(strings.Fields(c.args), "--seconds=60")...)
		goes(t, w)
		var p profile.Profile
		of := exporter.ProfileRequest{PID: w.Cmd.Process.Pid, Seconds: 1, Spans: true}
		fixture.Must(t, json.Unmarshal(fixture.Value(exporter.AskProfile(t.Context(), filepath.Join(a.dir, "run"), of))(t), &p))
		fixture.Need(t, len(p.Kernels), 1, "%s: kernels", c.args)
		k := p.Kernels[0]
		fixture.AtLeast(t, k.Samples, 10, "%s: timed launches", c.args)
		fixture.AtMost(t, math.Abs(k.Mean/c.took-1), 0.1, "%s: %+v: the error of its time", c.args, k)
		fixture.AtLeast(t, k.P99, 0.99*k.Mean, "%s: %+v: its P99", c.args, k)
		fixture.If(t, k.Graph != c.graph || k.Name != map[bool]string{false: "spin", true: "graph of 20 x spin"}[c.graph] || k.Launches != p.Launches || k.Share != 1 || p.Tenant != "a" ||
			p.Comm != "a", "%s: %+v", c.args, p)
		for _, kind := range c.has {
			fixture.If(t, !strings.Contains(fmt.Sprint(p.Spans), "{"+kind+" "), "%s: no span %s", c.args, kind)
		}
		fixture.Must(t, w.Cmd.Process.Kill())
	}
	spans := string(fixture.Value(exporter.AskCrashes(t.Context(), filepath.Join(a.dir, "run"), span.Path))(t))
	fixture.Contains(t, spans, `"name":"broker.hello","parentSpanId":"t61rcWkgMzE="`, "in the trace of a program's caller")
}
