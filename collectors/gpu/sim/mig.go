package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/broker"
	"gpusteward/collectors/gpu/sim/models"
	"gpusteward/collectors/gpu/sim/noise"
	"gpusteward/collectors/gpu/sim/stub"
)

// instance is a MIG device: a GPU instance with one compute instance.
type instance struct {
	name    string // the profile
	profile models.MIGProfile
	id      uint32 // of the GPU instance
	start   uint32 // first memory slice
	part    float64
}

// instances lays out the MIG devices of a GPU. Like the driver, it numbers GPU
// instances by size.
func (g *gpu) instances() []instance {
	first := map[uint32]uint32{1: 7, 2: 3, 4: 1, 7: 0}
	all := make([]instance, 0, len(g.spec.MIG))
	start := uint32(0)
	for i, name := range g.spec.MIG {
		p := g.model.MIG[name]
		size := p.Slices
		if size == 3 {
			size = 4 // profiles of 3 and 4 slices share numbers
		}
		all = append(all, instance{name, p, first[size], start, 0.35 + 0.65*noise.Ratio(noise.Hash(g.seed, uint64(i)+600))})
		first[size]++
		start += p.MemorySlices
	}
	return all
}

// settleMIG gives each GPU instance a process, if the load has any.
func (g *gpu) settleMIG(pid int) {
	if len(g.load.procs) == 0 {
		return
	}
	for i, in := range g.instances() {
		r := g.load.procs[0]
		g.stay(process{
			Process: broker.Process{PID: pid + 3*i, Name: r.name,
				Memory: mebibytes(r.part * float64(in.profile.MemoryMiB<<20)), Own: in.part},
			gi: in.id, ci: 0, owner: g.fill(small, i),
		})
	}
}

// migDevice is the handle of a MIG device.
type migDevice struct {
	stub.Device
	parent *device
	index  int
	instance
}

var _ nvml.Device = (*migDevice)(nil)

// GetMigMode returns on if the scenario has MIG devices.
func (d *device) GetMigMode() (current, pending int, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetMigMode", func(g *gpu) nvml.Return {
		if !g.model.Has("mig") {
			return nvml.ERROR_NOT_SUPPORTED
		}
		if len(g.spec.MIG) > 0 {
			current, pending = nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE
		}
		return nvml.SUCCESS
	})
	return current, pending, ret
}

// GetMaxMigDeviceCount returns the maximum number of MIG devices.
func (d *device) GetMaxMigDeviceCount() (int, nvml.Return) {
	return fixed(d, "nvmlDeviceGetMaxMigDeviceCount", func(m *models.Model) int {
		if m.Has("mig") {
			return 7
		}
		return 0
	})
}

// GetMigDeviceHandleByIndex returns a MIG device.
func (d *device) GetMigDeviceHandleByIndex(index int) (nvml.Device, nvml.Return) {
	return read(d, "nvmlDeviceGetMigDeviceHandleByIndex", func(g *gpu) (nvml.Device, nvml.Return) {
		all := g.instances()
		switch {
		case len(all) == 0:
			return nil, nvml.ERROR_NOT_SUPPORTED
		case index < 0 || index >= 7:
			return nil, nvml.ERROR_INVALID_ARGUMENT
		case index >= len(all):
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &migDevice{parent: d, index: index, instance: all[index]}, nvml.SUCCESS
	})
}

// GetGpuInstanceId returns the GPU instance.
func (d *migDevice) GetGpuInstanceId() (int, nvml.Return) {
	return fixed(d.parent, "nvmlDeviceGetGpuInstanceId", func(*models.Model) int { return int(d.id) })
}

// GetComputeInstanceId returns the compute instance.
func (d *migDevice) GetComputeInstanceId() (int, nvml.Return) {
	return fixed(d.parent, "nvmlDeviceGetComputeInstanceId", func(*models.Model) int { return 0 })
}

// GetName returns the names of the product and the profile.
func (d *migDevice) GetName() (string, nvml.Return) {
	return fixed(d.parent, "nvmlDeviceGetName", func(m *models.Model) string { return m.Name + " MIG " + d.name })
}

// GetUUID returns "MIG-" and a UUID.
func (d *migDevice) GetUUID() (string, nvml.Return) {
	return read(d.parent, "nvmlDeviceGetUUID", func(g *gpu) (string, nvml.Return) {
		return g.uuid("MIG", uint64(d.index)+1), nvml.SUCCESS
	})
}

// GetAttributes returns the instance's part of the GPU.
func (d *migDevice) GetAttributes() (nvml.DeviceAttributes, nvml.Return) {
	return fixed(d.parent, "nvmlDeviceGetAttributes", func(*models.Model) nvml.DeviceAttributes {
		p := d.profile
		return nvml.DeviceAttributes{
			MultiprocessorCount: p.SMs, SharedCopyEngineCount: p.Copy, SharedDecoderCount: p.Decoders,
			SharedJpegCount: p.JPEGs, SharedOfaCount: p.OFAs, GpuInstanceSliceCount: p.Slices,
			ComputeInstanceSliceCount: p.Slices, MemorySizeMB: p.MemoryMiB,
		}
	})
}

// gpuInstance is an nvml.GpuInstance.
type gpuInstance struct {
	nvml.GpuInstance
	device *device
	instance
}

// GetGpuInstanceById returns a GPU instance.
func (d *device) GetGpuInstanceById(id int) (nvml.GpuInstance, nvml.Return) {
	return read(d, "nvmlDeviceGetGpuInstanceById", func(g *gpu) (nvml.GpuInstance, nvml.Return) {
		for _, in := range g.instances() {
			if int(in.id) == id {
				return &gpuInstance{device: d, instance: in}, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	})
}

// GetInfo returns the instance's profile and placement.
func (i *gpuInstance) GetInfo() (nvml.GpuInstanceInfo, nvml.Return) {
	return nvml.GpuInstanceInfo{
		Device: i.device, Id: i.id, ProfileId: i.profile.ID,
		Placement: nvml.GpuInstancePlacement{Start: i.start, Size: i.profile.MemorySlices},
	}, nvml.SUCCESS
}

// GpmMigSampleGet fills the sample from a GPU instance, whose engines are busy
// in proportion to the GPU's.
func (d *device) GpmMigSampleGet(id int, sample nvml.GpmSample) nvml.Return {
	return d.ask("nvmlGpmMigSampleGet", func(g *gpu) nvml.Return {
		s, ok := sample.(*gpmSample)
		if !ok {
			return nvml.ERROR_INVALID_ARGUMENT
		}
		if !g.model.Has("gpm") {
			return nvml.ERROR_NOT_SUPPORTED
		}
		for _, in := range g.instances() {
			if int(in.id) == id {
				g.sample(s)
				whole := s.total
				s.total, s.links = gpm{}, nil
				s.total.add(&whole, in.part)
				s.total.pcieTx *= float64(in.profile.Slices) / 7
				s.total.pcieRx *= float64(in.profile.Slices) / 7
				return nvml.SUCCESS
			}
		}
		return nvml.ERROR_INVALID_ARGUMENT
	})
}
