package enforcer_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/wire"
)

// TestExecGivesMemoryBack has a process with memory begin another program: what
// the one before had is not held against it.
func TestExecGivesMemoryBack(t *testing.T) {
	const limit = 4096 * mib
	table := policy.Table{Steps: quick(policy.Warn), Actions: 10,
		Default: policy.Terms{Priority: policy.PriorityNormal, Quota: policy.Quota{Limit: 1, Bandwidth: 1}},
		Rules:   []policy.Rule{byPath("tenant", policy.Quota{Limit: 1, Bandwidth: 1, Memory: limit}, quick(policy.Warn))}}
	g := prepared(t, table)
	g.broker.Holds = g.truth.holds
	g.run(table)
	used := func() uint64 { return books(g.it.Stats(), "tenant").MemoryUsed }
	w := g.job("tenant", true, "--wait-start", "--alloc-mib=2048", "--alloc-step-mib=64", "--kernel-us=1000", "--sync-every=1", "--seconds=2", "--then-mib=4096")
	ready(t, w)
	w.tell("go")
	if got := taken(t, w); got != limit/2 {
		t.Fatalf("it takes %d MiB of 2048", got/mib)
	}
	poll(t, 10*time.Second, "what it takes is not booked", func() bool { return used() == limit/2 })
	ready(t, w) // the other program
	poll(t, 20*time.Second, "what the program before had is charged", func() bool { return used() == 0 })
	w.tell("go")
	if got := taken(t, w); got != limit {
		t.Errorf("it takes %d MiB of 4096 after it began another program", got/mib)
	}
	poll(t, 10*time.Second, "the books differ", func() bool { return used() == limit && g.it.Stats().Sessions["closing"] == 0 })
}

// pageOf reads the page of a process's session out of its memory.
func pageOf(t *testing.T, pid int) wire.Page {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	memory, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	for line := range strings.Lines(string(maps)) {
		var from int64
		if _, err := fmt.Sscanf(line, "%x-", &from); err == nil && strings.Contains(line, "/memfd:gpusteward-page") {
			page := make(wire.Page, wire.PageSize)
			if _, err := memory.ReadAt(page, from); err != nil {
				t.Fatal(err)
			}
			return page
		}
	}
	t.Fatalf("process %d has no page", pid)
	return nil
}

// TestCapHoldsForAllWithoutABroker kills the broker of a tenant with three
// processes, of which one has a quarter of the memory: each may have its part of
// the rest.
func TestCapHoldsForAllWithoutABroker(t *testing.T) {
	const limit = 4096 * mib
	h := stub(t)
	h.govern(t, capped("tenant", limit))
	first := h.load(t, "tenant", hoard(1024, 64, "native")...)
	ready(t, first)
	first.tell("go")
	taken(t, first)
	others := []*worker{h.load(t, "tenant", hoard(8192, 64, "native")...), h.load(t, "tenant", hoard(8192, 64, "native")...)}
	ready(t, others...)
	for _, w := range others {
		poll(t, 10*time.Second, "its page does not say what the tenant has", func() bool {
			p := pageOf(t, w.cmd.Process.Pid)
			used, _ := p.Memory(0)
			return used == limit/4 && p.Processes(0) == 3
		})
	}
	h.broker.kill()
	for _, w := range others {
		w.tell("go")
	}
	for _, w := range others {
		if got := taken(t, w); got != limit/4 {
			t.Errorf("it takes %d MiB of 3072 for three", got/mib)
		}
	}
	if used, _ := h.truth.memory(t); used > limit {
		t.Errorf("the tenant has %d MiB of %d", used/mib, limit/mib)
	}
}
