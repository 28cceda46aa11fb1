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
		t.Errorf("%s and %s read first; want gpm before all others", all[0].Name, all[1].Name)
	}
}

func TestConfigureTakesEffectWithoutAGap(t *testing.T) {
	In(t, "gpus: [{model: h100, load: full}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(3 * time.Second)
		Want(t, h, 1, CollectSuccess, "", "clocks")
		WantNone(t, h, InforomValid, "0")
		c := DefaultConfig()
		c.Disable, c.Enable, c.PerLink = []string{"clocks"}, []string{"inforom_valid"}, true
		c.Devices = 4
		h.Configure(c)
		for range 20 {
			Advance(500 * time.Millisecond)
			Want(t, h, 1, Up, "0")
			if _, ok := Get(t, h, Temperature, "0", "gpu"); !ok {
				t.Fatal("a gap in readings that continue")
			}
		}
		WantNone(t, h, Clock, "0", "sm")
		Want(t, h, 1, InforomValid, "0")
		Want(t, h, 4, DevicesExpected, "")
		WantNone(t, h, NVLinkUp, "0", "all")
		Want(t, h, 1, NVLinkUp, "0", "17")
	})
}

func TestTiersSayHowOftenTheDriverIsAsked(t *testing.T) {
	In(t, "gpus: [{model: h100}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		calls := func(name string) float64 { v, _ := Get(t, h, NVMLCalls, "", name, "success"); return v }
		names := map[string]float64{"nvmlDeviceGetUtilizationRates": 60, "nvmlDeviceGetMarginTemperature": 6,
			"nvmlDeviceGetEccMode": 1, "nvmlDeviceGetSerial": 0}
		before := map[string]float64{}
		for name := range names {
			before[name] = calls(name)
		}
		Advance(time.Minute)
		for name, want := range names {
			if got := calls(name) - before[name]; math.Abs(got-want) > 1 {
				t.Errorf("%s: %v calls in a minute, want %v", name, got, want)
			}
		}
	})
}

func TestMissingFeaturesAreRarelyAskedFor(t *testing.T) {
	In(t, "gpus: [{model: h100-vm}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(time.Minute)
		// GPM's NVLink rates are in the fast tier; this card has no links.
		if n, _ := Get(t, h, NVMLCalls, "", "nvmlDeviceGetNumFans", "success"); n > 3 {
			t.Errorf("asked %v times a minute for missing fans", n)
		}
	})
}

func TestAMissingSymbolOmitsItsReadings(t *testing.T) {
	const source = "gpus: [{model: h100}]\n" +
		"missing_symbols: [nvmlDeviceGetMarginTemperature, nvmlDeviceGetMemoryInfo_v2]\n"
	In(t, source, DefaultConfig(), func(t *testing.T, h *Host) {
		Advance(12 * time.Second)
		Want(t, h, 1, MissingSymbol, "", "nvmlDeviceGetMarginTemperature")
		WantNone(t, h, TemperatureMargin, "0")
		Want(t, h, 1, Up, "0")
		if _, ok := Get(t, h, MemoryBytes, "0", "used"); !ok {
			t.Error("memory is not read with the older call")
		}
		WantNone(t, h, MemoryBytes, "0", "reserved")
	})
}
