package sim

import "gpusteward/collectors/gpu/sim/scenarios"

// activity is the GPU's activity during a step: ratios of time, and MiB per
// second for traffic.
type activity struct {
	busy, mem          float64 // NVML's GPU and memory utilization
	gpm                gpm
	enc, dec, jpg, ofa float64
}

// load is a kind of work: its activity in a step and its processes.
type load struct {
	shape func(*gpu) activity
	procs []resident
}

// resident is a permanent process: its name, its part of the GPU's memory and
// its owner.
type resident struct {
	name  string
	part  float64 // of the memory, 0 to 1
	share float64 // weight of its part of the work
	owner scenarios.Owner
}

// loads lists the loads that a scenario can name.
var loads = map[string]load{
	// Nothing.
	"idle": {shape: idle},
	// A steady bf16 matmul, as recorded.
	"full": {full, []resident{{"python3", 0.013855, 1, service}}},
	// Steps of about a second with allreduce, and checkpoints.
	"training": {training, []resident{{"python3", 0.82, 1, job}}},
	// Bursts of requests.
	"inference": {inference,
		[]resident{{"VLLM::EngineCore", 0.86, 0.95, server}, {"tritonserver", 0.03, 0.05, triton}}},
	// Memory in use, and an occasional cell.
	"notebook": {notebook, []resident{{"ipykernel_launcher", 0.14, 0.7, alice},
		{"ipykernel_launcher", 0.06, 0.3, bob}}},
	// Short processes that come and go.
	"churn": {shape: churn},
}

func idle(g *gpu) activity {
	return activity{gpm: gpm{pcieTx: 2.1 + 0.2*g.noise(1), pcieRx: 1.8 + 0.2*g.noise(2)}}
}

// compute is work at an intensity: busy is the ratio of time with a kernel;
// tensor and dram are the activity of the kernels while they run.
func (g *gpu) compute(busy, tensor, dram float64) activity {
	busy = min(max(busy, 0), 1)
	a := activity{busy: busy, mem: min(1, busy*dram*1.33)}
	a.gpm = gpm{
		graphics: busy * 0.994, sm: busy * 0.958, occupancy: busy * 0.1416,
		integer: busy * 0.0135, tensor: busy * tensor, hmma: busy * tensor, dram: busy * dram,
		fp32: busy * 0.02 * (1 - tensor), pcieTx: 2.1 + busy*4.3, pcieRx: 1.8 + busy*14.4,
	}
	return a
}

func full(g *gpu) activity {
	return g.compute(0.99+0.01*g.noise(1), 0.93+0.004*g.noise(2), 0.2584+0.003*g.noise(3))
}

// training has steps of 1.2 s with a dip for the optimizer, and a checkpoint of
// 12 s every 4 minutes. The GPUs of a job have the same phase. In a hang they
// wait for one that does nothing.
func training(g *gpu) activity {
	if hang, _ := g.troubled("job_hang"); hang != nil {
		if hang.GPU == g.index {
			return idle(g)
		}
		return g.compute(1, 0, 0.01)
	}
	n := g.phase()
	if g.saves() {
		a := g.compute(0.02, 0, 0.1)
		a.gpm.pcieTx += 5200 + 200*g.noise(4)
		return a
	}
	if n%trainStep < 2 {
		a := g.compute(0.62+0.06*g.noise(1), 0.05, 0.45)
		g.exchange(&a, 0.42)
		return a
	}
	a := g.compute(0.985+0.012*g.noise(1), 0.56+0.02*g.noise(2), 0.34+0.02*g.noise(3))
	g.exchange(&a, 0.11)
	a.gpm.pcieRx += 150
	return a
}

// exchange adds traffic between GPUs, as a part of the links' capacity.
func (g *gpu) exchange(a *activity, part float64) {
	if len(g.nvlink.links) == 0 || len(g.host.scenario.GPUs) == 0 {
		a.gpm.pcieTx += 9000 * part
		a.gpm.pcieRx += 9000 * part
		return
	}
	rate := part * g.nvlink.capacity() * (1 + 0.03*g.noise(5))
	a.gpm.nvTx, a.gpm.nvRx = rate, rate*(1+0.002*g.noise(6))
}

func inference(g *gpu) activity {
	demand := 0.15 + 0.75*g.slow(1, 300)*(0.4+0.6*g.cell(2, 7))
	a := g.compute(demand, 0.22, 0.55+0.05*g.noise(3))
	a.gpm.pcieTx += 60 * demand
	a.gpm.pcieRx += 90 * demand
	if g.model.Decoders > 0 {
		a.dec = 0.12 * demand
		a.gpm.dec = a.dec
	}
	if g.model.Encoders > 0 {
		a.enc = 0.08 * demand
	}
	return a
}

func notebook(g *gpu) activity {
	if g.cell(1, 400) > 0.18 || g.cell(2, 40) > 0.7 {
		return idle(g)
	}
	return g.compute(0.55+0.3*g.noise(3), 0.12, 0.3)
}

func churn(g *gpu) activity {
	if g.weight == 0 {
		return idle(g)
	}
	return g.compute(g.weight*(1+0.05*g.noise(1)), 0.3, 0.3)
}
