package health

import "testing"

// What a workload or a tenant does makes neither its GPU nor the node ill.
func TestTenantsDoNotCondemn(t *testing.T) {
	t.Parallel()
	gpu := Entity{GPU: "0", UUID: "GPU-0"}
	of := func(edit func(*Entity)) Finding {
		e := gpu
		edit(&e)
		return Finding{Entity: e, Severity: Critical, State: Unhealthy}
	}
	for name, c := range map[string]struct {
		found Finding
		want  State
	}{
		"a workload's": {of(func(e *Entity) { e.Workload = "pod:a" }), OK},
		"a tenant's":   {of(func(e *Entity) { e.Tenant = "a" }), OK},
		"the GPU's":    {of(func(*Entity) {}), Unhealthy},
		"a link's":     {of(func(e *Entity) { e.Link = "3" }), Unhealthy},
	} {
		v := Verdict{GPUs: []Health{{GPU: "0", UUID: "GPU-0"}}, Findings: []Finding{c.found}}
		v.sum()
		if v.Status != c.want {
			t.Errorf("%s fault: the node is %v, want %v", name, v.Status, c.want)
		}
	}
}
