package policy

import (
	"cmp"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/schedule"
)

// Explain writes, for people, the tenant of a process, the reason, and the
// tenant's quota. Without a workload the policy finds it. Names of users and
// groups are looked up, which may take a while.
func (p *Policy) Explain(w io.Writer, f broker.Facts, of *host.Workload) {
	if of == nil {
		of = p.workload(f)
	}
	s := newSubject(f, of)
	explainFacts(w, f, of)
	var fits []fit
	var asked []string
	for i := range p.table.Rules {
		if c, ok := p.closest(i, &s); ok {
			fits = append(fits, c)
		} else if len(p.table.Rules[i].Select) == 0 {
			asked = append(asked, p.table.Rules[i].Name)
		}
	}
	slices.SortStableFunc(fits, func(a, b fit) int { return b.rank.compare(a.rank) })
	own := DefaultTenant
	fmt.Fprintf(w, "\nmatching tenants, the most specific first:\n")
	for _, c := range fits {
		fmt.Fprintf(w, "  %s: select[%d], by %s\n", p.table.name(c), c.at, c.words(&s))
	}
	switch {
	case len(fits) == 0:
		fmt.Fprintf(w, "  none, so it belongs to %s: the enforcer does not act on it\n", DefaultTenant)
	default:
		own = p.table.name(fits[0])
		fmt.Fprintf(w, "  so it belongs to %s%s\n", own, p.table.because(fits, &s))
	}
	if own != DefaultTenant && p.rule(own).Binding {
		fmt.Fprintf(w, "  and cannot ask for another: %s is binding\n", own)
	} else if len(asked) > 0 {
		fmt.Fprintf(w, "  on request (gpusteward exec --tenant): %s\n", strings.Join(asked, ", "))
	}
	p.explainTerms(w, own)
}

func (t Table) name(c fit) string { return t.Rules[c.tenant].Name }

func explainFacts(w io.Writer, f broker.Facts, of *host.Workload) {
	fmt.Fprintf(w, "process %d\n  user: %s\n  groups: %s", f.PID, userName(f.UID), groupName(f.GID))
	for _, gid := range f.Groups {
		if gid != f.GID {
			fmt.Fprintf(w, ", %s", groupName(gid))
		}
	}
	fmt.Fprintf(w, "\n  executable: %s\n  workload: %s, a %s", cmp.Or(f.Exe, "it cannot be read"), of.Key, of.Kind)
	for _, field := range []struct{ name, value string }{
		{"namespace", of.Namespace}, {"pod", of.Pod}, {"container", of.Container}, {"image", of.Image},
		{"slice", of.Slice},
		{"job", of.Job}, {"step", of.Step}, {"Slurm user", of.User}, {"account", of.Account},
	} {
		if field.value != "" {
			fmt.Fprintf(w, "; %s %s", field.name, field.value)
		}
	}
	fmt.Fprintln(w)
}

// userName returns a user's name and number.
func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username + " (" + id + ")"
	}
	return id
}

// groupName returns a group's name and number.
func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name + " (" + id + ")"
	}
	return id
}

// words describe by what, and how closely, an entry fits a process.
func (c fit) words(s *subject) string {
	var all []string
	for kind := range kinds {
		if c.has.has(kind) {
			all = append(all, c.word(kind, s))
		}
	}
	return strings.Join(all, " and ")
}

func (c fit) word(kind int, s *subject) string {
	rank, by := c.best(kind, s)
	switch {
	case kind == byUser:
		return "users " + userName(s.UID)
	case kind == byGroup && rank == 2:
		return "groups " + groupName(s.GID) + ", its own"
	case kind == byGroup:
		at := slices.IndexFunc(s.Groups, func(gid uint32) bool { return slices.Contains(c.ids[kind], gid) })
		return "groups " + groupName(s.Groups[at]) + ", an additional group"
	case rank == exact:
		return fmt.Sprintf("%s %q (exactly)", keys[kind], by)
	}
	return fmt.Sprintf("%s %q (%d literal characters)", keys[kind], by, rank-1)
}

// because says why the first fit is more specific than the second.
func (t Table) because(fits []fit, s *subject) string {
	if len(fits) == 1 {
		return ""
	}
	a, b := fits[0], fits[1]
	for kind := range kinds {
		if a.rank[kind] == b.rank[kind] {
			continue
		}
		if !b.has.has(kind) {
			return fmt.Sprintf(" and not to %s, which does not select by %s", t.name(b), keys[kind])
		}
		return fmt.Sprintf(" and not to %s: %s is more specific than %s", t.name(b), a.word(kind, s), b.word(kind, s))
	}
	return fmt.Sprintf(" and not to %s: both select an additional group, and %s comes first", t.name(b), t.name(a))
}

// explainTerms writes a tenant's terms on each set of GPUs, and the
// escalation's limits.
func (p *Policy) explainTerms(w io.Writer, tenant string) {
	r := p.rule(tenant)
	fmt.Fprintf(w, "\nquota of %s, for all its processes together:\n", r.Name)
	p.explainQuotas(w, r)
	if !p.Governed(tenant) {
		return
	}
	l := r.Steps
	fmt.Fprintf(w, "\nladder: up to %s", l.Mode)
	if l.Shadow && l.Mode > Warn {
		fmt.Fprintf(w, ", shadow: steps beyond %s are only reported", Warn)
	}
	fmt.Fprintf(w, "\n  up a level if %d of the last %d audits find a violation, down after %v without one\n",
		l.Confirm, l.Of, l.Hold)
	if l.Mode >= Throttle {
		fmt.Fprintf(w, "  throttle: to %s of its limit and weight\n", percent(l.Throttle))
	}
	if l.Mode >= Pause {
		fmt.Fprintf(w, "  pause: by %s, the first that works\n", strings.Join(l.Pause, ", "))
	}
	if l.Mode >= Terminate {
		fmt.Fprintf(w, "  terminate: SIGTERM, and SIGKILL after %v\n", l.Grace)
	}
	if l.Mode > Warn {
		fmt.Fprintf(w, "  at most %d such steps within 10 minutes on this host\n", p.Actions())
	}
}

// explainQuotas writes the terms on each set of GPUs that the table names, and
// on the others.
func (p *Policy) explainQuotas(w io.Writer, r *Rule) {
	type terms struct {
		Quota
		weight float64
		class  schedule.Class
	}
	var order []terms
	sets := map[terms][]string{}
	gpus := p.table.gpus()
	for _, gpu := range append(gpus[1:], "") {
		t := terms{Quota: r.quota(lineage(gpu))}
		t.weight, t.class, _ = p.weight(r, lineage(gpu))
		if sets[t] == nil {
			order = append(order, t)
		}
		sets[t] = append(sets[t], gpu)
	}
	for _, t := range order {
		part := "only what nobody else wants"
		if t.class != schedule.Idle {
			part = percent(t.weight) + " of a GPU that every tenant wants"
		}
		said := []string{"guarantee " + percent(t.Guarantee), "limit " + percent(t.Limit),
			fmt.Sprintf("priority %s (%s)", r.Priority, part)}
		said = append(said, t.Explain()...)
		fmt.Fprintf(w, "  on %s: %s\n", where(sets[t], len(sets[t]) == len(gpus)), strings.Join(said, ", "))
	}
}
