package host

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"gpusteward/internal/fixture"
)

func TestNodes(t *testing.T) {
	t.Parallel()
	proc := t.TempDir()
	for address, information := range map[string]string{
		"0000:06:00.0": "Model: \t\t NVIDIA H100\nDevice Minor: \t 0\nGPU Excluded:\t No\n",
		"0000:9b:00.0": "Device Minor: \t 3\n",
		"0000:9c:00.0": "Device Minor: \t 4\nGPU Excluded:\t Yes\n",
		"0000:9d:00.0": "",
	} {
		dir := filepath.Join(proc, "driver/nvidia/gpus", address)
		fixture.Must(t, errors.Join(os.MkdirAll(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "information"), []byte(information), 0o644)))
	}
	sys := fstest.MapFS{"module/nvidia/version": {Data: []byte("580.159.04\n")}}
	for name, c := range map[string]struct {
		nodes []string
		want  []string // nil: no error
	}{
		"all": {[]string{"nvidiactl", "nvidia0", "nvidia3"}, nil},
		"none": {nil, []string{"nvidiactl, ", "/nvidia0, ", "/nvidia3 missing",
			"nvidia-modprobe -c 255 -c 0 -c 3 as root", "--gpus all"}},
		"no control": {[]string{"nvidia0", "nvidia3"},
			[]string{"/nvidiactl missing", "nvidia-modprobe -c 255 as root"}},
		"one GPU": {[]string{"nvidiactl", "nvidia0"}, []string{"/nvidia3 missing", "nvidia-modprobe -c 3 as root"}},
	} {
		dev := t.TempDir()
		for _, node := range c.nodes {
			fixture.Must(t, os.WriteFile(filepath.Join(dev, node), nil, 0o666))
		}
		err := Kernel{Proc: os.DirFS(proc), Sys: sys, Dev: dev}.Nodes()
		fixture.Equal(t, err == nil, c.want == nil, "%s: %v", name, err)
		for _, want := range c.want {
			fixture.Contains(t, err.Error(), want, "%s: the error", name)
		}
		fixture.Must(t, (Kernel{Proc: fstest.MapFS{}, Sys: fstest.MapFS{}, Dev: dev}).Nodes())
		fixture.Must(t, (Kernel{Proc: os.DirFS(proc), Sys: sys}).Nodes())
	}
}
