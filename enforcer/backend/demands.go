package backend

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"gpusteward/collectors"
	"gpusteward/enforcer/audit"
	"gpusteward/internal/wire"
)

// Demands are what the backends are to hold, and whether somebody does. One goroutine calls their
// methods; any may call TenantOf.
type Demands struct {
	backends []Backend
	log      *slog.Logger
	users    atomic.Pointer[map[int]string] // tenants of users
	unheld   map[spot]bool                  // where a cap is not in force, as the log has it
}

// NewDemands returns the demands of some backends, which may be none.
func NewDemands(all []Backend, log *slog.Logger) *Demands {
	return &Demands{backends: all, log: log, unheld: map[spot]bool{}}
}

// A spot is a tenant on a GPU.
type spot struct{ tenant, gpu string }

// Look sends the backends their demands.
func (d *Demands) Look(b audit.Books) {
	if len(d.backends) == 0 {
		return
	}
	demands := d.of(b)
	for _, backend := range d.backends {
		backend.Want(demands)
	}
}

// of returns the backends' demands: each tenant's quota on each GPU, and
// the tenant's processes there.
func (d *Demands) of(b audit.Books) []Demand {
	hooked := b.Hooked()
	there := map[spot]*Demand{}
	at := func(tenant, gpu string) *Demand {
		one := there[spot{tenant, gpu}]
		if one == nil {
			one = &Demand{Tenant: tenant, GPU: gpu, Quota: b.Quota(tenant, gpu)}
			there[spot{tenant, gpu}] = one
		}
		return one
	}
	for _, h := range b.DeviceProcesses {
		tenant, session := hooked[h.Process.PID]
		if !session {
			tenant, _ = b.Tenant(h)
		}
		if h.Unknown || tenant == "" || h.Kind == collectors.KindServer {
			continue
		}
		one := at(tenant, h.UUID)
		one.Processes = append(one.Processes, h.Process)
		one.Hooked = one.Hooked || session
		for _, name := range b.Names {
			at(name, h.UUID)
		}
	}
	var all []Demand
	users := map[int]string{} // tenant of all their processes; empty: several tenants
	for _, one := range there {
		all = append(all, *one)
		for _, p := range one.Processes {
			if of, known := users[p.UID]; known && of != one.Tenant {
				users[p.UID] = ""
			} else if !known {
				users[p.UID] = one.Tenant
			}
		}
	}
	d.users.Store(&users)
	slices.SortFunc(all, func(x, y Demand) int {
		if c := strings.Compare(x.Tenant, y.Tenant); c != 0 {
			return c
		}
		return strings.Compare(x.GPU, y.GPU)
	})
	return all
}

// TenantOf returns the one tenant of all of a user's processes on GPUs; false
// if there is none, or several.
func (d *Demands) TenantOf(uid int) (string, bool) {
	users := d.users.Load()
	if users == nil || (*users)[uid] == "" {
		return "", false
	}
	return (*users)[uid], true
}

// Holders returns the backends of a tenant's quota on a GPU. Nobody holds a cap that is a
// part of a memory whose size nobody knows.
func (d *Demands) Holders(b audit.Books, q *wire.QuotaStats) (all []wire.Holder) {
	unknown := q.MemoryPart > 0 && q.Memory == 0
	of := func(t wire.TenantStats) bool { return t.Tenant == q.Tenant && t.GPU == q.GPU && t.Sessions > 0 }
	if slices.ContainsFunc(b.Tenants, of) {
		for _, resource := range []string{"compute", "memory", "copies"} {
			if resource != "memory" || !unknown {
				all = append(all, wire.Holder{Resource: resource, Backend: "hook"})
			}
		}
	}
	for _, backend := range d.backends {
		for _, h := range backend.Holds() {
			if h.Tenant == q.Tenant && h.GPU == q.GPU {
				all = append(all, wire.Holder{Resource: h.Resource, Backend: backend.Name()})
			}
		}
	}
	at := spot{q.Tenant, q.GPU}
	if !unknown {
		delete(d.unheld, at)
		return all
	}
	if !d.unheld[at] {
		d.log.Warn("a cap in percent is not in force: the memory of the gpu is unknown", "tenant", q.Tenant, "gpu", q.GPU)
	}
	d.unheld[at] = true
	return append(all, wire.Holder{Resource: "memory", Backend: "none"})
}
