package health

import (
	"maps"
	"math"
	"slices"
	"strconv"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// PCIeLacks is what a PCIe link lacks. An idle link has a low generation to
// save power, so this alone is no fault.
var PCIeLacks = collectors.Gauge("nvgpu_pcie_link_lacks",
	"Generations or lanes that the PCIe link has less than its slot allows (than=\"slot\"), or than it had on this "+
		"host (than=\"before\"), or than an operator acknowledged. The labels now and best have both numbers.",
	"of", "than", "now", "best")

// linkSizes are the sizes of a link, by their name in PCIeLacks.
var linkSizes = []struct {
	of     string
	metric *collectors.Metric
}{{"generation", links.PCIeGeneration}, {"lanes", links.PCIeWidth}}

// lacks adds PCIeLacks to s. It remembers the best of each link, and forgets
// what was acknowledged once the link is better. For the driver, a slot has as
// many lanes as fit into it. A slot that was wired with fewer has a port with
// fewer, unless the port is a virtual machine's. A GPU that shares a package with
// a processor may be in no slot: then the driver says one lane of the first
// generation.
func (b baselines) lacks(s *derived.Snapshot) {
	inPackage := ofHost(s)
	ports := map[incident.Entity]float64{}
	for _, port := range s.Of(links.PCIPortLanes) {
		ports[incident.EntityOf(port, nil)] = port.Value
	}
	for _, size := range linkSizes {
		most := map[incident.Entity]float64{}
		for _, sample := range s.Of(size.metric) {
			if sample.Labels[2] == "max" {
				most[incident.EntityOf(sample, nil)] = sample.Value
			}
		}
		for _, sample := range s.Of(size.metric) {
			gpu := incident.EntityOf(sample, nil)
			slot, known := most[gpu]
			mine := b.of(gpu)
			if sample.Labels[2] != "current" || !known || mine == nil || inPackage[gpu] && sample.Value == 1 {
				continue
			}
			had := mine.raise("pcie_"+size.of, sample.Value)
			if accepted, ok := mine.value(acceptedOf(size.of)); ok {
				if slot = min(slot, accepted); sample.Value > accepted {
					delete(mine, acceptedOf(size.of))
				}
			}
			put := func(than string, best float64) {
				s.Add(collectors.Sample{Metric: PCIeLacks, Labels: []string{gpu.GPU, gpu.UUID, size.of, than,
					number(sample.Value), number(best)}, Value: max(0, best-sample.Value)})
			}
			put("before", min(had, slot))
			if port := ports[gpu]; size.of == "lanes" && port >= sample.Value {
				slot = min(slot, port)
			}
			put("slot", slot)
		}
	}
}

// absentAccepted is the setting of the node for GPUs whose absence an operator
// accepted.
const absentAccepted = "absent accepted"

// absent adds DevicesAbsent to s.
func (b baselines) absent(s *derived.Snapshot) {
	now, known := onHost(s, collectors.Devices, "")
	if !known || now == 0 {
		return
	}
	absent := 0.
	if on, visible := onHost(s, links.PCIDevices, "gpu"); visible {
		away, _ := onHost(s, DevicesAway, "")
		withheld, _ := onHost(s, links.PCIDevicesWithheld, "")
		absent = max(0, on-away-withheld-now)
		if bareMetal(s) {
			absent += emptyPlaces(s, max(on, now))
		}
	}
	if expected, _ := onHost(s, collectors.DevicesExpected, ""); expected > now { // the host had these
		absent -= expected - now
	}
	accepted, _ := b.of(incident.Entity{}).value(absentAccepted)
	s.Add(collectors.Sample{Metric: DevicesAbsent, Value: max(0, absent-accepted)})
}

// onHost is the sum of a host's series of a kind, or of all kinds.
func onHost(s *derived.Snapshot, m *collectors.Metric, kind string) (n float64, known bool) {
	for _, sample := range s.Of(m) {
		if kind == "" || sample.Labels[0] == kind {
			n, known = n+sample.Value, true
		}
	}
	return n, known
}

// bareMetal reports whether the driver says of each GPU that it is not in a
// virtual machine, which may have any part of a baseboard.
func bareMetal(s *derived.Snapshot) bool {
	modes := s.Of(device.VirtualizationInfo)
	return len(modes) > 0 && !slices.ContainsFunc(modes, func(mode collectors.Sample) bool {
		return mode.Labels[2] == "pass_through" || mode.Labels[2] == "vgpu"
	})
}

// emptyPlaces returns how many places for GPUs are empty on the baseboard of a
// host with n GPUs on its bus. A board has two, four, eight or sixteen. NVSwitches
// on the bus show that there is one; those of newer boards are not on the bus,
// and a place shows only if it is between others. Cards of other models are not
// on the board.
func emptyPlaces(s *derived.Snapshot, n float64) float64 {
	models, modules := map[string]float64{}, map[float64]bool{}
	all, most := 0., 0.
	for _, info := range s.Of(device.Info) {
		model := info.Labels[infoLabel("name")]
		models[model]++
		all, most = all+1, max(most, models[model])
		if module, err := strconv.ParseFloat(info.Labels[infoLabel("module_id")], 64); err == nil {
			modules[module] = true
		}
	}
	n -= all - most
	if n < 1 || n > mostOnBoards {
		return 0
	}
	empty := math.Exp2(math.Ceil(math.Log2(n))) - n
	if switches, _ := onHost(s, links.PCIDevices, "nvswitch"); switches > 0 || empty == 0 {
		return empty
	}
	if ids := slices.Sorted(maps.Keys(modules)); len(ids) > 1 && float64(len(ids)) == n {
		return min(empty, ids[len(ids)-1]-ids[0]+1-n)
	}
	return 0
}

// mostOnBoards is the number of GPUs of the largest host with NVSwitches.
const mostOnBoards = 16

// infoLabel returns the index of a label of device.Info.
func infoLabel(name string) int { return slices.Index(device.Info.Labels, name) }

// acceptedOf is the setting for the size of a link that an operator accepted.
func acceptedOf(of string) string { return "pcie_" + of + " accepted" }

// acceptWorst makes the worst that a failing check has seen the best that is
// expected of a GPU's link, or of the number of GPUs.
func (b baselines) acceptWorst(j *judge, st *status, s *derived.Snapshot) {
	for i, l := range st.levels {
		src := j.Levels[i].When.Signal.source
		if l.active && src != nil && src.metric == DevicesAbsent {
			node := b.of(incident.Entity{})
			before, _ := node.value(absentAccepted)
			node[absentAccepted] = number(before + l.worst)
		}
		if !l.active || src == nil || src.metric != PCIeLacks {
			continue
		}
		src.each(s, func(sample collectors.Sample) {
			if best, err := strconv.ParseFloat(sample.Labels[5], 64); err == nil &&
				incident.EntityOf(sample, nil) == st.Entity {
				b.of(st.Entity)[acceptedOf(sample.Labels[2])] = number(best - l.worst)
			}
		})
	}
}

// raise remembers the highest value of a name, and returns it.
func (b baseline) raise(name string, v float64) float64 {
	had, ok := b.value(name)
	if !ok || v > had {
		b[name], had = number(v), v
	}
	return had
}

// value returns a number.
func (b baseline) value(name string) (float64, bool) {
	v, err := strconv.ParseFloat(b[name], 64)
	return v, err == nil
}

// linkLevels find a GPU whose link lacks something while it works. A link that
// never had more on this host may have no more by design.
func linkLevels() (all []Level) {
	for _, size := range []struct {
		of, detail string
		works      []Condition
	}{
		// A GPU that is not at full speed does not ask for the fastest link.
		{"generation", "The PCIe link of {entity} {runs|ran} at a lower generation than it {can|could}{labels}.",
			[]Condition{gpuBusy.Above(.10), Value(device.PerformanceState).AtMost(derived.FullSpeed)}},
		{"lanes", "The PCIe link of {entity} {runs|ran} with fewer lanes than it {can|could}{labels}.",
			[]Condition{gpuBusy.Above(.10)}},
	} {
		for _, than := range []struct {
			name, words string
			severity    incident.Severity
		}{{"slot", "its slot allows", incident.Warning}, {"before", "it had before", incident.Critical}} {
			lacks := Value(PCIeLacks, "of", size.of, "than", than.name).Above(0)
			all = append(all,
				Level{Severity: than.severity, When: lacks.And(size.works...), For: of(6, 6), Detail: size.detail,
					Rule: "The PCIe link of {entity} lacks {count:generation or lane|generations or lanes} that " + than.words +
						", and copies take longer."},
				// The derived metric already takes twelve samples.
				Level{Severity: than.severity, When: lacks.And(Value(derived.PCIeShortfall, "of", size.of).Above(0)),
					Detail: size.detail})
		}
	}
	return all
}
