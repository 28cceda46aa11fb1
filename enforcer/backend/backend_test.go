package backend

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

var _, _ Backend = (*MPS)(nil), (*KernelMemory)(nil)

// A census is a host.Proc with the processes that it lists.
type census struct {
	mu    sync.Mutex
	facts map[int]host.Facts
}

func newCensus() *census { return &census{facts: map[int]host.Facts{}} }

// has adds or changes a process, and returns it.
func (c *census) has(pid int, f host.Facts) host.Process {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.Start = cmp.Or(f.Start, uint64(pid))
	c.facts[pid] = f
	return host.Process{PID: pid, Start: f.Start, UID: f.UID}
}

// Open implements host.Proc.
func (c *census) Open(pid int) (host.Handle, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, ok := c.facts[pid]
	if !ok {
		return nil, host.ErrGone
	}
	return counted{facts: f}, nil
}

type counted struct {
	host.Handle
	facts host.Facts
}

func (c counted) Facts() (host.Facts, error) { return c.facts, nil }
func (counted) Close()                       {}

// sorted returns holds in a fixed order.
func sorted(holds []Hold) []Hold {
	all := slices.Clone(holds)
	slices.SortFunc(all, func(a, b Hold) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Resource, b.Resource))
	})
	return all
}

func TestTheNewestDemandsAreTaken(t *testing.T) {
	wants := make(chan []Demand, 1)
	post(wants, []Demand{{Tenant: "a"}})
	post(wants, []Demand{{Tenant: "b"}})
	if got := <-wants; len(got) != 1 || got[0].Tenant != "b" {
		t.Errorf("took %v, want b", got)
	}
	select {
	case got := <-wants:
		t.Errorf("there is more: %v", got)
	default:
	}
}

func TestAnOldSightIsNotBelieved(t *testing.T) {
	holds := []Hold{{"a", "GPU-a", Memory}}
	for _, c := range []struct {
		name string
		s    *report
		want int
	}{
		{"none", nil, 0},
		{"fresh", &report{at: time.Now(), holds: holds}, 1},
		{"old", &report{at: time.Now().Add(-reportLasts - time.Second), holds: holds}, 0},
	} {
		fixture.Equal(t, len(c.s.fresh().holds), c.want, "%s", c.name)
	}
}

// TestUnenforcedQuotaIsReported: a part of an unknown memory is no cap, which the log and the metrics say, once.
func TestUnenforcedQuotaIsReported(t *testing.T) {
	t.Parallel()
	var log fixture.Transcript
	d := NewDemands(nil, slog.New(slog.NewTextHandler(&log, nil)))
	b := audit.Books{Tenants: []wire.TenantStats{{Tenant: "a", GPU: "g", Sessions: 1}}}
	for _, c := range []struct {
		quota quota.Quota
		want  string
		lines int
	}{
		{quota.Quota{}, "[{compute hook} {memory hook} {copies hook}]", 0},
		{quota.Quota{MemoryPart: .5}, "[{compute hook} {copies hook} {memory none}]", 1},
		{quota.Quota{MemoryPart: .5}, "[{compute hook} {copies hook} {memory none}]", 1},
		{quota.Quota{MemoryPart: .5, Memory: 1 << 30}, "[{compute hook} {memory hook} {copies hook}]", 1},
		{quota.Quota{MemoryPart: .5}, "[{compute hook} {copies hook} {memory none}]", 2},
	} {
		fixture.Equal(t, fmt.Sprint(d.Holders(b, &wire.QuotaStats{Tenant: "a", GPU: "g", Quota: c.quota})), c.want, "%+v", c.quota)
		fixture.Equal(t, strings.Count(log.String(), "not in force"), c.lines, "warnings")
	}
}
