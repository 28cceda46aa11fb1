// Command agent measures what the agent costs its host, and what a fleet of agents costs a
// Prometheus: the figures of docs/benchmarks.md and docs/fleet.md.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const usage = `Usage: agent [FLAG]... MEASUREMENT...

Prints figures of the agent. It ends with status 1 if a goal is missed. Measurements:
  scrapes  simulated hosts by the number of their GPUs and by the rate of scrapes; the cost of the
           simulation is included
  pages    what ten open pages cost the agent of a simulated host with eight GPUs
  gpu      the agent beside this machine's GPUs, idle and under load (needs PyTorch)
  sizing   an agent by itself, and one Prometheus over a fleet of simulated hosts

Run it in the root of the repository: go run ./bench/agent scrapes pages

`

var (
	agentPath = flag.String("agent", "", "`path` of the agent to measure; empty: it is built as make build does")
	hosts     = flag.Int("hosts", 200, "`number` of hosts that sizing simulates")
	scraped   = flag.Duration("for", 5*time.Minute, "`time` for which sizing has the hosts of each scenario scraped")
	scenarios = flag.String("scenarios", "h100,workloads,mixed", "`scenarios` of sizing with , between them")
)

var measurements = map[string]func(path string) error{"scrapes": scrapes, "pages": pages, "gpu": beside, "sizing": sizing}

func main() {
	flag.Usage = func() {
		fmt.Fprint(os.Stderr, usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	if err := run(flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "agent:", err)
		os.Exit(1)
	}
}

// run makes the measurements of these names. A missed goal does not keep it from the next one.
func run(names []string) (missed error) {
	for _, name := range names {
		if measurements[name] == nil {
			return fmt.Errorf("there is no measurement %q: see -h", name)
		}
	}
	if len(names) == 0 {
		return errors.New("name a measurement: see -h")
	}
	path := *agentPath
	if path == "" {
		dir, err := os.MkdirTemp("", "gs")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		path = filepath.Join(dir, "gpusteward")
		build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, ".")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build: %w\n%s", err, out)
		}
	}
	for _, name := range names {
		missed = errors.Join(missed, measurements[name](path))
	}
	return missed
}

// goals returns an error that names the goals which are missed.
func goals(missed map[string]bool, figures any) error {
	maps.DeleteFunc(missed, func(_ string, is bool) bool { return !is })
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %v", strings.Join(slices.Sorted(maps.Keys(missed)), ", "), figures)
}

// scrapes prints the cost of the agent on simulated hosts.
func scrapes(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("binary %.1f MB stripped (goal 24)\n", float64(info.Size())/1e6)
	missed := goals(map[string]bool{"a binary of more than 26 MB": info.Size() > 26e6}, info.Size())
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, gpus := range []int{1, 2, 4, 8, 16} {
		file := filepath.Join(dir, "scenario.yml")
		text := fmt.Sprintf("gpus: [{model: h100, load: training, count: %d}]\n", gpus)
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
		s, err := startAgent(path, "--demo="+file)
		if err != nil {
			return err
		}
		f, err := s.measure(500*time.Millisecond, 15*time.Second)
		s.end()
		if err != nil {
			return err
		}
		fmt.Printf("%2d GPUs, 2 scrapes/s: %v\n", gpus, f)
		missed = errors.Join(missed, goals(map[string]bool{
			"p99 over 10 ms with 8 GPUs":   gpus == 8 && f.p99 > 10*time.Millisecond,
			"peak over 40 MiB with 8 GPUs": gpus == 8 && f.peak > 40,
		}, f))
	}
	s, err := startAgent(path, "--demo=mixed")
	if err != nil {
		return err
	}
	defer s.end()
	for _, every := range []time.Duration{0, time.Second, 200 * time.Millisecond, 50 * time.Millisecond,
		20 * time.Millisecond} {
		rate := "no scrapes"
		if every > 0 {
			rate = fmt.Sprintf("%2.0f scrapes/s", 1/every.Seconds())
		}
		f, err := s.measure(every, 10*time.Second)
		if err != nil {
			return err
		}
		calls, err := s.calls()
		if err != nil {
			return err
		}
		fmt.Printf(" 8 GPUs, %s: %v, %.0f driver calls/s\n", rate, f, calls)
	}
	return missed
}

// calls returns how many NVML calls the agent makes per second, over a medium tier.
func (s *server) calls() (float64, error) {
	before, err := s.scrape()
	if err != nil {
		return 0, err
	}
	time.Sleep(10 * time.Second)
	after, err := s.scrape()
	return (sum(after, "gpusteward_nvml_calls_total") - sum(before, "gpusteward_nvml_calls_total")) / 10, err
}

// pages prints the cost of ten open pages to the agent: its processor time with and without them,
// in turns.
func pages(path string) error {
	const open, turns, length = 10, 5, 10 * time.Second
	s, err := startAgent(path, "--demo=mixed")
	if err != nil {
		return err
	}
	defer s.end()
	time.Sleep(5 * time.Second) // its start is not a cost of pages
	var more []float64
	for range turns {
		without, err := s.measure(0, length)
		if err != nil {
			return err
		}
		read, err := s.openPages(open)
		if err != nil {
			return err
		}
		with, err := s.measure(0, length)
		for _, bytes := range read() {
			if err == nil && bytes < 10_000 { // a state of eight GPUs is about 2 kB, compressed
				err = fmt.Errorf("a page has read %d bytes in %v", bytes, length)
			}
		}
		if err != nil {
			return err
		}
		fmt.Printf(" 8 GPUs: cpu %.2f %% of a core, %.2f %% with %d open pages\n", 100*without.cpu, 100*with.cpu, open)
		more = append(more, with.cpu-without.cpu)
	}
	slices.Sort(more)
	median := fmt.Sprintf("%.2f %% of a core", 100*more[turns/2])
	fmt.Printf(" %d open pages: %s more in the median (goal 1)\n", open, median)
	return goals(map[string]bool{"ten open pages cost more than 1 %": more[turns/2] > .01}, median)
}

// openPages reads as so many pages do until the returned function is called, which returns the
// bytes of each page as sent.
func (s *server) openPages(pages int) (read func() []int64, err error) {
	client := &http.Client{Transport: &http.Transport{}}
	var bodies []io.Closer
	bytes := make([]int64, pages)
	var readers sync.WaitGroup
	read = func() []int64 {
		for _, b := range bodies {
			b.Close()
		}
		readers.Wait()
		return bytes
	}
	for i := range pages {
		for path, n := range map[string]*int64{"/api/v1/live": &bytes[i], "/api/v1/events?follow=1": new(int64)} {
			body, err := s.open(client, path, true)
			if err != nil {
				read()
				return nil, err
			}
			bodies = append(bodies, body)
			readers.Go(func() { *n, _ = io.Copy(io.Discard, body) })
		}
	}
	return read, nil
}

// matmul loads the GPU as fully as one process can.
const matmul = `
import torch
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(50): a @ a
    torch.cuda.synchronize()
`

// beside prints the cost of the agent beside a real GPU, idle and under load, with default tiers
// and two scrapes a second.
func beside(path string) error {
	s, err := startAgent(path)
	if err != nil {
		return err
	}
	defer s.end()
	idle, err := s.measure(500*time.Millisecond, 20*time.Second)
	if err != nil {
		return err
	}
	fmt.Println("idle:             ", idle)
	load := exec.Command("python3", "-c", matmul)
	load.Stderr = os.Stderr
	if err := load.Start(); err != nil {
		return fmt.Errorf("start the load: %w", err)
	}
	defer func() { _, _ = load.Process.Kill(), load.Wait() }()
	if err := within(time.Minute, "makes the GPU busy", func() bool {
		all, _ := s.scrape()
		for name, v := range all {
			if strings.HasPrefix(name, `nvgpu_utilization_ratio{engine="gpu",gpu="0"`) && v == 1 {
				return true
			}
		}
		return false
	}); err != nil {
		return fmt.Errorf("the load, which needs PyTorch: %w", err)
	}
	loaded, err := s.measure(500*time.Millisecond, 40*time.Second)
	if err != nil {
		return err
	}
	fmt.Println("loaded:           ", loaded)
	unscraped, err := s.measure(0, 15*time.Second)
	if err != nil {
		return err
	}
	fmt.Println("loaded, no scrape:", unscraped)
	all, err := s.scrape()
	if err != nil {
		return err
	}
	maps.DeleteFunc(all, func(name string, _ float64) bool {
		return !strings.HasPrefix(name, "gpusteward_collect_duration_seconds{")
	})
	slowest := slices.SortedFunc(maps.Keys(all), func(a, b string) int { return cmp.Compare(all[b], all[a]) })
	fmt.Println("last passes:")
	for _, name := range slowest[:min(16, len(slowest))] {
		fmt.Printf("%8.0f us %s\n", all[name]*1e6, name[strings.IndexByte(name, '{')+1:])
	}
	return goals(map[string]bool{
		"p50 over 1 ms":           ms(loaded.p50) > 1,
		"p99 over 5 ms":           ms(loaded.p99) > 5,
		"more than 1 % of a core": loaded.cpu > .01,
		"RSS over 55 MiB":         loaded.peak > 55, // 30 was the goal; NVML alone takes 20
		"ready after 500 ms":      loaded.ready > 500*time.Millisecond,
	}, loaded)
}
