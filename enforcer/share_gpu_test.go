//go:build gpu

package enforcer_test

import (
	"flag"
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
	"gpusteward/internal/quota"
)

// These tests measure the hook and the broker under PyTorch on a real GPU. The
// test binary may be built on another machine: GS_HOOK, GS_LOAD and GS_BENCH
// name the hook library, the load generator and the directory of worker.py.
// -test.run picks rows (TestGPUShares/eager), and -share.seconds sets the
// length of each.

var sharePairs = flag.Int("share.pairs", 12, "`pairs` of a plain and a hooked run that overhead is measured by")
var shareOverhead = flag.Float64("share.overhead", 1.5, "`seconds` of each of their runs")

func TestGPUShares(t *testing.T) {
	p := newPool(t, w10, w20, w30, w50, x50, w70, w90)
	plain := map[string]float64{} // steps per second of two workers without the hook, by kind
	for _, c := range []struct {
		kind  string
		seats []seat
		sum   float64 // goal for the sum of throughput against plain time slicing, percent
	}{
		{"eager", []seat{w30, w70}, 105},
		{"eager", []seat{w10, w90}, 105},
		{"eager", []seat{w50, x50}, 105},
		{"eager", []seat{w20, w30, w50}, 105},
		{"graph2", []seat{w30, w70}, 105},
		{"graph10", []seat{w30, w70}, 105},
		{"compile", []seat{w30, w70}, 105},
	} {
		var roles []role
		var names []string
		for _, s := range c.seats {
			roles, names = append(roles, role{s, c.kind}), append(names, s.name)
		}
		t.Run(c.kind+"_"+strings.Join(names, "_"), func(t *testing.T) {
			if plain[c.kind] == 0 {
				plain[c.kind] = p.row(t, c.kind+", plain", min(*shareSeconds, 4), role{plain1, c.kind},
					role{plain2, c.kind}).steps
			}
			f := p.row(t, c.kind+" "+strings.Join(names, "/"), *shareSeconds, roles...)
			part := 100 * f.steps / plain[c.kind]
			fmt.Printf("%s: the sum is %.1f %% of plain time slicing\n", f.name, part)
			if part < c.sum {
				t.Errorf("%s: the sum is %.1f %% of plain time slicing, goal %g %%", f.name, part, c.sum)
			}
			if err := f.fair(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("small", func(t *testing.T) { smallKernels(t, p) })
	t.Run("bursty", func(t *testing.T) { bursty(t, p) })
}

// smallKernels alternates plain and governed runs of work that the processors
// bound, and compares the sums.
func smallKernels(t *testing.T, p *pool) {
	var plain, governed []float64
	for range 2 {
		seconds := *shareSeconds / 3
		plain = append(plain, p.row(t, "small, plain", seconds, role{plain1, "small"}, role{plain2, "small"}).steps)
		governed = append(governed, p.row(t, "small w50/x50", seconds, role{w50, "small"}, role{x50, "small"}).steps)
	}
	part := 100 * mean(governed) / mean(plain)
	fmt.Printf("small: the sum is %.1f %% of plain time slicing\n", part)
	if part < 95 {
		t.Errorf("small kernels reach %.1f %% of what they do ungoverned, goal 95 %%", part)
	}
}

// bursty compares the duration of a burst of 5 ms beside a saturated worker.
func bursty(t *testing.T, p *pool) {
	seconds := *shareSeconds / 2
	plain := p.row(t, "bursty, plain", seconds, role{plain1, "eager"}, role{plain2, "bursty"})
	governed := p.row(t, "bursty w50/x50", seconds, role{w50, "eager"}, role{x50, "bursty"})
	part := percentile(governed.bursts[1], 0.95) / percentile(plain.bursts[1], 0.95)
	fmt.Printf("bursty: the 95th percentile is %.2f of plain time slicing's\n", part)
	if !(part <= 0.6) {
		t.Errorf("a burst's 95th percentile is %.2f of plain time slicing's, goal 0.6", part)
	}
}

// overhead prints and judges the slowdown of hooked runs in percent, from pairs
// of rates.
func overhead(t *testing.T, name string, goal float64, pair func(plainFirst bool) (plain, hooked float64)) {
	t.Helper()
	var slower []float64
	for i := range *sharePairs {
		plain, hooked := pair(i%2 == 0)
		slower = append(slower, 100*(plain/hooked-1))
	}
	middle, half := confidence(slower)
	fmt.Printf("%s, lone tenant: %.3f %% slower, 95 %% confidence %.3f to %.3f, %d pairs, goal %g %%\n",
		name, middle, middle-half, middle+half, len(slower), goal)
	if !(middle <= goal) {
		t.Errorf("%s: %.3f %% slower under the hook, goal %g %%", name, middle, goal)
	}
}

// overheadKinds are the programs with a measured overhead.
var overheadKinds = []string{"train", "gpt2", "steps", "decode", "loader", "small"}

// TestGPUOverhead measures the hook's cost for a tenant without a limit: alone,
// and beside a connected and silent tenant whose launches must not wait, so
// that every launch is counted. The two runs of a pair follow each other in
// alternating order, pinned to the same processors.
func TestGPUOverhead(t *testing.T) {
	alone, guest := seat{"alone", 1, false}, seat{"guest", 1, false}
	p := newPool(t, alone)
	for _, who := range []string{"lone", "counted"} {
		if who == "counted" {
			p.rule(t, terms{guest.name, broker.Quota{Quota: quota.Quota{Limit: 1,
				LaunchWait: quota.Wait(time.Millisecond)}, Weight: 1}}, tenant(alone.name, 1))
			p.prepare(t, role{guest, "silent"})
			p.workers[guest].tell("run silent 600")
		}
		for _, kind := range overheadKinds {
			t.Run(who+"_"+kind, func(t *testing.T) {
				plain, hooked := role{plain1, kind}, role{alone, kind}
				p.prepare(t, plain, hooked)
				p.workers[plain1].pin(t, 4)
				p.workers[alone].pin(t, 4)
				p.rate(t, plain, 1) // warms the processors' caches
				overhead(t, who+" "+kind, 0.3, p.either(t, plain, hooked, *shareOverhead))
			})
		}
	}
	t.Run("lone_ddp", func(t *testing.T) {
		if len(products()) < 2 {
			t.Skip("needs two GPUs")
		}
		p := newPool(t, alone)
		plain, hooked := role{plain1, "ddp"}, role{alone, "ddp"}
		p.prepare(t, plain, hooked)
		overhead(t, "lone ddp", 0.3, p.either(t, plain, hooked, *shareOverhead))
	})
	t.Run("launches", func(t *testing.T) {
		p := newPool(t, alone)
		overhead(t, "200,000 empty launches", 1, func(plainFirst bool) (float64, float64) {
			options := []string{"--kernel-us=0", "--steps=200000", "--report-ms=1"}
			plain, hooked := p.load(t, "", options...), p.load(t, alone.name, options...)
			plain.pin(t, 2)
			hooked.pin(t, 2)
			ready(t, plain, hooked)
			run := func(w *worker) float64 {
				w.tell("go")
				return rate(t, w)
			}
			defer plain.kill()
			defer hooked.kill()
			if plainFirst {
				a := run(plain)
				return a, run(hooked)
			}
			b := run(hooked)
			return run(plain), b
		})
	})
}

// either returns a function that measures the rates of two roles, one after the
// other in alternating order.
func (p *pool) either(t *testing.T, plain, hooked role, seconds float64) func(plainFirst bool) (a, b float64) {
	return func(plainFirst bool) (a, b float64) {
		if plainFirst {
			a = p.rate(t, plain, seconds)
		}
		b = p.rate(t, hooked, seconds)
		if !plainFirst {
			a = p.rate(t, plain, seconds)
		}
		return a, b
	}
}

// TestGPUNothingHangs runs programs whose work waits for a later launch of
// theirs, beside another tenant.
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

// TestGPUMemory holds that every allocator of PyTorch, JAX, CuPy and the calls
// from before CUDA 3.2 meet a cap to the byte. The program gets its own error,
// never exceeds the cap, can use nearly all of it, and sees the cap as the
// card's memory.
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
			filepath.Join(path(t, "GS_BENCH", "hook/bench"), "memory.py"), a.framework))
	}
	for i, w := range all {
		var free, total int64
		var allocator string
		line := w.hear(t, 2*time.Minute, "ready")
		fmt.Sscanf(line, "ready %d %d %s", &free, &total, &allocator)
		if takers[i].sees && (total != limit || free > limit || free < limit*98/100) {
			t.Errorf("%s sees %d of %d bytes, want the cap of %d", w.name, free, total, uint64(limit))
		}
		if total > limit {
			t.Errorf("%s sees %d bytes, more than the cap", w.name, total)
		}
		if (takers[i].allocator == "cudaMallocAsync") != (allocator == "cudaMallocAsync") {
			t.Errorf("%s chose the allocator %s", w.name, allocator)
		}
	}
	for i, w := range all {
		var held, reserved int64
		var raised string
		before := smi(t)
		w.tell("take")
		fmt.Sscanf(w.hear(t, time.Minute, "memory"), "memory %d %d %s", &held, &reserved, &raised)
		grown := smi(t) - before
		ledger := books(stats(t, h.broker), w.name)
		over := max(0, reserved-limit, int64(ledger.MemoryPeak)-limit)
		fmt.Printf("cap of 4 GiB, %-21s %s after %d MiB (%.2f %%), books %d MiB at most, %d bytes over, nvidia-smi "+
			"+%.0f MiB\n",
			w.name, raised, held/mib, 100*float64(held)/limit, ledger.MemoryPeak/mib, over, grown)
		if raised != takers[i].raises || over != 0 || float64(held) < takers[i].usable*limit ||
			grown > limit/mib+512*takers[i].contexts {
			t.Errorf("%s: want %s, nothing over and %g %% of the cap usable", w.name, takers[i].raises,
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
	if err != nil {
		t.Fatalf("nvidia-smi under the hook: %v", err)
	}
	fmt.Printf("under a cap of 4096 MiB nvidia-smi says total, used, free: %s, after %v\n",
		strings.TrimSpace(string(out)), time.Since(began).Round(time.Millisecond))
	var total, used, free int
	if _, err := fmt.Sscanf(string(out), "%d, %d, %d", &total, &used, &free); err != nil || total != 4096 ||
		used+free > total || free < 4000 {
		t.Errorf("nvidia-smi says %q (%v), want a card of 4096 MiB", out, err)
	}
}

// TestGPUAllocations measures the cost of an allocation and its release under a
// cap, against the driver's own, and the training of a program that asks the
// driver for each tensor. Both workers live throughout and take turns of a
// quarter of a second, because the driver's own pace changes by a tenth from
// one second to the next.
func TestGPUAllocations(t *testing.T) {
	capped := seat{"capped", 1, false}
	for _, c := range []struct {
		kind string
		env  []string
		goal float64 // percent
	}{
		{"alloc64k", nil, 5},
		{"alloc1m", nil, 5},
		{"alloc20m", nil, 5},
		{"alloc512m", nil, 5},
		{"train", []string{"PYTORCH_NO_CUDA_MEMORY_CACHING=1"}, 3},
	} {
		t.Run(c.kind, func(t *testing.T) {
			p := newPool(t)
			p.driver = c.env
			p.rule(t, terms{capped.name, broker.Quota{Quota: quota.Quota{Limit: 1, Memory: 40 << 30}, Weight: 1}})
			plain, hooked := role{plain1, c.kind}, role{capped, c.kind}
			p.prepare(t, plain, hooked)
			p.workers[plain1].pin(t, 4)
			p.workers[capped].pin(t, 4)
			p.rate(t, plain, 1) // warms the processors' caches
			overhead(t, c.kind, c.goal, p.either(t, plain, hooked, 0.25))
			fmt.Printf("    %s without the hook: %.0f a second\n", c.kind, p.rate(t, plain, 1))
		})
	}
}

// smi returns the memory in use on the first GPU, in MiB, as seen without the
// hook.
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
