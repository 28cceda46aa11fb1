package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/gpu/sim/stub"
)

// device is a handle of a simulated GPU, valid for one session of the host.
type device struct {
	stub.Device
	gpu     *gpu
	session int
}

var _ nvml.Device = (*device)(nil)

// ask makes a call on the GPU: it waits while the GPU is wedged, fails as the
// active faults require, and otherwise answers with the current state.
func (d *device) ask(call string, answer func(*gpu) nvml.Return) nvml.Return {
	g := d.gpu
	now, ret := g.admit(d.session, call)
	if ret != nvml.SUCCESS {
		return ret
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.advance(now)
	return answer(g)
}

// read is ask for a call that returns one value.
func read[T any](d *device, call string, answer func(*gpu) (T, nvml.Return)) (T, nvml.Return) {
	var v T
	ret := d.ask(call, func(g *gpu) (ret nvml.Return) {
		v, ret = answer(g)
		return ret
	})
	return v, ret
}

// fixed is read for a value that every GPU of the model has.
func fixed[T any](d *device, call string, value func(*models.Model) T) (T, nvml.Return) {
	return read(d, call, func(g *gpu) (T, nvml.Return) { return value(g.model), nvml.SUCCESS })
}

// featured is read for a value that needs a feature of the model.
func featured[T any](d *device, call, feature string, value func(*gpu) T) (T, nvml.Return) {
	return read(d, call, func(g *gpu) (v T, ret nvml.Return) {
		if !g.model.Has(feature) {
			return v, nvml.ERROR_NOT_SUPPORTED
		}
		return value(g), nvml.SUCCESS
	})
}

// handle is the call that finds a GPU.
const handle = "nvmlDeviceGetHandleByIndex"

// identity lists the calls that a GPU answers even when it needs a reset.
// nvmlDeviceGetFieldValues answers for the recovery action only.
var identity = []string{
	"nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetIndex", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSerial",
	"nvmlDeviceGetPciInfo", "nvmlDeviceGetFieldValues", handle,
}

// admit returns the time of the answer to a call on the GPU, or the reason that
// there is none.
func (g *gpu) admit(session int, call string) (time.Duration, nvml.Return) {
	if slices.Contains(g.host.scenario.MissingSymbols, call) {
		panic(fmt.Sprintf("%s called, which this driver lacks: a real one would have ended the process", call))
	}
	return g.host.admit(func(t time.Duration) (time.Duration, nvml.Return) { return g.verdict(session, call, t) })
}

// verdict returns the fate of a call at t: the end of its blocking, or its
// return code.
func (g *gpu) verdict(session int, call string, t time.Duration) (until time.Duration, ret nvml.Return) {
	open, ret := g.host.check(t)
	switch {
	case ret != nvml.SUCCESS:
		return 0, ret
	case open != session:
		return 0, nvml.ERROR_UNINITIALIZED
	case g.absent(t):
		return 0, nvml.ERROR_GPU_IS_LOST
	}
	return strike(g.faults, call, t)
}

// strike returns the effect of faults on a call at t: the end of its blocking,
// or its return code.
func strike(faults []scenarios.Fault, call string, t time.Duration) (until time.Duration, ret nvml.Return) {
	for i := range faults {
		f := &faults[i]
		_, to, active := f.Window(t)
		if !active || f.Call != "" && f.Call != call {
			continue
		}
		r := effects[f.Kind].device
		switch {
		case f.Kind == "wedge" && (f.Call != "" || call != handle):
			until = max(until, to)
		case f.Kind == "error":
			r = f.NVMLReturn()
		case f.Kind == "reset_required" && slices.Contains(identity, call):
			r = nvml.SUCCESS
		}
		if ret == nvml.SUCCESS || r == nvml.ERROR_GPU_IS_LOST {
			ret = r
		}
	}
	return until, ret
}
