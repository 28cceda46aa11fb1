package scenarios

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	nvidia "gpusteward/collectors/gpu"
	"gpusteward/collectors/gpu/sim/models"
)

// check fills the defaults of f; its errors begin with the key.
func (f *Fault) check(all []GPU) error {
	k, ok := kinds[f.Kind]
	switch {
	case !ok:
		return fmt.Errorf("kind: %q: want one of %s", f.Kind, names(kinds))
	case f.At < 0:
		return fmt.Errorf("at: negative duration")
	case f.For < 0:
		return fmt.Errorf("for: negative duration")
	case f.Every < 0 || f.Every > 0 && f.Every <= f.For:
		return fmt.Errorf("every: want longer than the window")
	case f.GPU < 0 || f.GPU >= len(all):
		return fmt.Errorf("gpu: %d: want 0 to %d", f.GPU, len(all)-1)
	}
	if err := f.checkKeys(k); err != nil {
		return err
	}
	if err := f.checkJob(all); err != nil {
		return err
	}
	return f.checkValues(all[f.GPU])
}

// checkPort sets the default port of f, or checks that it is one of ports.
func (f *Fault) checkPort(ports int) error {
	if f.Device == "" {
		f.Device = Port(0)
	}
	for i := range ports {
		if f.Device == Port(i) {
			return nil
		}
	}
	return fmt.Errorf("device: %q: want one of %d InfiniBand ports, from %s on", f.Device, ports, Port(0))
}

// checkKeys returns an error for keys that the kind does not use.
func (f *Fault) checkKeys(k kind) error {
	v := reflect.ValueOf(*f)
	for i := range v.NumField() {
		key := v.Type().Field(i).Tag.Get("yaml")
		if slices.Contains([]string{"kind", "at", "for", "every"}, key) || v.Field(i).IsZero() {
			continue
		}
		allowed := append([]string{"at", "every", "for", "kind"}, k.keys...)
		if !k.host {
			allowed = append(allowed, "gpu")
		}
		if !slices.Contains(allowed, key) {
			slices.Sort(allowed)
			return fmt.Errorf("%s: a fault of kind %s takes only %s", key, f.Kind, strings.Join(allowed, ", "))
		}
	}
	if k.once && f.Every > 0 || f.Kind == "hot_add" && f.For > 0 {
		return fmt.Errorf("every: a fault of kind %s happens once", f.Kind)
	}
	return nil
}

// checkValues checks the keys of the kind.
func (f *Fault) checkValues(g GPU) error {
	all, err := models.All()
	if err != nil {
		return err
	}
	m := all[g.Model]
	if f.Count == 0 {
		f.Count = 1
	}
	switch f.Kind {
	case "xid":
		if f.Code == 0 || f.Code > 999 {
			return fmt.Errorf("code: %d: want 1 to 999", f.Code)
		}
	case "ecc", "row_remap":
		if f.Severity != "corrected" && f.Severity != "uncorrected" {
			return fmt.Errorf("severity: %q: want corrected or uncorrected", f.Severity)
		}
		if f.Kind == "ecc" && f.Location != "dram" && f.Location != "sram" {
			return fmt.Errorf("location: %q: want dram or sram", f.Location)
		}
	case "pcie_aer":
		if !slices.Contains(aerSeverities, f.Severity) {
			return fmt.Errorf("severity: %q: want one of %s", f.Severity, strings.Join(aerSeverities, ", "))
		}
		if m.VirtualMachine {
			return fmt.Errorf("kind: model %s is in a virtual machine, whose kernel counts no PCIe errors", g.Model)
		}
	case "nvlink_down", "nvlink_errors":
		if f.Link < 0 || f.Link >= m.NVLink.Links {
			return fmt.Errorf("link: %d: model %s has %d links, numbered from 0", f.Link, g.Model, m.NVLink.Links)
		}
	case "pcie_degraded":
		if f.Generation < 0 || f.Generation > m.PCIe.Generation {
			return fmt.Errorf("generation: %d: want 1 to %d, or none", f.Generation, m.PCIe.Generation)
		}
		if f.Width < 0 || f.Width > m.PCIe.Width {
			return fmt.Errorf("width: %d: want 1 to %d, or none", f.Width, m.PCIe.Width)
		}
	case "thermal":
		if f.Celsius == 0 {
			f.Celsius = m.Temperature.GPUMax + 6
		}
		if f.Celsius < m.Temperature.Full || f.Celsius > 120 {
			return fmt.Errorf("celsius: %v: want %v to 120", f.Celsius, m.Temperature.Full)
		}
	case "wedge", "error":
		return f.checkCall()
	case "event":
		if bit := nvidia.EventTypes[f.Value]; bit == 0 || bit&m.EventTypes == 0 {
			return fmt.Errorf("value: %q: want one of %s that model %s raises", f.Value, names(nvidia.EventTypes),
				g.Model)
		}
	case "kernel_line":
		if f.Line == "" || strings.ContainsAny(f.Line, "\n\x00") {
			return fmt.Errorf("line: %q: want one line of text", f.Line)
		}
	case "recovery_action":
		if _, ok := recoveryActions[f.Value]; !ok {
			return fmt.Errorf("value: %q: want one of %s", f.Value, names(recoveryActions))
		}
	}
	return f.checkTrouble(g, m)
}

func (f *Fault) checkCall() error {
	if f.Call == "" && f.Kind == "error" || f.Call != "" && !deviceCall(f.Call) && !f.HostCall() {
		return fmt.Errorf("call: %q: want an NVML function, such as nvmlDeviceGetFieldValues", f.Call)
	}
	if f.Kind != "error" {
		return nil
	}
	if _, ok := returns[f.Return]; !ok {
		return fmt.Errorf("return: %q: want one of %s", f.Return, names(returns))
	}
	return nil
}

// checkTrouble checks the keys of kinds that change the work, the memory or the
// settings of a GPU.
func (f *Fault) checkTrouble(g GPU, m *models.Model) error {
	switch f.Kind {
	case "clock":
		if f.Megahertz < m.Clock.IdleLow || f.Megahertz > m.Clock.Max {
			return fmt.Errorf("megahertz: %v: want %v to %v", f.Megahertz, m.Clock.IdleLow, m.Clock.Max)
		}
	case "power":
		if f.Watts <= 0 || f.Watts > m.Power.Max {
			return fmt.Errorf("watts: %v: want more than 0, and at most %v", f.Watts, m.Power.Max)
		}
	case "leak":
		if len(g.Processes) == 0 && (!loads[g.Load] || len(g.MIG)+len(g.VGPUs)+g.Crowd > 0) {
			return fmt.Errorf("kind: gpu %d has no permanent process of its own", f.GPU)
		}
	case "mode":
		if !slices.Contains(modeValues, f.Value) {
			return fmt.Errorf("value: %q: want one of %s", f.Value, strings.Join(modeValues, ", "))
		}
	case "spare_rows":
		if f.Value != "low" && f.Value != "none" {
			return fmt.Errorf("value: %q: want low or none", f.Value)
		}
		if f.Count > uint64(m.RowBanks) {
			return fmt.Errorf("count: %d: model %s has %d banks", f.Count, g.Model, m.RowBanks)
		}
	case "fabric":
		if !slices.Contains(fabricFaults, f.Value) || !m.Has("nvswitch") {
			return fmt.Errorf("value: %q: want one of %s, on a model behind switches", f.Value, strings.Join(fabricFaults, ", "))
		}
	}
	return nil
}
