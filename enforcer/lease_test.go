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
)

// capped returns the terms of a tenant with a cap in bytes.
func capped(name string, bytes uint64) terms {
	return terms{name, broker.Quota{Quota: quota.Quota{Limit: 1, Memory: bytes}, Weight: 1}}
}

// pairs returns options for a load that only allocates and frees.
func pairs(mibs float64, seconds int) []string {
	return []string{"--launch=alloc", "--kernel-us=0", fmt.Sprintf("--alloc-step-mib=%g", mibs),
		fmt.Sprintf("--seconds=%d", seconds)}
}

// completed returns a load's number of launches per second.
func completed(t *testing.T, w *worker) float64 {
	t.Helper()
	f := strings.Fields(w.hear(t, time.Minute, "total"))
	n := fixture.Value(strconv.ParseFloat(f[2], 64))(t)
	seconds := fixture.Value(strconv.ParseFloat(f[3], 64))(t)
	return n / seconds
}

// TestIdleLeaseIsAnothers stops a process that holds lent memory. Another process of the same tenant wants all the
// memory that the first does not use. Then the first is killed.
func TestIdleLeaseIsAnothers(t *testing.T) {
	t.Parallel()
	const limit = 1024 * mib
	h := stub(t)
	h.govern(t, capped("tenant", limit))
	settled := func(what string, used, reserved uint64) {
		t.Helper()
		poll(t, 10*time.Second, what, func() bool {
			b := books(stats(t, h.broker), "tenant")
			return b.MemoryUsed == used && b.MemoryReserved == reserved
		})
	}
	idle := h.load(t, "tenant", hoard(16, 1, "native")...)
	goes(t, idle)
	taken(t, idle)
	const lent = (limit-mib)/8 - 15*mib // with the first allocation, of which the others are a part
	settled("what is lent is not told from what is used", 16*mib, lent)
	h.freeze(t, idle)
	other := h.load(t, "tenant", hoard(2048, 1, "native")...)
	goes(t, other)
	fixture.Equal(t, taken(t, other), limit-16*mib, "bytes that the other process takes")
	settled("the books do not have all memory", limit, 0)
	other.Kill()
	poll(t, 10*time.Second, "the dead one's memory is charged",
		func() bool { return books(stats(t, h.broker), "tenant").MemoryUsed == 16*mib })
	third := h.load(t, "tenant", hoard(16, 1, "native")...)
	goes(t, third)
	taken(t, third)
	poll(t, 10*time.Second, "it is not lent any",
		func() bool { return books(stats(t, h.broker), "tenant").MemoryReserved > 0 })
	third.Kill()
	settled("a killed process's lease does not come back", 16*mib, 0)
}
