package gpu

import (
	"debug/elf"
	"errors"
	"math"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpusteward/internal/fixture"
)

// library is a mocked NVML with one device and without the given symbols.
func library(d *mock.Device, missing ...string) *mock.Interface {
	return &mock.Interface{
		InitFunc:     func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc: func() nvml.Return { return nvml.SUCCESS },
		ExtensionsFunc: func() nvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(s string) error {
				for _, m := range missing {
					if s == m {
						return errors.New("no such symbol")
					}
				}
				return nil
			}}
		},
		DeviceGetCountFunc:         func() (int, nvml.Return) { return 1, nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(int) (nvml.Device, nvml.Return) { return d, nvml.SUCCESS },
		GpmSampleAllocFunc:         func() (nvml.GpmSample, nvml.Return) { return &mock.GpmSample{}, nvml.SUCCESS },
	}
}

func device() *mock.Device {
	return &mock.Device{
		GetUUIDFunc:        func() (string, nvml.Return) { return "GPU-a", nvml.SUCCESS },
		GetMinorNumberFunc: func() (int, nvml.Return) { return 3, nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			var p nvml.PciInfo
			for i, c := range "00000000:9B:00.0" {
				p.BusId[i] = int8(c)
			}
			return p, nvml.SUCCESS
		},
	}
}

func open(t *testing.T, d *mock.Device, missing ...string) (*Device, *Calls) {
	t.Helper()
	calls := new(Calls)
	l := fixture.Value(Open(library(d, missing...), calls, new(Caller)))(t)
	g := fixture.Value(l.Device(0))(t)
	return g, calls
}

func TestIdentity(t *testing.T) {
	g, _ := open(t, device())
	fixture.Equal(t, g.ID, (ID{Index: 0, UUID: "GPU-a", PCI: "00000000:9B:00.0", Minor: 3}), "identity")
	none := device()
	none.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	if g, _ := open(t, none); g.Minor != -1 {
		t.Errorf("minor %d from a driver that does not report it, want -1", g.Minor)
	}
}

func TestMissingSymbolIsNeverCalled(t *testing.T) {
	d := device()
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) {
		t.Error("the guard called a function that the library lacks, which would end the process")
		return 0, nvml.SUCCESS
	}
	g, calls := open(t, d, "nvmlDeviceGetTemperature")
	_, ret := g.GetTemperature(nvml.TEMPERATURE_GPU)
	fixture.If(t, ret != nvml.ERROR_FUNCTION_NOT_FOUND, "returned %v", ret)
	var missing []string
	calls.Missing(func(s string) { missing = append(missing, s) })
	fixture.Equal(t, len(missing) != 1 || missing[0] != "nvmlDeviceGetTemperature", false, "missing %v", missing)
}

func TestAnyVersionOfASymbolSuffices(t *testing.T) {
	d := device()
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	g, _ := open(t, d, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
	_, ret := g.GetComputeRunningProcesses()
	fixture.If(t, ret != nvml.SUCCESS, "with the first version only: %v", ret)
	g, _ = open(t, d, "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2",
		"nvmlDeviceGetComputeRunningProcesses")
	_, ret = g.GetComputeRunningProcesses()
	fixture.If(t, ret != nvml.ERROR_FUNCTION_NOT_FOUND, "without any version: %v", ret)
}

func TestCallsAreCountedAndNamedWhileTheyRun(t *testing.T) {
	d := device()
	var g *Device
	d.GetSerialFunc = func() (string, nvml.Return) {
		b := g.caller.Busy()
		fixture.If(t, b == nil || b.Call != "nvmlDeviceGetSerial" || b.Since.IsZero(), "busy with %+v", b)
		return "", nvml.ERROR_NOT_SUPPORTED
	}
	g, calls := open(t, d)
	g.GetSerial()
	g.GetSerial()
	fixture.Equal(t, g.caller.Busy() != nil, false, "still busy with %+v", g.caller.Busy())
	counted := map[string]uint64{}
	calls.Each(func(call string, ret nvml.Return, n uint64) { counted[call+" "+ReturnName(ret)] = n })
	fixture.If(t, counted["nvmlDeviceGetSerial not_supported"] != 2 || counted["nvmlInit success"] != 1 ||
		counted["nvmlDeviceGetUUID success"] != 1, "counted %v", counted)
}

// TestCallsThatMayNotOverlap has two GPUs' goroutines make calls of one family: the
// second one waits until the first returns, but not for long if it never does.
func TestCallsThatMayNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := device()
		waits, hangs := make(chan struct{}), make(chan struct{})
		var lasts chan struct{}
		d.GpmSampleGetFunc = func(nvml.GpmSample) nvml.Return { <-lasts; return nvml.SUCCESS }
		d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.SUCCESS }
		one, _ := open(t, d)
		lib := one.lib.As(new(Caller))
		two := fixture.Value(lib.Device(0))(t)
		lib.nv.(*mock.Interface).GpmMetricsGetFunc = func(*nvml.GpmMetricsGetType) nvml.Return { return nvml.SUCCESS }
		overlap := func() (took time.Duration) {
			done := make(chan struct{})
			go func() { one.GpmSampleGet(nil); close(done) }()
			synctest.Wait()
			began := time.Now()
			two.Fields(nil) // of another family
			fixture.Equal(t, time.Since(began), 0, "a call waits for one of another family")
			lib.GpmMetricsGet(nil)
			took = time.Since(began)
			<-done
			return took
		}
		lasts = waits
		time.AfterFunc(patience/2, func() { close(waits) })
		fixture.Equal(t, overlap(), patience/2, "the second call begins after")
		lasts = hangs
		time.AfterFunc(time.Minute, func() { close(hangs) })
		fixture.Equal(t, overlap(), patience, "the second call waits for … for one that hangs")
		lasts = waits // returns at once
		one.GpmSampleGet(nil)
		began := time.Now()
		lib.GpmMetricsGet(nil)
		fixture.Equal(t, time.Since(began), 0, "a call waits for one that has returned")
	})
}

// TestNothingIsSet checks that the agent cannot change a GPU's settings. The one exception is a cgroup's memory limit,
// which no Device has: see TestOnlyMemoryLimitsAreSet.
func TestNothingIsSet(t *testing.T) {
	for _, c := range calls {
		for _, verb := range []string{"Set", "Reset", "Clear", "Create", "Destroy", "Freeze", "Remove", "Modify",
			"Activate"} {
			if strings.HasPrefix(c.name, "nvmlDevice"+verb) || strings.HasPrefix(c.name, "nvmlSystem"+verb) ||
				strings.HasPrefix(c.name, "nvmlGpuInstance"+verb) || strings.HasPrefix(c.name, "nvmlGpm"+verb) {
				t.Errorf("%s changes a setting", c.name)
			}
		}
	}
}

func TestOpenErrorNamesTheRemedy(t *testing.T) {
	for ret, want := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND:       "install the NVIDIA driver",
		nvml.ERROR_DRIVER_NOT_LOADED:       "modprobe nvidia",
		nvml.ERROR_NO_PERMISSION:           "/dev/nvidia",
		nvml.ERROR_LIB_RM_VERSION_MISMATCH: "different versions",
	} {
		l := library(device())
		l.InitFunc = func() nvml.Return { return ret }
		l.ShutdownFunc = func() nvml.Return {
			t.Error("Shutdown after a failed Init would end the process")
			return ret
		}
		_, err := Open(l, new(Calls), new(Caller))
		fixture.If(t, err == nil || !strings.Contains(err.Error(), want) || ReturnOf(err) != ret,
			"%v: %v, want %q", ret, err, want)
	}
}

func TestReturns(t *testing.T) {
	fixture.Equal(t, Err("x", nvml.SUCCESS) != nil, false, "SUCCESS is an error")
	fixture.Equal(t, ReturnName(nvml.Return(12345)), "code_12345", "an unknown code has the name")
	fixture.If(t, ReturnOf(errors.New("other")) != nvml.ERROR_UNKNOWN || ReturnOf(nil) != nvml.SUCCESS,
		"ReturnOf is wrong for other errors")
	for _, ret := range []nvml.Return{nvml.ERROR_UNKNOWN, nvml.ERROR_NO_PERMISSION, nvml.ERROR_TIMEOUT,
		nvml.ERROR_GPU_IS_LOST} {
		fixture.Equal(t, Unsupported(ret), false, "%v counts as a failure, not as an answer", ret)
	}
}

func TestNumber(t *testing.T) {
	minus2 := [8]byte{0xfe, 0xff, 0xff, 0xff, 0, 0, 0, 0}
	half := math.Float64bits(.5)
	for _, c := range []struct {
		kind nvml.ValueType
		b    [8]byte
		want float64
	}{
		{nvml.VALUE_TYPE_SIGNED_INT, minus2, -2},
		{nvml.VALUE_TYPE_UNSIGNED_INT, [8]byte{1, 1, 0, 0, 9, 9, 9, 9}, 257},
		{nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, [8]byte{0, 0, 0, 0, 1}, 1 << 32},
		{nvml.VALUE_TYPE_SIGNED_LONG_LONG, [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, -1},
		{nvml.VALUE_TYPE_DOUBLE,
			[8]byte{byte(half), byte(half >> 8), byte(half >> 16), byte(half >> 24), byte(half >> 32), byte(half >> 40),
				byte(half >> 48), byte(half >> 56)}, .5},
	} {
		fixture.Equal(t, Number(c.kind, c.b), c.want, "Number(%v, %v) =", c.kind, c.b)
	}
}

func TestFailedFieldsCallFailsEachField(t *testing.T) {
	d := device()
	d.GetFieldValuesFunc = func([]nvml.FieldValue) nvml.Return { return nvml.ERROR_GPU_IS_LOST }
	g, _ := open(t, d)
	fields := []nvml.FieldValue{{FieldId: 1}, {FieldId: 2}}
	g.Fields(fields)
	for _, f := range fields {
		_, ret := FieldNumber(f)
		fixture.If(t, ret != nvml.ERROR_GPU_IS_LOST, "field %d: %v", f.FieldId, ret)
	}
}

func TestMIGTopologyFollowsTheDriver(t *testing.T) {
	mode, instances := nvml.DEVICE_MIG_ENABLE, map[int]string{0: "MIG-a", 2: "MIG-c"}
	d := device()
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return mode, mode, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		uuid, ok := instances[i]
		if !ok {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return i + 10, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	g, _ := open(t, d)
	if ret := g.RefreshInstances(); ret != nvml.SUCCESS || len(g.Instances()) != 2 || g.Instances()[1].GI != 12 ||
		g.Instances()[1].UUID != "MIG-c" {
		t.Errorf("%v, instances %+v", ret, g.Instances())
	}
	mode = nvml.DEVICE_MIG_DISABLE
	if ret := g.RefreshInstances(); ret != nvml.SUCCESS || len(g.Instances()) != 0 {
		t.Errorf("MIG off: %v, instances %+v", ret, g.Instances())
	}
}

func TestSamplesAreFreed(t *testing.T) {
	freed := 0
	d := device()
	d.GpmQueryDeviceSupportFunc = func() (nvml.GpmSupport, nvml.Return) {
		return nvml.GpmSupport{IsSupportedDevice: 1}, nvml.SUCCESS
	}
	calls := new(Calls)
	l := library(d)
	l.GpmSampleAllocFunc = func() (nvml.GpmSample, nvml.Return) {
		return &mock.GpmSample{FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS }}, nvml.SUCCESS
	}
	lib := fixture.Value(Open(l, calls, new(Caller)))(t)
	g := fixture.Value(lib.Device(0))(t)
	one, _ := g.Sampler(-1, 1)
	_, ret := g.Sampler(-1, 2)
	fixture.Stop(t, ret != nvml.SUCCESS, "%v", ret)
	one.Close()
	fixture.Equal(t, freed, 2, "closing a sampler freed … samples")
	g.Close()
	fixture.Equal(t, freed, 4, "… samples are freed after closing the device")
}

func TestTemperatureFromTheNewerFunction(t *testing.T) {
	d := device()
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 61, nvml.SUCCESS }
	g, _ := open(t, d)
	v, ret := g.Temperature()
	fixture.If(t, v != 61 || ret != nvml.SUCCESS, "%v, %v", v, ret)
	// Without either symbol, neither is called. (go-nvml's handler of the newer
	// one cannot be mocked: the GPU tests call it.)
	g, calls := open(t, d, "nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV")
	_, ret = g.Temperature()
	fixture.If(t, ret != nvml.ERROR_FUNCTION_NOT_FOUND, "without either: %v", ret)
	missing := map[string]bool{}
	calls.Missing(func(s string) { missing[s] = true })
	fixture.Equal(t, len(missing), 2, "missing %v", missing)
}

// TestStartsWithoutNVML: no function of NVML must be there when the program starts, even
// if the loader binds all of them then. A function that the library lacks is told as such.
func TestStartsWithoutNVML(t *testing.T) {
	t.Parallel()
	program := fixture.Value(elf.Open("/proc/self/exe"))(t)
	defer program.Close()
	for _, s := range fixture.Value(program.ImportedSymbols())(t) {
		fixture.Equal(t, strings.HasPrefix(s.Name, "nvml"), false, "the program imports %s", s.Name)
	}
	_, ret := nvml.SystemGetDriverVersion()
	fixture.If(t, ret != nvml.ERROR_FUNCTION_NOT_FOUND, "without a library the driver's version is %v", ret)
	bound := exec.Command("/proc/self/exe", "-test.run=^$")
	bound.Env = append(os.Environ(), "LD_BIND_NOW=1")
	out, err := bound.CombinedOutput()
	fixture.If(t, err != nil, "%v: %s", err, out)
}
