// Package policy assigns processes to tenants, and quotas to tenants: the
// operator's table, checked, and quick to ask.
//
//	Table --Check, New--> Policy;  facts, wish -> tenant;  tenant, GPU -> quota, weight, steps
//
// A tenant has selectors: users, groups, workloads, executables and so on. The
// most specific selector that fits a process wins. A tie is found when the table
// is checked, because the overlap of two patterns can be computed (glob.go). A
// process may ask for a tenant by name; that only chooses among those that the
// kernel's facts allow. An index by the most important kind of a selector keeps
// the question cheap with thousands of entries (index.go).
//
// Weights follow from the quotas, guarantees first and the rest by priority, so
// that a tenant that is guaranteed a part of a full GPU gets it beside any
// neighbours (weight.go). Realtime goes first, idle last. Overrides have other
// terms for some GPUs (override.go).
//
// Invariants:
//
//   - A Policy is immutable. Another table makes another one.
//   - In a table that passed Check no two tenants select a process equally well,
//     and no name of a GPU guarantees more than a whole one. An index and a UUID
//     of the same GPU can, which is logged once the GPU is known.
//   - A user or group that the host does not know selects nothing.
//   - The default tenant has no guarantee, and the enforcer never acts on it.
//
// Begin with Table in table.go, and Tenant and own in policy.go.
package policy

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/internal/procs"
	"gpusteward/internal/quota"
)

// DefaultTenant is the name of the tenant of all processes that no other tenant
// selects. It has no guarantee, and the enforcer never acts on it.
const DefaultTenant = "default"

// Unbound is the wish of a process to be observed and held to no terms. It is
// granted to a process whose own tenant has none, and lasts as long as that is
// so. No tenant can have this name.
const Unbound = "+observe"

// A HostView is what a policy asks of the host. No function may block, all may
// be called concurrently, and any may be nil: then workloads have their
// cgroups' names, no GPU has an index, and no memory size is known.
type HostView struct {
	Process func(pid int) (host.Process, error) // the process now; its workload is nil until its name is known
	// names of a GPU: its index, its UUID; of a MIG device: those of its GPU,
	// 0:1, its UUID
	Names  func(uuid string) []string
	Memory func(uuid string) (uint64, bool) // bytes of a GPU's memory
}

// A Policy is a Table with users and groups looked up. It is immutable and safe
// for concurrent use.
type Policy struct {
	table   Table
	host    HostView
	log     *slog.Logger
	tenants map[string]int // index in the table
	entries []entry        // of all tenants, in the table's order
	index   [kinds]index   // of the entries, by their most important kind
	excess  sync.Once      // logged once
}

// New returns the policy of a table that passed Check. A user or group that
// this host does not know is logged and selects nothing: its directory may not
// answer now. Without a log nothing is logged.
func New(t Table, h HostView, log *slog.Logger) *Policy {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	p, strangers := newPolicy(t)
	p.host, p.log = h, log
	for _, s := range strangers {
		log.Warn("a name that this host does not know selects nothing", "tenant", s.tenant, "key", s.key, "name",
			s.name, "err", s.err)
	}
	return p
}

func newPolicy(t Table) (*Policy, []unknown) {
	p := &Policy{table: t, tenants: map[string]int{}}
	var all []unknown
	known := map[string]uint32{} // by key and name: each is looked up once
	for i := range t.Rules {
		r := &t.Rules[i]
		p.tenants[r.Name] = i
		for at := range r.Select {
			e := entry{tenant: i, at: at, has: r.Select[at].of()}
			for kind, list := range r.Select[at].lists() {
				for _, text := range list {
					if kind != byUser && kind != byGroup {
						e.patterns[kind] = append(e.patterns[kind], newPattern(text))
						continue
					}
					id, err := lookUp(kind, text, known)
					if err != nil {
						e.unknown[kind] = append(e.unknown[kind], text)
						all = append(all, unknown{r.Name, fmt.Sprintf("%s.select[%d].%s", t.key(i), at, keys[kind]),
							text, err})
						continue
					}
					e.ids[kind] = append(e.ids[kind], id)
				}
			}
			p.add(e)
		}
	}
	return p, all
}

// own returns the tenant that fits a process most closely, -1 for none. It
// tries the most important kinds first, so that most entries are never looked
// at.
func (p *Policy) own(s *subject) int {
	tenant, top := -1, specificity{}
	for kind := range p.index {
		if !s.has.has(kind) {
			continue
		}
		p.index[kind].each(kind, s, func(n int) {
			e := &p.entries[n]
			rank, ok := e.fits(s)
			if !ok {
				return
			}
			if over := rank.compare(top); over > 0 || over == 0 && e.tenant < tenant {
				tenant, top = e.tenant, rank
			}
		})
		if tenant >= 0 {
			break
		}
	}
	return tenant
}

// Reasons that a process may not be of the tenant that it asks for.
var (
	errUnknown  = errors.New("there is no such tenant")
	errNotYours = errors.New("this process does not belong to that tenant")
	errBound    = errors.New("this process is held to terms")
)

// Tenant returns the name of the tenant on whose quota a process draws: the one
// that fits it most closely. wished is the tenant that it asks for, or empty:
// it only chooses among those that the facts allow.
func (p *Policy) Tenant(f broker.Facts, wished string) (string, error) {
	s := newSubject(f, p.workload(f))
	own := p.own(&s)
	if wished == Unbound {
		return p.unbound(own)
	}
	if wished != "" && wished != DefaultTenant {
		switch i, ok := p.tenants[wished]; {
		case !ok:
			return "", fmt.Errorf("%w: %q", errUnknown, wished)
		case !p.allows(i, &s):
			return "", fmt.Errorf("%w: %q", errNotYours, wished)
		case own >= 0 && own != i && p.table.Rules[own].Binding:
			return "", fmt.Errorf("%w: %q; it is bound to %q", errNotYours, wished, p.table.Rules[own].Name)
		}
		return wished, nil
	}
	switch {
	case own < 0:
		return DefaultTenant, nil
	case wished == DefaultTenant: // it would evade the process's own limits
		return "", fmt.Errorf("%w: %q is for processes without a tenant, and this one belongs to %q",
			errNotYours, wished, p.table.Rules[own].Name)
	}
	return p.table.Rules[own].Name, nil
}

// unbound returns the name of a process's own tenant, if that has no terms.
func (p *Policy) unbound(own int) (string, error) {
	r := p.rule(DefaultTenant)
	if own >= 0 {
		r = &p.table.Rules[own]
	}
	if free := (Terms{Priority: PriorityNormal, Quota: quota.Free()}); r.Terms != free || len(r.GPUs) > 0 {
		return "", fmt.Errorf("%w, those of tenant %q", errBound, r.Name)
	}
	return r.Name, nil
}

// Whose returns the name of the tenant of a process with a known workload that
// asks for no tenant.
func (p *Policy) Whose(f broker.Facts, w *host.Workload) string {
	s := newSubject(f, w)
	if own := p.own(&s); own >= 0 {
		return p.table.Rules[own].Name
	}
	return DefaultTenant
}

// Owner names the owner of a process by its cgroup: a pod, container, Slurm
// job, user, or a user within a unit. Anything nested in one of them has the
// same owner, and so have a user's subordinate UIDs, so that cgroups, job steps
// and user namespaces do not multiply owners.
func Owner(f broker.Facts) string {
	uid := procs.Login(f.UID)
	w := host.ParseCgroup(f.Cgroup, int(uid))
	switch user, _, nested := strings.Cut(w.Key, "/"); {
	case w.PodUID != "":
		return host.KindPod + ":" + w.PodUID
	case w.Job != "":
		return host.KindSlurm + ":" + w.Job
	case w.Kind == host.KindUnit:
		return fmt.Sprintf("%s:%d", w.Key, uid)
	case w.Kind == host.KindContainer && nested: // names below user.slice are the user's own
		return host.KindUser + strings.TrimPrefix(user, host.KindContainer)
	}
	return w.Key
}

// allows reports whether a process may be of a tenant; any process may be of
// one without selectors.
func (p *Policy) allows(tenant int, s *subject) bool {
	if len(p.table.Rules[tenant].Select) == 0 {
		return true
	}
	_, ok := p.closest(tenant, s)
	return ok
}

// closest returns the selector of a tenant that fits a process most closely.
func (p *Policy) closest(tenant int, s *subject) (c fit, ok bool) {
	for i := range p.entries {
		e := &p.entries[i]
		if e.tenant != tenant {
			continue
		}
		if rank, fits := e.fits(s); fits && (!ok || rank.compare(c.rank) > 0) {
			c, ok = fit{e, rank}, true
		}
	}
	return c, ok
}

// A fit is an entry that fits a process, and how closely.
type fit struct {
	*entry
	rank specificity
}

// workload returns the workload of a process. The names of pods, containers and
// jobs come from the host, up to 2 s late; until then, and if they do not match
// the process's cgroup, the cgroup counts.
func (p *Policy) workload(f broker.Facts) *host.Workload {
	if p.host.Process != nil && f.PID > 0 {
		known, err := p.host.Process(f.PID)
		if err == nil && known.Workload != nil && known.UID == int(f.UID) && known.Workload.In(f.Cgroup) {
			return known.Workload
		}
	}
	w := host.ParseCgroup(f.Cgroup, int(f.UID))
	return &w
}

// rule returns the rule of a tenant, or the default's if there is none, as for
// a tenant of an earlier table.
func (p *Policy) rule(tenant string) *Rule {
	if i, ok := p.tenants[tenant]; ok {
		return &p.table.Rules[i]
	}
	return &Rule{Name: DefaultTenant, Terms: p.table.Default, Steps: p.table.Steps}
}

// Tenants returns the tenants' names in the table's order, without the default
// one.
func (p *Policy) Tenants() []string {
	all := make([]string, len(p.table.Rules))
	for i := range p.table.Rules {
		all[i] = p.table.Rules[i].Name
	}
	return all
}

// Governed reports whether the enforcer may act on a tenant, which must be in
// the table.
func (p *Policy) Governed(tenant string) bool {
	_, ok := p.tenants[tenant]
	return ok
}

// Priority returns a tenant's priority.
func (p *Policy) Priority(tenant string) Priority { return p.rule(tenant).Priority }

// Steps returns the escalation's limits for a tenant's workloads.
func (p *Policy) Steps(tenant string) Steps { return p.rule(tenant).Steps }

// Actions returns how many steps above Warn the escalation may take on this
// host in 10 minutes.
func (p *Policy) Actions() int { return p.table.Actions }
