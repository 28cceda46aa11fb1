package collectors

import (
	"math"
	"slices"
	"time"
)

// Memory returns the memory of a GPU as last read, in bytes: the total, the free
// part, and the driver's own (0 if an old driver does not report it). For a MIG
// device it is the memory of its GPU instance, shared by all compute instances.
// ok is false if the GPU does not answer. Room makes no driver call.
func (h *Host) Memory(uuid string) (total, free, reserved uint64, ok bool) {
	if m, is := h.mig(uuid); is {
		all, ok := h.reading(m.parent, MIGMemoryAll, m.gi)
		left, known := h.reading(m.parent, MIGMemory, m.gi, "free")
		own, _ := h.reading(m.parent, MIGMemory, m.gi, "reserved")
		return uint64(all), uint64(left), uint64(own), ok && known
	}
	all, ok := h.reading(uuid, MemoryTotal)
	left, known := h.reading(uuid, MemoryBytes, "free")
	own, _ := h.reading(uuid, MemoryBytes, "reserved")
	return uint64(all), uint64(left), uint64(own), ok && known
}

// lane is the bandwidth of a PCIe 3 lane in one direction, in bytes per second:
// 8 GT/s with 128 data bits in 130. Each generation doubles it.
const lane = 8e9 / 8 * 128 / 130

// Rates returns the maximum transfer rates of a GPU in bytes per second: over
// its PCIe link in one direction, and to and from its memory; 0 if the driver
// does not report the rate. ok is false if both are unknown or the GPU does not
// answer. Rates makes no driver call.
func (h *Host) Rates(uuid string) (link, memory float64, ok bool) {
	generation, known := h.reading(uuid, PCIeGeneration, "max")
	width, wide := h.reading(uuid, PCIeWidth, "max")
	if known && wide && generation > 0 {
		link = lane * math.Exp2(generation-3) * width
	}
	memory, _ = h.reading(uuid, MemoryBandwidth)
	return link, memory, link > 0 || memory > 0
}

// reading returns the last reading of a series of a GPU, with the labels after
// gpu and uuid, unless it is stale.
func (h *Host) reading(uuid string, m *Metric, labels ...string) (float64, bool) {
	now, s, fast := time.Now(), h.state.Load(), h.Interval()
	for _, r := range s.shown() {
		if p := r.peer.Load(); p == nil || p.UUID != uuid {
			continue
		}
		for _, p := range s.snapshot(r).fresh(now, fast) {
			if !slices.Contains(p.collector.Metrics, m) {
				continue
			}
			for _, x := range p.samples {
				if x.Metric == m && slices.Equal(x.Labels[2:], labels) {
					return x.Value, true
				}
			}
		}
	}
	return 0, false
}
