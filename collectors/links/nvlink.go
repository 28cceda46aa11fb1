// Package links reads what connects GPUs with each other, with the host and
// with other hosts.
package links

import (
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// NVLink traffic. Unless the configuration asks for per-link series, the label
// link is "all" and the value is the sum over the GPU's links.
var (
	NVLinkBytes = collectors.Counter("nvgpu_nvlink_bytes_total",
		"Bytes of NVLink traffic; raw is data plus protocol overhead.", "direction", "kind", "link")
	NVLinkPackets = collectors.Counter("nvgpu_nvlink_packets_total", "Packets that NVLinks have sent and received, by direction.", "direction", "link")
)

const allLinks = "all"

// A linkField is a field of each link. Older links count KiB, and the driver
// sums them; NVLink 5 counts bytes, under another id.
type linkField struct {
	collectors.Field
	alone  bool    // the driver never sums over the links
	newer  uint32  // field id on NVLink 5, if it differs
	scale5 float64 // what one unit of newer is worth
}

var nvlinkTraffic = []linkField{
	{collectors.NewField(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0, NVLinkBytes, 1024, "tx", "data"), false,
		nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1},
	{collectors.NewField(nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0, NVLinkBytes, 1024, "rx", "data"), false,
		nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, 1},
	{collectors.NewField(nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX, 0, NVLinkBytes, 1024, "tx", "raw"), false, 0, 0},
	{collectors.NewField(nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_RX, 0, NVLinkBytes, 1024, "rx", "raw"), false, 0, 0},
	{collectors.NewField(nvml.FI_DEV_NVLINK_COUNT_XMIT_PACKETS, 0, NVLinkPackets, 1, "tx"), true, 0, 0},
	{collectors.NewField(nvml.FI_DEV_NVLINK_COUNT_RCV_PACKETS, 0, NVLinkPackets, 1, "rx"), true, 0, 0},
}

var _ = collectors.Register(collectors.Collector{
	Name:    "nvlink",
	Doc:     "NVLink traffic.",
	Tier:    collectors.Medium,
	Metrics: []*collectors.Metric{NVLinkBytes, NVLinkPackets},
	Open:    openLinks(nvlinkTraffic),
})

// links returns the number of NVLinks of g, and which of them are up. The
// return code says why there are none.
func links(g *gpu.Device) (present int, up []int, ret nvml.Return) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := g.GetNvLinkState(link)
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT && link > 0:
			return present, up, nvml.SUCCESS
		case gpu.Unsupported(gpu.Absent(ret)) && link > 0:
			continue // not wired on this board
		case ret != nvml.SUCCESS:
			return 0, nil, gpu.Absent(ret)
		}
		present = link + 1
		if state == nvml.FEATURE_ENABLED {
			up = append(up, link)
		}
	}
	return present, up, nvml.SUCCESS
}

// openLinks returns an Open for counters of each link.
func openLinks(rows []linkField) func(*gpu.Device) collectors.Read {
	return func(*gpu.Device) collectors.Read {
		n := len(rows)
		l := &linkReader{rows: rows, newer: make([]bool, n), each: make([]bool, n), never: make([]bool, n),
			last: map[linkKey]float64{}}
		return l.read
	}
}

// A linkReader reads counters of a GPU's links. A link that stops answering
// keeps its last value in the sum, so that the sum never falls.
type linkReader struct {
	rows  []linkField
	newer []bool // rows that answer to their newer id
	each  []bool // rows that this driver does not sum
	never []bool // rows that no link answers: each link costs the driver 0.9 ms
	last  map[linkKey]float64
}

// A linkKey is a row on a link; the index after the last link stands for all.
type linkKey struct{ row, link int }

func (l *linkReader) read(g *gpu.Device, out *collectors.Readings) {
	present, _, ret := links(g)
	if ret != nvml.SUCCESS {
		for _, r := range l.rows {
			out.Put(r.Metric, 0, ret)
		}
		return
	}
	values, keys := l.ask(present, out.Config.PerLink)
	if len(values) > 0 {
		g.Fields(values)
	}
	sums, answered := make([]float64, len(l.rows)), make([]bool, len(l.rows))
	for i, k := range keys {
		v, ok := l.take(k, values[i], out)
		if !ok {
			continue
		}
		answered[k.row] = true
		sums[k.row] += v
		if out.Config.PerLink {
			out.Set(l.rows[k.row].Metric, v, l.labels(k.row, strconv.Itoa(k.link))...)
		}
	}
	for i, r := range l.rows {
		switch {
		case answered[i]:
			if !out.Config.PerLink {
				out.Set(r.Metric, sums[i], l.labels(i, allLinks)...)
			}
		case r.newer != 0 && !l.newer[i]:
			l.newer[i] = true // from the next pass on
		case !r.alone && !l.newer[i] && !l.each[i] && !out.Config.PerLink:
			l.each[i] = true
		default:
			l.never[i] = out.Failure == nvml.SUCCESS
			out.Put(r.Metric, 0, nvml.ERROR_NOT_SUPPORTED)
		}
	}
}

// ask lists the fields to read: those of each link, or the driver's own sum.
func (l *linkReader) ask(present int, perLink bool) (values []nvml.FieldValue, keys []linkKey) {
	add := func(id, scope uint32, k linkKey) {
		values, keys = append(values, nvml.FieldValue{FieldId: id, ScopeId: scope}), append(keys, k)
	}
	for i, r := range l.rows {
		if l.never[i] {
			continue
		}
		if !r.alone && !perLink && !l.newer[i] && !l.each[i] {
			add(r.ID, gpu.AllLinks, linkKey{i, present})
			continue
		}
		id := r.ID
		if l.newer[i] {
			id = r.newer
		}
		for link := range present {
			add(id, uint32(link), linkKey{i, link})
		}
	}
	return values, keys
}

// take returns the value of a field, or its last known value.
func (l *linkReader) take(k linkKey, f nvml.FieldValue, out *collectors.Readings) (float64, bool) {
	v, ret := gpu.FieldNumber(f)
	switch {
	case ret == nvml.SUCCESS:
		scale := l.rows[k.row].Scale
		if l.newer[k.row] {
			scale = l.rows[k.row].scale5
		}
		l.last[k] = collectors.Scaled(v, scale)
	case gpu.Absent(ret) != nvml.ERROR_NOT_SUPPORTED && ret != nvml.ERROR_NOT_FOUND:
		out.Fail(ret)
	}
	last, ok := l.last[k]
	return last, ok
}

func (l *linkReader) labels(row int, link string) []string {
	return append(slices.Clone(l.rows[row].Labels), link)
}
