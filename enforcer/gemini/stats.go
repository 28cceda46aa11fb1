package gemini

import (
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"gpusteward/internal/wire"
)

// counts are the server's counters. They only grow.
type counts struct {
	requests                                          [kinds]atomic.Uint64
	accepted, refused, evicted                        atomic.Uint64
	unknown, malformed, duplicates, overfreed, unseen atomic.Uint64
	reminded, reloads, badReloads                     atomic.Uint64
}

// Stats are the server's counters since its start, and its present state.
type Stats struct {
	Requests   [kinds]uint64 // by Kind
	Accepted   uint64        // connections
	Refused    uint64        // connections without a place
	Evicted    uint64        // connections ended to make place for others
	Unknown    uint64        // requests of names that get nothing
	Malformed  uint64        // connections ended by a malformed frame
	Duplicates uint64        // repeated changes of memory
	Overfreed  uint64        // more memory was given back than taken
	Reminded   uint64        // repeated answers
	Unseen     uint64        // connections of this host without a known process
	Reloads    uint64        // tables that came into force, the first one too
	BadReloads uint64        // tables that did not
	BadLines   int           // of the table that is in force
	Expired    uint64        // turns whose client did not come back in time

	Connections int
	Clients     int           // processes
	Tenants     []TenantStats // in the file's order
}

// TenantStats are the statistics of one name.
type TenantStats struct {
	Entry
	Charged time.Duration // GPU time, by the wall's clock
	Waited  time.Duration // for turns
	Turns   uint64
	Waiting int    // requests
	Used    uint64 // bytes
	Denied  uint64 // allocations
}

// Stats returns the server's statistics. It is safe for concurrent use, also
// before and after Run.
func (s *Server) Stats() Stats {
	c := &s.counts
	all := Stats{
		Accepted: c.accepted.Load(), Refused: c.refused.Load(), Evicted: c.evicted.Load(),
		Unknown: c.unknown.Load(), Malformed: c.malformed.Load(), Duplicates: c.duplicates.Load(),
		Overfreed: c.overfreed.Load(), Unseen: c.unseen.Load(), Reminded: c.reminded.Load(), Reloads: c.reloads.Load(),
		BadReloads: c.badReloads.Load(),
	}
	for i := range all.Requests {
		all.Requests[i] = c.requests[i].Load()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	all.Expired, all.Connections, all.Clients, all.BadLines = s.tokens.expired, len(s.conns), len(s.clients), s.badLines
	for _, n := range s.tokens.tenants {
		time, memory := s.tokens.gpu.Stats(n.Name), s.memory.Usage(n.Name)
		all.Tenants = append(all.Tenants, TenantStats{Entry: n.Entry, Charged: time.Charged, Waited: time.Waited,
			Turns:   time.Turns,
			Waiting: len(n.waiting), Used: memory.Committed + memory.Reserved + memory.Dead, Denied: memory.Denied})
	}
	return all
}

// tenantPrefix keeps the names of a table apart from those of tenants.
const tenantPrefix = "gemini:"

// Servers are the servers of a host.
type Servers []*Server

// Books returns the books of each server.
func (all Servers) Books() (books []wire.GeminiStats) {
	for _, s := range all {
		books = append(books, s.Books())
	}
	return books
}

// Books returns the statistics in the form of the broker's. The GPU is the one
// that names the table's file, as in KubeShare. It is safe for concurrent use.
func (s *Server) Books() wire.GeminiStats {
	all := s.Stats()
	b := wire.GeminiStats{Listen: s.address().String(), Clients: all.Clients, BadLines: all.BadLines,
		Requests: map[string]uint64{"quota": all.Requests[Quota], "memory_limit": all.Requests[MemoryLimit],
			"memory_update": all.Requests[MemoryUpdate]},
		Faults: map[string]uint64{"refused": all.Refused, "evicted": all.Evicted, "unknown": all.Unknown,
			"malformed": all.Malformed, "duplicate": all.Duplicates,
			"overfreed": all.Overfreed, "unseen": all.Unseen, "reminded": all.Reminded, "expired": all.Expired,
			"table": all.BadReloads}}
	if name := filepath.Base(s.options.File); strings.HasPrefix(name, "GPU-") || strings.HasPrefix(name, "MIG-") {
		b.GPU = name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	processes := map[string]int{}
	b.Processes = map[int]string{}
	for _, k := range s.clients {
		processes[k.name]++
		if k.pid != 0 && s.options.Role == PodManager {
			b.Processes[k.pid] = tenantPrefix + k.name
		}
	}
	s.tokens.scheduler.Look(s.now())
	for _, n := range all.Tenants {
		actual, target := s.tokens.gpu.Shares(n.Name, 10*time.Second)
		b.Tenants = append(b.Tenants, wire.GeminiTenant{Guarantee: n.Request,
			TenantStats: wire.TenantStats{Tenant: tenantPrefix + n.Name, GPU: b.GPU,
				Sessions: processes[n.Name], Limit: n.Limit, Share10s: wire.ShareStats{Target: target, Actual: actual},
				ChargedSeconds: n.Charged.Seconds(), WaitSeconds: n.Waited.Seconds(), Turns: n.Turns,
				MemoryCap:  n.Memory,
				MemoryUsed: n.Used, MemoryDenied: n.Denied}})
	}
	return b
}
