package policy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/internal/input"
)

// whole is a GPU's time, with room for rounding errors of sums.
const whole = 1 + 1e-9

// Terms are a tenant's terms on each GPU.
type Terms struct {
	Priority Priority
	Quota
	Reclaim Reclaim
}

// A Rule defines a tenant and its terms. A process belongs to it if one of its
// selectors fits. Any process may ask by name for a tenant without selectors.
type Rule struct {
	Key     string // in errors; tenants[i] if empty
	Name    string
	Select  []Selector
	Binding bool // a process that it selects cannot ask for another tenant
	Terms
	Steps Steps
	GPUs  []Override
}

// A Table is the whole static policy. The tenant that fits a process most
// closely is the process's own.
type Table struct {
	Default Terms // of processes without a tenant; Priority, Limit and Memory count
	Steps   Steps // of the default tenant, and the defaults of the others in the configuration
	Actions int   // most steps of the escalation above Warn in 10 minutes on the host
	// GPUs whose memory is given to more workloads than fit; a workload stays
	// there for a Turn at least
	Overcommit []string // indices, UUIDs, or MIG devices by either; All: all
	Turn       time.Duration
	Rules      []Rule
}

// Check reports every key that cannot work, such as tenants[2].limit. It looks
// up names of users and groups. Tenants are compared once each is valid.
func (t Table) Check() error {
	var wrong input.Errors
	if !wrong.If(t.Default.Priority == PriorityRealtime, "default.priority: the default tenant has no guarantee, so it "+
		"cannot be realtime: make it high, or define a tenant") {
		wrong.Below("default.", t.Default.check())
	}
	wrong.Below("ladder.", t.Steps.check())
	wrong.If(t.Actions < 0 || t.Actions > 1000, "ladder.actions: %d is not a number of steps from 0 to 1000", t.Actions)
	wrong.Below("overcommit.", t.checkOvercommit())
	if wrong.If(len(t.Rules) > mostTenants, "tenants: there are %d; at most %d are allowed", len(t.Rules), mostTenants) {
		return wrong
	}
	patterns, own := 0, t.Steps.check() == nil
	for i := range t.Rules {
		r, key := &t.Rules[i], t.key(i)
		if same := slices.IndexFunc(t.Rules[:i], func(o Rule) bool { return o.Name == r.Name }); same >= 0 && r.Name != "" {
			wrong.If(true, "%s.name: %q is the name of %s too: choose another", key, r.Name, t.key(same))
		}
		wrong.Below(key+".", r.check(own))
		for at := range r.Select {
			for _, list := range r.Select[at].lists() {
				patterns += len(list)
			}
		}
	}
	wrong.If(patterns > mostPatterns, "tenants: their select lists have %d patterns and names; at most %d are allowed",
		patterns, mostPatterns)
	if len(wrong) > 0 {
		return wrong
	}
	p, _ := newPolicy(t)
	wrong.Below("", t.checkSums())
	wrong.Below("", p.checkTies())
	return wrong.Err()
}

// key returns the name of a rule in errors.
func (t Table) key(rule int) string {
	return cmp.Or(t.Rules[rule].Key, fmt.Sprintf("tenants[%d]", rule))
}

// Unknown returns the users and groups of the table that this host does not
// know, as sentences that begin with the key.
func (t Table) Unknown() []string {
	_, strangers := newPolicy(t)
	all := make([]string, len(strangers))
	for i, s := range strangers {
		all[i] = fmt.Sprintf("%s: %q selects nothing: %v", s.key, s.name, s.err)
	}
	return all
}

// check reports the keys that cannot work. own says that an error of the
// escalation is the tenant's own.
func (r *Rule) check(own bool) error {
	var wrong input.Errors
	wrong.If(!nameable(r.Name), "name: %q is not valid: write 1 to 63 letters, digits and any of _ . - @ /", r.Name)
	wrong.If(r.Name == DefaultTenant, "name: %q is reserved for processes that no tenant selects: write its quota under "+
		"enforcer.default", r.Name)
	if !wrong.If(len(r.Select) > mostSelectors, "select: there are %d entries; at most %d are allowed", len(r.Select),
		mostSelectors) {
		for i := range r.Select {
			if err := r.Select[i].check(); err != nil {
				wrong = append(wrong, below(fmt.Sprintf("select[%d]", i), err))
			}
		}
	}
	wrong.If(r.Binding && len(r.Select) == 0, "binding: it has no effect without select: add select or remove binding")
	terms := r.Terms.check()
	wrong.Below("", terms)
	if own {
		wrong.Below("ladder.", r.Steps.check())
	}
	wrong.Below("", r.checkGPUs(terms == nil))
	return wrong.Err()
}

// below returns an error about key, or about the key below it that err names.
func below(key string, err error) error {
	first, _, _ := strings.Cut(err.Error(), ":")
	if slices.Contains(keys[:], first) {
		return fmt.Errorf("%s.%w", key, err)
	}
	return fmt.Errorf("%s: %w", key, err)
}

// gpus returns the table's names of GPUs; the first is empty, for the GPUs
// without a name.
func (t Table) gpus() []string {
	all := []string{""}
	for i := range t.Rules {
		for _, o := range t.Rules[i].GPUs {
			for _, name := range o.GPUs {
				if !slices.Contains(all, name) {
					all = append(all, name)
				}
			}
		}
	}
	return all
}

// checkSums reports a GPU with guarantees of more than all of it.
func (t Table) checkSums() error {
	gpus := t.gpus()
	for _, gpu := range gpus {
		sum, last := 0.0, 0
		var who []string
		for i := range t.Rules {
			r := &t.Rules[i]
			g := r.quota(lineage(gpu)).Guarantee
			if g == 0 {
				continue
			}
			of := percent(g)
			if r.Priority == PriorityRealtime {
				of += ", its limit, since it is realtime"
			}
			who = append(who, fmt.Sprintf("%s (%s)", r.Name, of))
			sum, last = sum+g, i
		}
		if sum <= whole {
			continue
		}
		const most = 16 // that are named
		if len(who) > most {
			who = append(who[:most], fmt.Sprintf("%d more", len(who)-most))
		}
		return fmt.Errorf("%s.guarantee: on %s the guarantees of %s add up to %s, more than 100 %%: lower one of them",
			t.key(last), where([]string{gpu}, len(gpus) == 1), strings.Join(who, ", "), percent(sum))
	}
	return nil
}

// where names GPUs for errors; all means that the table has names for no
// others.
func where(gpus []string, all bool) string {
	if all {
		return "every GPU"
	}
	named := slices.DeleteFunc(slices.Clone(gpus), func(name string) bool { return name == "" })
	switch text := "GPU " + strings.Join(named, ", "); {
	case len(named) == 0:
		return "every other GPU"
	case len(named) < len(gpus):
		return text + " and every other GPU"
	default:
		return text
	}
}

// checkTies reports two tenants that may fit a process equally closely.
func (p *Policy) checkTies() error {
	byKinds := map[set][]*entry{}
	for i := range p.entries {
		e := &p.entries[i]
		for _, o := range byKinds[e.has] {
			if o.tenant == e.tenant {
				continue
			}
			if example, tie := e.tie(o); tie {
				return fmt.Errorf("%s.select[%d]: this and %s.select[%d] both fit a process of %s, for %s and %s, and "+
					"neither is more specific: write a longer pattern in one, or add a key to it", p.table.key(e.tenant),
					e.at, p.table.key(o.tenant), o.at, example, p.table.Rules[e.tenant].Name,
					p.table.Rules[o.tenant].Name)
			}
		}
		byKinds[e.has] = append(byKinds[e.has], e)
	}
	return nil
}

// nameable reports whether a tenant may have a name: it is a label's value, and
// is sent in 64 bytes that end in a NUL.
func nameable(name string) bool {
	for _, c := range []byte(name) {
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && (c < '-' || c > '9') && c != '_' && c != '@' { // from '-' to '9' are - . / and the digits
			return false
		}
	}
	return name != "" && len(name) < 64
}
