package enforcer

import (
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"gpusteward/collectors"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/backend"
	"gpusteward/internal/wire"
)

// demands are what the backends are to hold, and whether somebody does. Run's goroutine owns them;
// anybody may call tenantOf.
type demands struct {
	backends []backend.Backend
	log      *slog.Logger
	users    atomic.Pointer[map[int]string] // tenants of users
	unheld   map[place]bool                 // tenants whose cap is not in force, as the log has it
}

// look sends the backends their demands.
func (d *demands) look(b audit.Books) {
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
func (d *demands) of(b audit.Books) []backend.Demand {
	type spot struct{ tenant, gpu string }
	hooked := b.Hooked()
	there := map[spot]*backend.Demand{}
	at := func(tenant, gpu string) *backend.Demand {
		one := there[spot{tenant, gpu}]
		if one == nil {
			one = &backend.Demand{Tenant: tenant, GPU: gpu, Quota: b.Quota(tenant, gpu)}
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
	var all []backend.Demand
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
	slices.SortFunc(all, func(x, y backend.Demand) int {
		if c := strings.Compare(x.Tenant, y.Tenant); c != 0 {
			return c
		}
		return strings.Compare(x.GPU, y.GPU)
	})
	return all
}

// tenantOf is Enforcer.TenantOf.
func (d *demands) tenantOf(uid int) (string, bool) {
	users := d.users.Load()
	if users == nil || (*users)[uid] == "" {
		return "", false
	}
	return (*users)[uid], true
}

// holders returns the backends of a tenant's quota on a GPU. Nobody holds a cap that is a
// part of a memory whose size nobody knows.
func (d *demands) holders(b audit.Books, q *wire.QuotaStats) (all []wire.Holder) {
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
	at := place{q.Tenant, q.GPU}
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
