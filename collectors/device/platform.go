package device

import (
	"encoding/hex"
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// PlatformInfo is the location of the GPU in its chassis, on boards that know
// it.
var PlatformInfo = collectors.Gauge("nvgpu_platform_info", "Location of the GPU in its chassis, always 1.",
	"chassis_serial", "slot", "tray", "host_id", "peer_type", "gpu_fabric_guid")

var _ = collectors.Register(collectors.Collector{
	Name:    "platform",
	Doc:     "Location of the GPU in its chassis, on platforms that report it.",
	Tier:    collectors.Static,
	Metrics: []*collectors.Metric{PlatformInfo},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		p, ret := g.GetPlatformInfo()
		if p.IbGuid == [16]uint8{} && p.ChassisSerialNumber == [16]uint8{} && gpu.Err("", ret) == nil {
			return // the platform does not report it
		}
		n := func(v uint8) string { return strconv.Itoa(int(v)) }
		out.Put(PlatformInfo, 1, ret, gpu.String(p.ChassisSerialNumber[:]), n(p.SlotNumber), n(p.TrayIndex),
			n(p.HostId),
			gpu.Known(peerTypes, uint32(p.PeerType)), hex.EncodeToString(p.IbGuid[:]))
	},
})

var peerTypes = map[uint32]string{0: "direct", 1: "switch"}
