//go:build long

package enforcer_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

// TestMIGOfTwoProcesses names the device by its UUID.
func TestMIGOfTwoProcesses(t *testing.T) {
	t.Parallel()
	onMIG(t, slice(0), "enforce", "observe")
}

// TestUnknownMIG has a program on a MIG device that NVML does not report, as with a driver newer than the agent. Its
// quota cannot hold there. All interfaces report that, and a broker that fails closed lets nothing pass.
func TestUnknownMIG(t *testing.T) {
	t.Parallel()
	for fail, c := range map[string]struct {
		told, logged string
		bytes        uint64
		runs         bool
	}{
		"open":   {"no quota holds there", "no quota applies on GPUs", 128 * mib, true},
		"closed": {"launches wait there, and no memory is given", "are closed", 0, false},
	} {
		t.Run(fail, func(t *testing.T) {
			t.Parallel()
			a := startAgent(t, 3, 2, fail, `
    - {name: a, select: [{executables: ["*/a"]}], memory: 64 MiB}
    - {name: c, select: [{executables: ["*/c"]}]}
`, "all")
			anchor := a.anchor("c", 1)
			w := a.job("a", 2, "--alloc-mib=128", "--alloc-step-mib=1", "--kernel-us=200", "--seconds=600")
			fixture.Contains(t, w.hear(t, time.Minute, "gpusteward: "), "does not know 1 of 3 GPUs: "+c.told,
				"the program is told")
			goes(t, w)
			fixture.Equal(t, taken(t, w), c.bytes, "it takes … bytes")
			from := fixture.Monotonic()
			poll(t, 20*time.Second, "nobody has the GPU for a second",
				func() bool { return a.truth.of(anchor.Cmd.Process.Pid).work(from, fixture.Monotonic()) > 1 })
			fixture.Equal(t, a.truth.of(w.Cmd.Process.Pid).work(from, fixture.Monotonic()) > 0, c.runs, "it works")
			m := regexp.MustCompile(`nvgpu_broker_faults_total{kind="ungoverned"} [1-9]`)
			fixture.If(t, !m.MatchString(a.ask("/metrics")), "no metric counts it")
			if log := a.log("all"); !strings.Contains(log, c.logged) ||
				!strings.Contains(log, strings.TrimPrefix(slice(2), "MIG")) {
				t.Errorf("the log does not name it:\n%s", log)
			}
		})
	}
}

// TestNVMLShowsTheTenantsCard has programs ask NVML for the GPU's memory in
// every possible way, while a tenant holds some. None of them uses CUDA.
func TestNVMLShowsTheTenantsCard(t *testing.T) {
	h := stub(t)
	const card, limit, held, reserved = 80 * 1024 * mib, 4096 * mib, 1024 * mib, 256 * mib
	h.govern(t, capped("a", limit), terms{"b", broker.Quota{Quota: quota.Quota{Limit: 1}, Weight: 1}})
	hold := func(mibs uint64) {
		t.Helper()
		w := h.load(t, "a", hoard(int(mibs), 256, "native")...)
		goes(t, w)
		fixture.Need(t, taken(t, w), mibs*mib, "… MiB are held, want %d", mibs)
	}
	hold(1024)
	smi := fixture.Given(t, "GS_SMI", "hook/build/stub/smi")
	for name, c := range map[string]struct {
		tenant, args, want string
	}{
		"the tenant":            {"a", "link v1 gpu", fmt.Sprint("0 ", limit, limit-held, held, " -")},
		"by dlsym":              {"a", "dlsym v1 gpu", fmt.Sprint("0 ", limit, limit-held, held, " -")},
		"in the second version": {"a", "dlsym v2 gpu", fmt.Sprint("0 ", limit, limit-held, held, 0)},
		"of a MIG device":       {"a", "dlsym v1 mig", fmt.Sprint("0 ", limit, limit-held, held, " -")},
		"without a cap":         {"b", "dlsym v2 gpu", fmt.Sprint("0 ", card, card-held-reserved, held, reserved)},
		"without the hook":      {"", "dlsym v1 gpu", fmt.Sprint("0 ", card, card-held, held, " -")},
	} {
		argv := append([]string{smi}, strings.Fields(c.args)...)
		if strings.Contains(c.args, "mig") {
			argv = append([]string{"env", "GS_STUB_MIG=1"}, argv...)
		}
		fixture.Equal(t, h.start(t, c.tenant, argv...).hear(t, time.Minute, "0 "), c.want,
			"%s: GPU, total, free, used, reserved", name)
	}
	// None of them has a session any more.
	poll(t, 10*time.Second, "one session is left", func() bool { return stats(t, h.broker).Sessions["active"] == 1 })
	// A program that keeps asking sees the memory change.
	watch := h.start(t, "a", smi, "link", "v1", "gpu", "10")
	watch.hear(t, time.Minute, fmt.Sprint("0 ", limit, limit-held, held, " -"))
	hold(512)
	watch.hear(t, time.Minute, fmt.Sprint("0 ", limit, limit-held-512*mib, held+512*mib, " -"))
}
