package scenarios

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"

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

// Levels are the simulated levels of escalation, lowest first.
var Levels = []string{"observe", "warn", "throttle"}

// check fills the defaults of t and its quota; its errors begin with the key.
func (t *Tenant) check() error {
	t.Escalation, t.Confirm = cmp.Or(t.Escalation, "warn"), cmp.Or(t.Confirm, 3)
	switch {
	case t.Name == "" || len(t.Workloads) == 0:
		return fmt.Errorf("name: %q: want a name, and workloads", t.Name)
	case !slices.Contains(Levels, t.Escalation):
		return fmt.Errorf("ladder: %q: want one of %q", t.Escalation, Levels)
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

// Owns reports whether a workload belongs to the tenant.
func (t *Tenant) Owns(workload string) bool {
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
