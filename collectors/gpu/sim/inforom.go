package sim

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors/gpu/sim/models"
)

// GetInforomImageVersion returns the version of the whole InfoROM.
func (d *device) GetInforomImageVersion() (string, nvml.Return) {
	return fixed(d, "nvmlDeviceGetInforomImageVersion", func(m *models.Model) string { return m.Inforom })
}

// GetInforomVersion returns the version of an object; power is not supported.
func (d *device) GetInforomVersion(object nvml.InforomObject) (string, nvml.Return) {
	return read(d, "nvmlDeviceGetInforomVersion", func(g *gpu) (string, nvml.Return) {
		switch object {
		case nvml.INFOROM_OEM:
			return g.model.InforomOEM, nvml.SUCCESS
		case nvml.INFOROM_ECC:
			return g.model.InforomECC, nvml.SUCCESS
		case nvml.INFOROM_POWER, nvml.INFOROM_DEN:
			return "", nvml.ERROR_NOT_SUPPORTED
		}
		return "", nvml.ERROR_INVALID_ARGUMENT
	})
}

// ValidateInforom returns success, without the driver's delay of 68 ms.
func (d *device) ValidateInforom() nvml.Return {
	return d.ask("nvmlDeviceValidateInforom", func(*gpu) nvml.Return { return nvml.SUCCESS })
}

// GetGspFirmwareVersion returns the driver's version.
func (d *device) GetGspFirmwareVersion() (string, nvml.Return) {
	return read(d, "nvmlDeviceGetGspFirmwareVersion", func(g *gpu) (string, nvml.Return) {
		return g.host.scenario.Driver, nvml.SUCCESS
	})
}

// GetGspFirmwareMode reports that GSP firmware is on by default.
func (d *device) GetGspFirmwareMode() (on, byDefault bool, ret nvml.Return) {
	ret = d.ask("nvmlDeviceGetGspFirmwareMode", func(*gpu) nvml.Return { return nvml.SUCCESS })
	return ret == nvml.SUCCESS, ret == nvml.SUCCESS, ret
}
