package links

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// twoLinks returns a GPU with two NVLinks on which only the fields in answers exist, and the list of requested fields.
func twoLinks(t *testing.T, answers map[uint32]uint32) (*gpu.Device, *[]uint32) {
	t.Helper()
	asked := new([]uint32)
	d := hosttest.Mock()
	d.GetNvLinkStateFunc = func(link int) (nvml.EnableState, nvml.Return) {
		if link > 1 {
			return 0, nvml.ERROR_INVALID_ARGUMENT
		}
		return nvml.FEATURE_ENABLED, nvml.SUCCESS
	}
	d.GetFieldValuesFunc = func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			v := &values[i]
			*asked = append(*asked, v.FieldId)
			n, ok := answers[v.FieldId]
			v.ValueType, v.Value[0] = uint32(nvml.VALUE_TYPE_UNSIGNED_INT), byte(n)
			if !ok || v.ScopeId == gpu.AllLinks {
				v.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED)
			}
		}
		return nvml.SUCCESS
	}
	return hosttest.Open(t, d), asked
}

// TestUnansweredLinkFieldsAreReadOnce: on an H200, asking eighteen links for the NVLink 5 fields took 200 ms.
func TestUnansweredLinkFieldsAreReadOnce(t *testing.T) {
	g, asked := twoLinks(t, map[uint32]uint32{nvml.FI_DEV_NVLINK_ERROR_DL_REPLAY: 3})
	read := openLinks(nvlinkErrorFields)(g)
	// The first pass asks for the driver's sums and finds none, the next for
	// each link, and the later ones only for the fields that a link answered.
	for pass, want := range []int{3 + 2*(len(nvlinkErrorFields)-3), 6, 2, 2} {
		*asked = nil
		out := &collectors.Readings{Config: &collectors.Config{}}
		read(g, out)
		fixture.Equal(t, len(*asked), want, "pass %d asked for … fields", pass)
		if pass > 0 && (len(out.Samples) != 1 || out.Samples[0].Value != 6 || out.Samples[0].Labels[1] != allLinks) {
			t.Errorf("pass %d: samples %v, want the sum 6", pass, out.Samples)
		}
	}
}

func TestNVLink5AnswersToItsOwnFields(t *testing.T) {
	g, _ := twoLinks(t, map[uint32]uint32{nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES: 7})
	read := openLinks(nvlinkTraffic)(g)
	read(g, &collectors.Readings{Config: &collectors.Config{}}) // finds that the older field has no answer
	out := &collectors.Readings{Config: &collectors.Config{}}
	read(g, out)
	fixture.If(t, len(out.Samples) != 1 || out.Samples[0].Value != 14, "samples %v, want 14 bytes out", out.Samples)
}

func TestErrorCountersTakeTurns(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h200}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		for i, c := range nvlinkErrorCounters {
			for k, other := range nvlinkErrorCounters {
				if _, ok := hosttest.Get(t, h, NVLinkErrors, "0", other.name, allLinks); ok != (k <= i) {
					t.Errorf("pass %d, when %s is read: %s present: %v", i, c.name, other.name, ok)
				}
			}
			hosttest.Advance(60 * time.Second)
		}
	})
}

func TestPerLinkSeriesAddUpToTheSum(t *testing.T) {
	totals := map[bool]float64{}
	for _, perLink := range []bool{false, true} {
		c := collectors.DefaultConfig()
		c.PerLink = perLink
		hosttest.In(t, "gpus: [{model: h100, load: training}]\n", c, func(t *testing.T, h *collectors.Host) {
			hosttest.Advance(30 * time.Second)
			for _, s := range h.Samples() {
				if s.Metric == NVLinkBytes && s.Labels[2] == "tx" && s.Labels[3] == "raw" {
					totals[perLink] += s.Value
					if (s.Labels[4] == allLinks) == perLink {
						t.Errorf("per link %v shows link %q", perLink, s.Labels[4])
					}
				}
			}
		})
	}
	if totals[false] == 0 || math.Abs(totals[true]/totals[false]-1) > .001 {
		t.Errorf("sum %v, over links %v", totals[false], totals[true])
	}
}

func TestNVLinkSumNeverFallsWhenALinkGoesDown(t *testing.T) {
	const source = "gpus: [{model: h100, load: training}]\n" +
		"faults: [{at: 70s, for: 100s, kind: nvlink_down, gpu: 0, link: 3}]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(65 * time.Second)
		hosttest.Want(t, h, 18, NVLinkUp, "0", "all")
		before, _ := hosttest.Get(t, h, NVLinkErrors, "0", "crc_data", "all")
		hosttest.Advance(65 * time.Second)
		hosttest.Want(t, h, 17, NVLinkUp, "0", "all")
		after, ok := hosttest.Get(t, h, NVLinkErrors, "0", "crc_data", "all")
		fixture.If(t, !ok || after < before, "errors went from %v to %v", before, after)
	})
}

// TestNVLinkRate reads the links' speed with and without series for each link.
func TestNVLinkRate(t *testing.T) {
	for _, each := range []bool{false, true} {
		c := collectors.DefaultConfig()
		c.PerLink = each
		hosttest.In(t, "gpus: [{model: h100}, {model: l4}]\n", c, func(t *testing.T, h *collectors.Host) {
			hosttest.Advance(12 * time.Second)
			for index, want := range map[string]float64{"0": 18 * 26.5625e9, "1": 0} {
				fixture.Near(t, NVLinkRate(h, hosttest.Told(h, collectors.Up, "gpu", index)["uuid"]), want, want/50,
					"each link %v: GPU %s moves … bytes a second", each, index)
			}
		})
	}
}

// fabric is a GPU that is asked for its fabric.
type fabric struct {
	nvml.Device
	nvml.GpuFabricInfo_v3
}

func (f fabric) FabricInfo() (nvml.GpuFabricInfo_v3, nvml.Return) {
	return f.GpuFabricInfo_v3, nvml.SUCCESS
}

// TestFabric holds that a fault is one that the platform reports, and that of a registration if it has ended.
func TestFabric(t *testing.T) {
	for want, info := range map[string]nvml.GpuFabricInfo_v3{
		"":                                {State: nvml.GPU_FABRIC_STATE_IN_PROGRESS, Status: 1},
		"registration=0":                  {State: nvml.GPU_FABRIC_STATE_COMPLETED},
		"registration=1":                  {State: nvml.GPU_FABRIC_STATE_COMPLETED, Status: 1},
		"degraded_bw=1 route_recovery=0":  {State: nvml.GPU_FABRIC_STATE_IN_PROGRESS, HealthMask: 1 | 2<<2},
		"degraded_bw=0 route_unhealthy=1": {State: nvml.GPU_FABRIC_STATE_IN_PROGRESS, HealthMask: 2 | 1<<4},
		"limited_capacity=0 unhealthy=1":  {HealthSummary: nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY, State: 2},
		"limited_capacity=1 unhealthy=0":  {HealthSummary: nvml.GPU_FABRIC_HEALTH_SUMMARY_LIMITED_CAPACITY, State: 2},
	} {
		var got []string
		shown := hosttest.ReadDevice(t, "fabric", fabric{hosttest.Mock(), info})
		for _, s := range slices.Sorted(maps.Keys(shown)) {
			if fault, is := strings.CutPrefix(s, "nvgpu_fabric_health{check=\""); is {
				got = append(got, fmt.Sprint(strings.TrimSuffix(fault, "\"}"), "=", shown[s]))
			}
		}
		fixture.Equal(t, strings.Join(got, " "), want, "%+v", info)
	}
}

func TestBitErrorRate(t *testing.T) {
	// Mantissa 5 (bits 8 to 11), exponent 12 (bits 0 to 7).
	fixture.Near(t, bitErrorRate(5<<8|12), 5e-12, 1e-20, "bitErrorRate =")
}

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
	fixture.If(t, len(p.Now) != 0 || len(p.Out.Unsupported) != 1,
		"without adapters: %v, unsupported %v", p.Now, p.Out.Unsupported)
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
