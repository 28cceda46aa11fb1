//go:build timed

package enforcer_test

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestAllocationsAreNotThrottled has a program allocate and free as fast as it
// can: far from its cap, and with room for one allocation only.
func TestAllocationsAreNotThrottled(t *testing.T) {
	for name, limit := range map[string]uint64{"far from the cap": 1024 * mib, "at the cap": mib} {
		h := stub(t)
		h.govern(t, capped("tenant", limit))
		w := h.load(t, "tenant", pairs(1, 3)...)
		ready(t, w)
		w.tell("go")
		rate := completed(t, w)
		fmt.Printf("allocations %s: %.0f pairs of alloc and free a second\n", name, rate)
		if rate < 50_000 {
			t.Errorf("%s: %.0f pairs of alloc and free a second, goal 50,000", name, rate)
		}
	}
}

// TestIdleLeaseIsAnothers stops a process that holds lent memory. Another
// process of the same tenant wants all the memory that the first does not use.
// Then the first is killed.
func TestIdleLeaseIsAnothers(t *testing.T) {
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
	ready(t, idle)
	idle.tell("go")
	taken(t, idle)
	const lent = (limit-mib)/8 - 15*mib // with the first allocation, of which the others are a part
	settled("what is lent is not told from what is used", 16*mib, lent)
	if err := idle.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	other := h.load(t, "tenant", hoard(2048, 1, "native")...)
	ready(t, other)
	other.tell("go")
	if got := taken(t, other); got != limit-16*mib {
		t.Errorf("the other process takes %d MiB of %d that are not used", got/mib, limit/mib-16)
	}
	settled("the books do not have all memory", limit, 0)
	other.kill()
	poll(t, 10*time.Second, "the dead one's memory is charged",
		func() bool { return books(stats(t, h.broker), "tenant").MemoryUsed == 16*mib })
	third := h.load(t, "tenant", hoard(16, 1, "native")...)
	ready(t, third)
	third.tell("go")
	taken(t, third)
	poll(t, 10*time.Second, "it is not lent any",
		func() bool { return books(stats(t, h.broker), "tenant").MemoryReserved > 0 })
	third.kill()
	settled("a killed process's lease does not come back", 16*mib, 0)
}
