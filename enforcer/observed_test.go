package enforcer

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

func TestGPUProcesses(t *testing.T) {
	t.Parallel()
	at := time.Unix(7, 0)
	process := func(pid int, kind string) collectors.DeviceProcess {
		return collectors.DeviceProcess{UUID: "GPU-1", Kind: kind, SM: 3, Sampled: at,
			Process: host.Process{PID: pid, Workload: &host.Workload{Key: "user:1001"}}}
	}
	unknown, unnamed := process(5, "compute"), process(6, "compute")
	unknown.Unknown, unnamed.Process.Workload = true, nil
	b := audit.Books{Sessions: []audit.Session{{PID: 2}},
		DeviceProcesses: []collectors.DeviceProcess{process(1, "compute"), process(2, "compute"), process(3, "graphics"),
			process(4, collectors.KindServer), unknown, unnamed},
		Tenant: func(h collectors.DeviceProcess) (string, bool) { return "team", true }}
	want := []jobs.GPUProcess{
		{PID: 1, GPU: "GPU-1", Tenant: "team", Workload: "user:1001", Used: 3, Sampled: at},
		{PID: 2, GPU: "GPU-1", Tenant: "team", Workload: "user:1001", Hooked: true, Used: 3, Sampled: at},
	}
	got := gpuProcesses(b)
	fixture.If(t, !reflect.DeepEqual(got, want), "%+v, want %+v", got, want)
}

// A busyHost has this process on a GPU.
type busyHost struct{}

func (h busyHost) DeviceProcesses() []collectors.DeviceProcess {
	p, _ := h.Process(os.Getpid())
	return []collectors.DeviceProcess{{UUID: "GPU-1", Kind: "compute", Process: p}}
}
func (busyHost) Process(pid int) (host.Process, error) {
	if pid != os.Getpid() {
		return host.Process{}, os.ErrNotExist
	}
	return host.Process{PID: pid, Workload: &host.Workload{Key: "user:1001"}}, nil
}
func (busyHost) Silent() map[string]bool                           { return nil }
func (busyHost) Memory(string) (total, free, kept uint64, ok bool) { return 1 << 30, 0, 0, true }
func (busyHost) Rates(string) (link, memory float64, ok bool)      { return 0, 0, false }

// watching returns an enforcer of the host that asks NCCL at the address.
func watching(t *testing.T, address string, simulated bool) *Enforcer {
	t.Helper()
	dir := fixture.ShortDir(t)
	all := policy.Quota{Limit: 1, Bandwidth: 1}
	paced := policy.Quota{Guarantee: .5, Limit: 1, Bandwidth: .5}
	table := policy.Table{Rules: []policy.Rule{{Name: "a", Terms: policy.Terms{Quota: paced}}}, Overcommit: []string{policy.All}, Turn: time.Minute, Default: policy.Terms{Priority: policy.PriorityNormal, Quota: all}}
	e, err := New(Options{Policy: policy.New(table, policy.HostView{}, nil), Dir: dir, Host: busyHost{}, NCCL: address, Trusted: []string{"2.28"},
		Simulated: simulated, Broker: broker.Options{Socket: filepath.Join(dir, "s")}})
	fixture.Must(t, err)
	return e
}

// TestRanksHaveWorkloads shows processes with a session that the driver does not
// list. One of them has ended, and nobody knows its workload.
func TestRanksHaveWorkloads(t *testing.T) {
	t.Parallel()
	e := watching(t, "", false)
	defer e.Close()
	ended := os.Getpid() + 1
	for i, pid := range []int{os.Getpid(), ended} {
		e.observers.jobs.Observe(broker.Traced{Session: uint64(i), PID: pid, Tenant: "team", Trace: wire.TraceIn(make([]byte, wire.TraceSize))})
	}
	ranks, _ := e.observers.look(audit.Books{}, e.heldBack())
	fixture.If(t, len(ranks) != 2 || ranks[0].Workload != "user:1001" || ranks[1].Workload != "",
		"%+v, want user:1001 as the first one's workload, and none of the second", ranks)
}

// TestNCCLIsAsked in real jobs; the real processes with the PIDs of simulated ones are others.
func TestNCCLIsAsked(t *testing.T) {
	t.Parallel()
	for simulated, want := range map[bool]string{false: "localhost:28028 [2.28] true", true: " [] false"} {
		e := watching(t, "localhost:28028", simulated)
		defer e.Close()
		fixture.Equal(t, fmt.Sprint(e.observers.jobs.RAS, " ", e.observers.jobs.Trusted, " ", e.observers.jobs.Log != nil), want, "simulated %v", simulated)
	}
}

// TestConfigureDoesNotBlock gives two policies at the same moment to an enforcer whose
// Run has ended. The last one is kept.
func TestConfigureDoesNotBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // it fails when all wait
		for range 10_000 {
			e := &Enforcer{policy: make(chan *policy.Policy, 1)}
			var both sync.WaitGroup
			var there atomic.Int32
			for range 2 {
				both.Go(func() {
					for there.Add(1); there.Load() < 2; { // so that they meet
						runtime.Gosched()
					}
					e.Configure(new(policy.Policy))
				})
			}
			both.Wait()
			last := new(policy.Policy)
			e.Configure(last)
			fixture.Need(t, <-e.policy, last, "the last policy is not the one that is kept")
		}
	})
}
