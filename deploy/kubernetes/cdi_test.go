package kubernetes

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// TestCDI checks with the CDI library of container runtimes that gpusteward install writes a
// valid device.
func TestCDI(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	library := filepath.Join(dir, "lib")
	install := exec.Command(agent, "install", "--cdi="+dir, "--runtime.dir=/run/gpusteward", library)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dir))
	must(t, err)
	container := &specs.Spec{Process: &specs.Process{Env: []string{"LD_PRELOAD=/its/own.so", "PATH=/bin"}}}
	if unknown, err := cache.InjectDevices(container, "gpusteward.dev/hook=hook"); err != nil || len(unknown) > 0 {
		t.Fatalf("%v, unknown: %v, %v", err, unknown, cache.GetErrors())
	}
	if env := container.Process.Env; !slices.Contains(env, "LD_PRELOAD="+filepath.Join(library, "libgpusteward.so")) ||
		slices.Contains(env, "LD_PRELOAD=/its/own.so") || !slices.Contains(env, "PATH=/bin") {
		t.Errorf("environment %q", env)
	}
	var mounted []string
	for _, m := range container.Mounts {
		if m.Source != m.Destination || !slices.Contains(m.Options, "ro") {
			t.Errorf("%+v", m)
		}
		mounted = append(mounted, m.Source)
	}
	slices.Sort(mounted)
	want := []string{library, "/run/gpusteward/broker"}
	slices.Sort(want)
	if !slices.Equal(mounted, want) {
		t.Errorf("mounted: %q, want %q", mounted, want)
	}
}
