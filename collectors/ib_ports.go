package collectors

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/host"
)

// The ports of RDMA adapters, through which GPUs of several hosts work
// together.
var (
	IBPortUp     = HostGauge("nvgpu_ib_port_up", "Whether the RDMA port carries traffic; only of ports that have done so.", "device")
	IBPortDowned = HostCounter("nvgpu_ib_port_link_downed_total", "Times that the link of the RDMA port went down, as the adapter counts them.", "device")
)

var _ = Register(Collector{
	Name:    "ib_ports",
	Doc:     "Ports of RDMA adapters (InfiniBand, RoCE) that are in use: up now, or down after they were up.",
	Tier:    Medium,
	Metrics: []*Metric{IBPortUp, IBPortDowned},
	Kernel: func(k host.Kernel) func(out *Readings) {
		used := map[string]bool{} // a port that never was up is no fault when it is down
		return func(out *Readings) {
			ports, err := k.IBPorts()
			if ret := ofKernel(err); ret != nvml.SUCCESS && (len(used) == 0 || ret != nvml.ERROR_NOT_SUPPORTED) {
				out.Put(IBPortUp, 0, ret)
				return
			}
			up := map[string]bool{}
			for _, p := range ports {
				if (p.Up || p.Downed > 0) && len(used) < maxPorts {
					used[p.Name] = true
				}
				up[p.Name] = p.Up
				if used[p.Name] && p.Counts {
					out.Set(IBPortDowned, float64(p.Downed), p.Name)
				}
			}
			for name := range used {
				out.Set(IBPortUp, Bool(up[name]), name) // one whose adapter has gone is down
			}
		}
	},
})

// maxPorts bounds the ports that are shown; a host has some twenty.
const maxPorts = 256
