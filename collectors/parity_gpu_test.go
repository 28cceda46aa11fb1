//go:build gpu

package collectors_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
)

// TestGPUParity compares our readings of this host's GPUs with nvidia-smi, idle
// and under load.
func TestGPUParity(t *testing.T) {
	h := realHost(t)
	t.Run("idle", func(t *testing.T) { holdAgainstSMI(t, h) })
	t.Run("loaded", func(t *testing.T) {
		load(t)
		until(t, time.Minute, "a GPU is busy", func() bool {
			return slices.ContainsFunc(h.Samples(), func(s collectors.Sample) bool {
				return s.Metric == activity.Utilization && s.Labels[2] == "gpu" && s.Value > .9
			})
		})
		holdAgainstSMI(t, h)
	})
}

// realHost reads this machine's GPUs with every collector that nvidia-smi can
// check, once a second.
func realHost(t *testing.T) *collectors.Host {
	t.Helper()
	config := collectors.Config{Fast: time.Second, Medium: time.Second, Slow: time.Second,
		Enable: []string{"clocks_app", "pcie_throughput"}}
	if err := config.Validate(); err != nil {
		t.Fatal(err)
	}
	h := collectors.NewHost(collectors.Options{NVML: nvml.New(), Config: config, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	until(t, 30*time.Second, "the host is ready", func() bool { return h.Ready() == nil })
	// GPM needs two samples, and the first window is short.
	read := time.Now()
	until(t, 30*time.Second, "three seconds of GPM have been read", func() bool {
		return time.Since(read) > 3*time.Second && slices.ContainsFunc(h.Samples(), func(s collectors.Sample) bool {
			return s.Metric == activity.GPMWindow || s.Metric == collectors.Unsupported && s.Labels[2] == activity.GPMWindow.Name
		})
	})
	return h
}

// until polls for at most d.
func until(t *testing.T, d time.Duration, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(d)
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("after %v it is not true that %s", d, what)
		}
		<-poll.C
	}
}

// tries is the number of comparisons for a value that may move between two
// reads.
const tries = 5

// holdAgainstSMI compares up to five times, once a second; a value must agree
// once.
func holdAgainstSMI(t *testing.T, h *collectors.Host) {
	t.Helper()
	rows := smiTable(t)
	known := map[string]bool{}
	for _, r := range rows {
		for p := r.path; p != "." && !known[p]; p = path.Dir(p) {
			known[p] = true // and its parent, which can be empty
		}
	}
	type key struct{ uuid, path string }
	result, unknown := map[key]difference{}, map[string]bool{}
	open := len(rows)
	next := time.NewTicker(1100 * time.Millisecond) // after the next read of every tier
	defer next.Stop()
	for try := 0; try < tries && open > 0; try++ {
		<-next.C
		text, err := exec.Command("nvidia-smi", "-q", "-x").Output()
		if err != nil {
			t.Fatalf("run nvidia-smi: %v", err)
		}
		all, err := evaluateSMI(text, h.Samples(), rows)
		if err != nil {
			t.Fatal(err)
		}
		open = 0
		for _, d := range all {
			k := key{d.uuid, d.path}
			if was, ok := result[k]; !ok || !was.agrees {
				result[k] = d
			}
			if !result[k].agrees {
				open++
			}
		}
		gpus, _ := parseSMI(text) // it parsed before
		for _, g := range gpus {
			for p := range g.values {
				unknown[p] = !known[p]
			}
		}
	}
	order := slices.SortedFunc(maps.Keys(result),
		func(a, b key) int { return strings.Compare(a.uuid+a.path, b.uuid+b.path) })
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	for _, k := range order {
		d := result[k]
		fmt.Fprintf(w, "%v\t%s\t%s\t%s\t%s\t%s\n", map[bool]string{true: "ok", false: "DIFFERS"}[d.agrees], d.path,
			d.smi, d.want, d.ours, d.series)
	}
	w.Flush()
	t.Logf("nvidia-smi's path, its text, the same in our unit, ours, our series:\n%s", table.String())
	for p, is := range unknown {
		if is {
			t.Logf("nvidia-smi shows %s, for which nvidia-smi.tsv has no row", p)
		}
	}
	if len(result) == 0 {
		t.Error("nothing was compared")
	}
	for _, k := range order {
		if d := result[k]; !d.agrees {
			t.Errorf("%s %v", k.uuid, d)
		}
	}
}

// matmul keeps the first GPU at its power limit.
const matmul = `
import time, torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
end = time.time() + 25
while time.time() < end:
    for _ in range(20): b = a @ a
    torch.cuda.synchronize()
`

// load runs matmul during the test, for at most 25 seconds.
func load(t *testing.T) {
	t.Helper()
	if out, err := exec.Command("python3", "-c",
		"import torch; assert torch.cuda.is_available()").CombinedOutput(); err != nil {
		t.Fatalf("the load needs python3 with torch: %v: %s", err, out)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := exec.CommandContext(ctx, "python3", "-c", matmul)
	c.Stdout, c.Stderr = t.Output(), t.Output()
	if err := c.Start(); err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		c.Wait()
	})
}
