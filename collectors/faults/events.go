// Package faults reads the errors of a GPU, what the driver and the kernel say
// about them, and the repairs of its memory. The GPU's reader polls the driver's
// events without waiting: a goroutine that waited for them would be a second
// thread in the driver, and one more that could hang.
package faults

import (
	"strconv"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
)

// Events raised by the driver.
var (
	XIDs = collectors.Counter("nvgpu_xids_total", "XID errors of any code since the agent opened the GPU.")
	// Some hundred codes exist, of which a GPU has met none: a code's counter
	// exists from its first XID, unless Config.XIDs has it.
	XIDErrors = collectors.Counter("nvgpu_xid_errors_total",
		"XID errors since the agent opened the GPU, by code; 999 is an XID without a code from the driver. A code "+
			"that appears is 0 for a minute, so that increase() finds its first XID.",
		"xid", "gi").Suddenly()
	XIDLast = collectors.Gauge("nvgpu_xid_last_timestamp_seconds", "Unix time of the last XID error.", "xid")
	Events  = collectors.Counter("nvgpu_events_total", "Other driver events since the agent opened the GPU.", "type")
)

const xidType = "xid" // an Event.Type

// wantedEvents excludes only clock changes: there are twenty a second under
// load, and nvgpu_clock_event_active says more.
const wantedEvents = ^uint64(nvml.EventTypeClock)

// maxEvents bounds the events of one pass; the rest wait in the driver.
const maxEvents = 1000

var _ = collectors.Register(collectors.Collector{
	Name:    "events",
	Doc:     "XID errors and other events of the driver.",
	Tier:    collectors.Fast,
	Metrics: []*collectors.Metric{XIDs, XIDErrors, XIDLast, Events},
	Open: func(g *gpu.Device) collectors.Read {
		set, supported, ret := g.Events(wantedEvents)
		if ret != nvml.SUCCESS {
			return func(_ *gpu.Device, out *collectors.Readings) {
				for _, m := range []*collectors.Metric{XIDs, XIDErrors, Events} {
					out.Put(m, 0, ret)
				}
			}
		}
		c := &eventCounter{set: set, xids: map[[2]string]float64{}, met: map[[2]string]*collectors.Origin{},
			last: map[string]time.Time{}, types: map[string]float64{}}
		for name, bit := range gpu.EventTypes {
			if supported&bit != 0 {
				c.types[name] = 0
			}
		}
		return c.read
	},
})

// An eventCounter counts the events of one GPU. It shows every code and type
// that it has ever met, so it keeps its counts between passes.
type eventCounter struct {
	set   gpu.EventSet
	xids  map[[2]string]float64            // in this pass, by code and GPU instance
	met   map[[2]string]*collectors.Origin // the keys of all so far; nil if they were shown before
	types map[string]float64               // in this pass, by name
	last  map[string]time.Time             // by code
}

func (c *eventCounter) read(g *gpu.Device, out *collectors.Readings) {
	clear(c.xids)
	for key := range c.met {
		c.xids[key] = 0
	}
	for name := range c.types {
		c.types[name] = 0
	}
	for _, code := range out.Config.XIDs {
		c.xids[[2]string{strconv.Itoa(code), ""}] = 0
	}
	all := 0.
	for range maxEvents {
		raw, ret := c.set.Wait(0)
		if ret != nvml.SUCCESS {
			if ret != nvml.ERROR_TIMEOUT {
				out.Fail(ret)
			}
			break
		}
		e := event(raw, g.ID, out.Now)
		out.Events(e)
		if e.Type == xidType {
			code := strconv.FormatUint(e.Code, 10)
			key := [2]string{code, e.GI}
			since := c.met[key]
			if _, shown := c.xids[key]; !shown {
				since = &collectors.Origin{Since: out.Now}
			}
			c.met[key] = since
			c.xids[key]++
			all++
			c.last[code] = out.Now
		} else {
			c.types[e.Type]++
		}
	}
	out.Add(XIDs, all)
	for key, n := range c.xids {
		out.AddSince(c.met[key], XIDErrors, n, key[0], key[1])
	}
	for xid, t := range c.last {
		out.Set(XIDLast, float64(host.Rebased(t, out.Now).UnixMilli())/1e3, xid)
	}
	for name, n := range c.types {
		out.Add(Events, n, name)
	}
}

// event translates an event of the driver.
func event(raw nvml.EventData, id gpu.ID, now time.Time) collectors.Event {
	e := collectors.Event{Time: now, GPU: id, Type: "other", Code: raw.EventData}
	if raw.EventType == nvml.EventTypeXidCriticalError {
		e.Type = xidType
	}
	for name, bit := range gpu.EventTypes {
		if raw.EventType == bit {
			e.Type = name
		}
	}
	if raw.GpuInstanceId != gpu.NoInstance {
		e.GI = strconv.FormatUint(uint64(raw.GpuInstanceId), 10)
	}
	return e
}
