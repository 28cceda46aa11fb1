package health

import (
	"bytes"
	"log/slog"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestUseOfTheAgent checks the agent's use of its own limits: 256 MiB, a quarter of a core, 2000 goroutines.
func TestUseOfTheAgent(t *testing.T) {
	m := NewMonitor(Options{Log: slog.New(slog.DiscardHandler)}, Settings{})
	now := time.Now()
	m.begin(now)
	load := func() map[string]float64 {
		all := map[string]float64{}
		for _, s := range m.account(now) {
			if s.Metric == Pressure {
				all[s.Labels[0]] = s.Value
			}
		}
		return all
	}
	first := load()
	fixture.Near(t, first["memory"]*(256<<20)/float64(fromSystem()), 1, .1, "memory, as a part of what is used")
	n := first["goroutines"] * 2000
	fixture.If(t, n < 1 || n > 1000 || n != math.Round(n), "%g goroutines", n)
	_, known := first["processor"]
	fixture.If(t, known || first["state"] != 0 || first["events"] != 0, "at first: %v", first)
	var r syscall.Rusage
	fixture.Must(t, syscall.Getrusage(syscall.RUSAGE_SELF, &r))
	m.unsaved, m.usage = true, usage{now.Add(-100 * time.Hour), time.Duration(r.Utime.Nano()+r.Stime.Nano()) - 10*time.Hour}
	for range cap(m.observations) / 2 {
		m.observations <- incident.Observation{}
	}
	if got := load(); math.Abs(got["processor"]-.4) > .01 || got["state"] != 2 || math.Abs(got["events"]-.5) > .01 {
		t.Errorf("10 hours of 100, half of a queue, and what is not kept: %v", got)
	}
}

// TestBlockedStateIsMovedLater blocks the destination of spoiled
// state: nothing overwrites the state until the way is free.
func TestBlockedStateIsMovedLater(t *testing.T) {
	s := Store{Dir: t.TempDir()}
	path := s.path()
	fixture.Must(t, os.WriteFile(path, []byte("spoiled"), 0o600))
	fixture.Must(t, os.MkdirAll(path+".bad/taken", 0o700))
	m := NewMonitor(Options{Store: s, Log: slog.New(slog.DiscardHandler)}, Settings{})
	m.begin(birth)
	for _, step := range []struct {
		free bool
		want string
	}{{false, "spoiled"}, {true, "kept"}} {
		if step.free {
			fixture.Must(t, os.RemoveAll(path+".bad"))
		}
		m.save(birth)
		text, err := os.ReadFile(path)
		if kept := string(text) != "spoiled"; err != nil || kept != step.free || m.unsaved == step.free {
			t.Errorf("its place is free: %v: there is %q, %v, not kept: %v; want what is %s", step.free, text, err,
				m.unsaved, step.want)
		}
	}
	if text, err := os.ReadFile(path + ".bad"); string(text) != "spoiled" {
		t.Errorf("moved aside: %q, %v", text, err)
	}
	m.save(birth)
	if text, err := os.ReadFile(path + ".bad"); string(text) != "spoiled" {
		t.Errorf("moved aside again: %q, %v", text, err)
	}
}

// TestRestoredStatistics holds that the log says so if statistics start again, and is silent if they go on.
func TestRestoredStatistics(t *testing.T) {
	for derived, want := range map[string]bool{"": false, `"no object"`: true} {
		var log bytes.Buffer
		m := NewMonitor(Options{Store: Store{Dir: t.TempDir()}, Log: slog.New(slog.NewTextHandler(&log, nil))}, Settings{})
		m.begin(birth)
		state := kept{Engine: fixture.Value(m.engine.Save(""))(t)}
		if derived != "" {
			state.Engine.Derived = []byte(derived)
		}
		fixture.Must(t, m.Store.Save(state))
		m.begin(birth)
		fixture.Equal(t, strings.Contains(log.String(), "statistics start again"), want, "kept %q, the log says %q: it is",
			derived, log.String())
	}
}
