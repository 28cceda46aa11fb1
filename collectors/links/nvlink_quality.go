package links

import (
	"math"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Signal quality of each link, on NVLink 5.
var (
	NVLinkFEC = collectors.Counter("nvgpu_nvlink_fec_errors_total",
		"Symbol errors corrected by forward error correction, by number of errors in a block.", "bin", "link")
	NVLinkBER = collectors.Gauge("nvgpu_nvlink_bit_error_ratio", "Bit error rate of the link.", "kind", "link")
)

var berFields = []struct {
	name string
	id   uint32
}{
	{"effective", nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_BER}, {"symbol", nvml.FI_DEV_NVLINK_COUNT_SYMBOL_BER},
	{"raw", nvml.FI_DEV_NVLINK_COUNT_RAW_BER_V2},
}

var _ = collectors.Register(collectors.Collector{
	Name:    "nvlink_quality",
	Doc:     "Error correction and bit error rates of each link (NVLink 5): up to 19 series a link.",
	Tier:    collectors.Slow,
	OptIn:   true,
	Metrics: []*collectors.Metric{NVLinkFEC, NVLinkBER},
	Read: func(g *gpu.Device, out *collectors.Readings) {
		present, _, ret := links(g)
		if ret != nvml.SUCCESS {
			out.Put(NVLinkFEC, 0, ret)
			out.Put(NVLinkBER, 0, ret)
			return
		}
		for link := range present {
			name := strconv.Itoa(link)
			var fields []collectors.Field
			for bin := range 16 {
				fields = append(fields, collectors.NewField(nvml.FI_DEV_NVLINK_COUNT_FEC_HISTORY_0+uint32(bin), uint32(link),
					NVLinkFEC, 1, strconv.Itoa(bin), name))
			}
			out.Fields(g, fields)
			for _, b := range berFields {
				v := []nvml.FieldValue{{FieldId: b.id, ScopeId: uint32(link)}}
				g.Fields(v)
				raw, ret := gpu.FieldNumber(v[0])
				out.Put(NVLinkBER, bitErrorRate(uint64(raw)), gpu.Absent(ret), b.name, name)
			}
		}
	},
})

// bitErrorRate decodes NVML's rate: bits 0 to 7 are the negated exponent of
// ten, bits 8 to 11 the mantissa (nvml.h NVML_NVLINK_ERROR_COUNTER_BER_GET).
func bitErrorRate(v uint64) float64 {
	return float64(v>>8&0xf) * math.Pow(10, -float64(v&0xff))
}
