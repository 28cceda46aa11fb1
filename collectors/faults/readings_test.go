package faults

import (
	"slices"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestErrorsHaveTheirNames holds which answer of the driver is shown by which labels.
func TestErrorsHaveTheirNames(t *testing.T) {
	t.Parallel()
	d := hosttest.Mock()
	d.GetTotalEccErrorsFunc = func(e nvml.MemoryErrorType, scope nvml.EccCounterType) (uint64, nvml.Return) {
		return map[nvml.MemoryErrorType]uint64{nvml.MEMORY_ERROR_TYPE_CORRECTED: 10, nvml.MEMORY_ERROR_TYPE_UNCORRECTED: 20}[e] +
			map[nvml.EccCounterType]uint64{nvml.VOLATILE_ECC: 1, nvml.AGGREGATE_ECC: 2}[scope], nvml.SUCCESS
	}
	d.GetMemoryErrorCounterFunc = func(_ nvml.MemoryErrorType, _ nvml.EccCounterType, of nvml.MemoryLocation) (uint64, nvml.Return) {
		if of == nvml.MEMORY_LOCATION_SRAM {
			return 7, nvml.SUCCESS
		}
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetRowRemapperHistogramFunc = func() (nvml.RowRemapperHistogramValues, nvml.Return) {
		return nvml.RowRemapperHistogramValues{Max: 1, High: 2, Partial: 3, Low: 4, None: 5}, nvml.SUCCESS
	}
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			values[i].Value[0] = byte(1 + slices.Index([]uint32{nvml.FI_DEV_REMAPPED_COR, nvml.FI_DEV_REMAPPED_UNC,
				nvml.FI_DEV_REMAPPED_PENDING, nvml.FI_DEV_REMAPPED_FAILURE}, values[i].FieldId))
		}
		return nvml.SUCCESS
	}
	d.GetRetiredPagesFunc = func(cause nvml.PageRetirementCause) ([]uint64, nvml.Return) {
		return make([]uint64, 1+int(cause)), nvml.SUCCESS // after multiple single-bit errors 0, after a double one 1
	}
	d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	d.GetRepairStatusFunc = func() (nvml.RepairStatus, nvml.Return) {
		return nvml.RepairStatus{BTpcRepairPending: 1}, nvml.SUCCESS
	}
	d.GetUnrepairableMemoryFlag_v1Func = func() (nvml.UnrepairableMemoryStatus_v1, nvml.Return) {
		return nvml.UnrepairableMemoryStatus_v1{BUnrepairableMemory: 1}, nvml.SUCCESS
	}
	d.ValidateInforomFunc = func() nvml.Return { return nvml.ERROR_CORRUPTED_INFOROM }
	for c, want := range map[string][]string{
		"ecc": {`nvgpu_ecc_errors_by_location_total{location="sram",scope="aggregate",severity="corrected"} 7`,
			`nvgpu_ecc_errors_by_location_total{location="sram",scope="aggregate",severity="uncorrected"} 7`,
			`nvgpu_ecc_errors_by_location_total{location="sram",scope="volatile",severity="corrected"} 7`,
			`nvgpu_ecc_errors_by_location_total{location="sram",scope="volatile",severity="uncorrected"} 7`,
			`nvgpu_ecc_errors_total{scope="aggregate",severity="corrected"} 12`,
			`nvgpu_ecc_errors_total{scope="aggregate",severity="uncorrected"} 22`,
			`nvgpu_ecc_errors_total{scope="volatile",severity="corrected"} 11`,
			`nvgpu_ecc_errors_total{scope="volatile",severity="uncorrected"} 21`},
		"row_remap": {`nvgpu_remapped_rows{cause="correctable",state="active"} 1`,
			`nvgpu_remapped_rows{cause="correctable",state="inactive"} 0`,
			`nvgpu_remapped_rows{cause="uncorrectable",state="active"} 2`,
			`nvgpu_remapped_rows{cause="uncorrectable",state="inactive"} 0`,
			`nvgpu_row_remap_banks{availability="high"} 2`, `nvgpu_row_remap_banks{availability="low"} 4`,
			`nvgpu_row_remap_banks{availability="max"} 1`, `nvgpu_row_remap_banks{availability="none"} 5`,
			`nvgpu_row_remap_banks{availability="partial"} 3`, `nvgpu_row_remap_failure{} 4`, `nvgpu_row_remap_pending{} 3`},
		"retired_pages": {`nvgpu_retired_pages_pending{} 1`, `nvgpu_retired_pages{cause="double_bit"} 2`,
			`nvgpu_retired_pages{cause="single_bit"} 1`},
		"repair": {`nvgpu_memory_repair_pending{kind="channel"} 0`, `nvgpu_memory_repair_pending{kind="tpc"} 1`,
			`nvgpu_memory_unrepairable{} 1`},
		"inforom_valid": {`nvgpu_inforom_valid{} 0`},
	} {
		fixture.EqualSlices(t, hosttest.ReadDevice(t, c, d), want, "%s", c)
	}
}
