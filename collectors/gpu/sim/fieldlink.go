package sim

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// allLinks is the scope that sums a field over the links.
const allLinks = 0xFFFFFFFF

// perLink is a field whose scope is a link, or the sum of all.
func perLink(value func(*gpu, *link) uint64) field {
	return field{asUint64, func(g *gpu, scope uint32) (sum uint64, ret nvml.Return) {
		switch links := g.nvlink.links; {
		case len(links) == 0:
			return 0, nvml.ERROR_NOT_SUPPORTED
		case scope == allLinks:
			for i := range links {
				sum += value(g, &links[i])
			}
			return sum, nvml.SUCCESS
		case int64(scope) >= int64(len(links)):
			return 0, nvml.ERROR_INVALID_ARGUMENT
		default:
			return value(g, &links[scope]), nvml.SUCCESS
		}
	}}
}

// only limits a field to models with, or without, a feature.
func only(feature string, has bool, f field) field {
	return field{f.kind, func(g *gpu, scope uint32) (uint64, nvml.Return) {
		if g.model.Has(feature) != has {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return f.value(g, scope)
	}}
}

// fact is a link field with the same value for all scopes.
func fact(value func(*gpu) uint64) field {
	return field{asUint, func(g *gpu, _ uint32) (uint64, nvml.Return) {
		if len(g.nvlink.links) == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return value(g), nvml.SUCCESS
	}}
}

// rawPart is the ratio of a link's raw traffic to its data.
const rawPart = 1.06

// linkFields are the NVLink fields of generations up to 4, some also of 5.
func linkFields(all *[nvml.FI_MAX]field) {
	old := func(value func(*gpu, *link) uint64) field { return only("nvlink5", false, perLink(value)) }
	all[nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX] = old(func(_ *gpu, l *link) uint64 { return uint64(l.tx) })
	all[nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX] = old(func(_ *gpu, l *link) uint64 { return uint64(l.rx) })
	all[nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX] = old(func(_ *gpu, l *link) uint64 { return 21 + uint64(l.tx*rawPart) })
	all[nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_RX] = old(func(_ *gpu, l *link) uint64 { return 136 + uint64(l.rx*rawPart) })
	all[nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY] = old(func(_ *gpu, l *link) uint64 {
		return l.errors[nvml.NVLINK_ERROR_DL_REPLAY]
	})
	all[nvml.FI_DEV_NVLINK_ERROR_DL_RECOVERY] = old(func(_ *gpu, l *link) uint64 {
		return l.errors[nvml.NVLINK_ERROR_DL_RECOVERY]
	})
	all[nvml.FI_DEV_NVLINK_ERROR_DL_CRC] = old(func(_ *gpu, l *link) uint64 {
		return l.errors[nvml.NVLINK_ERROR_DL_CRC_FLIT]
	})
	state := perLink(func(_ *gpu, l *link) uint64 { return uint64(flag(l.up)) })
	state.kind = asUint
	all[nvml.FI_DEV_NVLINK_GET_STATE] = state
	all[nvml.FI_DEV_NVLINK_LINK_COUNT] = fact(func(g *gpu) uint64 { return uint64(len(g.nvlink.links)) })
	all[nvml.FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT] = field{asUint, func(g *gpu, _ uint32) (uint64, nvml.Return) {
		return uint64(g.nvlink.up), nvml.SUCCESS
	}}
	all[nvml.FI_DEV_NVLINK_REMOTE_NVLINK_ID] = zeroFact
	speed := perLink(func(g *gpu, l *link) uint64 { return uint64(g.model.NVLink.Speed) * uint64(flag(l.up)) })
	speed.kind = asUint
	all[nvml.FI_DEV_NVLINK_GET_SPEED] = field{asUint, func(g *gpu, scope uint32) (uint64, nvml.Return) {
		if scope == allLinks {
			scope = 0
		}
		return speed.value(g, scope)
	}}
	all[nvml.FI_DEV_NVLINK_GET_VERSION] = fact(func(g *gpu) uint64 { return uint64(g.model.NVLink.Version) })
	all[nvml.FI_DEV_NVLINK_GET_POWER_STATE] = fact(func(*gpu) uint64 { return 1 })
	all[nvml.FI_DEV_NVLINK_GET_POWER_THRESHOLD] = fact(func(*gpu) uint64 { return 500 })
	all[nvml.FI_DEV_NVLINK_GET_POWER_THRESHOLD_MAX] = fact(func(*gpu) uint64 { return 8191 })
	all[nvml.FI_DEV_NVLINK_GET_POWER_THRESHOLD_MIN] = fact(func(*gpu) uint64 { return 1 })
	all[nvml.FI_DEV_NVLINK_GET_POWER_THRESHOLD_UNITS] = zeroFact
	all[nvml.FI_DEV_NVLINK_GET_POWER_THRESHOLD_SUPPORTED] = fact(func(*gpu) uint64 { return 2 })
}

var zeroFact = fact(func(*gpu) uint64 { return 0 })

// legacyLinkFields are Ampere's error fields, one for each link up to 11 and
// one for the sum.
func legacyLinkFields(all *[nvml.FI_MAX]field) {
	for kind, ids := range map[nvml.NvLinkErrorCounter]struct{ first, total, seventh int }{
		nvml.NVLINK_ERROR_DL_CRC_FLIT: {nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L0,
			nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L6},
		nvml.NVLINK_ERROR_DL_CRC_DATA: {nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L0,
			nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_L6},
		nvml.NVLINK_ERROR_DL_REPLAY: {nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L0,
			nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_REPLAY_ERROR_COUNT_L6},
		nvml.NVLINK_ERROR_DL_RECOVERY: {nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L0,
			nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_L6},
		nvml.NVLINK_ERROR_DL_ECC_DATA: {nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L0,
			nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_TOTAL, nvml.FI_DEV_NVLINK_ECC_DATA_ERROR_COUNT_L6},
	} {
		counter := perLink(func(_ *gpu, l *link) uint64 { return l.errors[kind] })
		at := func(scope uint32) field {
			return only("legacy_nvlink", true,
				field{asUint64, func(g *gpu, _ uint32) (uint64, nvml.Return) { return counter.value(g, scope) }})
		}
		for i := range 6 {
			all[ids.first+i] = at(uint32(i))
			all[ids.seventh+i] = at(uint32(6 + i))
		}
		all[ids.total] = at(allLinks)
	}
}
