package hosttest

import (
	"testing"
	"testing/fstest"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// PCIDevice returns the labels of a simulated GPU on the PCI bus after gpu and
// uuid, followed by more.
func PCIDevice(index string, more ...string) []string {
	address := map[string]string{"0": "0000:1b:00.0", "1": "0000:43:00.0"}[index]
	return append([]string{address, "gpu"}, more...)
}

// A Reading runs one collector of the kernel's files, pass by pass.
type Reading struct {
	Read  func(out *collectors.Readings)
	Known []gpu.ID
	Now   map[string]float64 // results of the last pass, by series
	Out   *collectors.Readings
}

// Pass runs the collector once.
func (r *Reading) Pass() {
	r.Out = &collectors.Readings{Config: new(collectors.Config), Known: func() []gpu.ID { return r.Known }}
	r.Read(r.Out)
	r.Now = Series(r.Out.Samples)
}

// Has checks a series of the last pass.
func (r *Reading) Has(t *testing.T, name string, value float64) {
	t.Helper()
	if v, ok := r.Now[name]; !ok || v != value {
		t.Errorf("%s = %v (present: %v), want %v", name, v, ok, value)
	}
}

// HasNo checks that the last pass put no such series.
func (r *Reading) HasNo(t *testing.T, name string) {
	t.Helper()
	if v, ok := r.Now[name]; ok {
		t.Errorf("%s = %v, want no such series", name, v)
	}
}

// ReadKernel returns a reading of the collector c, with the kernel's files.
func ReadKernel(c string, files fstest.MapFS) *Reading {
	for _, all := range collectors.All() {
		if all.Name == c {
			return &Reading{Read: all.Kernel(host.Kernel{Sys: files, Proc: files})}
		}
	}
	return nil
}
