package broker

import (
	"fmt"
	"maps"
	"slices"

	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/internal/wire"
)

// kernelsOfSecond is the number of kernels in a second of the GPU's time.
const kernelsOfSecond = 2400

// trace notes what the processes with a session did in a step of the
// simulation, as a hook does.
func (g *GPU) trace() {
	for p := range g.options.Processes {
		if p.books == nil || p.books == nobody || !p.hooked || p.Share == 0 || g.work.Weight == 0 {
			continue
		}
		if p.trace == nil {
			p.trace = g.newTrace(p)
		}
		part := g.work.Busy * p.Share / g.work.Weight * dt
		t := p.trace
		t.Busy += part
		if g.trains(p) && !g.options.Training.trace(t, g.steps) {
			continue
		}
		t.launched += kernelsOfSecond * part
		t.Launches, t.Waits, t.Graphs = uint64(t.launched), uint64(t.launched/60), uint64(t.launched/40)
		t.CopiedBytes += uint64(g.work.PCIe * part)
		t.Copies = uint64(t.launched / 100)
	}
}

// A trace is what a process did so far.
type trace struct {
	wire.JobStats
	launched float64

	wall   float64   // seconds of the present step
	past   float64   // of them that have passed
	cause  string    // why the step is slow
	extra  float64   // seconds that the cause takes
	recent []float64 // seconds of the last steps
}

// newTrace returns the trace of a process that begins.
func (g *GPU) newTrace(p *Process) *trace {
	t := &trace{JobStats: wire.JobStats{Tenant: p.books.Name, Workload: p.Workload, GPU: g.options.UUID, PID: p.PID,
		Seconds: wire.Exponential{Buckets: map[int]uint64{}}}}
	if !g.trains(p) {
		return t
	}
	j := g.options.Training
	t.Parts, t.Slow = map[string]float64{}, map[string]uint64{"storage": 0}
	if j.Ranks > 1 {
		id := fmt.Sprintf("%016x", noise.Hash(j.Seed, uint64(j.Job.ID)))
		t.Communicators = []wire.CommunicatorStats{{ID: id, Rank: j.Rank, Ranks: j.Ranks}}
	}
	j.beginStep(t, g.steps)
	return t
}

// jobs adds what the processes with a session do.
func (g *GPU) jobs(e *wire.EnforcerStats) {
	for p := range g.options.Processes {
		if p.trace == nil || !p.hooked {
			continue
		}
		j := p.trace.JobStats
		j.Parts, j.Slow, j.Seconds.Buckets = maps.Clone(j.Parts), maps.Clone(j.Slow), maps.Clone(j.Seconds.Buckets)
		j.Communicators = slices.Clone(j.Communicators)
		if g.trains(p) {
			j.Slowdown = g.options.Training.slowdown()
			g.trouble(p, e)
		} else { // it serves clients
			e.Unread = append(e.Unread, wire.UnreadStats{Tenant: j.Tenant, Workload: j.Workload, GPU: j.GPU})
		}
		e.Jobs = append(e.Jobs, j)
		for name, part := range kernelsOf {
			e.Kernels = addKernel(e.Kernels, wire.KernelStats{Tenant: j.Tenant, Workload: j.Workload, GPU: j.GPU, Kernel: name,
				Seconds: part * j.Busy})
		}
	}
}

// kernelsOf are parts of each program's time on the GPU.
var kernelsOf = map[string]float64{
	"ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn":          0.46,
	"flash::flash_fwd_kernel<Flash_fwd_kernel_traits, 128, 64>":            0.21,
	"at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add, float>": 0.14,
	"triton_poi_fused_add_gelu_3":                                          0.08,
	"at::native::reduce_kernel<512, 1, ReduceOp, float, MeanOps>":          0.04,
}

// addKernel adds what another process of a workload has of a kernel.
func addKernel(all []wire.KernelStats, k wire.KernelStats) []wire.KernelStats {
	for i, o := range all {
		if o.Tenant == k.Tenant && o.Workload == k.Workload && o.GPU == k.GPU && o.Kernel == k.Kernel {
			all[i].Seconds += k.Seconds
			return all
		}
	}
	return append(all, k)
}
