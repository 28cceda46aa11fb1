package enforcer_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// poll checks a condition every few milliseconds and returns how long it took to become true.
func poll(t *testing.T, limit time.Duration, what string, done func() bool) time.Duration {
	t.Helper()
	began, look := time.Now(), time.NewTicker(5*time.Millisecond)
	defer look.Stop()
	for !done() {
		if <-look.C; time.Since(began) > within(limit) {
			t.Fatalf("after %v still: %s", within(limit), what)
		}
	}
	return time.Since(began)
}

// taken returns the number of bytes that a worker reports.
func taken(t *testing.T, w *worker) uint64 {
	t.Helper()
	f := strings.Fields(w.hear(t, time.Minute, "alloc"))
	return fixture.Value(strconv.ParseUint(f[1], 10, 64))(t)
}

const mib = 1 << 20

// hoard returns options for a load that takes memory and only holds it.
func hoard(mibs, step int, kind string) []string {
	return []string{fmt.Sprintf("--alloc-mib=%d", mibs), fmt.Sprintf("--alloc-step-mib=%d", step),
		"--alloc-kind=" + kind,
		"--burst-ms=0.1", "--sleep-ms=600000"}
}

// brokerKilled kills the broker by SIGKILL under two saturated tenants, and starts another one after a while. Both run
// all the time, and share as before within 3 s.
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
	waits := fixture.WatchWaits(t)
	for _, p := range parts {
		waits.Add(p.Cmd.Process.Pid)
		p.Tell(p.command)
	}
	// goesOn waits for steps of each tenant and for some time.
	goesOn := func(span time.Duration) {
		t.Helper()
		from := fixture.Monotonic()
		for _, p := range parts {
			if !p.until(10*time.Second, func(s *series) bool {
				return len(s.At) > 0 && s.At[len(s.At)-1] > from+int64(span) && s.work(from, from+int64(span)) > 0
			}) {
				t.Fatalf("%s stands still", p.Name)
			}
		}
	}
	goesOn(time.Second)
	killed := fixture.Monotonic()
	h.broker.Kill()
	goesOn(down)
	h.broker = startBroker(t, h.socket, tenants...)
	back := poll(t, 10*time.Second, "no session has resumed",
		func() bool { return stats(t, h.broker).Sessions["active"] == len(parts) })
	fmt.Printf("kill -9 of the broker: sessions back %v after the new one listened\n", back.Round(time.Millisecond))
	fixture.AtMost(t, back, 2*time.Second, "sessions resumed after")
	goesOn(max(0, 3*time.Second-back))
	from, began := fixture.Monotonic(), time.Now()
	goesOn(2 * time.Second)
	waited := waits.Most(began, time.Now()).Seconds() / 2 // in a second
	var all []*series
	for _, p := range parts {
		s, _ := p.measured()
		all = append(all, s)
		was, is := s.work(killed-int64(time.Second), killed), typical([]*series{s}, from, from+int64(2*time.Second))[0]
		fmt.Printf("%s: %.3f of the GPU before the broker was killed, %.3f from 3 s after it was back\n", p.Name,
			was, is)
		want := 0.9 * min(was, p.target) // in its first second, a tenant may have more
		fixture.AtLeast(t, is, want-waited, "%s has … of the GPU, %.3f before", p.Name, was)
	}
	if e := deviation(all, []float64{0.3, 0.7}, from, from+int64(2*time.Second), time.Second); e.median > 2 {
		t.Errorf("after a restart of the broker shares err by %.2f points in a typical second", e.median)
	}
}

// books returns the broker's figures of a tenant on the only GPU.
func books(s wire.Stats, name string) wire.TenantStats {
	for _, tenant := range s.Tenants {
		if tenant.Tenant == name {
			return tenant
		}
	}
	return wire.TenantStats{}
}

// TestMemoryRace lets 64 processes of one tenant take memory in four ways.
// Together they want four times its cap at once.
func TestMemoryRace(t *testing.T) {
	t.Parallel()
	const limit = 1024 * mib
	h := stub(t)
	h.govern(t, terms{"race", broker.Quota{Quota: quota.Quota{Limit: 1, Memory: limit}, Weight: 1}})
	var all []*worker
	for i := range 64 {
		kind := []string{"native", "async", "vmm", "managed"}[i%4]
		all = append(all, h.load(t, "race", hoard(64, 2, kind)...))
	}
	goes(t, all...)
	sum := uint64(0)
	for _, w := range all {
		sum += taken(t, w)
	}
	used, peak := h.truth.memory(t)
	ledger := books(stats(t, h.broker), "race").MemoryPeak
	over := max(0, int64(sum)-limit, int64(peak)-limit, int64(ledger)-limit)
	fmt.Printf("memory race of 64: %d MiB taken of %d, in use on the GPU %d, peak %d, in the ledger %d, %d bytes "+
		"over\n",
		sum/mib, limit/mib, used/mib, peak/mib, ledger/mib, over)
	fixture.Equal(t, over, 0, "bytes over the cap")
	fixture.AtLeast(t, sum, limit*95/100, "64 processes could take %d MiB of %d", sum/mib, limit/mib)
}

// TestCancelledAllocations cancels threads in allocations. The other threads want all of the tenant's cap, and get the
// bytes that were granted to the cancelled ones.
func TestCancelledAllocations(t *testing.T) {
	t.Parallel()
	h := stub(t)
	h.govern(t, terms{"tenant", broker.Quota{Quota: quota.Quota{Limit: 1, Memory: 4 * 8 * mib}, Weight: 1}})
	w := h.load(t, "tenant", "--launch=alloc", "--alloc-step-mib=8", "--kernel-us=200", "--sync-every=1", "--threads=4",
		"--cancel-ms=2", "--seconds=1")
	goes(t, w)
	w.hear(t, time.Minute, "total")
}
