package collectors

import (
	"testing"
	"testing/fstest"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// device returns the labels of a simulated GPU on the PCI bus after gpu and
// uuid, followed by more.
func device(index string, more ...string) []string {
	address := map[string]string{"0": "0000:1b:00.0", "1": "0000:43:00.0"}[index]
	return append([]string{address, "gpu"}, more...)
}

// A reading runs one collector of the kernel's files, pass by pass.
type reading struct {
	read  func(out *Readings)
	known []gpu.ID
	now   map[string]float64 // results of the last pass, by series
	out   *Readings
}

func (r *reading) pass() {
	r.out = &Readings{Config: new(Config), Known: func() []gpu.ID { return r.known }}
	r.read(r.out)
	r.now = series(r.out.Samples)
}

func (r *reading) has(t *testing.T, name string, value float64) {
	t.Helper()
	if v, ok := r.now[name]; !ok || v != value {
		t.Errorf("%s = %v (present: %v), want %v", name, v, ok, value)
	}
}

func (r *reading) hasNo(t *testing.T, name string) {
	t.Helper()
	if v, ok := r.now[name]; ok {
		t.Errorf("%s = %v, want no such series", name, v)
	}
}

// kernelOf returns a kernel with files, and a reading of c.
func kernelOf(c string, files fstest.MapFS) *reading {
	for _, all := range All() {
		if all.Name == c {
			return &reading{read: all.Kernel(host.Kernel{Sys: files, Proc: files})}
		}
	}
	return nil
}
