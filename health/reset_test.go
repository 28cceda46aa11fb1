package health

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"gpusteward/collectors/faults"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A steady world has two GPUs, whose energy rises, and hears the kernel.
type steady struct {
	*world
	joules   [2]float64
	action   float64 // of GPU 0; negative: its driver tells none
	sequence uint64
}

// hears returns what the lines and the driver's events of this moment become.
func (s *steady) hears(seen ...incident.Observation) (all []incident.Event) {
	c := incident.NewCorrelator(incident.CorrelatorOptions{Boot: "same", GPU: func(at host.PCI) (incident.Entity, bool) {
		gpu := fmt.Sprint(at.Bus - 1)
		return incident.Entity{GPU: gpu, UUID: "GPU-" + gpu}, at.Bus-1 < 2
	}}, s.now)
	for _, o := range seen {
		s.sequence++
		o.Time, o.Sequence = s.now, s.sequence
		for _, e := range c.Add(o, s.now) {
			all = append(slices.DeleteFunc(all, func(x incident.Event) bool { return x.ID == e.ID }), e)
		}
	}
	return all
}

// passes lets time pass, in looks of an hour.
func (s *steady) passes(looks int, events ...incident.Event) {
	for range looks {
		s.joules[0] += 100
		s.joules[1] += 100
		all := energies(s.joules[0], s.joules[1])
		if s.action >= 0 {
			all = append(all, on("0", faults.RecoveryAction, s.action))
		}
		s.step(time.Hour, events, all...)
		events = nil
	}
}

// alarmed reports whether a GPU, or the node, has a critical fault.
func (s *steady) alarmed() bool {
	return worst(s.engine.Findings(), func(Finding) bool { return true }) >= incident.Critical
}

// everyFault returns one observation of each XID, SXid, line and event that the tables have.
func everyFault(t *testing.T) (all []incident.Observation) {
	gpu := incident.Entity{Device: "0000:01:00.0"}
	for _, code := range slices.Sorted(maps.Keys(incident.XIDs())) {
		all = append(all, incident.Observation{Source: incident.SourceKernel, Entity: gpu, What: incident.WhatXID,
			Code: code})
	}
	for _, code := range slices.Sorted(maps.Keys(incident.SXids())) {
		all = append(all, incident.Observation{Source: incident.SourceKernel, Entity: incident.Entity{
			Device: "0000:c1:00.0"}, What: incident.WhatSXid, Code: code})
	}
	for _, what := range incident.Kinds() {
		all = append(all, incident.Observation{Source: incident.SourceKernel, Entity: gpu, What: what},
			incident.Observation{Source: incident.SourceKernel, What: what})
	}
	for action := range 6 {
		all = append(all, incident.Observation{Source: incident.SourceNVML, Entity: gpu, What: incident.WhatRecovery,
			Code: action})
	}
	return all
}

// TestFaultsThatNeedAReset lets each fault of the tables come, on drivers with and without a recovery action, with
// restarts of the agent before, during and after it. A critical fault that only a reset ends stays for longer than
// incidents are remembered. It ends by each kind of reset, or by an acknowledgement. Any other ends by itself.
func TestFaultsThatNeedAReset(t *testing.T) {
	t.Parallel()
	fixture.OneGoroutine(t)
	ends := map[string]func(*steady){
		"a reset of all GPUs":           func(s *steady) { s.joules = [2]float64{} },
		"a reset while it was stopped":  func(s *steady) { s.joules = [2]float64{}; s.now = s.now.Add(time.Hour); s.restart("same") },
		"a reset while nothing is read": func(s *steady) { s.steps(60); s.joules = [2]float64{} },
		"a driver that was reloaded": func(s *steady) {
			s.passes(1, s.hears(incident.Observation{Source: incident.SourceKernel, What: incident.WhatDriverLoaded})...)
		},
		"a driver that asks for nothing any more": func(s *steady) {
			var all []incident.Observation
			for _, gpu := range []string{"0000:01:00.0", "0000:02:00.0"} {
				all = append(all, incident.Observation{Source: incident.SourceKernel, Entity: incident.Entity{Device: gpu},
					What: incident.WhatXID, Code: 154, Text: "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"})
			}
			s.passes(1, s.hears(all...)...)
		},
		"a boot": func(s *steady) { s.restart("another") },
		"an acknowledgement": func(s *steady) {
			for _, f := range s.engine.Findings() {
				if f.Latched {
					fixture.Must(t, fixture.Error(s.engine.Ack(f.Check, f.Entity, s.now)))
				}
			}
		},
	}
	names := slices.Sorted(maps.Keys(ends))
	latched := 0
	for n, o := range everyFault(t) {
		rnd := rand.New(rand.NewPCG(uint64(n), 1))
		for _, action := range []float64{-1, 0, 1} {
			s := &steady{world: newWorld(t, Checks()...), joules: [2]float64{1e6, 1e6}, action: min(action, 0)}
			s.passes(2)
			maybe := func() {
				if rnd.IntN(3) == 0 {
					s.now = s.now.Add(time.Duration(rnd.IntN(100)) * time.Minute)
					s.restart("same")
				}
			}
			maybe()
			events := s.hears(o)
			s.now = s.now.Add(time.Second)
			maybe() // the line is read after the agent was down
			if len(events) == 0 {
				continue // a line of a stack
			}
			if s.action = action; action > 0 && o.Entity.Device == "0000:c1:00.0" {
				s.action = 0
			}
			s.passes(1, events...)
			e := events[0]
			what := fmt.Sprintf("%s %d (%v), with action %v", e.What, e.Code, e.Entity, action)
			stays := e.NeedsReset && e.Severity >= incident.Critical
			for range 4 {
				maybe()
				s.passes(1)
				s.now = s.now.Add(11 * day)
				fixture.Need(t, stays && !s.alarmed(), false, "%s: nothing is wrong any more", what)
			}
			s.action = min(action, 0)
			if !stays {
				s.passes(1)
				fixture.Equal(t, s.alarmed(), false, "%s stays: %s", what, s.failing())
				break // the action makes no difference
			}
			latched++
			name := names[rnd.IntN(len(names))]
			ends[name](s)
			s.passes(1)
			s.restart("same") // nothing comes back
			s.passes(1)
			fixture.Equal(t, s.alarmed(), false, "%s is not ended by %s: %s", what, name, s.failing())
			s.passes(1, s.hears(o)...)
			fixture.If(t, !s.alarmed(), "%s comes again after %s, and nothing is wrong", what, name)
		}
	}
	fixture.AtLeast(t, latched, 100, "faults were latched")
}
