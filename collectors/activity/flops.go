package activity

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// GPMFlops estimates from the activity of the pipes what the GPU computes.
var GPMFlops = collectors.Gauge("nvgpu_gpm_flops",
	"Estimate of the floating-point operations per second in the window: the activity of each pipe, times what the "+
		"pipe can do at the SM clock of this moment. All operations of the tensor cores count as dense FP16 or BF16: "+
		"TF32 is half of the estimate, FP8 twice. Other pipes count as if they did nothing but multiply and add.")

// peaks are the operations that an SM does per cycle of full activity of a pipe,
// by compute capability; a multiplication with an addition is two. They follow
// from the dense peaks, the numbers of SMs and the boost clocks in NVIDIA's
// "H100 Tensor Core GPU Architecture" (H100 SXM: 989.4 TFLOP/s of FP16 by 132 SMs
// at 1.83 GHz), and in the data sheet of HGX B200 (2250 TFLOP/s by 148 SMs). Older
// GPUs have no GPM. Hopper's tensor pipe counts as active for 11 to 12 % longer than
// its dense FP16 and BF16 products take, at any clock (TestGPUFlops): its peak is
// less by that. Nobody has measured Blackwell's.
var peaks = map[string]map[string]float64{
	"9.0":  {"tensor_hmma": 4096 / 1.115, "tensor_dfma": 256, "fp64": 128, "fp32": 256, "fp16": 512},
	"10.0": {"tensor_hmma": 8192, "tensor_dfma": 128, "fp64": 128, "fp32": 256, "fp16": 512},
}

// coresOfSM is the number of CUDA cores of an SM of those GPUs.
const coresOfSM = 128

// A flopMeter estimates the operations of one GPU. Its peaks are empty if they
// are not known.
type flopMeter struct {
	peaks map[string]float64
	sms   float64
}

func newFlopMeter(g *gpu.Device) (m flopMeter) {
	major, minor, ret := g.GetCudaComputeCapability()
	cores, cret := g.GetNumGpuCores()
	if ret == nvml.SUCCESS && cret == nvml.SUCCESS {
		m = flopMeter{peaks[gpu.Int(major, ret)+"."+gpu.Int(minor, ret)], float64(cores) / coresOfSM}
	}
	return m
}

// flops returns the operations per second at a clock, by the pipes' activity.
func (m flopMeter) flops(hertz float64, activity map[string]float64) (sum float64) {
	for pipe, peak := range m.peaks {
		sum += activity[pipe] * peak * m.sms * hertz
	}
	return sum
}

// put puts the estimate, if the GPU's peaks are known.
func (m flopMeter) put(g *gpu.Device, out *collectors.Readings, activity map[string]float64) {
	if m.peaks == nil {
		return
	}
	mhz, ret := g.GetClockInfo(nvml.CLOCK_SM)
	out.Put(GPMFlops, m.flops(float64(mhz)*1e6, activity), gpu.Absent(ret))
}
