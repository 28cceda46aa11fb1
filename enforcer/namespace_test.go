package enforcer_test

// found returns the audits that found a tenant's workload, by objective.
func (g *governed) found(tenant string) map[string]uint64 {
	for _, w := range g.stats().Workloads {
		if w.Tenant == tenant {
			return w.Violations
		}
	}
	return nil
}
