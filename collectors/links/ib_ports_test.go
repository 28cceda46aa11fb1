package links

import (
	"strings"
	"testing"
	"testing/fstest"

	"gpusteward/collectors/hosttest"
)

// ibPort sets the state and the counter of a port in files.
func ibPort(files fstest.MapFS, name, state, downed string) {
	adapter, number, _ := strings.Cut(name, "/")
	dir := "class/infiniband/" + adapter + "/ports/" + number
	files[dir+"/state"] = &fstest.MapFile{Data: []byte(state)}
	files[dir+"/counters/link_downed"] = &fstest.MapFile{Data: []byte(downed)}
	if downed == "" {
		delete(files, dir+"/counters/link_downed")
	}
}

func TestIBPortsInUse(t *testing.T) {
	files := fstest.MapFS{}
	p := hosttest.ReadKernel("ib_ports", files)
	p.Pass()
	if len(p.Now) != 0 || len(p.Out.Unsupported) != 1 {
		t.Errorf("without adapters: %v, unsupported %v", p.Now, p.Out.Unsupported)
	}
	ibPort(files, "mlx5_0/1", "4: ACTIVE\n", "1")
	ibPort(files, "mlx5_1/1", "1: DOWN\n", "0") // was never up
	ibPort(files, "mlx5_2/1", "1: DOWN\n", "3") // was up before the agent
	ibPort(files, "mlx5_3/1", "4: ACTIVE\n", "")
	p.Pass()
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_0/1"}`, 1)
	p.Has(t, `nvgpu_ib_port_link_downed_total{device="mlx5_0/1"}`, 1)
	p.HasNo(t, `nvgpu_ib_port_up{device="mlx5_1/1"}`)
	p.HasNo(t, `nvgpu_ib_port_link_downed_total{device="mlx5_1/1"}`)
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_2/1"}`, 0)
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_3/1"}`, 1)
	p.HasNo(t, `nvgpu_ib_port_link_downed_total{device="mlx5_3/1"}`)

	ibPort(files, "mlx5_0/1", "2: INIT\n", "2")
	ibPort(files, "mlx5_1/1", "4: ACTIVE\n", "0")
	p.Pass()
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_0/1"}`, 0)
	p.Has(t, `nvgpu_ib_port_link_downed_total{device="mlx5_0/1"}`, 2)
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_1/1"}`, 1)

	clear(files) // the adapters' module is unloaded
	p.Pass()
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_0/1"}`, 0)
	p.Has(t, `nvgpu_ib_port_up{device="mlx5_3/1"}`, 0)
}
