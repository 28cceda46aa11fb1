package health

import (
	"math"
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
// what was acknowledged once the link is better.
func (b baselines) lacks(s *derived.Snapshot) {
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
			if sample.Labels[2] != "current" || !known || mine == nil {
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
			put("slot", slot)
			put("before", min(had, slot))
		}
	}
}

// absentAccepted is the setting of the node for GPUs whose absence an operator
// accepted.
const absentAccepted = "absent accepted"

// absent adds DevicesAbsent to s.
func (b baselines) absent(s *derived.Snapshot) {
	count := func(m *collectors.Metric, kind string) (n float64, known bool) {
		for _, sample := range s.Of(m) {
			if kind == "" || sample.Labels[0] == kind {
				n, known = n+sample.Value, true
			}
		}
		return n, known
	}
	now, known := count(collectors.Devices, "")
	if !known || now == 0 {
		return
	}
	listed, absent := now, 0.
	if on, known := count(links.PCIDevices, "gpu"); known {
		away, _ := count(DevicesAway, "")
		absent = max(0, on-away-listed)
		listed = max(listed, on)
	}
	switches, _ := count(links.PCIDevices, "nvswitch")
	for _, state := range s.Of(links.FabricState) {
		switches += state.Value * collectors.Bool(state.Labels[2] != "not_supported")
	}
	if switches > 0 {
		absent = max(absent, math.Exp2(math.Ceil(math.Log2(listed)))-listed)
	}
	if expected, _ := count(collectors.DevicesExpected, ""); expected > now { // the host had these
		absent -= expected - now
	}
	accepted, _ := b.of(incident.Entity{}).value(absentAccepted)
	s.Add(collectors.Sample{Metric: DevicesAbsent, Value: max(0, absent-accepted)})
}

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
