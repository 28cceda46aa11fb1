package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// counters are the fields that only rise, for some links and their sum.
var counters = func() []nvml.FieldValue {
	ids := []uint32{3, 4, 5, 6, 74, 75, 76, 77, 78, 79, 80, 81, 83, 94, 95, 142, 143, 169, 191, 269, 270, 271}
	for id := uint32(173); id <= 183; id++ {
		ids = append(ids, id)
	}
	links := []uint32{138, 139, 140, 141, 161, 162, 163, 294, 295}
	for id := uint32(201); id <= 215; id++ {
		links = append(links, id)
	}
	links = append(links, 219, 221)
	for id := uint32(235); id <= 250; id++ {
		links = append(links, id)
	}
	var all []nvml.FieldValue
	for _, id := range ids {
		all = append(all, nvml.FieldValue{FieldId: id})
	}
	for _, id := range links {
		for _, link := range []uint32{0, 2, 4, 7, allLinks} {
			all = append(all, nvml.FieldValue{FieldId: id, ScopeId: link})
		}
	}
	return all
}()

// TestCountersRise replays an hour with faults.
func TestCountersRise(t *testing.T) {
	for _, name := range []string{"mixed", "models", "faults"} {
		bubble(t, func(t *testing.T) {
			s := embedded(t, name)
			kept := s.Faults[:0:0]
			for _, f := range s.Faults {
				switch f.Kind {
				case "driver_gone", "driver_unbound", "lost", "reset_required", "wedge", "hot_add", "hot_remove",
					"node_gone", "nodes_gone", "library_mismatch":
					// these faults reset counters or refuse calls
				default:
					kept = append(kept, f)
				}
			}
			s.Faults = kept
			h := begin(t, s, Options{Seed: 11})
			n := must[int](t)(h.DeviceGetCount())
			last := make([][]nvml.FieldValue, n)
			for range 120 {
				time.Sleep(30 * time.Second)
				for i := range n {
					now := append([]nvml.FieldValue(nil), counters...)
					check(t, gpuOf(t, h, i).GetFieldValues(now))
					for j, v := range now {
						if last[i] != nil && value(v) < value(last[i][j]) {
							t.Fatalf("%s GPU %d field %d scope %d fell from %d to %d", name, i, v.FieldId, v.ScopeId,
								value(last[i][j]), value(v))
						}
					}
					last[i] = now
				}
			}
		})
	}
}

func value(v nvml.FieldValue) uint64 { return binary.LittleEndian.Uint64(v.Value[:]) }

// TestEnergyIsPowerOverTime compares the energy with the sum of the power
// samples.
func TestEnergyIsPowerOverTime(t *testing.T) {
	for _, name := range []string{"mixed", "models"} {
		bubble(t, func(t *testing.T) {
			h := begin(t, embedded(t, name), Options{Seed: 5})
			for i := range must[int](t)(h.DeviceGetCount()) {
				d := gpuOf(t, h, i)
				_, samples, ret := d.GetSamples(nvml.TOTAL_POWER_SAMPLES, 0)
				check(t, ret)
				seen := samples[len(samples)-1].TimeStamp
				before := must[uint64](t)(d.GetTotalEnergyConsumption())
				sum := 0.0
				for range 30 {
					time.Sleep(10 * time.Second)
					_, samples, ret := d.GetSamples(nvml.TOTAL_POWER_SAMPLES, seen)
					check(t, ret)
					if len(samples) != 100 {
						t.Fatalf("%d new samples in 10 s, want 100", len(samples))
					}
					for _, s := range samples {
						sum += float64(binary.LittleEndian.Uint32(s.SampleValue[:])) * step.Seconds()
					}
					seen = samples[99].TimeStamp
				}
				after := must[uint64](t)(d.GetTotalEnergyConsumption())
				if used := float64(after - before); !near(used, sum, 3000*0.05+2) {
					t.Errorf("%s GPU %d: %v mJ used, the samples say %v", name, i, used, sum)
				}
			}
		})
	}
}

// TestSums checks totals and limits repeatedly.
func TestSums(t *testing.T) {
	for _, name := range scenarios.Names() {
		bubble(t, func(t *testing.T) {
			s := embedded(t, name)
			s.Faults = nil
			h := begin(t, s, Options{Seed: 6})
			for range 25 {
				time.Sleep(7200 * time.Millisecond)
				for i := range must[int](t)(h.DeviceGetCount()) {
					checkSums(t, gpuOf(t, h, i))
				}
			}
		})
	}
}

func checkSums(t *testing.T, d *device) {
	t.Helper()
	m := must[nvml.Memory_v2](t)(d.GetMemoryInfo_v2())
	if m.Used+m.Free+m.Reserved != m.Total || m.Free > m.Total {
		t.Errorf("memory is %+v", m)
	}
	v1 := must[nvml.Memory](t)(d.GetMemoryInfo())
	if v1.Used != m.Used+m.Reserved || v1.Free != m.Free || v1.Total != m.Total {
		t.Errorf("memory is %+v, in version 2 %+v", v1, m)
	}
	b := must[nvml.BAR1Memory](t)(d.GetBAR1MemoryInfo())
	if b.Bar1Used+b.Bar1Free != b.Bar1Total {
		t.Errorf("BAR1 is %+v", b)
	}
	used := uint64(0)
	for _, p := range must[[]nvml.ProcessInfo](t)(d.GetComputeRunningProcesses()) {
		if p.UsedGpuMemory != notAvailable {
			used += p.UsedGpuMemory
		}
	}
	if used > m.Used {
		t.Errorf("processes use %d of %d used bytes", used, m.Used)
	}
	checkUsage(t, d)
	limit := must[uint32](t)(d.GetEnforcedPowerLimit())
	if watts := must[uint32](t)(d.GetPowerUsage()); watts == 0 || float64(watts) > 1.04*float64(limit) {
		t.Errorf("power is %d of %d mW", watts, limit)
	}
	if celsius := must[uint32](t)(d.GetTemperature(nvml.TEMPERATURE_GPU)); celsius < 20 || celsius > 85 {
		t.Errorf("temperature is %d C", celsius)
	}
	clock, most := must[uint32](t)(d.GetClockInfo(nvml.CLOCK_SM)), must[uint32](t)(d.GetMaxClockInfo(nvml.CLOCK_SM))
	if clock == 0 || clock > most {
		t.Errorf("clock is %d of %d MHz", clock, most)
	}
}

// checkUsage compares utilization with its buffer.
func checkUsage(t *testing.T, d *device) {
	t.Helper()
	rates, ret := d.GetUtilizationRates()
	if len(d.gpu.spec.MIG) > 0 {
		want(t, "utilization under MIG", ret, nvml.ERROR_NOT_SUPPORTED)
		return
	}
	check(t, ret)
	if rates.Gpu > 100 || rates.Memory > 100 {
		t.Errorf("utilization is %+v", rates)
	}
	_, samples, ret := d.GetSamples(nvml.GPU_UTILIZATION_SAMPLES, 0)
	check(t, ret)
	sum, long := 0.0, 0.0
	for i, s := range samples {
		percent := binary.LittleEndian.Uint32(s.SampleValue[:])
		if percent > 100 {
			t.Errorf("a sample is %d %%", percent)
		}
		if i >= len(samples)-5 {
			sum += float64(percent)
		}
		if i >= len(samples)-60 { // 12 s
			long += float64(percent) / 60
		}
	}
	// The tests read at even steps, at which the buffer and the rates end
	// together.
	if mean := sum / 5; !near(mean, float64(rates.Gpu), 1.01) {
		t.Errorf("utilization is %d %%, the last samples' mean is %v", rates.Gpu, mean)
	}
	total := uint32(0)
	use, _ := d.GetProcessUtilization(0)
	for _, p := range use {
		total += p.SmUtil
	}
	if total > 100 || float64(total) > long+2 {
		t.Errorf("processes use %d %% of %v %%", total, long)
	}
}

// TestMetricsAreRatios bounds GPM, and compares its traffic with the links'.
func TestMetricsAreRatios(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, embedded(t, "sixteen"), Options{Seed: 8})
		for _, i := range []int{0, 9, 14} {
			d := gpuOf(t, h, i)
			for range 20 {
				before := fieldOf(t, d, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks)
				all := measure(t, h, d, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 30, 40, 50, 60, 61, 62, 63)
				for id, v := range all {
					if v < 0 || id < 20 && v > 100 {
						t.Errorf("metric %d is %v", id, v)
					}
				}
				kib := float64(fieldOf(t, d, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, allLinks) - before)
				if mib := all[61]; !near(kib/1024, mib, 0.001*mib+1) {
					t.Errorf("links carried %v MiB in a second, the metric says %v", kib/1024, mib)
				}
				if !near(all[61]/18, all[63], 0.01*all[63]+0.1) {
					t.Errorf("a link sends %v MiB/s of %v", all[63], all[61])
				}
			}
		}
	})
}
