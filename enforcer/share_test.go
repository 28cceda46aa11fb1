package enforcer_test

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/quota"
)

// These tests measure the hook and the broker together on a simulated GPU that real processes share (hook/stub). The
// cost of a step and the size of memory are known there, so true shares are measured and not estimated.

func tenant(name string, weight float64) terms {
	return terms{name, broker.Quota{Quota: quota.Quota{Limit: 1}, Weight: weight}}
}

// A demand is the load of one tenant on a saturated GPU.
type demand struct {
	weight  float64
	cost    time.Duration // GPU time of a step
	options []string
}

func kernels(weight float64, us int) demand {
	cost := time.Duration(us) * time.Microsecond
	return demand{weight, cost, []string{"--kernel-us=" + strconv.Itoa(us)}}
}

func graphs(weight float64, us int) demand {
	cost := time.Duration(us) * time.Microsecond
	return demand{weight, cost, []string{"--launch=graph", "--kernel-us=100", "--graph-us=" + strconv.Itoa(us)}}
}

// saturate measures demands beside each other on a GPU of their own. If
// governed is set, the broker shares the GPU, and otherwise the driver does.
func saturate(t *testing.T, name string, governed bool, seconds float64, demands ...demand) figure {
	t.Helper()
	h := stub(t)
	sum := 0.0
	var tenants []terms
	for i, d := range demands {
		tenants = append(tenants, tenant(fmt.Sprint("t", i), d.weight))
		sum += d.weight
	}
	if governed {
		h.govern(t, tenants...)
	}
	seconds += settle.Seconds()
	var parts []part
	for i, d := range demands {
		who := ""
		if governed {
			who = tenants[i].Name
		}
		w := h.load(t, who, append(d.options, fmt.Sprintf("--seconds=%g", seconds))...)
		parts = append(parts, part{w, "go", d.weight / sum, d.cost.Seconds()})
	}
	for _, p := range parts {
		ready(t, p.worker)
	}
	f := h.measure(t, name, seconds, parts...)
	for _, d := range demands {
		f.launch = max(f.launch, d.cost.Seconds())
	}
	f.show()
	return f
}
