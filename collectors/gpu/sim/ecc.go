package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// ecc counts memory errors: [corrected, uncorrected][dram, sram].
type ecc struct {
	mode                uint32
	volatile, aggregate [2][2]uint64
	addresses           uint32 // of uncorrected SRAM errors; each fault has a new one
}

const (
	corrected, uncorrected = 0, 1
	dram, sram             = 0, 1
)

// storm is the number of simultaneous corrected errors that the driver calls a
// storm.
const storm = 1000

// sramThreshold is the number of uncorrected SRAM errors that mark a GPU for
// replacement.
const sramThreshold = 4

// rows is the state of the row remapper.
type rows struct {
	banks            uint32
	remapped         [2]uint32 // by severity
	inactive         [2]uint32 // by severity, waiting for a reset
	pending, failure bool
	low, none        uint32 // banks with few spare rows, and with none
}

// spare sets how many banks have few spare rows, or none.
func (r *rows) spare(value string, banks uint32) {
	if value == "none" {
		r.none = banks
		return
	}
	r.low = banks
}

func (g *gpu) raiseECC(f *scenarios.Fault) {
	severity, location := corrected, dram
	if f.Severity == "uncorrected" {
		severity = uncorrected
	}
	if f.Location == "sram" {
		location = sram
	}
	g.ecc.volatile[severity][location] += f.Count
	g.ecc.aggregate[severity][location] += f.Count
	switch {
	case severity == uncorrected:
		g.ecc.addresses += flag(location == sram)
		g.emit(nvml.EventTypeDoubleBitEccError, 0, noInstance, noInstance)
		g.xid(94, nil, nil)
	case f.Count >= storm:
		g.emit(nvml.EventTypeSingleBitEccErrorStorm, 0, noInstance, noInstance)
	default:
		g.emit(nvml.EventTypeSingleBitEccError, 0, noInstance, noInstance)
	}
}

func (g *gpu) remapRows(f *scenarios.Fault) {
	severity := corrected
	if f.Severity == "uncorrected" {
		severity = uncorrected
	}
	if f.Failure {
		g.rows.failure = true
		g.emit(nvml.EventTypeDramRetirementFailure, 0, noInstance, noInstance)
		g.xid(64, nil, nil)
		return
	}
	g.emit(nvml.EventTypeDramRetirementEvent, 0, noInstance, noInstance)
	g.xid(63, nil, nil)
	if f.Pending {
		g.rows.pending = true
		g.rows.inactive[severity] += uint32(f.Count)
		return
	}
	g.rows.remapped[severity] += uint32(f.Count)
}

// remapDone is the reset that activates remapped rows.
func (g *gpu) remapDone(*scenarios.Fault) {
	for i, n := range g.rows.inactive {
		g.rows.remapped[i] += n
		g.rows.inactive[i] = 0
	}
	g.rows.pending, g.rows.failure = false, false
}

// histogram returns the number of banks by spare rows.
func (r *rows) histogram() nvml.RowRemapperHistogramValues {
	h := nvml.RowRemapperHistogramValues{Max: r.banks}
	move := func(to *uint32, n uint32) { n = min(n, h.Max); *to += n; h.Max -= n }
	move(&h.High, r.remapped[corrected])
	move(&h.Partial, r.remapped[uncorrected])
	move(&h.Low, r.low)
	move(&h.None, r.none+flag(r.failure))
	return h
}

// total returns the errors of a severity and counter.
func (e *ecc) total(severity int, counter nvml.EccCounterType) uint64 {
	by := e.volatile[severity]
	if counter == nvml.AGGREGATE_ECC {
		by = e.aggregate[severity]
	}
	return by[dram] + by[sram]
}

// GetEccMode returns on.
func (d *device) GetEccMode() (current, pending nvml.EnableState, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetEccMode", func(g *gpu) nvml.Return {
		current, pending = enabled(g.ecc.mode == 1), enabled(g.ecc.mode == 1)
		return nvml.SUCCESS
	})
	return current, pending, ret
}

// GetTotalEccErrors returns the errors of all memories.
func (d *device) GetTotalEccErrors(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
	return read(d, "nvmlDeviceGetTotalEccErrors", func(g *gpu) (uint64, nvml.Return) {
		if kind < 0 || kind > 1 || counter < 0 || counter > 1 {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return g.ecc.total(int(kind), counter), nvml.SUCCESS
	})
}

// GetMemoryErrorCounter returns the errors of DRAM or SRAM.
func (d *device) GetMemoryErrorCounter(kind nvml.MemoryErrorType, counter nvml.EccCounterType,
	location nvml.MemoryLocation) (uint64, nvml.Return) {
	return read(d, "nvmlDeviceGetMemoryErrorCounter", func(g *gpu) (uint64, nvml.Return) {
		if kind < 0 || kind > 1 || counter < 0 || counter > 1 || location < 0 ||
			location >= nvml.MEMORY_LOCATION_COUNT {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		by := g.ecc.volatile[kind]
		if counter == nvml.AGGREGATE_ECC {
			by = g.ecc.aggregate[kind]
		}
		switch location {
		case nvml.MEMORY_LOCATION_DRAM:
			return by[dram], nvml.SUCCESS
		case nvml.MEMORY_LOCATION_SRAM:
			return by[sram], nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	})
}

// GetSramEccErrorStatus returns SRAM errors; the uncorrected ones are SECDED
// errors of the SMs.
func (d *device) GetSramEccErrorStatus() (nvml.EccSramErrorStatus, nvml.Return) {
	return read(d, "nvmlDeviceGetSramEccErrorStatus", func(g *gpu) (nvml.EccSramErrorStatus, nvml.Return) {
		s := nvml.EccSramErrorStatus{
			AggregateUncSecDed: g.ecc.aggregate[uncorrected][sram], AggregateCor: g.ecc.aggregate[corrected][sram],
			VolatileUncSecDed: g.ecc.volatile[uncorrected][sram], VolatileCor: g.ecc.volatile[corrected][sram],
			AggregateUncBucketSm: g.ecc.aggregate[uncorrected][sram],
		}
		s.Version = nvml.STRUCT_VERSION(s, 1)
		if s.AggregateUncSecDed >= sramThreshold {
			s.BThresholdExceeded = 1
		}
		return s, nvml.SUCCESS
	})
}

// GetSramUniqueUncorrectedEccErrorCounts returns the number of addresses with
// errors, without the addresses.
func (d *device) GetSramUniqueUncorrectedEccErrorCounts(counts *nvml.EccSramUniqueUncorrectedErrorCounts) nvml.Return {
	return d.ask("nvmlDeviceGetSramUniqueUncorrectedEccErrorCounts", func(g *gpu) nvml.Return {
		capacity := counts.EntryCount
		if counts.EntryCount = g.ecc.addresses; capacity < counts.EntryCount {
			return nvml.ERROR_INSUFFICIENT_SIZE
		}
		return nvml.SUCCESS
	})
}

// GetRemappedRows returns active remaps and the flags.
func (d *device) GetRemappedRows() (correctable, uncorrectable int, pending, failure bool, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetRemappedRows", func(g *gpu) nvml.Return {
		r := &g.rows
		correctable, uncorrectable = int(r.remapped[corrected]), int(r.remapped[uncorrected])
		pending, failure = r.pending, r.failure
		return nvml.SUCCESS
	})
	return correctable, uncorrectable, pending, failure, ret
}

// GetRowRemapperHistogram returns the banks by spare rows.
func (d *device) GetRowRemapperHistogram() (nvml.RowRemapperHistogramValues, nvml.Return) {
	return featured(d, "nvmlDeviceGetRowRemapperHistogram", "histogram", func(g *gpu) nvml.RowRemapperHistogramValues {
		return g.rows.histogram()
	})
}

// flag converts a bool.
func flag(on bool) uint32 {
	if on {
		return 1
	}
	return 0
}
