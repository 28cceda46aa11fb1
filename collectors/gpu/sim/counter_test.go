package sim

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

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
