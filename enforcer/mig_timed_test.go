//go:build timed

package enforcer_test

import "testing"

// TestMIG runs the agent as a host does on a GPU in MIG mode. Its table has
// quotas for one of the two MIG devices. Tenants there have their memory to the
// byte and their parts of the time, and no other tenant is touched.
func TestMIG(t *testing.T) { onMIG(t, "0:1", "all") }
