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

// TestDeathGivesShareBack kills a tenant that has nine tenths of the GPU, five
// times, and measures the loss of the other tenant: with the whole GPU from the
// first moment it would complete as much work as time passes.
func TestDeathGivesShareBack(t *testing.T) {
	const span = 100 * time.Millisecond
	h := stub(t)
	h.govern(t, tenant("heir", 10), tenant("victim", 90))
	heir := h.load(t, "heir", "--kernel-us=200", "--seconds=60")
	ready(t, heir)
	heir.Tell("go")
	var lost []float64
	for range 5 {
		victim := h.load(t, "victim", "--kernel-us=200", "--seconds=60")
		ready(t, victim)
		victim.Tell("go")
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

// TestStopped stops one of two saturated tenants. The other one waits for it
// once, has the GPU, and shares it again when the first continues.
func TestStopped(t *testing.T) {
	h := stub(t)
	h.govern(t, tenant("stopped", 70), tenant("other", 30))
	stopped, other := h.load(t, "stopped", "--kernel-us=200", "--seconds=60"),
		h.load(t, "other", "--kernel-us=200", "--seconds=60")
	ready(t, stopped, other)
	for _, w := range []*worker{stopped, other} {
		w.begin(200e-6)
		w.Tell("go")
	}
	took := func(name string) func() bool {
		from := books(stats(t, h.broker), name).Turns
		return func() bool { return books(stats(t, h.broker), name).Turns > from+20 }
	}
	poll(t, 20*time.Second, "they do not take turns", took("stopped"))
	before := books(stats(t, h.broker), "stopped")
	fixture.Must(t, stopped.Cmd.Process.Signal(syscall.SIGSTOP))
	poll(t, 20*time.Second, "the broker holds it for alive",
		func() bool { return stats(t, h.broker).Sessions["stale"] == 1 })
	after := books(stats(t, h.broker), "stopped")
	fmt.Printf("a stopped tenant: %d overruns until it is stale\n", after.Overruns-before.Overruns)
	fixture.AtMost(t, after.Overruns-before.Overruns, 2, "the other one waited for it … times")
	fixture.Must(t, stopped.Cmd.Process.Signal(syscall.SIGCONT))
	poll(t, 20*time.Second, "it has no turns again", took("stopped"))

	// This stop is too short for the session to become stale.
	fixture.Must(t, stopped.Cmd.Process.Signal(syscall.SIGSTOP))
	was := books(stats(t, h.broker), "stopped").Overruns
	poll(t, 20*time.Second, "it is not waited for",
		func() bool { return books(stats(t, h.broker), "stopped").Overruns > was })
	fixture.Must(t, stopped.Cmd.Process.Signal(syscall.SIGCONT))
	poll(t, 20*time.Second, "it has no turns again", took("stopped"))
}

func TestBrokerKilled(t *testing.T) { brokerKilled(t, stub(t), time.Second) }

// TestOneOfTwoStopped stops one of two processes of a tenant during its work,
// several times, too briefly to become stale. The other process continues with
// the tenant's part.
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
	if percentile(mine, 0.5) < .35 || percentile(its, 0.5) < .4 {
		t.Errorf("beside a process that is stopped its tenant has %.3f of the GPU and the other one %.3f", mine, its)
	}
}
