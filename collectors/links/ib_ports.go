package links

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
)

// Ports of the RDMA adapters that connect GPUs of several hosts.
var (
	IBPortUp = collectors.HostGauge("nvgpu_ib_port_up",
		"Whether the RDMA port carries traffic; only for ports that have been up.", "device")
	IBPortDowned = collectors.HostCounter("nvgpu_ib_port_link_downed_total",
		"Times the link of the RDMA port went down, as counted by the adapter.", "device")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "ib_ports",
	Doc:     "Ports of RDMA adapters (InfiniBand, RoCE) in use: up now, or down after being up.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{IBPortUp, IBPortDowned},
	Kernel: func(k host.Kernel) func(out *collectors.Readings) {
		used := map[string]bool{} // a port that was never up is not faulty
		return func(out *collectors.Readings) {
			ports, err := k.IBPorts()
			if ret := collectors.OfKernel(err); ret != nvml.SUCCESS && (len(used) == 0 || ret != nvml.ERROR_NOT_SUPPORTED) {
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
				out.Set(IBPortUp, collectors.Bool(up[name]), name) // a port without its adapter is down
			}
		}
	},
})

// maxPorts bounds the ports shown; a host has some twenty.
const maxPorts = 256
