package backend

import (
	"context"
	"fmt"
	"math"
	"slices"

	"gpusteward/internal/wire"
)

// An mpsServerID identifies a server, and never a later process with its PID.
type mpsServerID struct {
	pid   int
	start uint64
}

// An mpsServer is this process's record of a server.
type mpsServer struct {
	threads float64           // percent that was set here; 0 none
	memory  map[string]uint64 // MiB that were set here, by GPU
	early   []int             // clients that may have come before it was set
	known   bool              // was seen before
}

// hold applies wants to one server, and adds what holds to saw, and the
// obstacles to why.
func (m *MPS) hold(ctx context.Context, id mpsServerID, uid int, wants map[string]mpsWant, saw *report,
	why remarks) error {
	s := m.servers[id]
	tenant, one := m.o.Tenant(uid)
	want, governed := wants[tenant]
	user := fmt.Sprintf("uid %d", uid)
	if !one || !governed {
		tenant, want = "", mpsWant{}
		why[user] = "its processes do not all belong to one tenant with a quota"
	}
	percent, changed, err := m.setThreads(ctx, id.pid, s, want)
	if err != nil {
		return err
	}
	memory, more, err := m.setMemory(ctx, id.pid, s, want)
	if err != nil {
		return err
	}
	// after the changes: a client that is there may have come before them
	clients, err := m.control.pids(ctx, "get_client_list %d", id.pid)
	if err != nil {
		return err
	}
	if changed || more || !s.known {
		s.early, s.known = clients, true
		m.o.Log.Info("limits of an MPS server were set", "tenant", tenant, "uid", uid, "pid", id.pid, "percent",
			percent,
			"memory_mib", s.memory, "clients", len(clients))
	}
	s.early = slices.DeleteFunc(slices.Clone(s.early), func(pid int) bool { return !slices.Contains(clients, pid) })
	saw.servers = append(saw.servers, wire.MPSStats{PID: id.pid, UID: uid, Tenant: tenant, Threads: percent / 100,
		Clients: len(clients)})
	if tenant == "" {
		return nil
	}
	if text := m.loose(want, id.pid, s, clients); text != "" {
		why[user] = text
		return nil
	}
	for gpu, limit := range want.limits {
		switch {
		case want.threads == 0: // no limit, or the hook's
		case percent <= limit*100+.05:
			saw.holds = append(saw.holds, Hold{tenant, gpu, Compute})
		default:
			why[user+": threads of "+gpu] = fmt.Sprintf("a server has one percentage for all GPUs, %g", percent)
		}
		if memory[gpu] {
			saw.holds = append(saw.holds, Hold{tenant, gpu, Memory})
		} else if want.memory[gpu] > 0 {
			why[user+": memory of "+gpu] = "the server accepts no limit for it: does it have that GPU?"
		}
	}
	return nil
}

// loose says why a server's settings do not bound the tenant; empty: they do.
func (m *MPS) loose(want mpsWant, server int, s *mpsServer, clients []int) string {
	switch {
	case len(s.early) > 0:
		return "a client connected before the limits were set"
	case len(clients) > 1:
		return "it has several clients, each of which may use the full limits"
	}
	for pid, start := range want.processes {
		if pid == server || slices.Contains(clients, pid) {
			continue
		}
		h, err := m.o.Proc.Open(pid)
		if err != nil {
			continue // it has ended since
		}
		facts, err := h.Facts()
		h.Close()
		if err == nil && facts.Start == start {
			return "it has processes that are not clients of MPS"
		}
	}
	return ""
}

// setThreads sets a server's percentage if one is wanted, and returns the
// resulting one. A percentage that was set here and is no longer wanted becomes
// 100; an operator's stays.
func (m *MPS) setThreads(ctx context.Context, pid int, s *mpsServer, want mpsWant) (percent float64, changed bool,
	err error) {
	if percent, err = m.control.percent(ctx, "get_active_thread_percentage %d", pid); err != nil {
		return 0, false, err
	}
	threads := want.threads
	if threads == 0 && s.threads != 0 {
		threads = 100
	}
	if threads == 0 || math.Abs(percent-threads) < .05 {
		s.threads = want.threads
		return percent, false, nil
	}
	if percent, err = m.control.percent(ctx, "set_active_thread_percentage %d %g", pid, threads); err != nil {
		return 0, false, err
	}
	if math.Abs(percent-threads) >= .05 {
		return 0, false, fmt.Errorf("the MPS server stays at %g percent, not %g", percent, threads)
	}
	s.threads = want.threads
	return percent, true, nil
}

// setMemory is setThreads for the memory of each GPU. It returns the GPUs on
// which a cap holds.
func (m *MPS) setMemory(ctx context.Context, pid int, s *mpsServer, want mpsWant) (held map[string]bool, changed bool,
	err error) {
	held = map[string]bool{}
	for gpu, mebibytes := range want.memory {
		if s.memory[gpu] == mebibytes {
			if held[gpu], err = m.control.capped(ctx, pid, gpu, mebibytes); err != nil {
				return nil, false, err
			}
		}
		if held[gpu] {
			continue
		}
		if err := m.control.capMemory(ctx, pid, gpu, mebibytes); err != nil {
			return nil, false, err
		}
		if held[gpu], err = m.control.capped(ctx, pid, gpu, mebibytes); err != nil {
			return nil, false, err
		}
		s.memory[gpu], changed = mebibytes, changed || held[gpu]
	}
	for gpu := range s.memory {
		if _, wanted := want.memory[gpu]; wanted {
			continue
		}
		if err := m.control.capMemory(ctx, pid, gpu, mpsFree); err != nil {
			return nil, false, err
		}
		delete(s.memory, gpu)
		changed = true
	}
	return held, changed, nil
}
