package collectors_test

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/hosttest"
	"gpusteward/collectors/links"
	"gpusteward/internal/fixture"
)

func TestHoldsReturnsTheDriversList(t *testing.T) {
	hosttest.In(t, "workloads", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(3 * time.Second)
		const pid = 2201 // of vllm, on GPU 0
		first, second := hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"], hosttest.Told(h, collectors.Up, "gpu", "1")["uuid"]
		for _, c := range []struct {
			uuid string
			pid  int
			want bool
		}{{first, pid, true}, {second, pid, false}, {first, 999999, false}, {"GPU-none", pid, false}} {
			bytes, at, got := h.Holds(c.uuid, c.pid)
			known := time.Since(at) < 2*time.Second
			fixture.If(t, got != c.want || known != (c.uuid != "GPU-none") || (bytes > 0) != c.want,
				"Holds(%s, %d) = %d, %v, %v, want %v", c.uuid, c.pid, bytes, at, got, c.want)
		}
		fixture.If(t, !h.Knows(first) || !h.Knows(second) || h.Knows("GPU-none"),
			"the host knows a GPU that it does not have, or does not know its own")
		fixture.Must(t, h.Drain(t.Context()))
		fixture.Equal(t, h.Knows("GPU-none"), true, "without a driver a GPU counts as missing")
	})
}

// TestKnowsUntilAllIsRead holds that a GPU that has not been read may have any MIG device, until it counts as down.
func TestKnowsUntilAllIsRead(t *testing.T) {
	hosttest.In(t, "gpus: [{load: full}, {load: full}]\nfaults: [{at: 0s, for: 1h, kind: wedge, gpu: 1}]",
		collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
			fixture.Equal(t, h.Knows("GPU-none"), true, "while a GPU is not read, it may have the device:")
			hosttest.Advance(4 * time.Second)
			fixture.Equal(t, h.Knows("GPU-none"), false, "later a device of it is known:")
		})
}

// TestMIG checks that each MIG device is treated as a GPU of its own, with a known parent.
func TestMIG(t *testing.T) {
	hosttest.In(t, "gpus:\n- {load: full}\n"+
		"- {load: inference, mig: [1g.10gb, 2g.20gb, 1g.10gb]}\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		whole, parent := hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"], hosttest.Told(h, collectors.Up, "gpu", "1")["uuid"]
		seen := map[string]bool{}
		for _, s := range h.Samples() {
			if s.Metric != device.MIGInfo {
				continue
			}
			uuid, gi := s.Labels[2], s.Labels[3]
			seen[uuid] = true
			fixture.EqualSlices(t, h.Names(uuid), []string{"1", parent, "1:" + gi, uuid}, "its names are")
			if !h.Knows(uuid) || h.Knows("GPU"+uuid[len("MIG"):]) || h.Parent(uuid) != parent || h.Silent()[uuid] {
				t.Errorf("%s is not known for what it is", uuid)
			}
			total, free, reserved, ok := device.MemoryOf(h, uuid)
			if want, _ := hosttest.Get(t, h, device.MIGMemoryAll, "1", gi); !ok || float64(total) != want || free == 0 ||
				free+reserved > total {
				t.Errorf("it has %d bytes, %d free, %d reserved; want %v in total", total, free, reserved, want)
			}
			fixture.Equal(t, links.PCIeRate(h, uuid, "max"), 0, "the link of an instance is unknown, not … bytes a second")
		}
		fixture.If(t, len(seen) != 3 || h.Parent(whole) != whole || h.Knows("MIG-none") || h.Names("MIG-none") != nil,
			"there are %d MIG devices", len(seen))
		held := map[string]int{}
		for _, x := range h.DeviceProcesses() {
			if held[x.UUID]++; x.UUID == whole {
				continue
			}
			if bytes, at, listed := h.Holds(x.UUID, x.Process.PID); !seen[x.UUID] || !listed || at.IsZero() ||
				bytes != x.Memory {
				t.Errorf("%+v: %d bytes, %v, %v", x, bytes, at, listed)
			}
			_, _, listed := h.Holds(parent, x.Process.PID)
			fixture.If(t, listed, "process %d is on its GPU too", x.Process.PID)
		}
		fixture.Equal(t, held[whole] == 0 || len(held) != 4, false, "processes are on %v", held)
		fixture.Must(t, h.Drain(t.Context()))
		for uuid := range seen {
			names := h.Names(uuid)
			fixture.If(t, len(names) != 4 || !h.Knows(uuid), "without a driver its names are %q", names)
		}
	})
}

// TestMIGOfASilentGPU asks for a MIG device for the first time when its GPU does not answer any more.
func TestMIGOfASilentGPU(t *testing.T) {
	hosttest.In(t, "gpus: [{load: idle, mig: [1g.10gb]}]\nfaults: [{kind: wedge, at: 20s, for: 10m}]\n", collectors.DefaultConfig(),
		func(t *testing.T, h *collectors.Host) {
			hosttest.Advance(12 * time.Second)
			uuid := ""
			for _, s := range h.Samples() {
				if s.Metric == device.MIGInfo {
					uuid = s.Labels[2]
				}
			}
			hosttest.Advance(time.Minute)
			if !h.Silent()[uuid] || !h.Knows(uuid) || h.Parent(uuid) == uuid {
				t.Errorf("%s: known %v, of %s", uuid, h.Knows(uuid), h.Parent(uuid))
			}
		})
}

func TestNames(t *testing.T) {
	hosttest.In(t, "workloads", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(2 * time.Second)
		for want := range 2 {
			uuid := hosttest.Told(h, collectors.Up, "gpu", fmt.Sprint(want))["uuid"]
			fixture.EqualSlices(t, h.Names(uuid), []string{fmt.Sprint(want), uuid}, "the names of GPU %d are", want)
		}
		fixture.EqualSlices(t, h.Names("GPU-none"), nil, "a missing GPU has the names")
	})
}
