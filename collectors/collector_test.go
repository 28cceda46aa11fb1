package collectors

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestConfigValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                                 func(*Config) {},
		"collectors.fast: 10ms":            func(c *Config) { c.Fast = 10 * time.Millisecond },
		"collectors.fast: 12s is too long": func(c *Config) { c.Fast, c.Medium = 12*time.Second, time.Minute },
		"collectors.medium: 500ms":         func(c *Config) { c.Medium = 500 * time.Millisecond },
		"collectors.slow: 5s is shorter":   func(c *Config) { c.Slow = 5 * time.Second },
		"collectors.slow: 2h0m0s":          func(c *Config) { c.Slow = 2 * time.Hour },
		"collectors.expected_gpus: -1":     func(c *Config) { c.Devices = -1 },
		`unknown collector "gmp"`:          func(c *Config) { c.Enable = []string{"gmp"} },
		`the collectors are gpm, `:         func(c *Config) { c.Disable = []string{"x"} },
		`also in collectors.disable`:       func(c *Config) { c.Enable, c.Disable = []string{"gpm"}, []string{"gpm"} },
	} {
		c := DefaultConfig()
		change(&c)
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("Validate() = %v, want %q", err, want)
		}
	}
}

func TestCollectorsThatRefreshTheDriverReadFirst(t *testing.T) {
	all := All()
	if all[0].Name != "gpm" || !all[0].First || all[1].First {
		t.Errorf("order %s; want gpm before all others", namesOf(all))
	}
}

func TestConfigureTakesEffectWithoutAGap(t *testing.T) {
	in(t, "gpus: [{model: h100, load: full}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		advance(3 * time.Second)
		want(t, h, 1, CollectSuccess, "", "clocks")
		wantNone(t, h, InforomValid, "0")
		c := DefaultConfig()
		c.Disable, c.Enable, c.PerLink = []string{"clocks"}, []string{"inforom_valid"}, true
		c.Devices = 4
		h.Configure(c)
		for range 20 {
			advance(500 * time.Millisecond)
			want(t, h, 1, Up, "0")
			if _, ok := get(t, h, Temperature, "0", "gpu"); !ok {
				t.Fatal("a gap in readings that continue")
			}
		}
		wantNone(t, h, Clock, "0", "sm")
		want(t, h, 1, InforomValid, "0")
		want(t, h, 4, DevicesExpected, "")
		wantNone(t, h, NVLinkUp, "0", "all")
		want(t, h, 1, NVLinkUp, "0", "17")
	})
}

func TestTiersSayHowOftenTheDriverIsAsked(t *testing.T) {
	in(t, "gpus: [{model: h100}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		calls := func(name string) float64 { v, _ := get(t, h, NVMLCalls, "", name, "success"); return v }
		names := map[string]float64{"nvmlDeviceGetUtilizationRates": 60, "nvmlDeviceGetMarginTemperature": 6,
			"nvmlDeviceGetEccMode": 1, "nvmlDeviceGetSerial": 0}
		before := map[string]float64{}
		for name := range names {
			before[name] = calls(name)
		}
		advance(time.Minute)
		for name, want := range names {
			if got := calls(name) - before[name]; math.Abs(got-want) > 1 {
				t.Errorf("%s: %v calls in a minute, want %v", name, got, want)
			}
		}
	})
}

func TestMissingFeaturesAreRarelyAskedFor(t *testing.T) {
	in(t, "gpus: [{model: h100-vm}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		advance(time.Minute)
		// GPM's NVLink rates are in the fast tier; this card has no links.
		if n, _ := get(t, h, NVMLCalls, "", "nvmlDeviceGetNumFans", "success"); n > 3 {
			t.Errorf("asked %v times a minute for missing fans", n)
		}
	})
}

func TestPerLinkSeriesAddUpToTheSum(t *testing.T) {
	totals := map[bool]float64{}
	for _, perLink := range []bool{false, true} {
		c := DefaultConfig()
		c.PerLink = perLink
		in(t, "gpus: [{model: h100, load: training}]\n", c, func(t *testing.T, h *Host) {
			advance(30 * time.Second)
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
	in(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
		advance(65 * time.Second)
		want(t, h, 18, NVLinkUp, "0", "all")
		before, _ := get(t, h, NVLinkErrors, "0", "crc_data", "all")
		advance(65 * time.Second)
		want(t, h, 17, NVLinkUp, "0", "all")
		if after, ok := get(t, h, NVLinkErrors, "0", "crc_data", "all"); !ok || after < before {
			t.Errorf("errors went from %v to %v", before, after)
		}
	})
}

func TestIntegratedCountersAgreeWithTheGauges(t *testing.T) {
	in(t, "gpus: [{model: h100-vm, load: full}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		want(t, h, 0, BusySeconds, "0", "gpu") // busy time before the agent's start does not count
		advance(31 * time.Second)
		busy, _ := get(t, h, BusySeconds, "0", "gpu")
		energy, _ := get(t, h, Energy, "0", "gpu")
		pcie, _ := get(t, h, PCIeBytes, "0", "rx")
		integral, traffic := 0.0, 0.0
		for range 60 {
			advance(time.Second)
			w, _ := get(t, h, Power, "0", "average", "gpu")
			integral += w
			rate, _ := get(t, h, GPMPCIe, "0", "rx")
			window, _ := get(t, h, GPMWindow, "0")
			traffic += rate * window
		}
		busy2, _ := get(t, h, BusySeconds, "0", "gpu")
		energy2, _ := get(t, h, Energy, "0", "gpu")
		pcie2, _ := get(t, h, PCIeBytes, "0", "rx")
		if share := (busy2 - busy) / 60; share < .9 || share > 1.01 {
			t.Errorf("busy %v of the time under full load", share)
		}
		if ratio := (energy2 - energy) / integral; ratio < .97 || ratio > 1.03 {
			t.Errorf("energy rose by %v J, power says %v", energy2-energy, integral)
		}
		if pcie2-pcie <= 0 || math.Abs((pcie2-pcie)/traffic-1) > .001 {
			t.Errorf("PCIe counted %v bytes, the rates say %v", pcie2-pcie, traffic)
		}
	})
}

func TestXIDsAreCountedFromZero(t *testing.T) {
	c := DefaultConfig()
	c.XIDs = []int{31, 79}
	in(t, "gpus: [{model: h100}]\nfaults: [{at: 10s, kind: xid, gpu: 0, code: 31}, {at: 15s, kind: xid, gpu: 0, "+
		"code: 45}]\n", c, func(t *testing.T, h *Host) {
		advance(5 * time.Second)
		want(t, h, 0, XIDErrors, "0", "31", "")
		want(t, h, 0, XIDErrors, "0", "79", "")
		wantNone(t, h, XIDErrors, "0", "45", "")
		advance(15 * time.Second)
		want(t, h, 1, XIDErrors, "0", "31", "")
		want(t, h, 1, XIDErrors, "0", "45", "")
		want(t, h, 0, XIDErrors, "0", "79", "")
		if at, _ := get(t, h, XIDLast, "0", "31"); math.Abs(at-float64(time.Now().Unix()-10)) > 2 {
			t.Errorf("XID 31 seen at %v, now is %v", at, time.Now().Unix())
		}
	})
}

func TestAMissingSymbolOmitsItsReadings(t *testing.T) {
	const source = "gpus: [{model: h100}]\n" +
		"missing_symbols: [nvmlDeviceGetMarginTemperature, nvmlDeviceGetMemoryInfo_v2]\n"
	in(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
		advance(12 * time.Second)
		want(t, h, 1, MissingSymbol, "", "nvmlDeviceGetMarginTemperature")
		wantNone(t, h, TemperatureMargin, "0")
		want(t, h, 1, Up, "0")
		if _, ok := get(t, h, MemoryBytes, "0", "used"); !ok {
			t.Error("memory is not read with the older call")
		}
		wantNone(t, h, MemoryBytes, "0", "reserved")
	})
}
