//go:build timed

package enforcer_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// TestDeathGivesShareBack kills a tenant that has nine tenths of the GPU, five times, and measures the loss of the
// other tenant: with the whole GPU from the first moment it would complete as much work as time passes.
func TestDeathGivesShareBack(t *testing.T) {
	const span = 100 * time.Millisecond
	h := stub(t)
	h.govern(t, tenant("heir", 10), tenant("victim", 90))
	heir := h.load(t, "heir", "--kernel-us=200", "--seconds=60")
	goes(t, heir)
	var lost []float64
	for range 5 {
		victim := h.load(t, "victim", "--kernel-us=200", "--seconds=60")
		goes(t, victim)
		if !victim.until(10*time.Second, func(s *series) bool {
			return len(s.Steps) > 0 && s.Steps[len(s.Steps)-1] > 1000
		}) {
			t.Fatal("the victim got no GPU time")
		}
		died := fixture.Monotonic()
		victim.Kill()
		if !heir.until(10*time.Second, func(s *series) bool { return s.At[len(s.At)-1] > died+int64(span) }) {
			t.Fatal("the heir stands still after the victim's death")
		}
		got := h.truth.of(heir.Cmd.Process.Pid).work(died, died+int64(span))
		lost = append(lost, 1e3*(span.Seconds()-got))
	}
	middle := percentile(lost, 0.5)
	fmt.Printf("death of a client: share back after %.1f ms median, %.1f ms worst\n", middle, slices.Max(lost))
	fixture.AtMost(t, middle, 10, "a dead client's share came back after … ms")
}

func TestBrokerKilled(t *testing.T) { brokerKilled(t, stub(t), time.Second) }

// TestOneOfTwoStopped stops one of two processes of a tenant during its work, several times, too briefly to become
// stale. The other process continues with the tenant's part.
func TestOneOfTwoStopped(t *testing.T) {
	const times, span = 3, int64(time.Second)
	h := stub(t)
	h.govern(t, tenant("two", 50), tenant("other", 50))
	stopped, beside := h.load(t, "two", "--kernel-us=200", "--seconds=60"),
		h.load(t, "two", "--kernel-us=200", "--seconds=60")
	other := h.load(t, "other", "--kernel-us=200", "--seconds=60")
	all := []*worker{stopped, beside, other}
	ready(t, all...)
	for _, w := range all {
		w.begin(200e-6)
		w.Tell("go")
	}
	works := func(all ...*worker) {
		t.Helper()
		for _, w := range all {
			from := fixture.Monotonic()
			poll(t, 20*time.Second, w.Name+" stands still",
				func() bool { return h.truth.of(w.Cmd.Process.Pid).work(from, fixture.Monotonic()) > .02 })
		}
	}
	works(all...)
	var mine, its []float64
	for range times {
		from := fixture.Monotonic()
		fixture.Must(t, stopped.Cmd.Process.Signal(syscall.SIGSTOP))
		poll(t, 20*time.Second, "no second passes", func() bool { return fixture.Monotonic() > from+span })
		mine = append(mine, h.truth.of(beside.Cmd.Process.Pid).work(from, from+span))
		its = append(its, h.truth.of(other.Cmd.Process.Pid).work(from, from+span))
		fixture.Must(t, stopped.Cmd.Process.Signal(syscall.SIGCONT))
		works(all...)
	}
	fmt.Printf("one of two processes is stopped: the other one has %.3f of the GPU, the other tenant %.3f\n", mine, its)
	fixture.If(t, percentile(mine, 0.5) < .35 || percentile(its, 0.5) < .4,
		"beside a process that is stopped its tenant has %.3f of the GPU and the other one %.3f", mine, its)
}
