//go:build long

package response

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// TestDay lets 100 tenants with random quotas and loads share 8 GPUs for a simulated day, and compares the enforcer's
// actions with the known truth. No innocent workload is acted upon. Every workload that continues to violate a quota is
// acted upon within the audits that the policy names, and all is well again afterwards. Guarantees are kept.
func TestDay(t *testing.T) {
	d := fixture.Value(newDay(rand.New(rand.NewPCG(*daySeed, 6))))(t)
	began, seconds := time.Now(), int(*dayHours*3600)
	early := uint64(0)
	for i := range seconds {
		d.second()
		if i == seconds/4 {
			early = heap()
		}
		if len(d.wrong) >= 20 {
			break
		}
	}
	fmt.Print(d.sum(time.Since(began)))
	for _, w := range d.wrong {
		t.Error(w)
	}
	fixture.AtMost(t, heap(), early+early/2+8<<20, "the heap grew from %d to … bytes", early)
	fixture.If(t, d.up[policy.Warn][escalation.Done] == 0 || d.promised == 0, "nothing happened")
	runtime.KeepAlive(d)
}
