//go:build long

package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

var endings = flag.Int("adversary.endings", 20, "`times` that both processes are ended under attack")

// TestEndsUnderAttack ends the enforcer and the observer again and again while the adversary's processes make
// all of their moves at once, 200 clients read no answer, and 300 scrape without a pause.
func TestEndsUnderAttack(t *testing.T) {
	s := newSiege(t, rand.Uint64())
	s.chooses(t, *adversaryMoves)
	waits, longest := fixture.WatchWaits(t), time.Duration(0)
	for n := range *endings {
		if n > 0 {
			s.enforce()
			s.observe().ready()
		}
		end, began := s.storm(), time.Now()
		for _, a := range []*agent{s.enforcer, s.observer} {
			waits.Add(a.pid)
			fixture.Must(t, syscall.Kill(a.pid, syscall.SIGTERM))
		}
		fixture.Equal(t, s.enforcer.wait(), 0, "exit status of the enforcer")
		fixture.Equal(t, s.observer.wait(), 0, "exit status of the observer")
		enforced := s.enforcer.gone.Sub(began)
		took := max(enforced, s.observer.gone.Sub(began))
		waited := waits.Most(began, began.Add(took))
		t.Logf("%3d: the enforcer ended after %v, and both had after %v; one waited %v of it for a processor", n+1,
			enforced, took, waited)
		longest = max(longest, took-waited)
		end()
	}
	fixture.AtMost(t, longest, 2*time.Second, "the longest end took")
}

// storm begins an attack on everything, and returns once it is under way.
func (s *siege) storm() (end func()) {
	attack, over := context.WithCancel(s.Context())
	var running sync.WaitGroup
	var asked, scraped atomic.Int64
	observer := s.observer
	for i := range 200 {
		running.Go(func() { neverReads(attack, i, strings.TrimPrefix(observer.url, "http://"), &asked) })
	}
	for range 300 {
		running.Go(func() {
			for attack.Err() == nil {
				_, _, _ = observer.fetch("/metrics")
				scraped.Add(1)
			}
		})
	}
	s.peers = make([]*besieger, len(besiegers))
	for i := range s.peers {
		s.respawn(i)
	}
	running.Go(func() {
		for tick := time.Tick(time.Millisecond); attack.Err() == nil; <-tick {
			for _, p := range s.peers {
				select {
				case <-p.free:
					m, n := s.drawn()
					for ; m.peer == nil; m, n = s.drawn() {
					}
					_, _ = fmt.Fprintln(p.in, n, s.Uint64())
				default:
				}
			}
		}
	})
	eventually(s.T, "the attack is under way", func() bool { return asked.Load() > 100 && scraped.Load() > 20 })
	time.Sleep(rand.N(2 * time.Second)) // at any moment of it
	return func() {
		over()
		for i := range s.peers {
			s.end(i)
		}
		running.Wait()
	}
}
