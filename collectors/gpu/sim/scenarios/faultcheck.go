package scenarios

import (
	"fmt"
	"maps"
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
	return f.checkValues(&all[f.GPU], k)
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

// checkValues fills the defaults of the kind's keys, and checks their values.
func (f *Fault) checkValues(g *GPU, k kind) error {
	all, err := models.All()
	if err != nil {
		return err
	}
	f.Count = max(f.Count, 1)
	if k.check == nil {
		return nil
	}
	return k.check(f, g, all[g.Model])
}

// among returns an error unless the value of a key is one of a list.
func among(key, value string, list []string) error {
	if !slices.Contains(list, value) {
		return fmt.Errorf("%s: %q: want one of %s", key, value, strings.Join(list, ", "))
	}
	return nil
}

// within returns an error unless the number of a key is in a range.
func within[T uint64 | float64](key string, value, least, most T) error {
	if value < least || value > most {
		return fmt.Errorf("%s: %v: want %v to %v", key, value, least, most)
	}
	return nil
}

func checkXID(f *Fault, _ *GPU, _ *models.Model) error { return within("code", f.Code, 1, 999) }

func checkEvent(f *Fault, g *GPU, m *models.Model) error {
	if bit := nvidia.EventTypes[f.Value]; bit == 0 || bit&m.EventTypes == 0 {
		return fmt.Errorf("value: %q: want one of %s that model %s raises", f.Value, names(nvidia.EventTypes), g.Model)
	}
	return nil
}

func checkLine(f *Fault, _ *GPU, _ *models.Model) error {
	if f.Line == "" || strings.ContainsAny(f.Line, "\n\x00") {
		return fmt.Errorf("line: %q: want one line of text", f.Line)
	}
	return nil
}

func checkECC(f *Fault, g *GPU, m *models.Model) error {
	if f.Location != "dram" && f.Location != "sram" {
		return fmt.Errorf("location: %q: want dram or sram", f.Location)
	}
	return checkSeverity(f, g, m)
}

func checkSeverity(f *Fault, _ *GPU, _ *models.Model) error {
	if f.Severity != "corrected" && f.Severity != "uncorrected" {
		return fmt.Errorf("severity: %q: want corrected or uncorrected", f.Severity)
	}
	return nil
}

func checkLink(f *Fault, g *GPU, m *models.Model) error {
	if f.Link < 0 || f.Link >= m.NVLink.Links {
		return fmt.Errorf("link: %d: model %s has %d links, numbered from 0", f.Link, g.Model, m.NVLink.Links)
	}
	return nil
}

func checkAER(f *Fault, g *GPU, m *models.Model) error {
	if m.VirtualMachine {
		return fmt.Errorf("kind: model %s is in a virtual machine, whose kernel counts no PCIe errors", g.Model)
	}
	return among("severity", f.Severity, aerSeverities)
}

func checkPCIe(f *Fault, _ *GPU, m *models.Model) error {
	if f.Generation < 0 || f.Generation > m.PCIe.Generation {
		return fmt.Errorf("generation: %d: want 1 to %d, or none", f.Generation, m.PCIe.Generation)
	}
	if f.Width < 0 || f.Width > m.PCIe.Width {
		return fmt.Errorf("width: %d: want 1 to %d, or none", f.Width, m.PCIe.Width)
	}
	return nil
}

func checkThermal(f *Fault, _ *GPU, m *models.Model) error {
	if f.Celsius == 0 {
		f.Celsius = m.Temperature.GPUMax + 6
	}
	return within("celsius", f.Celsius, m.Temperature.Full, 120)
}

func checkClock(f *Fault, _ *GPU, m *models.Model) error {
	return within("megahertz", f.Megahertz, m.Clock.IdleLow, m.Clock.Max)
}

func checkPower(f *Fault, _ *GPU, m *models.Model) error {
	if f.Watts <= 0 || f.Watts > m.Power.Max {
		return fmt.Errorf("watts: %v: want more than 0, and at most %v", f.Watts, m.Power.Max)
	}
	return nil
}

func checkLeak(f *Fault, g *GPU, _ *models.Model) error {
	if len(g.Processes) == 0 && (!loads[g.Load] || len(g.MIG)+len(g.VGPUs)+g.Crowd > 0) {
		return fmt.Errorf("kind: gpu %d has no permanent process of its own", f.GPU)
	}
	return nil
}

func checkMode(f *Fault, _ *GPU, _ *models.Model) error { return among("value", f.Value, modeValues) }

func checkSpareRows(f *Fault, g *GPU, m *models.Model) error {
	if f.Value != "low" && f.Value != "none" {
		return fmt.Errorf("value: %q: want low or none", f.Value)
	}
	if f.Count > uint64(m.RowBanks) {
		return fmt.Errorf("count: %d: model %s has %d banks", f.Count, g.Model, m.RowBanks)
	}
	return nil
}

func checkFabric(f *Fault, _ *GPU, m *models.Model) error {
	if !slices.Contains(fabricFaults, f.Value) || !m.Has("nvswitch") {
		return fmt.Errorf("value: %q: want one of %s, on a model behind switches", f.Value, strings.Join(fabricFaults, ", "))
	}
	return nil
}

func checkRecovery(f *Fault, _ *GPU, _ *models.Model) error {
	return among("value", f.Value, slices.Sorted(maps.Keys(recoveryActions)))
}

func checkCall(f *Fault, _ *GPU, _ *models.Model) error {
	if f.Call == "" && f.Kind == "error" || f.Call != "" && !deviceCall(f.Call) && !f.HostCall() {
		return fmt.Errorf("call: %q: want an NVML function, such as nvmlDeviceGetFieldValues", f.Call)
	}
	return nil
}

func checkReturn(f *Fault, g *GPU, m *models.Model) error {
	if err := checkCall(f, g, m); err != nil {
		return err
	}
	return among("return", f.Return, slices.Sorted(maps.Keys(returns)))
}
