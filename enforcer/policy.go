// Package enforcer shares GPUs out: who a process is decides whose quota it
// draws on. The broker (enforcer/broker) gives out GPU time and memory; this
// package has the table that tells it who gets how much, and starts programs
// under the hook.
package enforcer

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os/user"
	"slices"
	"strconv"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
)

// DefaultTenant is the name of the tenant of whoever no other is for.
const DefaultTenant = "default"

// maxTenants bounds a table.
const maxTenants = 256

// A Quota is what a tenant may have of each GPU.
type Quota struct {
	Weight float64 // its part of the GPU's time, beside the others who want it
	Limit  float64 // most of the GPU's time, also where nobody else wants it: 0 to 1, 1 is no limit
	Memory uint64  // bytes; 0 is no cap
}

// A Rule says who a tenant is and what it may have. A process is of it if of
// each kind of selector that there is one fits. A tenant without selectors is
// of whoever asks for it by name.
type Rule struct {
	Name        string
	Users       []string // names or numbers
	Groups      []string // the same, of any group that the process has
	Workloads   []string // patterns for host.Workload's Key, as the cgroup gives it
	Executables []string // patterns for the path of the program
	Quota
}

// A Table is the whole static policy: the first rule that fits a process is
// its tenant, unless it asks for another that fits too.
type Table struct {
	Default Quota
	Rules   []Rule
}

// Check reports the first key that cannot work, as tenants[2].weight.
func (t Table) Check() error {
	if err := t.Default.check("default"); err != nil {
		return err
	}
	if len(t.Rules) > maxTenants {
		return fmt.Errorf("tenants: %d are too many; at most %d", len(t.Rules), maxTenants)
	}
	for i, r := range t.Rules {
		key := fmt.Sprintf("tenants[%d]", i)
		switch {
		case !nameable(r.Name):
			return fmt.Errorf("%s.name: %q is no name: 1 to 63 letters, digits and any of _ . - @ /", key, r.Name)
		case r.Name == DefaultTenant:
			return fmt.Errorf("%s.name: %q is the tenant of whoever no other is for; give it its quota under enforcer.default", key, r.Name)
		}
		if same := slices.IndexFunc(t.Rules[:i], func(o Rule) bool { return o.Name == r.Name }); same >= 0 {
			return fmt.Errorf("%s.name: %q is tenants[%d] too", key, r.Name, same)
		}
		for _, s := range []struct {
			key      string
			patterns []string
		}{{"users", r.Users}, {"groups", r.Groups}, {"workloads", r.Workloads}, {"executables", r.Executables}} {
			if at := slices.Index(s.patterns, ""); at >= 0 {
				return fmt.Errorf("%s.%s: the one at %d is empty and fits nobody", key, s.key, at)
			}
		}
		if err := r.check(key); err != nil {
			return err
		}
	}
	return nil
}

func (q Quota) check(key string) error {
	switch {
	case !(q.Weight > 0) || math.IsInf(q.Weight, 0):
		return fmt.Errorf("%s.weight: %v is not above 0", key, q.Weight)
	case !(q.Limit > 0 && q.Limit <= 1):
		return fmt.Errorf("%s.limit: %v is not a part of the GPU's time, above 0 and at most 1", key, q.Limit)
	}
	return nil
}

// nameable reports whether a tenant may be called name: it is a label's value
// and travels in 64 bytes that end in a NUL.
func nameable(name string) bool {
	for _, c := range []byte(name) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '-' || c > '9') && c != '_' && c != '@' { // from '-' to '9' are - . / and the digits
			return false
		}
	}
	return name != "" && len(name) < 64
}

// A Policy is a Table with its names of users and groups looked up. It is
// immutable and safe for concurrent use.
type Policy struct {
	normal  Quota
	tenants []tenant
}

type tenant struct {
	Rule
	uids, gids []uint32
}

// NewPolicy returns the policy of a table that Check has found good. A user or
// group that this host does not have is told of and fits nobody: it may be
// that whoever knows it does not answer now.
func NewPolicy(t Table, log *slog.Logger) *Policy {
	p := &Policy{normal: t.Default}
	for _, r := range t.Rules {
		p.tenants = append(p.tenants, tenant{Rule: r,
			uids: ids(r.Users, func(name string) (string, error) {
				u, err := user.Lookup(name)
				if err != nil {
					return "", err
				}
				return u.Uid, nil
			}, log.With("tenant", r.Name)),
			gids: ids(r.Groups, func(name string) (string, error) {
				g, err := user.LookupGroup(name)
				if err != nil {
					return "", err
				}
				return g.Gid, nil
			}, log.With("tenant", r.Name)),
		})
	}
	return p
}

// ids returns the numbers of names, some of which are numbers already.
func ids(names []string, lookup func(string) (string, error), log *slog.Logger) []uint32 {
	var all []uint32
	for _, name := range names {
		id, err := strconv.ParseUint(name, 10, 32)
		if err != nil {
			var text string
			if text, err = lookup(name); err == nil {
				id, err = strconv.ParseUint(text, 10, 32)
			}
		}
		if err != nil {
			log.Warn("nobody is selected by a name that this host does not know", "name", name, "err", err)
			continue
		}
		all = append(all, uint32(id))
	}
	return all
}

// Why a process may not be of the tenant that it asks for.
var (
	errUnknown  = errors.New("there is no such tenant")
	errNotYours = errors.New("this process is not of that tenant")
)

// Tenant returns whose quota a process draws on. wished is the tenant that it
// asks for, empty for whichever is its own: it only chooses among those that
// the facts allow.
func (p *Policy) Tenant(f broker.Facts, wished string) (broker.Tenant, error) {
	workload := host.ParseCgroup(f.Cgroup, int(f.UID)).Key
	own := -1
	for i := range p.tenants {
		t := &p.tenants[i]
		if t.Name == wished && t.fits(f, workload) {
			return t.granted(), nil
		}
		if own < 0 && t.selects() && t.fits(f, workload) {
			own = i
		}
	}
	switch {
	case wished != "" && wished != DefaultTenant:
		if slices.ContainsFunc(p.tenants, func(t tenant) bool { return t.Name == wished }) {
			return broker.Tenant{}, fmt.Errorf("%w: %q", errNotYours, wished)
		}
		return broker.Tenant{}, fmt.Errorf("%w: %q", errUnknown, wished)
	case own < 0:
		return broker.Tenant{Name: DefaultTenant, Weight: p.normal.Weight, Limit: p.normal.Limit, Memory: p.normal.Memory}, nil
	case wished == DefaultTenant: // would be a way out of one's own limits
		return broker.Tenant{}, fmt.Errorf("%w: %q is for whom no tenant is, and this one is of %q", errNotYours, wished, p.tenants[own].Name)
	}
	return p.tenants[own].granted(), nil
}

func (t *tenant) granted() broker.Tenant {
	return broker.Tenant{Name: t.Name, Weight: t.Weight, Limit: t.Limit, Memory: t.Memory}
}

// selects reports whether the tenant has selectors.
func (t *tenant) selects() bool {
	return len(t.Users)+len(t.Groups)+len(t.Workloads)+len(t.Executables) > 0
}

// fits reports whether a process is of the tenant.
func (t *tenant) fits(f broker.Facts, workload string) bool {
	matches := func(name string) func(pattern string) bool {
		return func(pattern string) bool { return glob(pattern, name) }
	}
	return (len(t.Users) == 0 || slices.Contains(t.uids, f.UID)) &&
		(len(t.Groups) == 0 || slices.ContainsFunc(t.gids, func(gid uint32) bool { return gid == f.GID || slices.Contains(f.Groups, gid) })) &&
		(len(t.Workloads) == 0 || slices.ContainsFunc(t.Workloads, matches(workload))) &&
		(len(t.Executables) == 0 || slices.ContainsFunc(t.Executables, matches(f.Exe)))
}

// glob reports whether pattern fits all of name: * stands for any text, ? for
// one byte. Other than in path.Match, * goes across slashes: pod:* means every
// container of every pod. It takes len(pattern)*len(name) steps at
// most.
func glob(pattern, name string) bool {
	star, resume := -1, 0 // the last *, and where in name what follows it is tried next
	p, n := 0, 0
	for n < len(name) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, resume = p, n
			p++
		case p < len(pattern) && (pattern[p] == '?' || pattern[p] == name[n]):
			p++
			n++
		case star >= 0:
			resume++
			p, n = star+1, resume
		default:
			return false
		}
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}
