package collectors_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestGoldenSources compares with a table which answer of the driver each series has, and in which unit: the driver
// answers each question with a number of its own.
func TestGoldenSources(t *testing.T) {
	out := new(strings.Builder)
	out.WriteString("series\tanswer\tunit\n")
	n, d := hosttest.Numbered()
	d.GetNumFansFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_ENABLED, []nvml.Return{0, nvml.ERROR_NOT_SUPPORTED, 0, nvml.ERROR_INVALID_ARGUMENT}[min(link, 3)]
	}
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, 0, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS }
	d.GetGpuInstanceByIdFunc = func(int) (nvml.GpuInstance, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	d.GetSupportedClocksEventReasonsFunc = func() (uint64, nvml.Return) { return ^uint64(nvml.ClocksEventReasonGpuIdle), nvml.SUCCESS }
	d.GetCurrentClocksEventReasonsFunc = func() (uint64, nvml.Return) {
		return nvml.ClocksThrottleReasonHwPowerBrakeSlowdown | nvml.ClocksEventReasonSwThermalSlowdown, nvml.SUCCESS
	}
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			number := n.Of(fmt.Sprint("field ", values[i].FieldId, " of ", values[i].ScopeId))
			if values[i].FieldId == nvml.FI_DEV_C2C_LINK_COUNT {
				number = 1
			}
			values[i].ValueType = uint32(nvml.VALUE_TYPE_UNSIGNED_INT)
			values[i].Value[0], values[i].Value[1] = byte(number), byte(number>>8)
		}
		return nvml.SUCCESS
	}
	for _, c := range collectors.All() {
		if c.Read == nil {
			continue
		}
		shown := hosttest.ReadDevice(t, c.Name, d)
		for _, series := range slices.Sorted(maps.Keys(shown)) {
			fmt.Fprintf(out, "%s\t%s\n", series, n.Name(shown[series]))
		}
	}
	fixture.Golden(t, "testdata/sources.tsv", out.String())
}
