package sim

import (
	"reflect"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/gpu/sim/stub"
)

// overridden lists the methods of a device that are simulated.
func overridden(t *testing.T) []reflect.Method {
	t.Helper()
	var all []reflect.Method
	ours := reflect.TypeFor[*device]()
	none := reflect.TypeFor[stub.Device]()
	for i := range ours.NumMethod() {
		m := ours.Method(i)
		if _, ok := none.MethodByName(m.Name); ok && m.Type.NumIn() == 1 {
			all = append(all, m)
		}
	}
	return all
}

// TestEveryModelAnswers calls every getter without arguments on every model:
// none fails in a way that NVML would not.
func TestEveryModelAnswers(t *testing.T) {
	h := begin(t, embedded(t, "models"), Options{})
	for i := range must[int](t)(h.DeviceGetCount()) {
		d := gpuOf(t, h, i)
		answers := 0
		for _, m := range overridden(t) {
			if strings.HasPrefix(m.Name, "Set") {
				continue
			}
			out := m.Func.Call([]reflect.Value{reflect.ValueOf(d)})
			ret, ok := out[len(out)-1].Interface().(nvml.Return)
			if !ok {
				continue
			}
			switch ret {
			case nvml.SUCCESS:
				answers++
			case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_DEPRECATED:
			default:
				t.Errorf("%s %s: %v", d.gpu.spec.Model, m.Name, ret)
			}
		}
		if answers < 60 {
			t.Errorf("%s answers only %d calls", d.gpu.spec.Model, answers)
		}
	}
}

// modelTests hold the features of models.
var modelTests = map[string]struct {
	links                              int
	gpm, margin, threshold, memoryTemp bool
	average, mig, link5, fan           bool
}{
	"h100":    {links: 18, gpm: true, margin: true, threshold: true, memoryTemp: true, average: true, mig: true},
	"h100-vm": {gpm: true, margin: true, threshold: true, memoryTemp: true, average: true, mig: true},
	"h200":    {links: 18, gpm: true, margin: true, threshold: true, memoryTemp: true, average: true, mig: true},
	"a100":    {links: 12, threshold: true, memoryTemp: true, mig: true},
	"b200":    {links: 18, gpm: true, margin: true, memoryTemp: true, average: true, mig: true, link5: true},
	"gb200":   {links: 18, gpm: true, margin: true, memoryTemp: true, average: true, mig: true, link5: true},
	"l4":      {margin: true, average: true},
	"rtx6000": {margin: true, average: true, fan: true},
}

// TestModelsDiffer checks the features of each model.
func TestModelsDiffer(t *testing.T) {
	all, err := models.All()
	if err != nil {
		t.Fatal(err)
	}
	for name, m := range all {
		c, ok := modelTests[name]
		if !ok {
			t.Errorf("model %s has no test", name)
			continue
		}
		d := gpuOf(t, begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Model: name, Load: "full"}}}, Options{}), 0)
		is := func(what string, ret nvml.Return, supported bool) {
			t.Helper()
			if (ret == nvml.SUCCESS) != supported || !supported && ret != nvml.ERROR_NOT_SUPPORTED {
				t.Errorf("%s: %s: %v", name, what, ret)
			}
		}
		support := must[nvml.GpmSupport](t)(d.GpmQueryDeviceSupport())
		if (support.IsSupportedDevice == 1) != c.gpm {
			t.Errorf("%s: GPM support is %+v", name, support)
		}
		is("GPM sample", d.GpmSampleGet(&gpmSample{}), c.gpm)
		_, ret := d.GetMarginTemperature()
		is("margin", ret, c.margin)
		_, ret = d.GetTemperatureThreshold(nvml.TEMPERATURE_THRESHOLD_SLOWDOWN)
		is("threshold", ret, c.threshold)
		_, ret = d.GetFanSpeed_v2(0)
		is("fan", ret, c.fan)
		_, ret = d.GetFanSpeedRPM()
		is("fan", ret, c.fan)
		_, ret = d.GetTargetFanSpeed(0)
		is("fan", ret, c.fan)
		_, _, ret = d.GetMigMode()
		is("MIG", ret, c.mig)
		_, ret = d.GetNvLinkState(0)
		is("first link", ret, c.links > 0)
		_, ret = d.GetNvLinkState(c.links)
		is("link after the last", ret, false)
		is("memory temperature", d.fieldReturn(t, nvml.FI_DEV_MEMORY_TEMP, 0), c.memoryTemp)
		is("average power", d.fieldReturn(t, nvml.FI_DEV_POWER_AVERAGE, 0), c.average)
		is("instant power", d.fieldReturn(t, nvml.FI_DEV_POWER_INSTANT, 0), true)
		is("NVLink 5 bytes", d.fieldReturn(t, nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 0), c.link5)
		is("NVLink 4 bytes", d.fieldReturn(t, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0), c.links > 0 && !c.link5)
		if watts := must[uint32](t)(d.GetPowerUsage()); !near(float64(watts)/1000, m.Power.Default,
			0.03*m.Power.Default) {
			t.Errorf("%s draws %d mW under full load", name, watts)
		}
		if celsius := must[uint32](t)(d.GetTemperature(nvml.TEMPERATURE_GPU)); !near(float64(celsius),
			m.Temperature.Full, 5) {
			t.Errorf("%s has %d C under full load", name, celsius)
		}
	}
}

func (d *device) fieldReturn(t *testing.T, id, scope uint32) nvml.Return {
	t.Helper()
	v := []nvml.FieldValue{{FieldId: id, ScopeId: scope}}
	check(t, d.GetFieldValues(v))
	return nvml.Return(v[0].NvmlReturn)
}

// TestIdentityDiffers checks that the GPUs of a host have different identities.
func TestIdentityDiffers(t *testing.T) {
	h := begin(t, embedded(t, "sixteen"), Options{})
	seen := map[any]bool{}
	for i := range scenarios.MaxGPUs {
		d := gpuOf(t, h, i)
		pci := must[nvml.PciInfo](t)(d.GetPciInfo())
		ext := must[nvml.PciInfoExt](t)(d.GetPciInfoExt())
		if pci.BusId != ext.BusId || pci.Bus != ext.Bus {
			t.Errorf("PCI addresses are %+v and %+v", pci, ext)
		}
		for _, id := range []any{must[string](t)(d.GetUUID()), must[string](t)(d.GetSerial()), pci.BusId,
			must[uint32](t)(d.GetBoardId())} {
			if seen[id] {
				t.Errorf("GPU %d shares %v", i, id)
			}
			seen[id] = true
		}
		if n := must[int](t)(d.GetIndex()); n != i {
			t.Errorf("index is %d, want %d", n, i)
		}
	}
}

// TestTopology checks pairs of GPUs.
func TestTopology(t *testing.T) {
	h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 8}, {Model: "l4"}}}, Options{})
	a := gpuOf(t, h, 0)
	for index, wanted := range map[int]nvml.GpuTopologyLevel{0: nvml.TOPOLOGY_INTERNAL, 3: nvml.TOPOLOGY_NODE,
		4: nvml.TOPOLOGY_SYSTEM} {
		if got := must[nvml.GpuTopologyLevel](t)(a.GetTopologyCommonAncestor(gpuOf(t, h, index))); got != wanted {
			t.Errorf("level to GPU %d is %v, want %v", index, got, wanted)
		}
	}
	for index, wanted := range map[int]nvml.GpuP2PStatus{1: nvml.P2P_STATUS_OK, 8: nvml.P2P_STATUS_NOT_SUPPORTED} {
		if got := must[nvml.GpuP2PStatus](t)(a.GetP2PStatus(gpuOf(t, h, index),
			nvml.P2P_CAPS_INDEX_NVLINK)); got != wanted {
			t.Errorf("NVLink to GPU %d is %v, want %v", index, got, wanted)
		}
	}
	_, ret := a.GetP2PStatus(stub.Device{}, nvml.P2P_CAPS_INDEX_READ)
	want(t, "a foreign device", ret, nvml.ERROR_INVALID_ARGUMENT)
	info, state := must[nvml.GpuFabricInfo_v3](t)(a.FabricInfo()), must[nvml.GpuFabricInfo](t)(a.GetGpuFabricInfo())
	if info.State != nvml.GPU_FABRIC_STATE_COMPLETED || state.State != info.State || info.HealthMask == 0 {
		t.Errorf("fabric is %+v", info)
	}
}

// TestClocks reads clocks by identifier.
func TestClocks(t *testing.T) {
	d := gpuOf(t, begin(t, embedded(t, "h100"), Options{}), 0)
	now := must[uint32](t)(d.GetClockInfo(nvml.CLOCK_SM))
	for id, wanted := range map[nvml.ClockId]uint32{
		nvml.CLOCK_ID_CURRENT: now, nvml.CLOCK_ID_CUSTOMER_BOOST_MAX: 1980,
		nvml.CLOCK_ID_APP_CLOCK_TARGET: 1980, nvml.CLOCK_ID_APP_CLOCK_DEFAULT: 1980,
	} {
		if got := must[uint32](t)(d.GetClock(nvml.CLOCK_SM, id)); !near(float64(got), float64(wanted), 30) {
			t.Errorf("clock %d is %d MHz, want %d", id, got, wanted)
		}
	}
	for kind, wanted := range map[nvml.ClockType]uint32{nvml.CLOCK_GRAPHICS: 1980, nvml.CLOCK_MEM: 2619} {
		if a, b := must[uint32](t)(d.GetApplicationsClock(kind)),
			must[uint32](t)(d.GetDefaultApplicationsClock(kind)); a != wanted || b != wanted {
			t.Errorf("application clocks of %v are %d and %d MHz", kind, a, b)
		}
	}
	if most := must[uint32](t)(d.GetMaxCustomerBoostClock(nvml.CLOCK_GRAPHICS)); most != 1980 {
		t.Errorf("boost is %d MHz", most)
	}
	if most := must[uint32](t)(d.GetMaxClockInfo(nvml.CLOCK_VIDEO)); most != 1545 {
		t.Errorf("video is %d MHz", most)
	}
	_, ret := d.GetMaxCustomerBoostClock(nvml.CLOCK_MEM)
	want(t, "boost of the memory", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetClockInfo(nvml.CLOCK_COUNT)
	want(t, "no such clock", ret, nvml.ERROR_INVALID_ARGUMENT)
}

// TestLinks reads the properties of a link.
func TestLinks(t *testing.T) {
	d := gpuOf(t, begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{Model: "b200"}}}, Options{}), 0)
	if v := must[uint32](t)(d.GetNvLinkVersion(17)); v != uint32(nvml.NVLINK_VERSION_5_0) {
		t.Errorf("version is %d", v)
	}
	kind := must[nvml.IntNvLinkDeviceType](t)(d.GetNvLinkRemoteDeviceType(0))
	if kind != nvml.NVLINK_DEVICE_TYPE_SWITCH {
		t.Errorf("remote type is %v", kind)
	}
	if pci := must[nvml.PciInfo](t)(d.GetNvLinkRemotePciInfo(0)); pci.BusId[0] != 'F' {
		t.Errorf("remote address is %+v", pci)
	}
	if p2p, sli := must[uint32](t)(d.GetNvLinkCapability(0, nvml.NVLINK_CAP_P2P_SUPPORTED)),
		must[uint32](t)(d.GetNvLinkCapability(0, nvml.NVLINK_CAP_SLI_BRIDGE)); p2p != 1 || sli != 0 {
		t.Errorf("capabilities are %d and %d", p2p, sli)
	}
	_, ret := d.GetNvLinkErrorCounter(0, nvml.NVLINK_ERROR_DL_CRC_DATA)
	want(t, "old counters of a new link", ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetNvLinkState(-1)
	want(t, "no such link", ret, nvml.ERROR_INVALID_ARGUMENT)
}
