package enforcer_test

import (
	"testing"
	"time"

	"gpusteward/enforcer/policy"
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
