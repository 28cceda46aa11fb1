package links

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// NVLink errors over the life of the link. Healthy links have some: watch the
// rate, not the count.
var (
	NVLinkErrors = collectors.Counter("nvgpu_nvlink_errors_total",
		"NVLink errors by type; one fault can raise several types.", "type", "link")
	NVLinkRecoveries = collectors.Counter("nvgpu_nvlink_recoveries_total",
		"Times an NVLink went from up to recovery, by result.", "result", "link")
)

// linkErrors is an NVLink 5 field, which exists only per link; summedErrors is
// a field of older links, which the driver sums.
func linkErrors(id uint32, name string) linkField {
	return linkField{collectors.NewField(id, 0, NVLinkErrors, 1, name), true, 0, 0}
}

func summedErrors(id uint32, name string) linkField {
	return linkField{collectors.NewField(id, 0, NVLinkErrors, 1, name), false, 0, 0}
}

var nvlinkErrorFields = []linkField{
	summedErrors(nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY, "replay"),
	summedErrors(nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY, "recovery"),
	summedErrors(nvml.FI_DEV_NVLINK_ERROR_DL_CRC, "crc"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_VL15_DROPPED, "vl15_dropped"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS, "malformed"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, "buffer_overrun"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, "rcv"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS, "rcv_remote"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, "rcv_general"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, "local_integrity"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS, "xmit_discard"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, "effective"),
	linkErrors(nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, "symbol"),
	{collectors.NewField(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, 0, NVLinkRecoveries, 1, "success"),
		true, 0, 0},
	{collectors.NewField(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, 0, NVLinkRecoveries, 1, "failed"),
		true, 0, 0},
}

// nvlinkErrorCounters are not fields. Each costs the driver 16 ms on eighteen
// links, and three times that if two GPUs are asked at once, so a pass reads
// one of them and repeats the last values of the others.
var nvlinkErrorCounters = []struct {
	name string
	id   nvml.NvLinkErrorCounter
}{
	{"crc_flit", nvml.NVLINK_ERROR_DL_CRC_FLIT}, {"crc_data", nvml.NVLINK_ERROR_DL_CRC_DATA},
	{"ecc_data", nvml.NVLINK_ERROR_DL_ECC_DATA},
}

var _ = collectors.Register(collectors.Collector{
	Name:    "nvlink_errors",
	Doc:     "NVLink errors; each pass reads one kind of CRC and ECC counters, at 1 ms a link.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{NVLinkErrors, NVLinkRecoveries},
	Open: func(g *gpu.Device) collectors.Read {
		fields := openLinks(nvlinkErrorFields)(g)
		last := map[linkKey]float64{}
		turn := -1
		return func(g *gpu.Device, out *collectors.Readings) {
			fields(g, out)
			present, _, _ := links(g)
			turn = (turn + 1) % len(nvlinkErrorCounters)
			for link := range present {
				if n, ret := g.GetNvLinkErrorCounter(link, nvlinkErrorCounters[turn].id); ret == nvml.SUCCESS {
					last[linkKey{turn, link}] = float64(n)
				}
			}
			for i, c := range nvlinkErrorCounters {
				sum, answered := 0.0, false
				for link := range present {
					v, ok := last[linkKey{i, link}]
					if sum += v; ok && out.Config.PerLink {
						out.Set(NVLinkErrors, v, c.name, strconv.Itoa(link))
					}
					answered = answered || ok
				}
				if answered && !out.Config.PerLink {
					out.Set(NVLinkErrors, sum, c.name, allLinks)
				}
			}
		}
	},
})
