package sim

import (
	"encoding/binary"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/noise"
)

// field answers a field id: the value's type, and its value for a scope. Signed
// and floating-point values are passed as their bits.
type field struct {
	kind  nvml.ValueType
	value func(g *gpu, scope uint32) (uint64, nvml.Return)
}

// fields lists the field ids that some model supports.
var fields = func() (all [nvml.FI_MAX]field) {
	for _, add := range []func(*[nvml.FI_MAX]field){
		eccFields, powerFields, thermalFields, pcieFields, modeFields, linkFields, legacyLinkFields, link5Fields,
	} {
		add(&all)
	}
	return all
}()

const (
	asUint   = nvml.VALUE_TYPE_UNSIGNED_INT
	asUint64 = nvml.VALUE_TYPE_UNSIGNED_LONG_LONG
	asInt    = nvml.VALUE_TYPE_SIGNED_INT
	asDouble = nvml.VALUE_TYPE_DOUBLE
)

// GetFieldValues sets each value, or its own return code if it fails.
func (d *device) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	return d.ask("nvmlDeviceGetFieldValues", func(g *gpu) nvml.Return {
		now := g.host.now()
		due := g.strikes("reset_required", now)
		for i := range values {
			v := &values[i]
			v.Timestamp, v.LatencyUsec, v.Value = int64(g.host.stamp(now)), 1, [8]byte{}
			bits, kind, ret := g.field(v.FieldId, v.ScopeId)
			if due && v.FieldId != nvml.FI_DEV_GET_GPU_RECOVERY_ACTION {
				ret = nvml.ERROR_RESET_REQUIRED
			}
			v.ValueType, v.NvmlReturn = uint32(kind), uint32(ret)
			if ret == nvml.SUCCESS {
				put(v.Value[:], kind, bits)
			}
		}
		return nvml.SUCCESS
	})
}

// field returns the bits of a field's value.
func (g *gpu) field(id, scope uint32) (bits uint64, kind nvml.ValueType, ret nvml.Return) {
	if id == 0 || id >= nvml.FI_MAX {
		return 0, 0, nvml.ERROR_INVALID_ARGUMENT
	}
	f := &fields[id]
	if f.value == nil {
		return 0, 0, nvml.ERROR_NOT_SUPPORTED
	}
	bits, ret = f.value(g, scope)
	if id == nvml.FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT && len(g.nvlink.links) == 0 {
		return bits, asDouble, ret // as recorded: the driver leaves the type unset
	}
	return bits, f.kind, ret
}

// put writes bits in the layout of NVML's union.
func put(to []byte, kind nvml.ValueType, bits uint64) {
	switch kind {
	case asUint, asInt:
		binary.LittleEndian.PutUint32(to, uint32(bits))
	default:
		binary.LittleEndian.PutUint64(to, bits)
	}
}

// plain is a field without scope that every model has.
func plain(kind nvml.ValueType, value func(*gpu) uint64) field {
	return field{kind, func(g *gpu, _ uint32) (uint64, nvml.Return) { return value(g), nvml.SUCCESS }}
}

// needs is a field without scope that requires a feature of the model.
func needs(feature string, kind nvml.ValueType, value func(*gpu) uint64) field {
	return field{kind, func(g *gpu, _ uint32) (uint64, nvml.Return) {
		if !g.model.Has(feature) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return value(g), nvml.SUCCESS
	}}
}

// zero is a field that is 0.
func zero() field { return plain(asUint, func(*gpu) uint64 { return 0 }) }

// modeFields are the fields of modes and of recovery.
func modeFields(all *[nvml.FI_MAX]field) {
	mig := func(g *gpu) uint64 { return uint64(flag(g.model.Has("mig"))) }
	all[nvml.FI_DEV_IS_RESETLESS_MIG_SUPPORTED] = plain(asUint, mig)
	all[nvml.FI_DEV_IS_MIG_MODE_INDEPENDENT_MIG_QUERY_CAPABLE] = plain(asUint, mig)
	all[nvml.FI_DEV_RESET_STATUS] = plain(asUint, func(g *gpu) uint64 {
		return uint64(flag(g.action == uint32(nvml.GPU_RECOVERY_ACTION_GPU_RESET)))
	})
	all[nvml.FI_DEV_DRAIN_AND_RESET_STATUS] = plain(asUint, func(g *gpu) uint64 {
		return uint64(flag(g.action == uint32(nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET)))
	})
	all[nvml.FI_DEV_GET_GPU_RECOVERY_ACTION] = plain(asUint, func(g *gpu) uint64 { return uint64(g.action) })
	all[nvml.FI_DEV_C2C_LINK_COUNT] = needs("nvlink5", asUint,
		func(g *gpu) uint64 { return c2cLinks * uint64(flag(g.model.Has("c2c"))) })
	for id, v := range map[int]uint64{nvml.FI_DEV_C2C_LINK_GET_STATUS: 1, nvml.FI_DEV_C2C_LINK_GET_MAX_BW: 44_712,
		nvml.FI_DEV_C2C_LINK_ERROR_INTR: 0, nvml.FI_DEV_C2C_LINK_ERROR_REPLAY: 0,
		nvml.FI_DEV_C2C_LINK_ERROR_REPLAY_B2B: 0, nvml.FI_DEV_C2C_LINK_POWER_STATE: 0} {
		all[id] = needs("c2c", asUint, func(*gpu) uint64 { return v })
	}
}

// c2cLinks is the number of links between a GPU and its half of a Grace CPU.
const c2cLinks = 5

// pcieFields are the fields of the PCIe link.
func pcieFields(all *[nvml.FI_MAX]field) {
	all[nvml.FI_DEV_PCIE_REPLAY_COUNTER] = plain(asUint, func(g *gpu) uint64 { return uint64(uint32(g.pcie.errors)) })
	all[nvml.FI_DEV_PCIE_REPLAY_ROLLOVER_COUNTER] = zero()
	all[nvml.FI_DEV_PCIE_L0_TO_RECOVERY_COUNTER] = plain(asUint,
		func(g *gpu) uint64 { return 10 + noise.Hash(g.seed, 5)%150 })
	for id := nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS; id <= nvml.FI_DEV_PCIE_COUNT_LANE_ERROR; id++ {
		all[id] = zero()
	}
	for _, id := range []int{
		nvml.FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, nvml.FI_DEV_PCIE_COUNT_NAKS_RECEIVED,
		nvml.FI_DEV_PCIE_COUNT_RECEIVER_ERROR,
		nvml.FI_DEV_PCIE_COUNT_BAD_TLP, nvml.FI_DEV_PCIE_COUNT_NAKS_SENT, nvml.FI_DEV_PCIE_COUNT_LCRC_ERROR,
	} {
		all[id] = all[nvml.FI_DEV_PCIE_REPLAY_COUNTER]
	}
	// The driver's byte counters have 32 bits and wrap.
	const mebi = 1 << 20
	all[nvml.FI_DEV_PCIE_COUNT_TX_BYTES] = plain(asUint,
		func(g *gpu) uint64 { return uint64(uint32(uint64(g.total.pcieTx * mebi))) })
	all[nvml.FI_DEV_PCIE_COUNT_RX_BYTES] = plain(asUint,
		func(g *gpu) uint64 { return uint64(uint32(uint64(g.total.pcieRx * mebi))) })
	all[nvml.FI_DEV_PCIE_OUTBOUND_ATOMICS_MASK] = zero()
	all[nvml.FI_DEV_PCIE_INBOUND_ATOMICS_MASK] = zero()
}

// thermalFields are the fields of temperatures and their limits.
func thermalFields(all *[nvml.FI_MAX]field) {
	all[nvml.FI_DEV_MEMORY_TEMP] = field{asUint, func(g *gpu, _ uint32) (uint64, nvml.Return) {
		if g.model.Temperature.MemoryIdle == 0 {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return uint64(degrees(g.memory)), nvml.SUCCESS
	}}
	below := func(limit func(*models.Temperature) float64) field {
		return needs("tlimit", asInt, func(g *gpu) uint64 {
			t := &g.model.Temperature
			return uint64(uint32(int32(math.Round(t.GPUMax - limit(t)))))
		})
	}
	all[nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT] = below(func(t *models.Temperature) float64 { return t.Shutdown })
	all[nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT] = below(func(t *models.Temperature) float64 { return t.Slowdown })
	all[nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT] = below(func(t *models.Temperature) float64 { return t.GPUMax })
	all[nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT] = below(func(t *models.Temperature) float64 { return t.GPUMax })
}
