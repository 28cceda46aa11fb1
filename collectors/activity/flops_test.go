package activity_test

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/activity"
	"gpusteward/collectors/device"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestFlopsFollowTensorCores compares the estimate of GPUs under load with what an
// H200 did: 787.35 TFLOP/s of products of zeros at 1755 MHz, when the estimate by
// the peak in NVIDIA's white paper was 884.26. It expects none of a GPU without GPM.
func TestFlopsFollowTensorCores(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100, load: full}, {model: a100, load: full}]\n", collectors.DefaultConfig(),
		func(t *testing.T, h *collectors.Host) {
			hosttest.Advance(12 * time.Second)
			uuid := func(index string) string { return hosttest.Told(h, collectors.Up, "gpu", index)["uuid"] }
			flops, _ := h.Reading(uuid("0"), activity.GPMFlops)
			tensor, _ := h.Reading(uuid("0"), activity.GPMActivity, "tensor_hmma")
			hertz, _ := h.Reading(uuid("0"), device.Clock, "sm")
			want := 989.4e12 * tensor * hertz / 1.83e9 * 787.35 / 884.26
			fixture.If(t, want < 1e14 || flops < 0.99*want || flops > 1.1*want || math.IsNaN(flops),
				"%.4g FLOP/s with tensor cores active for %.2f at %.4g Hz; want about %.4g", flops, tensor, hertz, want)
			v, known := h.Reading(uuid("1"), activity.GPMFlops)
			fixture.If(t, known, "an A100 has %g", v)
		})
}
