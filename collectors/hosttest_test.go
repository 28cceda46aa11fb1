package collectors

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors/gpu/sim"
)

// scenario returns an embedded scenario, or one given as YAML.
func scenario(t testing.TB, source string) sim.Scenario {
	t.Helper()
	text := []byte(source)
	if !strings.Contains(source, "\n") {
		var err error
		if text, err = sim.Source(source); err != nil {
			t.Fatal(err)
		}
	}
	var s sim.Scenario
	if err := yaml.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// in runs f with a host that reads a simulated one, on a clock that only
// advance moves.
func in(t *testing.T, source string, c Config, f func(t *testing.T, h *Host)) {
	t.Helper()
	with(t, source, func(o *Options) { o.Config = c }, f)
}

// with is in with options, which modifies those that the simulation suggests.
func with(t *testing.T, source string, options func(o *Options), f func(t *testing.T, h *Host)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		nv, err := sim.New(scenario(t, source), sim.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		o := Options{NVML: nv, Kernel: nv.Kernel(), Config: DefaultConfig(), Processes: nv.Table(log), Log: log}
		options(&o)
		h := NewHost(o)
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

// advance runs the bubble's clock, and then waits until everything that it
// started is idle.
func advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// series formats samples like the text format, by series.
func series(samples []Sample) map[string]float64 {
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

// get returns the only sample of m for the GPU with this index and these labels
// (after gpu and uuid).
func get(t *testing.T, h *Host, m *Metric, index string, labels ...string) (float64, bool) {
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

func want(t *testing.T, h *Host, value float64, m *Metric, index string, labels ...string) {
	t.Helper()
	if v, ok := get(t, h, m, index, labels...); !ok || v != value {
		t.Errorf("%v of gpu %s %v = %v (present: %v), want %v", m, index, labels, v, ok, value)
	}
}

func wantNone(t *testing.T, h *Host, m *Metric, index string, labels ...string) {
	t.Helper()
	if v, ok := get(t, h, m, index, labels...); ok {
		t.Errorf("%v of gpu %s %v = %v, want no such series", m, index, labels, v)
	}
}

// of returns the values of m on one GPU by one label, summed over the other
// labels.
func of(h *Host, m *Metric, index, by string) map[string]float64 {
	all, i := map[string]float64{}, slices.Index(m.Labels, by)
	for _, s := range h.Samples() {
		if s.Metric == m && (m.Labels[0] != "gpu" || s.Labels[0] == index) {
			all[s.Labels[i]] += s.Value
		}
	}
	return all
}

// told returns the labels of the only series of m with this value of a label.
func told(h *Host, m *Metric, label, value string) map[string]string {
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

// simulated returns the simulated GPU, to compare it with the host's readings.
func simulated(t *testing.T, h *Host, index int) nvml.Device {
	t.Helper()
	d, ret := h.NVML.DeviceGetHandleByIndex(index)
	if ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	return d
}
