package enforcer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"gpusteward/enforcer/policy"
)

// TestConfigureWaitsForNobody gives two policies at the same moment to an enforcer whose
// Run has ended. The last one is kept.
func TestConfigureWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails when all wait
		for range 10_000 {
			e := &Enforcer{policy: make(chan *policy.Policy, 1)}
			var both sync.WaitGroup
			var there atomic.Int32
			for range 2 {
				both.Go(func() {
					for there.Add(1); there.Load() < 2; { // so that they meet
						runtime.Gosched()
					}
					e.Configure(new(policy.Policy))
				})
			}
			both.Wait()
			last := new(policy.Policy)
			if e.Configure(last); <-e.policy != last {
				t.Fatal("the last policy is not the one that is kept")
			}
		}
	})
}
