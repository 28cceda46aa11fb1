//go:build timed

package gemini

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// Clients that return up to 5 ms late, over a connection for each request, have
// turns one after the other. A client with a tenth gets no more than that and
// the time that the other leaves. A busy machine makes clients later than
// intended: TestSharesOfLateClients holds how exact shares are.
func TestSharesOverConnectionsForEachRequest(t *testing.T) {
	for _, c := range []struct {
		name string
		o    Options
		keep bool // connections are never closed
	}{
		{"closed", Options{}, false}, {"closed, unseen", Options{ProcFS: t.TempDir()}, false},
		{"never closed", Options{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, "2\na 0.1 1 0\nb 0.9 1 0\n", c.o)
			began := time.Now()
			end := began.Add(2 * time.Second)
			var wg sync.WaitGroup
			var had [2]float64
			for i, name := range []string{"a", "b"} {
				wg.Go(func() {
					for time.Now().Before(end) {
						h := dial(t, s, name)
						quota := h.call(Request{Kind: Quota}).Quota
						if !c.keep {
							_ = h.conn.Close()
						}
						had[i] += quota
						<-time.After(time.Duration(quota*float64(time.Millisecond)) + rand.N(5*time.Millisecond))
					}
				})
			}
			wg.Wait()
			b := s.Stats().Tenants[1]
			passed := time.Since(began).Seconds()
			left := max(passed-(b.Charged+b.Waited).Seconds(), 0) // b neither had nor wanted the GPU
			share, sum := 100*had[0]/(had[0]+had[1]), (had[0]+had[1])/1000
			t.Logf("10/90: %.1f/%.1f, %.0f %% of the time; b left %.0f %%", share, 100-share, 100*sum/passed,
				100*left/passed)
			if had[0]/1000 > 0.2*passed+left {
				t.Errorf("a had %.0f ms of %.1f s, of which b left %.1f", had[0], passed, left)
			}
			if sum > passed+0.1 { // one turn may continue
				t.Errorf("turns of %.1f s in %.1f s", sum, passed)
			}
		})
	}
}
