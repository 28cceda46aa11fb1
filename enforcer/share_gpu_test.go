//go:build gpu

package enforcer_test

import (
	"errors"
	"flag"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
)

// These tests measure the hook and the broker under PyTorch on a real GPU.
// The test binary may be built elsewhere and carried: GS_HOOK, GS_LOAD and
// GS_BENCH name the hook library, the load generator and the directory of
// worker.py. -test.run picks rows (TestGPUShares/eager), -share.seconds says
// how long each is.

var sharePairs = flag.Int("share.pairs", 12, "`pairs` of a plain and a hooked run that overhead is measured by")
var shareOverhead = flag.Float64("share.overhead", 1.5, "`seconds` of each of their runs")

func TestGPUShares(t *testing.T) {
	p := newPool(t, w10, w20, w30, w50, x50, w70, w90)
	plain := map[string]float64{} // steps a second of two workers without the hook, by kind
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
				plain[c.kind] = p.row(t, c.kind+", plain", min(*shareSeconds, 4), role{plain1, c.kind}, role{plain2, c.kind}).steps
			}
			attempt(t, func() error {
				f := p.row(t, c.kind+" "+strings.Join(names, "/"), *shareSeconds, roles...)
				part := 100 * f.steps / plain[c.kind]
				fmt.Printf("%s: the sum is %.1f %% of plain time slicing\n", f.name, part)
				if part < c.sum {
					return errors.Join(f.fair(), fmt.Errorf("%s: the sum is %.1f %% of plain time slicing, goal %g %%", f.name, part, c.sum))
				}
				return f.fair()
			})
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

// bursty compares how long a burst of 5 ms takes beside a saturated worker.
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

// overhead prints and judges by how many percent hooked runs are slower, from
// pairs of rates.
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

// overheadKinds are programs whose pace is compared with and without the hook.
var overheadKinds = []string{"train", "gpt2", "steps", "decode", "loader", "small"}

// TestGPUOverhead measures what the hook costs a tenant that has no limit: alone,
// and beside a tenant that is connected and silent but whose launches must not
// wait, so that every launch is counted. The two of a pair run one after the
// other, by turns in either order, pinned to the same processors.
func TestGPUOverhead(t *testing.T) {
	alone, guest := seat{"alone", 1, false}, seat{"guest", 1, false}
	p := newPool(t, alone)
	for _, who := range []string{"lone", "counted"} {
		if who == "counted" {
			p.rule(t, terms{guest.name, broker.Quota{Weight: 1, Limit: 1, Wait: time.Millisecond}}, tenant(alone.name, 1))
			p.prepare(t, role{guest, "silent"})
			p.workers[guest].tell("run silent 600")
		}
		for _, kind := range overheadKinds {
			t.Run(who+"_"+kind, func(t *testing.T) {
				plain, hooked := role{plain1, kind}, role{alone, kind}
				p.prepare(t, plain, hooked)
				p.workers[plain1].pin(t, 4)
				p.workers[alone].pin(t, 4)
				p.rate(t, plain, 1) // what ran last on these processors is forgotten
				overhead(t, who+" "+kind, 0.3, p.either(t, plain, hooked))
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
		overhead(t, "lone ddp", 0.3, p.either(t, plain, hooked))
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
// other in either order.
func (p *pool) either(t *testing.T, plain, hooked role) func(plainFirst bool) (a, b float64) {
	return func(plainFirst bool) (a, b float64) {
		if plainFirst {
			a = p.rate(t, plain, *shareOverhead)
		}
		b = p.rate(t, hooked, *shareOverhead)
		if !plainFirst {
			a = p.rate(t, plain, *shareOverhead)
		}
		return a, b
	}
}

// TestGPUNothingHangs runs programs whose work waits for work that they launch
// later, beside another tenant.
func TestGPUNothingHangs(t *testing.T) {
	for _, recipe := range []string{"waitvalue", "hostfunc", "two", "peer", "cross"} {
		t.Run(recipe, func(t *testing.T) {
			if (recipe == "peer" || recipe == "cross") && len(products()) < 2 {
				t.Skip("needs two GPUs")
			}
			if err := nothingHangs(t, &host{}, recipe); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestGPUBrokerKilled(t *testing.T) { brokerKilled(t, &host{}, 5*time.Second) }

// TestGPUMemory holds that a cap is met to the byte by every allocator of
// PyTorch: an OutOfMemoryError, nothing over, nearly all of it usable, and the
// cap is what the program sees as the card's memory.
func TestGPUMemory(t *testing.T) {
	const limit = 4096 * mib
	allocators := []string{"backend:native", "expandable_segments:True", "backend:cudaMallocAsync"}
	var h host
	var tenants []terms
	for _, a := range allocators {
		tenants = append(tenants, terms{a, broker.Quota{Weight: 1, Limit: 1, Memory: limit}})
	}
	h.govern(t, tenants...)
	var all []*worker
	for _, a := range allocators {
		// PyTorch has renamed the variable; each version reads one of the two.
		g := h
		g.driver = []string{"PYTORCH_ALLOC_CONF=" + a, "PYTORCH_CUDA_ALLOC_CONF=" + a}
		all = append(all, g.start(t, a, "python3", filepath.Join(path(t, "GS_BENCH", "hook/bench"), "memory.py")))
	}
	for i, w := range all {
		var free, total uint64
		var backend string
		fmt.Sscanf(w.hear(t, time.Minute, "ready"), "ready %d %d %s", &free, &total, &backend)
		if total != limit || free > limit || free < limit*99/100 {
			t.Errorf("%s: mem_get_info says %d of %d bytes, want the cap of %d", allocators[i], free, total, uint64(limit))
		}
		if strings.HasSuffix(allocators[i], "cudaMallocAsync") != (backend == "cudaMallocAsync") {
			t.Errorf("%s: PyTorch chose the allocator %s", allocators[i], backend)
		}
	}
	for i, w := range all {
		var held, reserved uint64
		var raised string
		before := smi(t)
		w.tell("take")
		fmt.Sscanf(w.hear(t, time.Minute, "memory"), "memory %d %d %s", &held, &reserved, &raised)
		grown := smi(t) - before
		ledger := books(stats(t, h.broker), allocators[i])
		over := max(0, int64(reserved)-limit, int64(ledger.MemoryPeak)-limit)
		fmt.Printf("cap of 4 GiB, %-26s %s after %d MiB (%.2f %%), %d bytes over, nvidia-smi +%.0f MiB\n",
			allocators[i], raised, held/mib, 100*float64(held)/limit, over, grown)
		if raised != "OutOfMemoryError" || over != 0 || float64(held) < 0.99*limit || grown > limit/mib {
			t.Errorf("%s: want OutOfMemoryError, nothing over and 99 %% of the cap usable", allocators[i])
		}
	}
}

// smi returns the memory in use on the first GPU, in MiB, by one who is not
// under the hook.
func smi(t *testing.T) float64 {
	t.Helper()
	out, err := exec.Command("nvidia-smi", "--id=0", "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output()
	if err != nil {
		t.Logf("nvidia-smi: %v", err)
		return math.NaN()
	}
	used, _ := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	return used
}
