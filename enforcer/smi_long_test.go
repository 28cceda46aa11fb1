//go:build long

package enforcer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

// TestNVMLTellsOfTheTenantsCard has programs ask NVML for the GPU's memory in
// every possible way, while a tenant holds some. None of them uses CUDA.
func TestNVMLTellsOfTheTenantsCard(t *testing.T) {
	h := stub(t)
	const card, limit, held, reserved = 80 * 1024 * mib, 4096 * mib, 1024 * mib, 256 * mib
	h.govern(t, capped("a", limit), terms{"b", broker.Quota{Quota: quota.Quota{Limit: 1}, Weight: 1}})
	hold := func(mibs uint64) {
		t.Helper()
		w := h.load(t, "a", hoard(int(mibs), 256, "native")...)
		ready(t, w)
		w.Tell("go")
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
