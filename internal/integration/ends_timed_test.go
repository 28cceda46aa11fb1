//go:build timed

package integration

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

var endings = flag.Int("adversary.endings", 5, "`times` that both processes are ended under attack")

// TestEndsUnderAttack ends the enforcer and the observer again and again while
// the adversary's processes make all of their moves at once, 200 clients read
// no answer, and 300 scrape without a pause.
func TestEndsUnderAttack(t *testing.T) {
	const soon = 2 * time.Second
	s := newSiege(t, rand.Uint64())
	s.chooses(t, *adversaryMoves)
	var took [2][]time.Duration
	for n := range *endings {
		if n > 0 {
			s.enforce()
			s.observe().ready()
		}
		end := s.storm()
		both, waited := []*agent{s.enforcer, s.observer}, map[*agent]func() time.Duration{}
		for _, a := range both {
			waited[a] = a.waited()
		}
		began := time.Now()
		for _, a := range both {
			fixture.Must(t, syscall.Kill(a.pid, syscall.SIGTERM))
		}
		var ended [2]time.Duration
		for i, a := range both {
			waits := time.Duration(0)
			for !a.hasEnded() && time.Since(began) < ending {
				time.Sleep(10 * time.Millisecond)
				waits = max(waits, waited[a]())
			}
			fixture.Equal(t, a.wait(), 0, "exit status")
			ended[i] = time.Since(began)
			took[i] = append(took[i], ended[i]-min(waits, ended[i]))
		}
		t.Logf("%3d: the enforcer ended after %v, and both had after %v", n+1, ended[0], ended[1])
		end()
	}
	for i, name := range []string{"the enforcer", "the observer"} {
		slices.Sort(took[i])
		t.Logf("%s ended within %v in all, %v in half of %d endings, its waits for a processor left out", name,
			took[i][*endings-1], took[i][*endings/2], *endings)
		fixture.AtMost(t, took[i][*endings-1], soon, "the end of %s took", name)
	}
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
				if _, _, err := observer.fetch("/metrics"); err == nil {
					scraped.Add(1)
				}
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
