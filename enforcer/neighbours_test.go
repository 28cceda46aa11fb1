package enforcer

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// TestOthersUseTheGPU compares the part of a GPU's time that the neighbours of a process use, by the driver's samples.
// Two of the three are of one workload, and one of no known workload.
func TestOthersUseTheGPU(t *testing.T) {
	t.Parallel()
	const minePID, idlePID, busyPID = 1, 2, 3
	var g neighbours
	at := time.Unix(1e9, 0)
	uses := func(mine, idle, busy float64, sampled time.Time) audit.Books {
		var b audit.Books
		for i, sm := range []float64{mine, idle, busy} {
			p := collectors.DeviceProcess{UUID: "GPU-0", SM: sm, Sampled: sampled}
			p.Process.PID = i + 1
			if p.Process.PID != idlePID {
				p.Process.Workload = &host.Workload{Key: "user:1000"}
			}
			b.DeviceProcesses = append(b.DeviceProcesses, p)
		}
		b.DeviceProcesses = append(b.DeviceProcesses, collectors.DeviceProcess{UUID: "GPU-0", SM: mine, Sampled: sampled,
			Kind: collectors.KindServer, Process: host.Process{PID: 9}})
		return b
	}
	g.look(uses(10, 0, 3, at))
	g.look(uses(12, 0, 5, at.Add(5*time.Second)))
	for pid, want := range map[int]float64{minePID: 0.4, busyPID: 0.4, idlePID: 0.8} {
		fixture.Near(t, g.others("GPU-0", pid), want, 1e-9, "beside process %d the others use", pid)
	}
	g.look(uses(12, 0, 5, at.Add(5*time.Second))) // no new samples
	fixture.Equal(t, g.others("GPU-0", minePID), 0.4, "between two samples the others use")
	fixture.Equal(t, g.others("GPU-1", minePID), 0, "others use … of another GPU")
	var unknown neighbours
	unknown.look(uses(0, 0, 0, time.Time{}))
	fixture.Equal(t, unknown.others("GPU-0", minePID), 1, "without samples the others may use all")
}

// Two programs run under Gemini's hook. One of them launches all that it is given (22 s of the GPU's time, of which 1.3
// s are charged). A third process has no tenant.
func TestClaimsUnderGeminisHookAreCompared(t *testing.T) {
	t.Parallel()
	for name, gpu := range map[string]string{"a table that is named after the GPU": "GPU-a", "another": ""} {
		t.Run(name, func(t *testing.T) {
			var a besideAudit
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			process := func(pid int, gpu string, at time.Time, sm float64) collectors.DeviceProcess {
				return collectors.DeviceProcess{UUID: gpu,
					Process: host.Process{PID: pid, Start: 1, Began: start, Workload: &host.Workload{Key: "unit:w"}},
					Kind:    "compute", Known: true, Memory: 20 << 30, SM: sm, Sampled: at, At: at}
			}
			var last []wire.GeminiStats
			for s := range 31 {
				now, passed := start.Add(time.Duration(s)*time.Second), float64(s)
				last = []wire.GeminiStats{{Listen: "127.0.0.1:50052", GPU: gpu,
					Processes: map[int]string{10: "gemini:liar", 11: "gemini:honest"}, Tenants: []wire.GeminiTenant{
						{TenantStats: wire.TenantStats{Tenant: "gemini:liar", ChargedSeconds: 1.3 / 30 * passed}},
						{TenantStats: wire.TenantStats{Tenant: "gemini:honest", ChargedSeconds: 0.2 * passed}},
						{TenantStats: wire.TenantStats{Tenant: "gemini:absent"}},
					}}}
				a.look(audit.Books{Now: now, DeviceProcesses: []collectors.DeviceProcess{
					process(10, "GPU-a", now, 22./30*passed), process(11, "GPU-a", now, 0.2*passed),
					process(12, "GPU-b", now, passed)}}, last)
			}
			for i, want := range []float64{(22 - 1.3) / 30, 0} {
				n := last[0].Tenants[i]
				fixture.If(t, n.Charge == nil || math.Abs(*n.Charge-want) > 0.02 || n.GPU != "GPU-a",
					"%+v: %v, want a drift of %.2f", n, n.Charge, want)
			}
			if n := last[0].Tenants[2]; n.Charge != nil {
				t.Errorf("of who is not there: %v", *n.Charge)
			}
		})
	}
}

// The kernels of a tenant keep the memory busy for 80 % of their time on the GPU. The pacer brings the tenant within
// its part of the bandwidth. The tenant gets its limit back when it needs less.
func TestPacer(t *testing.T) {
	t.Parallel()
	at, q := place{"a", "GPU-0"}, policy.Quota{Limit: .9, Bandwidth: .3}
	p := pacer{}
	share := .9
	step := func(intensity float64) (used float64) {
		share = p.limit(at, q)
		used = share * intensity
		p.look(at, q, used, share)
		return used
	}
	for range 3 {
		step(.8)
	}
	for range 50 {
		if used := step(.8); used > .3*1.1 || used < .3*.8 {
			t.Fatalf("it keeps the memory busy for %.2f of the time, and may for 0.30", used)
		}
	}
	for range 20 {
		step(.1)
	}
	got := p.limit(at, q)
	fixture.If(t, got != .9 || len(p) != 0, "the limit is %.2f when it needs little, want 0.90 again", got)
	q.Bandwidth = 1
	p[at] = .1
	p.look(at, q, 1, 1)
	fixture.Equal(t, p.limit(at, q), .9, "a tenant without a limit of bandwidth is still held")
	p.look(place{"idle", "GPU-0"}, policy.Quota{Limit: 1, Bandwidth: .3}, .5, 0)
	fixture.Equal(t, len(p), 0, "a tenant that used no GPU time is held to none")
}

// TestWhatWasGivenBackIsNotLost looks at a GPU of 10 bytes of which a tenant gave 6 back between
// two looks that are far apart. The reading of the memory is from before that.
func TestWhatWasGivenBackIsNotLost(t *testing.T) {
	t.Parallel()
	all, start := given{}, time.Unix(1e9, 0)
	for _, look := range []struct {
		after              time.Duration
		used, free, expect uint64
	}{{0, 8, 2, 10}, {3 * time.Second, 2, 2, 10}, {4 * time.Second, 1, 2, 10}, {5*time.Second + 999*time.Millisecond, 1, 2, 10},
		{6 * time.Second, 1, 2, 3}, {7 * time.Second, 1, 9, 10}} {
		got := all.settle(start.Add(look.after), "GPU-0", look.used, look.used+look.free)
		fixture.Equal(t, got, look.expect, "capacity after %v", look.after)
	}
}
