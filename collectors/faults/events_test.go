package faults

import (
	"fmt"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

func TestEventsArePassedOn(t *testing.T) {
	var mu sync.Mutex
	var got []collectors.Event
	listen := func(o *collectors.Options) {
		o.Events = func(e collectors.Event) { mu.Lock(); defer mu.Unlock(); got = append(got, e) }
	}
	hosttest.With(t, `
gpus: [{model: h100}, {model: h100, mig: [3g.40gb, 3g.40gb]}]
faults:
  - {at: 2s, kind: xid, gpu: 0, code: 31}
  - {at: 3s, kind: xid, gpu: 1, code: 94, gi: 1}
  - {at: 4s, kind: event, gpu: 0, value: ecc_sbe_storm}
  - {at: 5s, kind: recovery_action, gpu: 0, value: reset}
`, listen, func(t *testing.T, h *collectors.Host) {
		start := time.Now()
		hosttest.Advance(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		var all []string
		for _, e := range got {
			if e.GPU.UUID == "" || e.GPU.PCI == "" || e.Time.Before(start) {
				t.Errorf("%+v has no GPU or no time", e)
			}
			all = append(all, fmt.Sprintf("%v gpu%d %s %d gi=%q", e.Time.Sub(start).Round(time.Second), e.GPU.Index,
				e.Type, e.Code, e.GI))
		}
		wanted := []string{`2s gpu0 xid 31 gi=""`, `3s gpu1 xid 94 gi="1"`, `3s gpu1 poison_nonfatal 0 gi=""`,
			`4s gpu0 ecc_sbe_storm 0 gi=""`, `5s gpu0 recovery_action 1 gi=""`, `5s gpu0 xid 154 gi=""`}
		fixture.EqualSlices(t, all, wanted, "events")
		hosttest.Want(t, h, 1, XIDErrors, "0", "31", "")
		hosttest.Want(t, h, 1, XIDErrors, "1", "94", "1")
		hosttest.Want(t, h, 1, Events, "0", "ecc_sbe_storm")
		hosttest.Want(t, h, 0, Events, "0", "poison_fatal")
	})
}

func TestAllEventsExceptClocksAreWanted(t *testing.T) {
	if wantedEvents&nvml.EventTypeClock != 0 || wantedEvents|nvml.EventTypeClock != ^uint64(0) {
		t.Errorf("mask %#x", wantedEvents)
	}
	now := time.Now()
	for _, c := range []struct {
		raw  nvml.EventData
		want collectors.Event
	}{
		{nvml.EventData{EventType: 1 << 40, EventData: 5, GpuInstanceId: gpu.NoInstance},
			collectors.Event{Time: now, GPU: gpu.ID{Index: 3}, Type: "other", Code: 5}},
		{nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 31, GpuInstanceId: 2},
			collectors.Event{Time: now, GPU: gpu.ID{Index: 3}, Type: "xid", Code: 31, GI: "2"}},
	} {
		fixture.Equal(t, event(c.raw, gpu.ID{Index: 3}, now), c.want, "event")
	}
	named := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeClock)
	for _, bit := range gpu.EventTypes {
		named |= bit
	}
	if named != nvml.EventTypeAll {
		t.Errorf("the named events are %#x, go-nvml knows %#x", named, nvml.EventTypeAll)
	}
}

func TestXIDsAreCountedFromZero(t *testing.T) {
	c := collectors.DefaultConfig()
	c.XIDs = []int{31, 79}
	hosttest.In(t, "gpus: [{model: h100}]\nfaults: [{at: 10s, kind: xid, gpu: 0, code: 31}, {at: 15s, kind: xid, gpu: 0, "+
		"code: 45}]\n", c, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		hosttest.Want(t, h, 0, XIDErrors, "0", "31", "")
		hosttest.Want(t, h, 0, XIDErrors, "0", "79", "")
		hosttest.WantNone(t, h, XIDErrors, "0", "45", "")
		hosttest.Advance(15 * time.Second)
		hosttest.Want(t, h, 1, XIDErrors, "0", "31", "")
		hosttest.Want(t, h, 1, XIDErrors, "0", "45", "")
		hosttest.Want(t, h, 0, XIDErrors, "0", "79", "")
		if at, _ := hosttest.Get(t, h, XIDLast, "0", "31"); math.Abs(at-float64(time.Now().Unix()-10)) > 2 {
			t.Errorf("XID 31 seen at %v, now is %v", at, time.Now().Unix())
		}
	})
}
