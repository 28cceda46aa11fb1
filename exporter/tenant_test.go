package exporter

import (
	"encoding/json"
	"testing"

	"gpusteward/internal/fixture"
)

func TestStateHasTheTenants(t *testing.T) {
	t.Parallel()
	var s samples
	s.tenant("", "stray", 0.5, 0, 0, 0)
	s.tenant("1", "b", 0.25, 0.125, 2, 1)
	s.tenant("1", "a", 0.75, 0.5, 0, 1)
	s.quota("1", "a", 0.25, "kernel", "hook", "none")
	s.stands("a", "unit:x", "observe", true, nil)
	s.stands("a", "unit:y", "pause", true, nil)
	s.stands("a", "unit:z", "pause", false, nil)
	text := fixture.Value(json.Marshal(s.state(nil).Tenants))(t)
	const want = `[{"tenant":"a","gpu":1,"uuid":"GPU-1","sessions":2,"target_ratio":0.75,"share_ratio":0.5,` +
		`"guarantee_ratio":0.25,"memory_used_bytes":1073741824,"backends":["hook","kernel"],"rung":"pause"},` +
		`{"tenant":"b","gpu":1,"uuid":"GPU-1","sessions":2,"target_ratio":0.25,"share_ratio":0.125,"limit_ratio":0.5,` +
		`"memory_used_bytes":1073741824,"memory_limit_bytes":2147483648},` +
		`{"tenant":"stray","uuid":"GPU-","sessions":2,"target_ratio":0.5,"share_ratio":0,"memory_used_bytes":0}]`
	fixture.Equal(t, string(text), want, "the tenants in JSON")
}

// TestTenantsOnMIG has tenants on MIG devices, named as in the table of quotas.
func TestTenantsOnMIG(t *testing.T) {
	t.Parallel()
	var s samples
	s.mig("3")
	s.tenant("4", "a", 1, 1, 0, 0)
	var tenants samples
	tenants.tenant("", "a", .5, .5, 0, 0)
	for _, device := range []string{"MIG-gone", "MIG-b", "MIG-c"} {
		for _, x := range tenants {
			x.Labels = append([]string{"", device}, x.Labels[2:]...)
			s = append(s, x)
		}
	}
	var places []string
	for _, x := range s.state(nil).Tenants {
		places = append(places, x.UUID+" "+x.place())
	}
	fixture.EqualSlices(t, places, []string{"MIG-c 3:9", "MIG-b 3:10", "GPU-4 4", "MIG-gone ?"}, "it is")
}
