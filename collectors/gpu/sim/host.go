package sim

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
)

// step is the length of a simulation step, in simulated time.
const step = scenarios.Step

// Options configure a simulated host.
type Options struct {
	Seed uint64 // equal seeds give equal hosts
}

// Host is a simulated host; it implements nvml.Interface. It is safe for
// concurrent use. Calls that it does not simulate panic.
type Host struct {
	nvml.Interface

	scenario scenarios.Scenario
	seed     uint64
	start    time.Time
	gpus     []*gpu
	hostwide []scenarios.Fault // faults of the whole host
	named    []scenarios.Fault // faults of a call on the host
	closed   chan struct{}
	close    sync.Once

	mu      sync.RWMutex
	refs    int // Inits minus Shutdowns
	session int // grows with every first Init; handles of older ones are invalid
	loads   int // number of driver unloads when the session began
}

var _ nvml.Interface = (*Host)(nil)

// New returns a host that runs s from now on. Its errors name the key of the
// scenario and the allowed values.
func New(s scenarios.Scenario, o Options) (*Host, error) {
	all, err := models.All()
	if err != nil {
		return nil, err
	}
	if s, err = s.Expand(); err != nil {
		return nil, fmt.Errorf("scenario %q: %w", s.Name, err)
	}
	h := &Host{scenario: s, seed: o.Seed, start: time.Now(), closed: make(chan struct{})}
	for _, f := range s.Faults {
		if f.HostWide() {
			h.hostwide = append(h.hostwide, f)
		}
		if f.HostCall() && f.Call != handle { // the call that finds one GPU
			h.named = append(h.named, f)
		}
	}
	for i, g := range s.GPUs {
		h.gpus = append(h.gpus, newGPU(h, i, g, all[g.Model]))
	}
	return h, nil
}

// Close releases the calls that a wedged GPU blocks. The host stays readable.
func (h *Host) Close() { h.close.Do(func() { close(h.closed) }) }

// now returns the simulated time since the start of the scenario.
func (h *Host) now() time.Duration { return time.Since(h.start) }

// stamp returns a simulated time as microseconds since the epoch.
func (h *Host) stamp(t time.Duration) uint64 { return uint64(h.start.UnixMicro() + t.Microseconds()) }

// present returns the GPUs that the driver lists at t.
func (h *Host) present(t time.Duration) []*gpu {
	return slices.DeleteFunc(slices.Clone(h.gpus), func(g *gpu) bool { return g.absent(t) })
}

// DeviceGetCount returns the number of GPUs present.
func (h *Host) DeviceGetCount() (int, nvml.Return) {
	now, _, ret := h.enter("nvmlDeviceGetCount")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return len(h.present(now)), nvml.SUCCESS
}

// DeviceGetHandleByIndex returns the handle of a GPU, valid for the session.
func (h *Host) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	now, session, ret := h.enter(handle)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	gpus := h.present(now)
	if index < 0 || index >= len(gpus) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	if _, ret = gpus[index].admit(session, handle); ret != nvml.SUCCESS {
		return nil, ret
	}
	return &device{gpu: gpus[index], session: session}, nvml.SUCCESS
}
