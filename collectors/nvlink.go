package collectors

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu"
)

// NVLink traffic. Where the configuration does not ask for each link, the
// label link is "all" and the value is the sum over the GPU's links.
var (
	NVLinkBytes   = Counter("nvgpu_nvlink_bytes_total", "NVLink traffic; raw is data with the protocol's overhead.", "direction", "kind", "link")
	NVLinkPackets = Counter("nvgpu_nvlink_packets_total", "NVLink packets.", "direction", "link")
)

const allLinks = "all"

// A linkField is a field that each link has. Older links count KiB and the
// driver adds them up itself; NVLink 5 counts bytes, under another id.
type linkField struct {
	field
	alone  bool    // the driver does not add the links up
	newer  uint32  // field id on NVLink 5, if it differs
	scale5 float64 // what one of newer's units is
}

var nvlinkTraffic = []linkField{
	{field{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0, NVLinkBytes, 1024, []string{"tx", "data"}}, false, nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES, 1},
	{field{nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, 0, NVLinkBytes, 1024, []string{"rx", "data"}}, false, nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES, 1},
	{field{nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_TX, 0, NVLinkBytes, 1024, []string{"tx", "raw"}}, false, 0, 0},
	{field{nvml.FI_DEV_NVLINK_THROUGHPUT_RAW_RX, 0, NVLinkBytes, 1024, []string{"rx", "raw"}}, false, 0, 0},
	{field{nvml.FI_DEV_NVLINK_COUNT_XMIT_PACKETS, 0, NVLinkPackets, 1, []string{"tx"}}, true, 0, 0},
	{field{nvml.FI_DEV_NVLINK_COUNT_RCV_PACKETS, 0, NVLinkPackets, 1, []string{"rx"}}, true, 0, 0},
}

var _ = Register(Collector{
	Name:    "nvlink",
	Doc:     "NVLink traffic.",
	Tier:    Medium,
	Metrics: []*Metric{NVLinkBytes, NVLinkPackets},
	Open:    openLinks(nvlinkTraffic),
})

// links returns how many NVLinks g has, and which of them are up. The return
// code says why there is none.
func links(g *gpu.Device) (present int, up []int, ret nvml.Return) {
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := g.GetNvLinkState(link)
		switch {
		case ret == nvml.ERROR_INVALID_ARGUMENT && link > 0:
			return present, up, nvml.SUCCESS
		case gpu.Unsupported(absent(ret)) && link > 0:
			continue // not wired on this board
		case ret != nvml.SUCCESS:
			return 0, nil, absent(ret)
		}
		present = link + 1
		if state == nvml.FEATURE_ENABLED {
			up = append(up, link)
		}
	}
	return present, up, nvml.SUCCESS
}

// openLinks returns an Open for counters that each link has. A link that
// stops answering keeps its share in the sum, so that the sum never falls.
func openLinks(rows []linkField) func(*gpu.Device) Read {
	return func(*gpu.Device) Read {
		type key struct{ row, link int }
		last := map[key]float64{}
		newer := map[int]bool{} // rows that answer to their newer id
		return func(g *gpu.Device, out *Readings) {
			present, _, ret := links(g)
			if ret != nvml.SUCCESS {
				for _, r := range rows {
					out.Put(r.metric, 0, ret)
				}
				return
			}
			var asked []nvml.FieldValue
			var keys []key
			for i, r := range rows {
				if id := r.id; r.alone || out.config.PerLink || newer[i] {
					if newer[i] {
						id = r.newer
					}
					for link := range present {
						asked, keys = append(asked, nvml.FieldValue{FieldId: id, ScopeId: uint32(link)}), append(keys, key{i, link})
					}
				} else {
					asked, keys = append(asked, nvml.FieldValue{FieldId: id, ScopeId: gpu.AllLinks}), append(keys, key{i, present})
				}
			}
			g.Fields(asked)
			sums, answered := make([]float64, len(rows)), make([]bool, len(rows))
			for n, k := range keys {
				r := rows[k.row]
				v, ret := gpu.FieldNumber(asked[n])
				if absent(ret) == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_NOT_FOUND {
					if _, ok := last[k]; !ok {
						continue
					}
				} else if ret != nvml.SUCCESS {
					out.Fail(ret)
					continue
				} else {
					scale := r.scale
					if newer[k.row] {
						scale = r.scale5
					}
					last[k] = scaled(v, scale)
				}
				answered[k.row] = true
				sums[k.row] += last[k]
				if out.config.PerLink {
					out.Set(r.metric, last[k], append(r.labels[:len(r.labels):len(r.labels)], strconv.Itoa(k.link))...)
				}
			}
			for i, r := range rows {
				switch {
				case !answered[i] && r.newer != 0 && !newer[i]:
					newer[i] = true // from the next pass on
				case !answered[i]:
					out.Put(r.metric, 0, nvml.ERROR_NOT_SUPPORTED)
				case !out.config.PerLink:
					out.Set(r.metric, sums[i], append(r.labels[:len(r.labels):len(r.labels)], allLinks)...)
				}
			}
		}
	}
}
