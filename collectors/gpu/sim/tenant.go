package sim

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

	"gpusteward/collectors/host"
	"gpusteward/internal/quota"
)

// A Tenant is the holder of a quota on a simulated host, as if its processes
// ran under the hook and a broker kept the books. Only GPUs without MIG have
// tenants.
type Tenant struct {
	Name string `yaml:"name"`
	// Workloads are the tenant's: keys or patterns of keys, such as
	// pod:serving/*/vllm.
	Workloads  []string          `yaml:"workloads"`
	Terms      map[string]string `yaml:",inline"` // keys of quota.Terms; a plain number of memory is MiB
	Escalation string            `yaml:"ladder"`  // highest level: observe, warn (default), throttle
	Confirm    int               `yaml:"confirm"` // consecutive violations before a step up, 3 by default
	Shadow     bool              `yaml:"shadow"`  // beyond warn, actions are only reported

	quota.Quota `yaml:"-"` // the value of Terms
}

// levels are the simulated levels of escalation, lowest first.
var levels = []string{"observe", "warn", "throttle"}

// check fills the defaults of t and its quota; its errors begin with the key.
func (t *Tenant) check() error {
	t.Escalation, t.Confirm = cmp.Or(t.Escalation, "warn"), cmp.Or(t.Confirm, 3)
	switch {
	case t.Name == "" || len(t.Workloads) == 0:
		return fmt.Errorf("name: %q: want a name, and workloads", t.Name)
	case !slices.Contains(levels, t.Escalation):
		return fmt.Errorf("ladder: %q: want one of %q", t.Escalation, levels)
	case t.Confirm < 0:
		return fmt.Errorf("confirm: %d: want 1 or more", t.Confirm)
	}
	var w quota.Written
	for _, key := range slices.Sorted(maps.Keys(t.Terms)) {
		if w.Set(key, t.Terms[key]+" MiB") == nil {
			continue
		}
		if err := w.Set(key, t.Terms[key]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	if t.Quota = w.Over(quota.Free()); t.MemoryPart > 0 {
		return fmt.Errorf("memory: %s: want MiB", t.Terms["memory"])
	}
	if err := t.Quota.Check(); err != nil {
		return err
	}
	for i, pattern := range t.Workloads {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("workloads[%d]: %q: %w", i, pattern, err)
		}
	}
	return nil
}

// owns reports whether a workload belongs to the tenant.
func (t *Tenant) owns(workload string) bool {
	return slices.ContainsFunc(t.Workloads, func(pattern string) bool {
		ok, _ := path.Match(pattern, workload)
		return ok
	})
}

// checkTenants checks the tenants of s, and that faults name existing ones.
func (s *Scenario) checkTenants() error {
	s.Tenants = slices.Clone(s.Tenants)
	names := []string{}
	for i := range s.Tenants {
		t := &s.Tenants[i]
		if err := t.check(); err != nil {
			return fmt.Errorf("tenants[%d].%w", i, err)
		}
		if slices.Contains(names, t.Name) {
			return fmt.Errorf("tenants[%d].name: %q: duplicate name", i, t.Name)
		}
		names = append(names, t.Name)
	}
	for i := range s.Faults {
		f := &s.Faults[i]
		switch at := slices.Index(names, f.Tenant); {
		case !slices.Contains(kinds[f.Kind].keys, "tenant"):
		case at < 0:
			return fmt.Errorf("faults[%d].tenant: %q: want one of %q", i, f.Tenant, names)
		case len(s.GPUs[f.GPU].MIG) > 0:
			return fmt.Errorf("faults[%d].gpu: %d: GPUs with MIG devices have no tenants", i, f.GPU)
		case f.Kind == "starved" && s.Tenants[at].Guarantee == 0:
			return fmt.Errorf("faults[%d].tenant: %q: it has no guarantee", i, f.Tenant)
		case f.Kind == "greedy" && s.Tenants[at].Limit == 1:
			return fmt.Errorf("faults[%d].tenant: %q: it has no limit", i, f.Tenant)
		}
	}
	return nil
}

// workload returns the key of p's owner, as in the host's table; empty if the
// cgroup and a name are not enough to tell.
func (g *gpu) workload(p *process) string {
	w := host.ParseCgroup(p.owner.cgroup, p.owner.uid)
	switch n, named := g.names[w.ContainerID]; {
	case !named:
		return w.Key
	case n.Pod != "":
		return "pod:" + n.Namespace + "/" + n.Pod + "/" + n.Container
	default:
		return "container:" + n.Name
	}
}
