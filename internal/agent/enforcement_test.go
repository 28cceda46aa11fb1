package agent

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/hosttest"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/suspend"
	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/config"
	"gpusteward/internal/fixture"
)

func TestObserverIsOwnerOfDirectory(t *testing.T) {
	f := flags{runtimeDir: t.TempDir()}
	me := uint32(os.Getuid())
	fixture.Equal(t, f.isObserver(me), false, "there is an observer without a directory")
	fixture.Must(t, os.Mkdir(filepath.Join(f.runtimeDir, "agent"), 0o755))
	fixture.If(t, !f.isObserver(me) || f.isObserver(me+1), "uid %d is not the observer, or another is", me)
	other := flags{runtimeDir: t.TempDir()}
	fixture.Must(t, os.Symlink(filepath.Join(f.runtimeDir, "agent"), filepath.Join(other.runtimeDir, "agent")))
	if os.Getuid() == 0 {
		fixture.Must(t, os.Lchown(filepath.Join(other.runtimeDir, "agent"), 1, 1))
		fixture.Equal(t, other.isObserver(me), false, "a link is followed")
	}
}

// TestRatesOfAGPU checks both rates of a GPU, and that those of a MIG device and of a missing GPU are unknown.
func TestRatesOfAGPU(t *testing.T) {
	const source = "gpus: [{model: h100}, {load: inference, mig: [1g.10gb]}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		e := enforcedHost{Host: h}
		link, memory, ok := e.Rates(hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"])
		fixture.If(t, !ok || math.Abs(link/63e9-1) > .01 || math.Abs(memory/3.352e12-1) > .01,
			"%.4g and %.4g bytes a second (known: %v), want about 63e9 and 3.352e12", link, memory, ok)
		for _, uuid := range []string{hosttest.Told(h, device.MIGInfo, "gpu", "1")["mig_uuid"], "GPU-none"} {
			link, memory, ok := e.Rates(uuid)
			fixture.If(t, ok, "%q: %v and %v bytes a second, want neither", uuid, link, memory)
		}
	})
}

// TestEvidenceOfAGPU compares what is known of clocks and links.
func TestEvidenceOfAGPU(t *testing.T) {
	const source = "gpus: [{model: h100, load: full}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		known := evidence(h, hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"])
		fixture.If(t, known.Clock < 0.5 || known.Clock > 1 || math.Abs(known.PCIe/63e9-1) > .01 || known.NVLink < 4e11 ||
			!known.Power || known.Thermal,
			"%+v; want a clock held by the power limit, and the speed of the links", known)
		fixture.Equal(t, evidence(h, "GPU-none"), jobs.Evidence{}, "of a missing GPU")
	})
}

// TestMemoryOfAGPU takes NVML's word, and CUDA's where NVML has none: CUDA is asked once, and again after it failed.
func TestMemoryOfAGPU(t *testing.T) {
	const source = "gpus: [{model: h100, load: inference}, {model: h100, load: inference}]\n" +
		"missing_symbols: [nvmlDeviceGetMemoryInfo, nvmlDeviceGetMemoryInfo_v2]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(3 * time.Second)
		first, second := hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"], hosttest.Told(h, collectors.Up, "gpu", "1")["uuid"]
		var asked atomic.Int32
		var up atomic.Bool
		var log fixture.Transcript
		m := &gpuMemory{gpus: h, log: slog.New(slog.NewTextHandler(&log, nil)), available: func() (uint64, bool) { return 7 << 30, true }}
		m.ask = func(context.Context) (map[string]suspend.Size, error) {
			if asked.Add(1); !up.Load() {
				return nil, errors.New("no driver")
			}
			return map[string]suspend.Size{first: {Total: 100 << 30}, second: {Total: 100 << 30, Integrated: true}}, nil
		}
		for range 2 {
			total, free, _, ok := m.of(first)
			fixture.If(t, ok, "%d of %d bytes are free before CUDA is asked", free, total)
			m.look(h.Silent())
			hosttest.Advance(askSizesEvery/2 - time.Second)
			m.look(h.Silent())
			fixture.Equal(t, asked.Load(), 1, "asked … times")
		}
		fixture.Equal(t, strings.Count(log.String(), "the memory of a GPU is unknown"), 1, "warnings")
		up.Store(true)
		hosttest.Advance(2 * time.Second)
		m.look(h.Silent())
		hosttest.Advance(2 * askSizesEvery)
		m.look(h.Silent())
		fixture.Equal(t, asked.Load(), 2, "asked … times")
		used := uint64(0)
		for _, p := range h.DeviceProcesses() {
			if p.UUID == first {
				used += p.Memory
			}
		}
		if total, free, _, ok := m.of(first); !ok || used == 0 || total != 100<<30 || free != total-used {
			t.Errorf("%d of %d bytes are free of a GPU whose processes have %d (known: %v)", free, total, used, ok)
		}
		if total, free, _, ok := m.of(second); !ok || total != 100<<30 || free != 7<<30 {
			t.Errorf("%d of %d bytes are free of the host's memory (known: %v)", free, total, ok)
		}
	})
	hosttest.In(t, "gpus: [{model: h100}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(3 * time.Second)
		m := &gpuMemory{gpus: h, ask: func(context.Context) (map[string]suspend.Size, error) { panic("NVML knows") }}
		m.look(h.Silent())
		_, _, _, ok := m.of(hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"])
		fixture.If(t, !ok, "NVML's word is not taken")
	})
}

// TestSuspensionsAreEvents writes what happened to whom, and why, into the journal.
func TestSuspensionsAreEvents(t *testing.T) {
	r := suspend.Record{Tenant: "a", Workload: "slurm:1", Why: "ordered by uid 0"}
	for _, c := range []struct {
		end      suspend.End
		now      string
		result   string
		severity incident.Severity
		says     string
	}{
		{suspend.End{Record: r, Done: suspend.Suspended}, "suspended", "done", incident.Info, "uid 0"},
		{suspend.End{Record: r, Done: suspend.Resuming}, "running", "done", incident.Info, "uid 0"},
		{suspend.End{Record: r, Done: suspend.Suspended, Err: errors.New("no room")}, "suspended", "failed", incident.Warning,
			"no room"},
		{suspend.End{Record: r, Done: suspend.Resuming, Lost: []int{7}}, "running", "done", incident.Critical, "[7]"},
	} {
		e := suspended(c.end)
		fixture.If(t, e.Kind != incident.KindEnforcement || e.Entity.Workload != "slurm:1" || e.Entity.Tenant != "a" ||
			e.Now != c.now || e.Result != c.result || e.Severity != c.severity || !strings.Contains(e.Message, c.says) ||
			e.Was == e.Now || e.Time.IsZero(), "%+v is told as %+v", c.end, e)
	}
}

// TestRolesBlameTheHardwareAlike has a simulated GPU fail, and asks a monitor of either role whether that excuses the
// workloads on the GPU, and on the other one. A fault with a ! is found by a check that the operator has disabled.
func TestRolesBlameTheHardwareAlike(t *testing.T) {
	for fault, blamed := range map[string]bool{
		"{kind: lost}":           true,
		"{kind: wedge, for: 2m}": true,
		"{kind: ecc, severity: uncorrected, location: dram}":                     true,
		"{kind: recovery_action, value: reset}":                                  true,
		"!{kind: wedge, for: 2m}":                                                false,
		"{kind: event, value: recovery_action}":                                  false, // the driver asks for nothing
		"{kind: event, value: dram_retirement}":                                  false,
		"{kind: xid, code: 119}":                                                 true,
		`{kind: kernel_line, line: "NVRM: Xid (PCI:{pci}): 119, pid=1, name=x"}`: true,
	} {
		file := filepath.Join(t.TempDir(), "scenario.yml")
		fixture.Must(t, os.WriteFile(file, []byte("gpus: [{count: 2}]\nfaults:\n  - "+
			strings.Replace(strings.TrimPrefix(fault, "!"), "{", "{at: 20s, gpu: 1, ", 1)+"\n"), 0o600))
		c := config.Defaults()
		if strings.HasPrefix(fault, "!") {
			c.Health.Disable = []string{"driver_hang"}
		}
		for _, r := range []role{roleAll, roleEnforce} {
			t.Run(string(r)+" "+fault, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := flags{demoGiven: true, demo: file}
					m, err := newHostConfig(f, c, slog.New(slog.DiscardHandler))
					fixture.Must(t, err)
					var h *collectors.Host
					var monitor *health.Monitor
					if r == roleEnforce {
						h, monitor = m.enforced("", "", c.Health.Settings())
					} else {
						n, err := newObservedHost(f, c, m, func() []collectors.Sample { return nil })
						fixture.Must(t, err)
						h, monitor = n.host, n.judgement.monitor
					}
					ctx, end := context.WithCancel(t.Context())
					var running errgroup.Group
					for _, run := range []task{h.Run, m.options.Processes.Run, monitor.Run} {
						running.Go(func() error { return run(ctx) })
					}
					hosttest.Advance(2 * time.Minute)
					for index, want := range map[string]bool{"1": blamed, "0": false} {
						uuid := hosttest.Told(h, collectors.Up, "gpu", index)["uuid"]
						fixture.Equal(t, monitor.Hardware(uuid, 2*time.Minute), want, "GPU %s is to blame", index)
					}
					end()
					hosttest.Advance(time.Minute) // a call that hangs returns
					fixture.Must(t, running.Wait())
				})
			})
		}
	}
}
