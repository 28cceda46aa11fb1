package collectors_test

import (
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/faults"
	"gpusteward/collectors/hosttest"
	"gpusteward/collectors/links"
	"gpusteward/internal/fixture"
)

func TestRefreshingCollectorsReadFirst(t *testing.T) {
	all := collectors.All()
	if all[0].Name != "gpm" || !all[0].First || all[1].First {
		t.Errorf("%s and %s read first; want gpm before all others", all[0].Name, all[1].Name)
	}
}

func TestConfigureTakesEffectWithoutAGap(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100, load: full}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(3 * time.Second)
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "clocks")
		hosttest.WantNone(t, h, faults.SRAMAddresses, "0")
		c := collectors.DefaultConfig()
		c.Disable, c.Enable, c.PerLink = []string{"clocks"}, []string{"sram_addresses"}, true
		c.Devices = 4
		h.Configure(c)
		for range 20 {
			hosttest.Advance(500 * time.Millisecond)
			hosttest.Want(t, h, 1, collectors.Up, "0")
			_, ok := hosttest.Get(t, h, device.Temperature, "0", "gpu")
			fixture.Stop(t, !ok, "a gap in readings that continue")
		}
		hosttest.WantNone(t, h, device.Clock, "0", "sm")
		hosttest.Want(t, h, 0, faults.SRAMAddresses, "0")
		hosttest.Want(t, h, 4, collectors.DevicesExpected, "")
		hosttest.WantNone(t, h, links.NVLinkUp, "0", "all")
		hosttest.Want(t, h, 1, links.NVLinkUp, "0", "17")
	})
}

func TestTiersSetTheReadInterval(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		calls := func(name string) float64 {
			v, _ := hosttest.Get(t, h, collectors.NVMLCalls, "", name, "success")
			return v
		}
		names := map[string]float64{"nvmlDeviceGetUtilizationRates": 60, "nvmlDeviceGetMarginTemperature": 6,
			"nvmlDeviceGetEccMode": 1, "nvmlDeviceGetSerial": 0}
		before := map[string]float64{}
		for name := range names {
			before[name] = calls(name)
		}
		hosttest.Advance(time.Minute)
		for name, want := range names {
			fixture.Near(t, calls(name)-before[name], want, 1, "%s: calls in a minute", name)
		}
	})
}

func TestMissingFeaturesAreReadAtTheSlowTier(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100-vm}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(time.Minute)
		// GPM's NVLink rates are in the fast tier; this card has no links.
		n, _ := hosttest.Get(t, h, collectors.NVMLCalls, "", "nvmlDeviceGetNumFans", "success")
		fixture.If(t, n > 3, "asked %v times a minute for missing fans", n)
	})
}

func TestMissingSymbolOmitsReadings(t *testing.T) {
	const source = "gpus: [{model: h100}]\nmissing_symbols: [nvmlDeviceGetMarginTemperature, nvmlDeviceGetMemoryInfo_v2]\n"
	hosttest.In(t, source, collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		hosttest.Want(t, h, 1, collectors.MissingSymbol, "", "nvmlDeviceGetMarginTemperature")
		hosttest.WantNone(t, h, device.TemperatureMargin, "0")
		hosttest.Want(t, h, 1, collectors.Up, "0")
		_, ok := hosttest.Get(t, h, device.MemoryBytes, "0", "used")
		fixture.If(t, !ok, "memory is not read with the older call")
		hosttest.WantNone(t, h, device.MemoryBytes, "0", "reserved")
	})
}
