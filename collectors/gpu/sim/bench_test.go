package sim

import (
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/scenarios"
)

// BenchmarkHour simulates one hour of one GPU.
func BenchmarkHour(b *testing.B) {
	for _, name := range []string{"sixteen", "h100", "idle"} {
		b.Run(name, func(b *testing.B) {
			g := gpuOf(b, begin(b, embedded(b, name), Options{}), 0).gpu
			at := time.Hour
			for b.Loop() {
				g.mu.Lock()
				g.advance(at)
				g.mu.Unlock()
				at += time.Hour
			}
		})
	}
}

// BenchmarkFieldValues makes one call for 60 fields of one GPU out of 16.
func BenchmarkFieldValues(b *testing.B) {
	h := begin(b, embedded(b, "sixteen"), Options{})
	devices := make([]*device, scenarios.MaxGPUs)
	for i := range devices {
		devices[i] = gpuOf(b, h, i)
	}
	values := make([]nvml.FieldValue, 60)
	for i := range values {
		values[i].FieldId = uint32(i + 137)
	}
	i := 0
	for b.Loop() {
		if ret := devices[i%scenarios.MaxGPUs].GetFieldValues(values); ret != nvml.SUCCESS {
			b.Fatal(ret)
		}
		i++
	}
}

// BenchmarkNew creates a host of 16 GPUs.
func BenchmarkNew(b *testing.B) {
	s := embedded(b, "sixteen")
	for b.Loop() {
		if _, err := New(s, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
