package device

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// Confidential computing, a property of the host.
var (
	CCState = collectors.HostGauge("nvgpu_cc_state",
		"Confidential computing state: 1 for the current state, 0 for the others.", "state")
	CCReady       = collectors.HostGauge("nvgpu_cc_ready", "Whether the GPUs accept work under confidential computing.")
	CCKeyRotation = collectors.HostGauge("nvgpu_cc_key_rotation_threshold_info",
		"Key rotation threshold of confidential computing (attacker advantage), always 1.", "attacker_advantage")
)

var _ = collectors.Register(collectors.Collector{
	Name:    "cc",
	Doc:     "Confidential computing.",
	Tier:    collectors.Slow,
	Metrics: []*collectors.Metric{CCState, CCReady, CCKeyRotation},
	Host: func(l *gpu.Library) func(out *collectors.Readings) {
		return func(out *collectors.Readings) {
			s, ret := l.SystemGetConfComputeState()
			state := 0
			if s.CcFeature != 0 {
				state = 1
				if s.DevToolsMode != 0 {
					state = 2
				}
			}
			out.States(CCState, state, ret, "off", "on", "devtools")
			if ret != nvml.SUCCESS || state == 0 {
				return
			}
			ready, ret := l.SystemGetConfComputeGpusReadyState()
			out.Put(CCReady, float64(ready), ret)
			k, ret := l.SystemGetConfComputeKeyRotationThresholdInfo()
			out.Put(CCKeyRotation, 1, ret, strconv.FormatUint(k.AttackerAdvantage, 10))
		}
	},
})
