//go:build long

package enforcer

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
)

// TestDay has 100 tenants with random quotas and loads share 8 GPUs, and holds
// the enforcer against what is known of them: nobody is acted upon who did
// nothing, everybody who goes on violating a quota is within the audits that
// the policy says, and after that all is well again; guarantees are kept.
func TestDay(t *testing.T) {
	d, err := newDay(rand.New(rand.NewPCG(*daySeed, 6)))
	if err != nil {
		t.Fatal(err)
	}
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
	if late := heap(); late > early+early/2+8<<20 {
		t.Errorf("the heap grew from %d to %d bytes", early, late)
	}
	if d.up[policy.Warn][escalation.Done] == 0 || d.promised == 0 {
		t.Error("nothing happened")
	}
	runtime.KeepAlive(d)
}
