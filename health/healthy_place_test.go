package health

import "fmt"

// place gives the host other work.
func (h *healthyHost) place() {
	h.jobs, h.tenants, h.era = nil, nil, h.n+8*stepsHour+h.r.IntN(64*stepsHour)
	r := h.r.Float64()
	switch {
	case h.mig:
		h.style = "mig"
		h.slices()
	case r < 0.3 && h.model.has("nvswitch"):
		h.style = "training"
		h.trains(h.gpus...)
	case r < 0.45 && h.model.has("nvswitch"):
		h.style = "half"
		h.trains(h.gpus[:4]...)
		if h.r.Float64() < 0.5 {
			h.apart(h.gpus[4:])
		}
	case r < 0.65:
		h.style = "serving"
		each := []int{1, 2, 4, 8}[h.r.IntN(4)]
		for i := 0; i < 8; i += each {
			h.serves(h.gpus[i : i+each]...)
		}
	case r < 0.85:
		h.style = "mixed"
		h.apart(h.gpus)
	default:
		h.style = "notebooks"
		for _, g := range h.gpus {
			h.job(notebook, "user", g)
		}
	}
}

func (h *healthyHost) trains(gpus ...*healthyGPU) {
	j := h.job(train, "slurm", gpus...)
	j.share, j.meeting = 0.5+0.35*h.r.Float64(), 1+h.r.IntN(24)
	tensor := 0.3 + 0.5*h.r.Float64()
	j.alike = demand{busy: 0.93 + 0.07*h.r.Float64(), sm: 0.85, tensor: tensor, dram: 0.2 + 0.2*h.r.Float64(),
		nvlink: 1e11 * h.r.Float64(), rx: 2e8}
	for i := range j.bias { // they wait for each other, so they are alike
		j.bias[i] = 1 + 0.004*h.r.NormFloat64()
	}
	j.start(h, h.r.IntN(60), 3+h.r.IntN(60))
}

func (h *healthyHost) serves(gpus ...*healthyGPU) {
	j := h.job(serve, "pod", gpus...)
	j.share = 0.88 + 0.05*h.r.Float64()
	j.alike = demand{sm: 0.8, tensor: 0.1 + 0.3*h.r.Float64(), dram: 0.4 + 0.3*h.r.Float64()}
	if len(gpus) > 1 {
		j.alike.nvlink = 3e10
	}
	j.start(h, h.r.IntN(60), 3+h.r.IntN(66))
}

// apart gives each GPU work of its own, or none.
func (h *healthyHost) apart(gpus []*healthyGPU) {
	for _, g := range gpus {
		switch h.r.IntN(5) {
		case 0:
			h.serves(g)
		case 1:
			h.job(notebook, "user", g)
			h.job(notebook, "user", g)
		case 2, 3:
			h.job(batch, "slurm", g)
		}
	}
}

// slices adds the workloads of MIG instances.
func (h *healthyHost) slices() {
	for _, g := range h.gpus {
		for gi := range 4 {
			first := len(h.jobs)
			switch h.r.IntN(4) {
			case 0:
				h.serves(g)
			case 1:
				h.job(notebook, "user", g)
			case 2:
				h.job(batch, "slurm", g)
			}
			for _, j := range h.jobs[first:] {
				j.gi, j.part = fmt.Sprint(gi+1), 0.25
			}
		}
	}
}
