package diag

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// The quick level is shortened for simulated GPUs.
func init() {
	levels[0] = Plan{
		Memory: time.Millisecond, Unit: time.Millisecond, Load: 80 * time.Millisecond,
		Copy: time.Millisecond, Pairs: time.Millisecond,
	}
}

// tested returns the report on a host.
func tested(t *testing.T, h host, o Options) *Report {
	t.Helper()
	as := h.options(t)
	o.Node, o.children, o.environment = as.Node, as.children, as.environment
	o.after = func(which Order, d time.Duration) <-chan time.Time {
		if which.Step == "" { // the host settles at once
			d = 0
		}
		return time.After(d)
	}
	if o.Patience == 0 {
		o.Patience = time.Minute
	}
	return Run(t.Context(), o)
}

// failures returns the failures as test:GPU.
func (r *Report) failures() (all []string) {
	for _, one := range r.Results {
		if one.Verdict == Fail {
			name := one.Test + ":" + one.GPU
			if one.Peer != "" {
				name += ">" + one.Peer
			}
			all = append(all, name)
		}
	}
	return all
}

// TestDiagFindings expects the fault of each step, and each reason not to test, to reach the report from a
// child. The tests of judge_test.go have the thresholds.
func TestDiagFindings(t *testing.T) {
	t.Parallel()
	of := func(change func(*host)) host {
		h := h200s(3)
		change(&h)
		return h
	}
	for name, c := range map[string]struct {
		host   host
		want   []string // failures
		status int
		says   string
	}{
		"healthy": {h200s(3), nil, 0, "OK - node7: 3 GPUs, no fault\n"},
		"wrong SM": {of(func(h *host) { h.WrongSM, h.WrongUnit = map[int]int{1: 2}, "fma_f64" }),
			[]string{"fma_f64:1"}, 2, "FP64: SM 2: "},
		"stuck bit": {of(func(h *host) { h.StuckBit = map[int]uint64{2: 500} }),
			[]string{"memory:2"}, 2, "0x7f0000000fa0"},
		"slow pair": {of(func(h *host) { h.SlowPair = [2]int{0, 2} }),
			[]string{"peer:0>2"}, 1, "copies to GPU 2 reach 120.0 GB/s"},
		"slow memory": {of(func(h *host) { h.SlowMemory = map[int]bool{1: true} }),
			[]string{"memory_bandwidth:1"}, 1, "memory: 3000.0 GB/s"},
		"slow host": {of(func(h *host) { h.SlowHost = map[int]bool{1: true} }),
			[]string{"from_host:1", "to_host:1"}, 1, "host to GPU: 12.0 GB/s"},
		"narrow link": {of(func(h *host) { h.Narrow = map[int]bool{1: true} }),
			[]string{"pcie_link:1"}, 1, "8 of 16 lanes"},
		"no events": {of(func(h *host) { h.Deaf = true }),
			nil, 0, "skipped   the driver reports no XIDs here; of the counted errors: none new"},
		"low clock": {of(func(h *host) { h.LowClock = map[int]float64{2: 1.2e9} }),
			[]string{"clock:2"}, 1, "1200 of 1980 MHz under load, without a reason"},
		"an XID": {of(func(h *host) { h.XIDs = map[int][]uint64{1: {94}} }), []string{"errors:1"}, 2, "XID 94"},
		"ECC": {of(func(h *host) { h.New = map[string]uint64{"uncorrected ECC errors": 1} }),
			[]string{"errors:0", "errors:1", "errors:2"}, 2, "1 uncorrected ECC errors"},
		"no peers": {of(func(h *host) { h.NoPeer = true }), nil, 0, "skipped"},
		"crash": {of(func(h *host) { h.Dies = map[int]Step{1: Memory} }),
			[]string{"memory:1"}, 2, "in memory, its process failed: exit status 2: panic: the driver crashed"},
		"no driver": {host{NoDriver: true}, nil, 3, "UNKNOWN - node7: nvmlInit: library_not_found"},
		"no CUDA":   {of(func(h *host) { h.NoCUDA = true }), nil, 3, "the CUDA driver is not there"},
		"in use": {of(func(h *host) { h.Users = map[int][]int{1: {4711, 4712}} }),
			nil, 3, "GPU 1 was not tested: it is in use by processes 4711, 4712"},
		"ended": {of(func(h *host) { h.Users, h.Brief = map[int][]int{1: {4711}}, true }),
			nil, 0, "OK - node7: 3 GPUs"},
		"driver's memory": {of(func(h *host) { h.Taken = map[int]uint64{1: 4 << 20} }), nil, 0, "OK - node7: 3 GPUs"},
		"exclusive":       {of(func(h *host) { h.Alone = true }), nil, 0, "the exclusive compute mode"},
		"killed": {of(func(h *host) { h.Killed = map[int]Step{2: Compute} }),
			[]string{"compute:2"}, 2, "in compute, its process failed: signal: killed"},
		"MIG": {of(func(h *host) { h.Unfit = map[int]string{0: "MIG is on"} }),
			nil, 3, "GPU 0 was not tested: MIG is on"},
		"full": {of(func(h *host) { h.Full = map[int]bool{1: true} }), nil, 3, "GPU 1 was not tested: only 12 MiB"},
		"old": {of(func(h *host) { h.Old = map[int]bool{1: true} }),
			nil, 3, "GPU 1 was not tested: its compute capability is 6.1"},
		"lost": {of(func(h *host) { h.Lost = map[int]string{1: "nvmlDeviceGetHandleByIndex: gpu_is_lost"} }),
			[]string{"survey:1"}, 2, "gpu_is_lost"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := tested(t, c.host, Options{})
			fixture.EqualSlices(t, r.failures(), c.want, "failures")
			text, status := r.Report("text", incident.Warning)
			fixture.If(t, status != c.status || !strings.Contains(text, c.says),
				"exit status %d, want %d, and %q in\n%s", status, c.status, c.says, text)
		})
	}
}

// TestDiagTestsNamedGPUs expects tests on exactly the named GPUs.
func TestDiagTestsNamedGPUs(t *testing.T) {
	t.Parallel()
	busy := h200s(2)
	busy.Users = map[int][]int{0: {1, 2, 3, 4, 5}}
	for _, c := range []struct {
		host host
		o    Options
		want string // GPUs with their states, or the reason why there are none
	}{
		{h200s(2), Options{GPUs: []string{"1"}}, "1 ok"},
		{h200s(3), Options{GPUs: []string{"GPU-2", "0"}}, "0 ok, 2 ok"},
		{h200s(2), Options{GPUs: []string{"0", "7"}}, "GPU 7 is not on this host"},
		{h200s(0), Options{}, "there is no GPU"},
		{h200s(1), Options{Patience: -1}, "the GPU did not finish survey in 0s"},
		{busy, Options{}, "0 unknown it is in use by processes 1, 2, 3, 2 more, 1 ok"},
		{busy, Options{Busy: true}, "0 ok, 1 ok"},
	} {
		t.Run(c.want, func(t *testing.T) {
			t.Parallel()
			r := tested(t, c.host, c.o)
			var got []string
			for _, g := range r.GPUs {
				got = append(got, strings.TrimSpace(g.GPU+" "+g.Status.String()+" "+g.Reason))
			}
			text := strings.Join(got, ", ")
			fixture.If(t, text != c.want && r.Reason != c.want, "%s, %s", text, r.Reason)
		})
	}
}

func TestUse(t *testing.T) {
	for want, g := range map[string]GPU{
		"":                                  {Taken: 64 << 20},
		"it is in use by process 7":         {Users: []int{7}, Taken: 1 << 40},
		"it is in use by processes 7, 8":    {Users: []int{7, 8}},
		"it is in use by processes 7, 8, 9": {Users: []int{7, 8, 9}},
		"it is in use by processes 1, 2, 3, 1 more":                                 {Users: []int{1, 2, 3, 4}},
		"it is in use: a process that is not visible here has 64 MiB of its memory": {Taken: 64<<20 + 1},
	} {
		fixture.Equal(t, g.use(), want, "%+v", g)
	}
}

// TestEnvironmentOfAChild expects a child to see every GPU, and to inherit everything else.
func TestEnvironmentOfAChild(t *testing.T) {
	t.Setenv("CUDA_CACHE_DISABLE", "0")
	before := os.Environ()
	for _, name := range unprepared {
		t.Setenv(name, "1")
	}
	prepare()
	for i, v := range before {
		before[i] = strings.Replace(v, "CUDA_CACHE_DISABLE=0", "CUDA_CACHE_DISABLE=1", 1)
	}
	fixture.EqualSlices(t, slices.Sorted(slices.Values(os.Environ())), slices.Sorted(slices.Values(before)), "the environment")
}

// TestTimesOfPlans expects the pairs of a host to share their time, and deadlines to add half of the time.
func TestTimesOfPlans(t *testing.T) {
	p := Plan{Pairs: time.Second}
	for pairs, want := range map[int]time.Duration{
		0: 500 * time.Millisecond, 1: 500 * time.Millisecond, 2: 250 * time.Millisecond, 28: time.Second / 56,
		100: 5 * time.Millisecond, 101: 5 * time.Millisecond,
	} {
		fixture.Equal(t, p.pair(pairs), want, "one of %d pairs takes", pairs)
	}
	fixture.Equal(t, deadline(10*time.Second, time.Minute), 75*time.Second, "the deadline is")
	for level, want := range map[int]time.Duration{
		1: 5880 * time.Millisecond, 2: 48200 * time.Millisecond, 3: 562 * time.Second,
	} {
		p := levels[level]
		sum := p.Memory + p.Load + p.Unit*time.Duration(len(Units)) + 8*2*p.Copy + p.Pairs
		fixture.Equal(t, sum, want, "the steps of level %d take … on a host of eight GPUs", level)
	}
}

// counts matches the numbers that depend on a test's speed.
var counts = regexp.MustCompile(`\d+( passes over| sums are wrong)`)

// TestJSON checks the format for programs.
func TestJSON(t *testing.T) {
	t.Parallel()
	h := h200s(3)
	h.WrongSM, h.WrongUnit = map[int]int{0: 2}, "fma_f64"
	h.Unfit = map[int]string{2: "MIG is on: only a whole GPU can be tested"}
	r := tested(t, h, Options{})
	fixture.Equal(t, r.Seconds > 60 || time.Since(r.Time) > time.Minute, false, "%.1f s, at %v", r.Seconds, r.Time)
	r.Time, r.Seconds = time.Unix(0, 0).UTC(), 1
	for i := range r.Findings {
		r.Findings[i].Since, r.Findings[i].WorstAt = r.Time, r.Time
	}
	text, _ := r.Report("json", incident.Warning)
	text = counts.ReplaceAllString(text, "N$1")
	fixture.Golden(t, "testdata/report.json", text)
	var back Report
	if err := json.Unmarshal([]byte(text), &back); err != nil || !slices.Equal(back.failures(), r.failures()) {
		t.Errorf("read back: %v, %q, want %q", err, back.failures(), r.failures())
	}
}
