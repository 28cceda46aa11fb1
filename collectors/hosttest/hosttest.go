// Package hosttest runs hosts of simulated GPUs for tests, and reads their
// series.
package hosttest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// Scenario returns an embedded scenario, or one given as YAML.
func Scenario(t testing.TB, source string) scenarios.Scenario {
	t.Helper()
	text := []byte(source)
	if !strings.Contains(source, "\n") {
		var err error
		if text, err = scenarios.Source(source); err != nil {
			t.Fatal(err)
		}
	}
	var s scenarios.Scenario
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// In runs f with a host that reads a simulated one, on a clock that only
// Advance moves.
func In(t *testing.T, source string, c collectors.Config, f func(t *testing.T, h *collectors.Host)) {
	t.Helper()
	With(t, source, func(o *collectors.Options) { o.Config = c }, f)
}

// With is In with options, which modifies those that the simulation suggests.
func With(t *testing.T, source string, options func(o *collectors.Options), f func(t *testing.T, h *collectors.Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		nv, err := sim.New(Scenario(t, source), sim.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		o := collectors.Options{NVML: nv, Kernel: nv.Kernel(), Config: collectors.DefaultConfig(),
			Processes: nv.Table(log), Log: log}
		options(&o)
		h := collectors.NewHost(o)
		ctx, cancel := context.WithCancel(t.Context())
		var running errgroup.Group
		running.Go(func() error { return o.Processes.Run(ctx) })
		running.Go(func() error { return h.Run(ctx) })
		defer func() {
			nv.Close()
			cancel()
			if err := running.Wait(); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		f(t, h)
	})
}

// Advance runs the bubble's clock, and then waits until everything that it
// started is idle.
func Advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Series formats samples like the text format, by series.
func Series(samples []collectors.Sample) map[string]float64 {
	m := map[string]float64{}
	for _, s := range samples {
		pairs := make([]string, len(s.Labels))
		for i, v := range s.Labels {
			pairs[i] = fmt.Sprintf("%s=%q", s.Metric.Labels[i], v)
		}
		slices.Sort(pairs)
		m[s.Metric.Name+"{"+strings.Join(pairs, ",")+"}"] = s.Value
	}
	return m
}

// Get returns the only sample of m for the GPU with this index and these labels
// (after gpu and uuid).
func Get(t *testing.T, h *collectors.Host, m *collectors.Metric, index string, labels ...string) (float64, bool) {
	t.Helper()
	for _, s := range h.Samples() {
		rest := s.Labels
		if s.Metric != m || len(m.Labels) > 1 && m.Labels[1] == "uuid" && s.Labels[0] != index {
			continue
		}
		if len(m.Labels) > 1 && m.Labels[1] == "uuid" {
			rest = s.Labels[2:]
		}
		if slices.Equal(rest, labels) {
			return s.Value, true
		}
	}
	return 0, false
}

// Want checks a value that Get returns.
func Want(t *testing.T, h *collectors.Host, value float64, m *collectors.Metric, index string, labels ...string) {
	t.Helper()
	if v, ok := Get(t, h, m, index, labels...); !ok || v != value {
		t.Errorf("%v of gpu %s %v = %v (present: %v), want %v", m, index, labels, v, ok, value)
	}
}

// Ups checks which of the first GPUs are up: 1, or 0.
func Ups(t *testing.T, h *collectors.Host, up ...float64) {
	t.Helper()
	for i, want := range up {
		Want(t, h, want, collectors.Up, strconv.Itoa(i))
	}
}

// WantNone checks that Get returns nothing.
func WantNone(t *testing.T, h *collectors.Host, m *collectors.Metric, index string, labels ...string) {
	t.Helper()
	if v, ok := Get(t, h, m, index, labels...); ok {
		t.Errorf("%v of gpu %s %v = %v, want no such series", m, index, labels, v)
	}
}

// Of returns the values of m on one GPU by one label, summed over the other
// labels.
func Of(h *collectors.Host, m *collectors.Metric, index, by string) map[string]float64 {
	all, i := map[string]float64{}, slices.Index(m.Labels, by)
	for _, s := range h.Samples() {
		if s.Metric == m && (m.Labels[0] != "gpu" || s.Labels[0] == index) {
			all[s.Labels[i]] += s.Value
		}
	}
	return all
}

// Told returns the labels of the only series of m with this value of a label.
func Told(h *collectors.Host, m *collectors.Metric, label, value string) map[string]string {
	for _, s := range h.Samples() {
		if s.Metric != m || s.Labels[slices.Index(m.Labels, label)] != value {
			continue
		}
		all := map[string]string{}
		for i, l := range m.Labels {
			all[l] = s.Labels[i]
		}
		return all
	}
	return nil
}

// Simulated returns the simulated GPU, to compare it with the host's readings.
func Simulated(t *testing.T, h *collectors.Host, index int) nvml.Device {
	t.Helper()
	d, ret := h.NVML.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return d
}
