package backend

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/internal/wire"
)

const (
	mpsCommand  = "nvidia-cuda-mps-control"
	mpsPipes    = "/tmp/nvidia-mps" // where CUDA looks if CUDA_MPS_PIPE_DIRECTORY says nothing
	mpsWait     = 2 * time.Second   // for one answer
	mpsEvery    = 5 * time.Second   // servers and clients are looked at, where nothing else changed
	mpsRetry    = 30 * time.Second  // after a failure
	mostServers = 64                // that are looked at: the daemon has one for each user
	mpsFree     = 16 << 20          // MiB: stands for no memory limit, because MPS cannot remove one
)

// MPSOptions are what NewMPS needs.
type MPSOptions struct {
	Command string                       // NVIDIA's program; empty: nvidia-cuda-mps-control, from PATH
	Pipes   string                       // the control daemon's directory; empty: as CUDA finds it
	Proc    host.Proc                    // says whose a server is
	Tenant  func(uid int) (string, bool) // of all processes of a user; false where they are not one tenant's
	Log     *slog.Logger
}

// MPS is the Backend of CUDA MPS: a tenant's limit becomes the part of the
// multiprocessors that a server gives each client, and its cap the memory that
// each client may have. A server belongs to one user; it is used if that user
// belongs to one tenant.
//
// MPS knows clients but no tenants, and applies a setting only to clients that
// come later. A quota is therefore held while the tenant has at most one
// client, which came after the setting, and no process beside it. A tenant with
// hooked processes has its limit from the hook alone: both together would apply
// it twice.
type MPS struct {
	o       MPSOptions
	control mpsControl
	wants   chan []Demand
	report  atomic.Pointer[report]

	// Run's goroutine owns the fields below.
	servers map[mpsServerID]*mpsServer
	told    remarks
}

// NewMPS returns the backend, which works while Run runs.
func NewMPS(o MPSOptions) *MPS {
	control := mpsControl{cmp.Or(o.Command, mpsCommand),
		cmp.Or(o.Pipes, os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), mpsPipes), mpsWait}
	return &MPS{o: o, control: control, wants: make(chan []Demand, 1), servers: map[mpsServerID]*mpsServer{}}
}

// Name implements Backend.
func (m *MPS) Name() string { return "mps" }

// Want implements Backend.
func (m *MPS) Want(demands []Demand) { post(m.wants, demands) }

// Holds implements Backend.
func (m *MPS) Holds() []Hold { return m.report.Load().fresh().holds }

// Servers returns the MPS servers of a moment ago. Safe for concurrent use.
func (m *MPS) Servers() []wire.MPSStats { return m.report.Load().fresh().servers }

// Run implements Backend. Without a control daemon it only looks for the
// daemon's file, and starts no program.
func (m *MPS) Run(ctx context.Context) error {
	var next time.Time
	var last map[string]mpsWant
	for {
		select {
		case <-ctx.Done():
			return nil
		case demands := <-m.wants:
			wants := mpsWants(demands)
			now := time.Now()
			if now.Before(next) && (m.report.Load() == nil || maps.EqualFunc(wants, last, mpsWant.same)) {
				continue
			}
			saw, err := m.look(ctx, wants)
			if ctx.Err() != nil {
				return nil
			}
			last, next = wants, now.Add(mpsEvery)
			if err != nil { // what is not known does not hold
				m.told.tell(m.o.Log, m.Name(), remarks{"all tenants": err.Error()})
				next, last, saw = now.Add(mpsRetry), nil, nil
				clear(m.servers)
			}
			m.report.Store(saw)
		}
	}
}

// look applies wants to every server, and returns what holds.
func (m *MPS) look(ctx context.Context, wants map[string]mpsWant) (*report, error) {
	saw, why := &report{at: time.Now()}, remarks{}
	there, err := m.control.there()
	if err != nil {
		return nil, err
	}
	var pids []int
	if there {
		if pids, err = m.control.pids(ctx, "get_server_list"); err != nil {
			return nil, err
		}
	}
	alive := map[mpsServerID]bool{}
	for _, pid := range pids[:min(len(pids), mostServers)] {
		facts, err := m.facts(pid)
		if errors.Is(err, host.ErrGone) {
			continue
		}
		if err != nil {
			return nil, err
		}
		id := mpsServerID{pid, facts.Start}
		alive[id] = true
		if m.servers[id] == nil {
			m.servers[id] = &mpsServer{memory: map[string]uint64{}}
		}
		if err := m.hold(ctx, id, facts.UID, wants, saw, why); err != nil && !errors.Is(err, errServerGone) {
			return nil, err
		}
	}
	saw.apart(why)
	maps.DeleteFunc(m.servers, func(id mpsServerID, _ *mpsServer) bool { return !alive[id] })
	m.told.tell(m.o.Log, m.Name(), why)
	return saw, nil
}

// apart drops the holds of tenants with several users, because their servers do
// not know of each other.
func (s *report) apart(why remarks) {
	servers := map[string]int{}
	for _, server := range s.servers {
		servers[server.Tenant]++
	}
	s.holds = slices.DeleteFunc(s.holds, func(h Hold) bool {
		if servers[h.Tenant] > 1 {
			why["tenant "+h.Tenant] = "it has several users, each with an MPS server of its own that may use the " +
				"full limits"
		}
		return servers[h.Tenant] > 1
	})
}

// facts returns the kernel's facts about a server.
func (m *MPS) facts(pid int) (host.Facts, error) {
	h, err := m.o.Proc.Open(pid)
	if err != nil {
		return host.Facts{}, err
	}
	defer h.Close()
	facts, err := h.Facts()
	if err == nil && !strings.HasPrefix(facts.Comm, "nvidia-cuda-mps") {
		return facts, fmt.Errorf("the MPS control daemon lists process %d as a server, but it is %q: is it of another "+
			"PID namespace?", pid, facts.Comm)
	}
	return facts, err
}
