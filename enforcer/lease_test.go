package enforcer_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/quota"
)

// capped returns the terms of a tenant with a cap in bytes.
func capped(name string, bytes uint64) terms {
	return terms{name, broker.Quota{Quota: quota.Quota{Limit: 1, Memory: bytes}, Weight: 1}}
}

// pairs returns options for a load that only allocates and frees.
func pairs(mibs float64, seconds int) []string {
	return []string{"--launch=alloc", "--kernel-us=0", fmt.Sprintf("--alloc-step-mib=%g", mibs),
		fmt.Sprintf("--seconds=%d", seconds)}
}

// completed returns a load's number of launches per second.
func completed(t *testing.T, w *worker) float64 {
	t.Helper()
	f := strings.Fields(w.hear(t, time.Minute, "total"))
	n, err := strconv.ParseFloat(f[2], 64)
	if err != nil {
		t.Fatal(err)
	}
	seconds, err := strconv.ParseFloat(f[3], 64)
	if err != nil {
		t.Fatal(err)
	}
	return n / seconds
}
