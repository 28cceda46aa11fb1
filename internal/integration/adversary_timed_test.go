//go:build timed

package integration

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestAdversary plays random moves, hostile and honest ones, against an observer and an enforcer with tenants
// that want all of a GPU. It checks all the time that no honest tenant is hurt. If one is slowed, it ends the
// adversary's processes for a while, to see whether they are the cause.
func TestAdversary(t *testing.T) {
	seed := *adversarySeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("-adversary.seed=%d", seed)
	s := newSiege(t, seed)
	s.chooses(t, *adversaryMoves)
	s.began = time.Now()
	s.come()
	s.peers = make([]*besieger, len(besiegers))
	for i := range s.peers {
		s.respawn(i)
	}
	go s.scrapes()

	end := s.began.Add(time.Duration(*adversarySeconds * float64(time.Second)))
	look, measured, truce := s.began, s.truth.now(), s.began.Add(time.Minute)
	windows, judged, misses := 0, 0, 0
	patience := end.Add(2 * time.Minute) // on a busy machine, until a window could be judged
	for now := s.began; !t.Failed() && (now.Before(end) || windows > 0 && judged == 0 && now.Before(patience)); now = time.Now() {
		s.play()
		time.Sleep(time.Duration(s.ExpFloat64() * float64(25*time.Millisecond)))
		if now.After(look) {
			look = now.Add(time.Second)
			s.look()
		}
		if now.Sub(measured.began) > window {
			name, part, ok := s.least(measured)
			t.Logf("%4.0f s: %s has %.3f of its guarantee; judged: %v", now.Sub(s.began).Seconds(), name, part, ok)
			switch windows++; {
			case !ok:
			case part >= leastPace:
				judged, misses = judged+1, 0
			default:
				judged, misses = judged+1, misses+1
			}
			if misses == 2 {
				if !s.judge(name, part) {
					judged -= misses
				}
				misses = 0
			}
			measured = s.truth.now()
		}
		if now.After(truce) {
			s.truce(func() {})
			truce, measured = time.Now().Add(time.Minute), s.truth.now()
		}
	}
	s.truce(func() {})
	if windows > 0 && judged == 0 {
		s.broken("the pace of honest tenants was judged in none of %d windows: they had no processor; let nothing "+
			"else run beside this", windows)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	slices.Sort(s.came)
	memory, descriptors := s.taken(s.enforcer)
	t.Logf("%.0f moves; the pace was judged in %d of %d windows of %v; %d sessions of honest processes, p99 %v, "+
		"worst %v; the enforcer has %d MiB and %d descriptors\n%s",
		sum(slices.Collect(maps.Values(s.count))), judged, windows, window, len(s.came), s.came[len(s.came)*99/100],
		s.came[len(s.came)-1], memory>>20, descriptors, said(s.count))
}
