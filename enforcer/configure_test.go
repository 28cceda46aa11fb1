package enforcer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
)

// TestConfigureWaitsForNobody gives two policies at the same moment to an enforcer whose
// Run has ended. The last one is kept.
func TestConfigureWaitsForNobody(t *testing.T) {
	ended := make(chan *Enforcer)
	go func() {
		defer close(ended)
		for range 50_000 {
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
			ended <- e
		}
	}()
	late := time.After(20 * time.Second)
	for {
		select {
		case e := <-ended:
			if e == nil {
				return
			}
			last := new(policy.Policy)
			if e.Configure(last); <-e.policy != last {
				t.Fatal("the last policy is not the one that is kept")
			}
		case <-late:
			t.Fatal("it waits")
		}
	}
}
