//go:build gpu

package enforcer_test

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

// These tests run the hook and the broker on a real GPU. What they cost, and how they share it, is measured by
// bench/matrix. The test binary may be built on another machine: GS_HOOK, GS_LOAD and GS_BENCH name the hook library,
// the load generator and the directory of the programs.

// products returns the names of this machine's GPUs.
func products() []string {
	out, _ := exec.Command("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").Output()
	return strings.FieldsFunc(string(out), func(r rune) bool { return r == '\n' })
}

// TestGPUNothingHangs runs programs whose work waits for a later launch of theirs, beside another tenant.
func TestGPUNothingHangs(t *testing.T) {
	for _, recipe := range []string{"waitvalue", "hostfunc", "two", "peer", "cross"} {
		t.Run(recipe, func(t *testing.T) {
			if (recipe == "peer" || recipe == "cross") && len(products()) < 2 {
				t.Skip("needs two GPUs")
			}
			nothingHangs(t, &host{}, recipe)
		})
	}
}

func TestGPUBrokerKilled(t *testing.T) { brokerKilled(t, &host{}, 5*time.Second) }

// A taker is a program that takes all the memory it can get: see memory.py.
type taker struct {
	framework, allocator string
	driver               []string // its environment
	sees                 bool     // it reports the card's memory
	raises               string
	usable               float64 // smallest part of the cap that its arrays get
	contexts             float64 // contexts made meanwhile, each at most half a GiB beyond the cap
}

var takers = []taker{
	// PyTorch has renamed the variable; each version reads one of the two.
	{"torch", "native", []string{"PYTORCH_ALLOC_CONF=backend:native", "PYTORCH_CUDA_ALLOC_CONF=backend:native"}, true,
		"OutOfMemoryError", 0.99, 0},
	{"torch", "expandable", []string{"PYTORCH_ALLOC_CONF=expandable_segments:True",
		"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, true, "OutOfMemoryError", 0.99, 0},
	{"torch", "cudaMallocAsync", []string{"PYTORCH_ALLOC_CONF=backend:cudaMallocAsync",
		"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"}, true, "OutOfMemoryError", 0.99, 0},
	{"cupy", "pool", nil, true, "OutOfMemoryError", 0.99, 0},
	{"jax", "growing", []string{"XLA_PYTHON_CLIENT_PREALLOCATE=false", "XLA_PYTHON_CLIENT_MEM_FRACTION=1.0"}, false,
		"JaxRuntimeError", 0.9, 0},
	{"jax", "platform", []string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, false, "JaxRuntimeError", 0.98, 0},
	{"rounds", "pool", nil, false, "MemoryError", 0.9, 0},
	{"first", "contexts", nil, false, "MemoryError", 0.9, 2},
	{"jax", "preallocating", []string{"XLA_PYTHON_CLIENT_MEM_FRACTION=.9"}, false, "JaxRuntimeError", 0.85, 0},
}

// TestGPUMemory holds that every allocator of PyTorch, JAX, CuPy and the calls from before CUDA 3.2 meet a cap to the
// byte. The program gets its own error, never exceeds the cap, can use nearly all of it, and sees the cap as the card's
// memory.
func TestGPUMemory(t *testing.T) {
	const limit = 4096 * mib
	var h host
	var tenants []terms
	for _, a := range takers {
		tenants = append(tenants, terms{a.framework + "-" + a.allocator,
			broker.Quota{Quota: quota.Quota{Limit: 1, Memory: limit}, Weight: 1}})
	}
	h.govern(t, tenants...)
	var all []*worker
	for i, a := range takers {
		g := h
		g.driver = a.driver
		all = append(all, g.start(t, tenants[i].Name, "python3",
			filepath.Join(fixture.Given(t, "GS_BENCH", "hook/bench"), "memory.py"), a.framework))
	}
	for i, w := range all {
		var free, total int64
		var allocator string
		line := w.hear(t, 2*time.Minute, "ready")
		fmt.Sscanf(line, "ready %d %d %s", &free, &total, &allocator)
		if takers[i].sees && (total != limit || free > limit || free < limit*98/100) {
			t.Errorf("%s sees %d of %d bytes, want the cap of %d", w.Name, free, total, uint64(limit))
		}
		fixture.AtMost(t, total, limit, "%s sees … bytes", w.Name)
		fixture.Equal(t, takers[i].allocator == "cudaMallocAsync", allocator == "cudaMallocAsync",
			"%s chose the allocator %s", w.Name, allocator)
	}
	for i, w := range all {
		var held, reserved int64
		var raised string
		before := smi(t)
		w.Tell("take")
		fmt.Sscanf(w.hear(t, time.Minute, "memory"), "memory %d %d %s", &held, &reserved, &raised)
		grown := smi(t) - before
		ledger := books(stats(t, h.broker), w.Name)
		over := max(0, reserved-limit, int64(ledger.MemoryPeak)-limit)
		fmt.Printf("cap of 4 GiB, %-21s %s after %d MiB (%.2f %%), books %d MiB at most, %d bytes over, nvidia-smi "+
			"+%.0f MiB\n",
			w.Name, raised, held/mib, 100*float64(held)/limit, ledger.MemoryPeak/mib, over, grown)
		if raised != takers[i].raises || over != 0 || float64(held) < takers[i].usable*limit ||
			grown > limit/mib+512*takers[i].contexts {
			t.Errorf("%s: want %s, nothing over and %g %% of the cap usable", w.Name, takers[i].raises,
				100*takers[i].usable)
		}
	}
}

// TestGPUSMI runs nvidia-smi under the hook: it shows the tenant's card.
func TestGPUSMI(t *testing.T) {
	var h host
	h.govern(t, terms{"capped", broker.Quota{Quota: quota.Quota{Limit: 1, Memory: 4096 * mib}, Weight: 1}})
	cmd := exec.Command("nvidia-smi", "--id=0", "--query-gpu=memory.total,memory.used,memory.free",
		"--format=csv,noheader,nounits")
	cmd.Env = append(os.Environ(), append(h.hook, "GPUSTEWARD_TENANT=capped")...)
	began := time.Now()
	out, err := cmd.Output()
	fixture.Stop(t, err != nil, "nvidia-smi under the hook: %v", err)
	fmt.Printf("under a cap of 4096 MiB nvidia-smi says total, used, free: %s, after %v\n",
		strings.TrimSpace(string(out)), time.Since(began).Round(time.Millisecond))
	var total, used, free int
	if _, err := fmt.Sscanf(string(out), "%d, %d, %d", &total, &used, &free); err != nil || total != 4096 ||
		used+free > total || free < 4000 {
		t.Errorf("nvidia-smi says %q (%v), want a card of 4096 MiB", out, err)
	}
}

// smi returns the memory in use on the first GPU, in MiB, as seen without the hook.
func smi(t *testing.T) float64 {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--id=0", "--query-gpu=memory.used",
		"--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Logf("nvidia-smi: %v", err)
		return math.NaN()
	}
	used, _ := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return used
}
