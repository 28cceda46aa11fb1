package collectors

import (
	"math"
	"slices"
	"time"
)

// Memory returns the memory of a GPU as it was last read, in bytes: all of it,
// what is free, and what the driver keeps for itself (0 where an old driver
// does not say). Of a MIG device it is that of its GPU instance, which all its
// compute instances share. ok is false where the GPU does not answer. No driver
// call.
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

// lane is what a lane of PCIe 3 carries in one direction, in bytes a second: 8
// GT/s, of which 128 bits of 130 are data. Each generation doubles it.
const lane = 8e9 / 8 * 128 / 130

// Rates returns what a GPU can move at most, in bytes a second: over its PCIe
// link in one direction, and to and from its memory; 0 where the driver does
// not say. ok is false where neither is known, or the GPU does not answer. No
// driver call.
func (h *Host) Rates(uuid string) (link, memory float64, ok bool) {
	generation, known := h.reading(uuid, PCIeGeneration, "max")
	width, wide := h.reading(uuid, PCIeWidth, "max")
	if known && wide && generation > 0 {
		link = lane * math.Exp2(generation-3) * width
	}
	memory, _ = h.reading(uuid, MemoryBandwidth)
	return link, memory, link > 0 || memory > 0
}

// reading returns what was last read of a GPU for a series with these labels
// after gpu and uuid, if that is not stale.
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
