package integration

import (
	"flag"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

var (
	adversarySeconds = flag.Float64("adversary.seconds", 30, "`seconds` that the adversary makes its moves")
	adversaryMoves   = flag.String("adversary.moves", "",
		"regular `expression` of the moves that are made, to find what hurts")
	adversarySeed = flag.Uint64("adversary.seed", 0, "what the adversary's moves follow from; 0 is another each time")
)

// Limits for honest tenants and for all processes: the least part of its guarantee that a tenant has over a
// window, the longest wait for a session, and the most that a process takes.
const (
	leastPace       = .95
	window          = 10 * time.Second // a tenant can be ahead by 0.18 s, which is little of it
	longestRefusal  = time.Second
	mostSessions    = 16 // of one process; the honest ones together have fewer than twice that
	mostMemory      = 256 << 20
	mostDescriptors = 1500
)

// said returns counts as text.
func said(counts map[string]float64) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%6.0f  %s\n", counts[name], name)
	}
	return b.String()
}

// chooses selects the moves with matching names, by their weights.
func (s *siege) chooses(t *testing.T, names string) {
	match := fixture.Value(regexp.Compile(names))(t)
	sum := 0
	for _, m := range moves {
		if match.MatchString(m.name) {
			sum += m.weight
		}
		s.weights = append(s.weights, sum)
	}
	fixture.Need(t, sum == 0, false, "-adversary.moves: no move matches %q", names)
}

// drawn returns a move by chance, and its place.
func (s *siege) drawn() (m move, n int) {
	at := s.IntN(s.weights[len(moves)-1])
	n = slices.IndexFunc(s.weights, func(up int) bool { return at < up })
	return moves[n], n
}

// play makes one of the moves.
func (s *siege) play() {
	m, n := s.drawn()
	i, seed := s.IntN(len(s.peers)), s.Uint64() // drawn for each move, so that the next ones stay the same
	s.mu.Lock()
	s.count[m.name]++
	s.mu.Unlock()
	if m.siege != nil {
		s.tell("%s", m.name)
		m.siege(s)
		return
	}
	p := s.peers[i]
	select {
	case <-p.free:
		s.tell("%s, by user %d in %s", m.name, besiegers[i].uid, groupOf(p.pid))
		_, _ = fmt.Fprintln(p.in, n, seed)
		p.since = time.Now()
	default:
		if time.Since(p.since) > 5*time.Second { // stopped by the escalation, or without processor time
			s.respawn(i)
		}
	}
}

// scrapes scrapes like a Prometheus in a hurry.
func (s *siege) scrapes() {
	for tick := time.Tick(250 * time.Millisecond); s.Context().Err() == nil; <-tick {
		s.sees("/metrics")
	}
}

// look checks the observer's metrics and both processes.
func (s *siege) look() {
	now := parse(s.sees("/metrics"))
	for key, v := range now {
		name, labels, _ := strings.Cut(key, "{")
		// all clients of gemini are hostile
		honest := !strings.Contains(labels, `tenant="hostile"`) && !strings.Contains(labels, `tenant="gemini:`)
		var bad bool
		switch name {
		case "nvgpu_quota_rung":
			bad = honest && v > 0 && !strings.Contains(labels, `rung="observe"`)
		case "nvgpu_quota_violations_total", "nvgpu_quota_actions_total", "nvgpu_underreporting_processes":
			bad = honest && v > 0
		case "nvgpu_quota_sessions":
			bad = honest && v < 1 && !strings.Contains(labels, `tenant="jobs"`)
		case "nvgpu_quota_memory_used_bytes":
			bad = strings.Contains(labels, `tenant="hostile"`) && v > 9<<30
		case "gpusteward_broker_up":
			bad = v != 1
		}
		if bad {
			s.broken("%s %v", key, v)
		}
	}
	if charged, passed := sum(now.family("nvgpu_quota_compute_seconds_total")),
		time.Since(s.enforced).Seconds(); charged > passed {
		s.broken("%.2f s of the GPU are charged in %.2f s", charged, passed)
	}
	if used := sum(now.family("nvgpu_quota_memory_used_bytes")) +
		sum(now.family("nvgpu_quota_memory_reserved_bytes")); used > 80<<30 {
		s.broken("%v bytes of 80 GiB are charged", used)
	}
	if n := sum(now.family("nvgpu_broker_sessions")) - sum(now.family("nvgpu_broker_sessions",
		`state="connecting"`)); n > float64(mostSessions*(len(s.peers)+2)) {
		s.broken("there are %v sessions", n)
	}
	for _, a := range []*agent{s.enforcer, s.observer} {
		if memory, descriptors := s.taken(a); memory > mostMemory || descriptors > mostDescriptors || a.hasEnded() {
			s.broken("a process has %d MiB and %d descriptors; it has ended: %v", memory>>20, descriptors, a.hasEnded())
		}
	}
	s.mu.Lock()
	late := time.Since(s.comes) - 250*time.Millisecond
	if n := len(s.came); n > 0 {
		late = max(late, s.came[n-1])
	}
	s.mu.Unlock()
	if took := fixture.Stolen(s.T) - s.stolen; late > longestRefusal+took {
		s.broken("an honest process waits %v for a session", late)
	}
	s.stolen = fixture.Stolen(s.T)
}

// least returns the tenant with the least of its guarantee since then, and that part.
func (s *siege) least(from span) (name string, part float64, judged bool) {
	pace, judged := s.pace(from)
	name = "serving"
	if pace["batch"] < pace[name] {
		name = "batch"
	}
	return name, pace[name], judged
}

// judge ends the adversary's processes for a while, to see whether they slowed
// a tenant. It returns false if it cannot tell.
func (s *siege) judge(name string, part float64) (said bool) {
	s.truce(func() {
		from := s.truth.now()
		time.Sleep(window)
		_, without, judged := s.least(from)
		if said = judged && without >= leastPace; !said {
			s.Logf("NOT JUDGED, the machine is busy: %s has %.3f of its guarantee, and %.3f without the adversary",
				name, part, without)
			return
		}
		s.broken("%s has %.3f of its guarantee for %v, and %.3f without the adversary", name, part, 2*window, without)
	})
	return said
}

// truce ends all peers, and starts others once the books are true again and
// everything that the peers had is free. Meanwhile it does something.
func (s *siege) truce(meanwhile func()) {
	s.working.Wait()
	for i := range s.peers {
		s.end(i)
	}
	s.eventually("the books tell what is there", func() string {
		now := parse(s.sees("/metrics"))
		for key, v := range now {
			name, labels, _ := strings.Cut(key, "{")
			if name != "nvgpu_quota_memory_used_bytes" && name != "nvgpu_quota_memory_reserved_bytes" {
				continue
			}
			want := 0.0
			if name == "nvgpu_quota_memory_used_bytes" && (strings.Contains(labels, `tenant="serving"`) ||
				strings.Contains(labels, `tenant="batch"`)) {
				want = 1 << 30
			}
			lent := 0.0 // to the remaining program of each tenant
			if name == "nvgpu_quota_memory_reserved_bytes" {
				lent = 256 << 20
			}
			if v < want || v > want+lent {
				return fmt.Sprint(key, " ", v)
			}
		}
		if n := sum(now.family("nvgpu_broker_sessions", `state="active"`)); n != 3 {
			return fmt.Sprint(n, " sessions are active, not 3")
		}
		return ""
	})
	meanwhile()
	for i := range s.peers {
		s.respawn(i)
	}
}
