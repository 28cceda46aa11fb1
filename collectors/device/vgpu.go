package device

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// vGPUs, as seen from their host. vgpu is the driver's number of the instance.
var (
	VGPUInfo = collectors.Gauge("nvgpu_vgpu_info",
		"Identity of a vGPU, always 1.", "vgpu", "vgpu_uuid", "vm_id", "type", "guest_driver", "license")
	VGPUMemoryUsed  = collectors.Gauge("nvgpu_vgpu_memory_used_bytes", "Bytes of memory used by the vGPU.", "vgpu")
	VGPUUtilization = collectors.Gauge("nvgpu_vgpu_utilization_ratio",
		"Utilization of the GPU's engine by the vGPU.", "vgpu", "engine")
	VGPULicenseState = collectors.Gauge("nvgpu_vgpu_license_state",
		"License: 0 unknown, 1 uninitialised, 2 unlicensed unrestricted, 3 unlicensed restricted, 4 "+
			"unlicensed, 5 licensed.", "vgpu")
	VGPUEncoders  = collectors.Gauge("nvgpu_vgpu_encoder_sessions", "Video encoder sessions of the vGPU.", "vgpu")
	VGPUScheduler = collectors.Gauge("nvgpu_vgpu_scheduler_info", "Scheduler of the vGPUs, always 1.", "policy", "arr")
	VGPUHostMode  = collectors.Gauge("nvgpu_vgpu_host_mode",
		"Mode in which the host provides vGPUs: 0 without SR-IOV, 1 with SR-IOV.")
)

var schedulerPolicies = map[uint32]string{
	nvml.VGPU_SCHEDULER_POLICY_UNKNOWN: "unknown", nvml.VGPU_SCHEDULER_POLICY_BEST_EFFORT: "best_effort",
	nvml.VGPU_SCHEDULER_POLICY_EQUAL_SHARE: "equal_share", nvml.VGPU_SCHEDULER_POLICY_FIXED_SHARE: "fixed_share",
}

var arrModes = map[uint32]string{0: "default", 1: "disabled", 2: "enabled"}

var _ = collectors.Register(collectors.Collector{
	Name: "vgpu",
	Doc:  "vGPUs, on their host.",
	Tier: collectors.Medium,
	Metrics: []*collectors.Metric{VGPUInfo, VGPUMemoryUsed, VGPUUtilization, VGPULicenseState, VGPUEncoders, VGPUScheduler,
		VGPUHostMode},
	Open: func(*gpu.Device) collectors.Read {
		var last uint64 // timestamp of the newest utilization sample in microseconds
		return func(g *gpu.Device, out *collectors.Readings) {
			mode, ret := g.GetHostVgpuMode()
			out.Put(VGPUHostMode, float64(mode), ret)
			if ret != nvml.SUCCESS {
				return // not a vGPU host
			}
			active, ret := g.GetActiveVgpus()
			if ret != nvml.SUCCESS {
				out.Put(VGPUInfo, 0, ret)
				return
			}
			for _, nv := range active {
				each(g.VGPU(nv), out)
			}
			kind, samples, ret := g.GetVgpuUtilization(last)
			if ret != nvml.SUCCESS && ret != nvml.ERROR_NOT_FOUND {
				out.Put(VGPUUtilization, 0, ret)
			}
			newest := map[uint32]nvml.VgpuInstanceUtilizationSample{}
			for _, s := range samples {
				last = max(last, s.TimeStamp)
				if s.TimeStamp >= newest[s.VgpuInstance].TimeStamp {
					newest[s.VgpuInstance] = s
				}
			}
			for id, s := range newest {
				name := gpu.Int(int(id), nvml.SUCCESS)
				for engine, v := range map[string][8]byte{"gpu": s.SmUtil, "memory": s.MemUtil, "encoder": s.EncUtil,
					"decoder": s.DecUtil} {
					out.Set(VGPUUtilization, gpu.Number(kind, v)/100, name, engine)
				}
			}
			scheduler, ret := g.GetVgpuSchedulerState()
			out.Put(VGPUScheduler, 1, ret, gpu.Known(schedulerPolicies, scheduler.SchedulerPolicy),
				gpu.Known(arrModes, scheduler.ArrMode))
		}
	},
})

// each reads one vGPU.
func each(v gpu.VGPU, out *collectors.Readings) {
	id := v.ID()
	uuid, ret := v.GetUUID()
	vm, _, vret := v.GetVmID()
	kind := ""
	if t, ret := v.Type(); ret == nvml.SUCCESS {
		kind = gpu.Text(t.GetName())
	}
	license, lret := v.GetLicenseInfo()
	licensed := map[bool]string{true: "licensed", false: "unlicensed"}[license.IsLicensed != 0]
	out.Put(VGPUInfo, 1, ret, id, uuid, gpu.Text(vm, vret), kind, gpu.Text(v.GetVmDriverVersion()),
		gpu.Text(licensed, lret))
	out.Put(VGPULicenseState, float64(license.CurrentState), lret, id)
	used, ret := v.GetFbUsage()
	out.Put(VGPUMemoryUsed, float64(used), ret, id)
	sessions, _, _, ret := v.GetEncoderStats()
	out.Put(VGPUEncoders, float64(sessions), ret, id)
}
