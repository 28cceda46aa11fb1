package agent

import (
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/hosttest"
	"gpusteward/enforcer/jobs"
	"gpusteward/internal/fixture"
)

func TestObserverIsOwnerOfDirectory(t *testing.T) {
	t.Parallel()
	f := flags{runtimeDir: t.TempDir()}
	me := uint32(os.Getuid())
	fixture.Equal(t, f.isObserver(me), false, "there is an observer without a directory")
	fixture.Must(t, os.Mkdir(filepath.Join(f.runtimeDir, "agent"), 0o755))
	if !f.isObserver(me) || f.isObserver(me+1) {
		t.Errorf("uid %d is not the observer, or another is", me)
	}
	other := flags{runtimeDir: t.TempDir()}
	fixture.Must(t, os.Symlink(filepath.Join(f.runtimeDir, "agent"), filepath.Join(other.runtimeDir, "agent")))
	if os.Getuid() == 0 {
		fixture.Must(t, os.Lchown(filepath.Join(other.runtimeDir, "agent"), 1, 1))
		fixture.Equal(t, other.isObserver(me), false, "a link is followed")
	}
}

// TestRatesOfAGPU checks both rates of a GPU, and that those of a MIG device
// and of a missing GPU are unknown.
func TestRatesOfAGPU(t *testing.T) {
	const source = "gpus: [{model: h100}, {load: inference, mig: [1g.10gb]}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		e := enforcedHost{Host: h}
		link, memory, ok := e.Rates(hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"])
		if !ok || math.Abs(link/63e9-1) > .01 || math.Abs(memory/3.352e12-1) > .01 {
			t.Errorf("%.4g and %.4g bytes a second (known: %v), want about 63e9 and 3.352e12", link, memory, ok)
		}
		for _, uuid := range []string{hosttest.Told(h, device.MIGInfo, "gpu", "1")["mig_uuid"], "GPU-none"} {
			if link, memory, ok := e.Rates(uuid); ok {
				t.Errorf("%q: %v and %v bytes a second, want neither", uuid, link, memory)
			}
		}
	})
}

// TestEvidenceOfAGPU compares what is known of clocks and links.
func TestEvidenceOfAGPU(t *testing.T) {
	const source = "gpus: [{model: h100, load: full}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		known := evidence(h, hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"])
		if known.Clock < 0.5 || known.Clock > 1 || math.Abs(known.PCIe/63e9-1) > .01 || known.NVLink < 4e11 ||
			!known.Power || known.Thermal {
			t.Errorf("%+v; want a clock held by the power limit, and the speed of the links", known)
		}
		fixture.Equal(t, evidence(h, "GPU-none"), jobs.Evidence{}, "of a missing GPU")
	})
}
