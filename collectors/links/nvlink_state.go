package links

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// State of the NVLinks. With link="all", up is the number of links that are up,
// and speed is their sum.
var (
	NVLinkUp = collectors.Gauge("nvgpu_nvlink_up",
		"Whether the NVLink is up; for link=\"all\" the number of links that are up.", "link")
	NVLinkSpeed = collectors.Gauge("nvgpu_nvlink_speed_bytes_per_second",
		"Speed of the NVLinks that are up, per direction.", "link")
	NVLinkInfo = collectors.Gauge("nvgpu_nvlink_info",
		"Remote end of each NVLink, always 1.", "link", "version", "remote_type", "remote_pci_bus_id")
)

var remoteTypes = map[nvml.IntNvLinkDeviceType]string{
	nvml.NVLINK_DEVICE_TYPE_GPU: "gpu", nvml.NVLINK_DEVICE_TYPE_IBMNPU: "ibmnpu",
	nvml.NVLINK_DEVICE_TYPE_SWITCH: "switch", nvml.NVLINK_DEVICE_TYPE_UNKNOWN: "unknown",
}

var _ = collectors.Register(collectors.Collector{
	Name:    "nvlink_state",
	Doc:     "NVLinks that are up, their speed, and with per-link series their remote ends.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{NVLinkUp, NVLinkSpeed, NVLinkInfo},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		present, up, ret := links(g)
		if ret != nvml.SUCCESS {
			out.Put(NVLinkUp, 0, ret)
			return
		}
		speeds := make([]nvml.FieldValue, present)
		for link := range speeds {
			speeds[link] = nvml.FieldValue{FieldId: nvml.FI_DEV_NVLINK_GET_SPEED, ScopeId: uint32(link)}
		}
		g.Fields(speeds)
		isUp := make([]bool, present)
		sum := 0.0
		for _, link := range up {
			isUp[link] = true
			megabytes, ret := gpu.FieldNumber(speeds[link])
			if sum += megabytes * 1e6; out.Config.PerLink {
				out.Put(NVLinkSpeed, megabytes*1e6, gpu.Absent(ret), strconv.Itoa(link))
			}
		}
		if !out.Config.PerLink {
			out.Set(NVLinkUp, float64(len(up)), allLinks)
			out.Set(NVLinkSpeed, sum, allLinks)
			return
		}
		for link, up := range isUp {
			name := strconv.Itoa(link)
			out.Set(NVLinkUp, collectors.Bool(up), name)
			if up {
				remote, ret := g.GetNvLinkRemoteDeviceType(link)
				pci, pret := g.GetNvLinkRemotePciInfo(link)
				version, vret := g.GetNvLinkVersion(link)
				out.Set(NVLinkInfo, 1, name, gpu.Int(int(version), vret), gpu.Text(gpu.Known(remoteTypes, remote), ret),
					gpu.Text(gpu.String(pci.BusId[:]), pret))
			}
		}
	},
})

// NVLinkRate returns the speed of a GPU's NVLinks that are up, in bytes per second
// and direction; 0 if it has none. NVLinkRate makes no driver call.
func NVLinkRate(h *collectors.Host, uuid string) (sum float64) {
	if all, known := h.Reading(uuid, NVLinkSpeed, allLinks); known {
		return all
	}
	if _, has := h.Reading(uuid, NVLinkUp, "0"); !has {
		return 0
	}
	for link := range nvml.NVLINK_MAX_LINKS {
		speed, _ := h.Reading(uuid, NVLinkSpeed, strconv.Itoa(link))
		sum += speed
	}
	return sum
}
