package activity

import (
	"math"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

func TestIntegratedCountersAgreeWithTheGauges(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100-vm, load: full}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Want(t, h, 0, BusySeconds, "0", "gpu") // busy time before the agent's start does not count
		hosttest.Advance(31 * time.Second)
		busy, _ := hosttest.Get(t, h, BusySeconds, "0", "gpu")
		energy, _ := hosttest.Get(t, h, device.Energy, "0", "gpu")
		pcie, _ := hosttest.Get(t, h, PCIeBytes, "0", "rx")
		integral, traffic := 0.0, 0.0
		for range 60 {
			hosttest.Advance(time.Second)
			w, _ := hosttest.Get(t, h, device.Power, "0", "average", "gpu")
			integral += w
			rate, _ := hosttest.Get(t, h, GPMPCIe, "0", "rx")
			window, _ := hosttest.Get(t, h, GPMWindow, "0")
			traffic += rate * window
		}
		busy2, _ := hosttest.Get(t, h, BusySeconds, "0", "gpu")
		energy2, _ := hosttest.Get(t, h, device.Energy, "0", "gpu")
		pcie2, _ := hosttest.Get(t, h, PCIeBytes, "0", "rx")
		share := (busy2 - busy) / 60
		fixture.If(t, share < .9 || share > 1.01, "busy %v of the time under full load", share)
		ratio := (energy2 - energy) / integral
		fixture.If(t, ratio < .97 || ratio > 1.03, "energy rose by %v J, power says %v", energy2-energy, integral)
		fixture.If(t, pcie2-pcie <= 0 || math.Abs((pcie2-pcie)/traffic-1) > .001,
			"PCIe counted %v bytes, the rates say %v", pcie2-pcie, traffic)
	})
}
