package incident

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
)

// TestIncidentsOfASimulatedHost lets the driver's events and the kernel's lines
// arrive as in the agent, each on its own goroutine.
func TestIncidentsOfASimulatedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(n int, f scenarios.Fault) scenarios.Fault {
			f.At = scenarios.Duration(time.Duration(n) * second)
			return f
		}
		nv, err := sim.New(scenarios.Scenario{GPUs: []scenarios.GPU{{Load: "training", Count: 2}}, Faults: []scenarios.Fault{
			at(10, scenarios.Fault{Kind: "xid", Code: 31}), at(20, scenarios.Fault{Kind: "xid", Code: 13, GPU: 1}),
			at(30, scenarios.Fault{Kind: "recovery_action", Value: "reset"}),
			at(40, scenarios.Fault{Kind: "event", Value: "ecc_sbe_storm"}), at(50, scenarios.Fault{Kind: "lost", GPU: 1}),
			at(60, scenarios.Fault{Kind: "kernel_line", Line: "mce: [Hardware Error]: Machine check events logged"}),
		}}, sim.Options{Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		log := slog.New(slog.DiscardHandler)
		table := nv.Table(log)
		d, start := newDesk(t), time.Now()
		d.since = start
		d.Process = table.Recall
		var mu sync.Mutex
		gpus := map[host.PCI]Entity{}
		d.GPU = func(at host.PCI) (Entity, bool) { e, ok := gpus[at]; return e, ok }
		take := func(s Observation, ok bool) {
			mu.Lock()
			defer mu.Unlock()
			if ok {
				d.hear(d.Add(s, time.Now()))
			}
		}
		h := collectors.NewHost(collectors.Options{NVML: nv, Config: collectors.DefaultConfig(),
			Processes: table, Log: log,
			Events: func(e collectors.Event) { take(ParseEvent(e)) }})
		d.Stays = h.Stays
		d.Works = func(source string, e Entity) bool {
			return source == SourceKernel || slices.ContainsFunc(h.Samples(), func(s collectors.Sample) bool {
				return s.Metric == collectors.Up && s.Value == 1 && EntityOf(s, nil) == e
			})
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = table.Run(ctx) })
		running.Go(func() { _ = h.Run(ctx) })
		time.Sleep(5 * second)
		for _, s := range h.Samples() {
			if s.Metric == device.Info {
				pci, _ := host.ParsePCI(s.Labels[slices.Index(s.Metric.Labels, "pci_bus_id")])
				gpus[pci] = EntityOf(s, nil)
			}
		}
		running.Go(func() { _ = nv.Follow(ctx, func(r host.Record) { take(ParseLine(r)) }) })
		for range 200 {
			time.Sleep(second)
			mu.Lock()
			d.hear(d.Tick(time.Now()))
			mu.Unlock()
		}
		cancel()
		nv.Close()
		running.Wait()

		var got []string
		for _, e := range d.incidents() {
			follows := ""
			if e.Follows != "" {
				follows = d.told[e.Follows].What
			}
			slices.Sort(e.Sources)
			got = append(got, fmt.Sprintf("%v gpu=%s %s %d %v pid=%v %s after=%q", e.First.Sub(start).Round(second),
				e.Entity.GPU, e.What, e.Code, e.Sources, e.PID > 0, e.Workload, follows))
		}
		want := []string{
			`10s gpu=0 xid 31 [kmsg nvml] pid=true slurm:4711.0 after=""`,
			`20s gpu=1 xid 13 [kmsg nvml] pid=true slurm:4711.0 after=""`,
			`30s gpu=0 xid 154 [kmsg nvml] pid=false  after=""`,
			`30s gpu=0 recovery_action 1 [nvml] pid=false  after="xid"`,
			`40s gpu=0 ecc_sbe_storm 0 [nvml] pid=false  after=""`,
			`50s gpu=1 xid 79 [kmsg] pid=false  after=""`, // the driver does not answer any more
			`50s gpu=1 gpu_fallen_off 0 [kmsg] pid=false  after="xid"`,
			`1m0s gpu= mce_corrected 0 [kmsg] pid=false  after=""`,
		}
		slices.Sort(got) // simultaneous events have no fixed order
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("incidents\n%q, want\n%q", got, want)
		}
		if l := d.Losses(); l != (Losses{}) {
			t.Errorf("%+v", l)
		}
	})
}
