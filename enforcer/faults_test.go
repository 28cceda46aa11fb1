package enforcer_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/wire"
)

// TestDeathGivesShareBack kills a tenant that holds nine tenths of the GPU,
// ten times, and looks at what the other one lost: with the whole GPU from the
// first moment it would complete as much work as time passes.
func TestDeathGivesShareBack(t *testing.T) {
	const span = 100 * time.Millisecond
	attempt(t, onStub(t, func() error {
		h := stub(t)
		h.govern(t, tenant("heir", 10), tenant("victim", 90))
		heir := h.load(t, "heir", "--kernel-us=200", "--seconds=60")
		ready(t, heir)
		heir.tell("go")
		var lost []float64
		for range 10 {
			victim := h.load(t, "victim", "--kernel-us=200", "--seconds=60")
			ready(t, victim)
			victim.tell("go")
			if !victim.until(10*time.Second, func(s *series) bool { return len(s.steps) > 0 && s.steps[len(s.steps)-1] > 1000 }) {
				t.Fatal("the victim got no GPU time")
			}
			died := monotonic()
			victim.kill()
			if !heir.until(10*time.Second, func(s *series) bool { return s.at[len(s.at)-1] > died+int64(span) }) {
				t.Fatal("the heir stands still after the victim's death")
			}
			got := h.truth.of(heir.cmd.Process.Pid).work(died, died+int64(span))
			lost = append(lost, 1e3*(span.Seconds()-got))
		}
		fmt.Printf("death of a client: share back after %.1f ms median, %.1f ms worst\n", percentile(lost, 0.5), slices.Max(lost))
		if slices.Max(lost) > 10 {
			return fmt.Errorf("a dead client's share came back after %.1f ms, goal 10 ms", slices.Max(lost))
		}
		return nil
	}))
}

// poll looks at a condition every few milliseconds and returns how long it
// took to become true.
func poll(t *testing.T, limit time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	began, tick := time.Now(), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !done() {
		if <-tick.C; time.Since(began) > limit {
			t.Fatalf("after %v still: %s", limit, what)
		}
	}
	return time.Since(began)
}

// taken returns how many bytes a worker says that it took.
func taken(t *testing.T, w *worker) uint64 {
	t.Helper()
	f := strings.Fields(w.hear(t, time.Minute, "alloc"))
	n, err := strconv.ParseUint(f[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

const mib = 1 << 20

// hoard makes a load take memory and then do nothing but hold it.
func hoard(mibs, step int, kind string) []string {
	return []string{fmt.Sprintf("--alloc-mib=%d", mibs), fmt.Sprintf("--alloc-step-mib=%d", step), "--alloc-kind=" + kind,
		"--burst-ms=0.1", "--sleep-ms=600000"}
}

// TestMemoryRace lets 64 processes of one tenant, which take memory in four
// ways, want four times its cap at once.
func TestMemoryRace(t *testing.T) {
	const limit = 1024 * mib
	h := stub(t)
	h.govern(t, terms{"race", broker.Quota{Weight: 1, Limit: 1, Memory: limit}})
	var all []*worker
	for i := range 64 {
		kind := []string{"native", "async", "vmm", "managed"}[i%4]
		all = append(all, h.load(t, "race", hoard(64, 2, kind)...))
	}
	ready(t, all...)
	for _, w := range all {
		w.tell("go")
	}
	sum := uint64(0)
	for _, w := range all {
		sum += taken(t, w)
	}
	used, peak := h.truth.memory(t)
	ledger := books(stats(t, h.broker), "race").MemoryPeak
	over := max(0, int64(sum)-limit, int64(peak)-limit, int64(ledger)-limit)
	fmt.Printf("memory race of 64: %d MiB taken of %d, in use on the GPU %d, peak %d, in the ledger %d, %d bytes over\n",
		sum/mib, limit/mib, used/mib, peak/mib, ledger/mib, over)
	if over != 0 {
		t.Errorf("%d bytes over the cap", over)
	}
	if sum < limit*95/100 {
		t.Errorf("64 processes could take %d MiB of %d", sum/mib, limit/mib)
	}
}

// TestCancelledAllocations cancels threads in allocations: the others, which want
// all of the tenant's cap, get what a cancelled one was granted.
func TestCancelledAllocations(t *testing.T) {
	h := stub(t)
	h.govern(t, terms{"tenant", broker.Quota{Weight: 1, Limit: 1, Memory: 4 * 8 * mib}})
	w := h.load(t, "tenant", "--launch=alloc", "--alloc-step-mib=8", "--kernel-us=200", "--sync-every=1", "--threads=4",
		"--cancel-ms=2", "--seconds=2")
	ready(t, w)
	w.tell("go")
	w.hear(t, time.Minute, "total")
}

// TestDeathGivesMemoryBack kills a process that holds all of its tenant's
// memory; a successor gets all of it.
func TestDeathGivesMemoryBack(t *testing.T) {
	const limit = 1024 * mib
	h := stub(t)
	h.govern(t, terms{"tenant", broker.Quota{Weight: 1, Limit: 1, Memory: limit}})
	take := func() *worker {
		w := h.load(t, "tenant", hoard(2048, 32, "native")...)
		ready(t, w)
		w.tell("go")
		if got := taken(t, w); got != limit {
			t.Fatalf("took %d MiB of %d", got/mib, limit/mib)
		}
		return w
	}
	w := take()
	died := time.Now()
	w.kill()
	poll(t, 10*time.Second, "memory is charged to a dead process", func() bool { return books(stats(t, h.broker), "tenant").MemoryUsed == 0 })
	back := time.Since(died)
	fmt.Printf("death of a client: memory back after %v\n", back.Round(time.Millisecond))
	if back > 2*time.Second {
		t.Errorf("memory came back after %v, goal 2 s", back)
	}
	take()
}

// TestStopped stops one of two saturated tenants: the other one waits for it
// once, has the GPU, and shares it again when the first goes on.
func TestStopped(t *testing.T) {
	h := stub(t)
	h.govern(t, tenant("stopped", 50), tenant("other", 50))
	stopped, other := h.load(t, "stopped", "--kernel-us=200", "--seconds=60"), h.load(t, "other", "--kernel-us=200", "--seconds=60")
	ready(t, stopped, other)
	for _, w := range []*worker{stopped, other} {
		w.begin(200e-6)
		w.tell("go")
	}
	took := func(name string) func() bool {
		from := books(stats(t, h.broker), name).Turns
		return func() bool { return books(stats(t, h.broker), name).Turns > from+20 }
	}
	poll(t, 20*time.Second, "they do not take turns", took("stopped"))
	before := books(stats(t, h.broker), "stopped")
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	poll(t, 20*time.Second, "the broker holds it for alive", func() bool { return stats(t, h.broker).Sessions["stale"] == 1 })
	after := books(stats(t, h.broker), "stopped")
	fmt.Printf("a stopped tenant: %d overruns until it is stale\n", after.Overruns-before.Overruns)
	if n := after.Overruns - before.Overruns; n > 2 {
		t.Errorf("the other one waited for it %d times", n)
	}
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	poll(t, 20*time.Second, "it has no turns again", took("stopped"))

	// And for so short a while that it is never held for stale.
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	was := books(stats(t, h.broker), "stopped").Overruns
	poll(t, 20*time.Second, "it is not waited for", func() bool { return books(stats(t, h.broker), "stopped").Overruns > was })
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	poll(t, 20*time.Second, "it has no turns again", took("stopped"))
}

func TestBrokerKilled(t *testing.T) { brokerKilled(t, stub(t), time.Second) }

// brokerKilled kills the broker by SIGKILL under two saturated tenants and
// starts another one after a while: both go on all the while, and share as
// before within 3 s.
func brokerKilled(t *testing.T, h *host, down time.Duration) {
	t.Helper()
	tenants := []terms{tenant("small", 30), tenant("large", 70)}
	h.govern(t, tenants...)
	var parts []part
	for _, tenant := range tenants {
		w := h.load(t, tenant.Name, "--kernel-us=200", "--seconds=60")
		parts = append(parts, part{w, "go", tenant.Weight / 100, 200e-6})
		w.begin(200e-6)
	}
	ready(t, parts[0].worker, parts[1].worker)
	for _, p := range parts {
		p.tell(p.command)
	}
	// goesOn waits until each has completed steps and so much time has passed.
	goesOn := func(span time.Duration) {
		t.Helper()
		from := monotonic()
		for _, p := range parts {
			if !p.until(10*time.Second, func(s *series) bool {
				return len(s.at) > 0 && s.at[len(s.at)-1] > from+int64(span) && s.work(from, from+int64(span)) > 0
			}) {
				t.Fatalf("%s stands still", p.name)
			}
		}
	}
	goesOn(2 * time.Second)
	killed := monotonic()
	h.broker.kill()
	goesOn(down)
	h.broker = startBroker(t, h.socket, tenants...)
	back := poll(t, 10*time.Second, "no session has resumed", func() bool { return stats(t, h.broker).Sessions["active"] == len(parts) })
	fmt.Printf("kill -9 of the broker: sessions back %v after the new one listened\n", back.Round(time.Millisecond))
	if back > 2*time.Second {
		t.Errorf("sessions resumed after %v, goal 2 s", back)
	}
	goesOn(max(0, 3*time.Second-back))
	from := monotonic()
	goesOn(3 * time.Second)
	var all []*series
	for _, p := range parts {
		s, _ := p.measured()
		all = append(all, s)
		was, is := s.work(killed-int64(time.Second), killed), s.work(from, from+int64(3*time.Second))/3
		fmt.Printf("%s: %.3f of the GPU before the broker was killed, %.3f from 3 s after it was back\n", p.name, was, is)
		if is < 0.9*was {
			t.Errorf("%s has %.3f of the GPU, %.3f before", p.name, is, was)
		}
	}
	if e := deviation(all, []float64{0.3, 0.7}, from, from+int64(3*time.Second), time.Second); e.mean > 2 {
		t.Errorf("after a restart of the broker shares err by %.2f points on average", e.mean)
	}
}

// books returns what the broker counts for a tenant on the only GPU.
func books(s wire.Stats, name string) wire.TenantStats {
	for _, tenant := range s.Tenants {
		if tenant.Tenant == name {
			return tenant
		}
	}
	return wire.TenantStats{}
}
