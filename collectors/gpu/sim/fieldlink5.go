package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// cleanBER is the bit error rate of a link without errors, 15e-254, as NVML
// packs it: the exponent in bits 0 to 7, the mantissa from bit 8.
const cleanBER = 15<<nvml.NVLINK_BER_MANTISSA_SHIFT | 254

// packetBytes is the mean size of an NVLink packet.
const packetBytes = 144

// link5Fields are the counters of NVLink 5.
func link5Fields(all *[nvml.FI_MAX]field) {
	set := func(id int, value func(*gpu, *link) uint64) { all[id] = only("nvlink5", true, perLink(value)) }
	set(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, func(_ *gpu, l *link) uint64 { return uint64(l.tx * 1024) })
	set(nvml.FI_DEV_NVLINK_COUNT_XMIT_PACKETS,
		func(_ *gpu, l *link) uint64 { return uint64(l.tx * 1024 / packetBytes) })
	set(nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, func(_ *gpu, l *link) uint64 { return uint64(l.rx * 1024) })
	set(nvml.FI_DEV_NVLINK_COUNT_RCV_PACKETS, func(_ *gpu, l *link) uint64 { return uint64(l.rx * 1024 / packetBytes) })
	flit := func(_ *gpu, l *link) uint64 { return l.errors[nvml.NVLINK_ERROR_DL_CRC_FLIT] }
	data := func(_ *gpu, l *link) uint64 { return l.errors[nvml.NVLINK_ERROR_DL_CRC_DATA] }
	none := func(*gpu, *link) uint64 { return 0 }
	for _, id := range []int{
		nvml.FI_DEV_NVLINK_COUNT_VL15_DROPPED, nvml.FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
		nvml.FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS, nvml.FI_DEV_NVLINK_COUNT_RCV_REMOTE_ERRORS,
		nvml.FI_DEV_NVLINK_COUNT_RCV_GENERAL_ERRORS, nvml.FI_DEV_NVLINK_COUNT_XMIT_DISCARDS,
		nvml.FI_DEV_NVLINK_COUNT_RAW_ERRORS_LANE0, nvml.FI_DEV_NVLINK_COUNT_RAW_ERRORS_LANE1,
	} {
		set(id, none)
	}
	set(nvml.FI_DEV_NVLINK_COUNT_RCV_ERRORS, flit)
	set(nvml.FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS, func(_ *gpu, l *link) uint64 { return l.recovery.failed })
	set(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_SUCCESSFUL_EVENTS, func(_ *gpu, l *link) uint64 { return l.recovery.ok })
	set(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, func(_ *gpu, l *link) uint64 { return l.recovery.failed })
	set(nvml.FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS,
		func(_ *gpu, l *link) uint64 { return l.recovery.ok + l.recovery.failed })
	set(nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, flit)
	set(nvml.FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, data)
	ber5(all)
	set(nvml.FI_DEV_NVLINK_PLR_XMIT_BLOCKS, func(_ *gpu, l *link) uint64 { return uint64(l.tx * 4) })
	set(nvml.FI_DEV_NVLINK_PLR_XMIT_RETRY_BLOCKS,
		func(_ *gpu, l *link) uint64 { return l.errors[nvml.NVLINK_ERROR_DL_REPLAY] })
	for bin := range 16 {
		set(nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0+bin,
			func(_ *gpu, l *link) uint64 { return uint64(l.rx) * 2 >> min(5*bin, 63) })
	}
}

// ber5 sets the bit error rates; a faulty link has 3e-9.
func ber5(all *[nvml.FI_MAX]field) {
	ber := only("nvlink5", true, field{asUint64, func(g *gpu, scope uint32) (uint64, nvml.Return) {
		if int64(scope) >= int64(len(g.nvlink.links)) {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		if l := &g.nvlink.links[scope]; l.rate > 0 || !l.up {
			return 3<<nvml.NVLINK_BER_MANTISSA_SHIFT | 9, nvml.SUCCESS
		}
		return cleanBER, nvml.SUCCESS
	}})
	for _, id := range []int{
		nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER, nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER,
		nvml.FI_DEV_NVLINK_COUNT_RAW_BER_LANE0_V2, nvml.FI_DEV_NVLINK_COUNT_RAW_BER_LANE1_V2,
		nvml.FI_DEV_NVLINK_COUNT_RAW_BER_V2,
	} {
		all[id] = ber
	}
}
