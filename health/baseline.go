package health

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"gpusteward/collectors"
)

// ConfigDrift says which settings are not what they were.
var ConfigDrift = collectors.Gauge("nvgpu_config_drift", "Whether the setting differs from what it was when the GPU was first seen or last acknowledged, or from what most GPUs of its model here have.", "setting")

// A baseline is the settings of a GPU that an operator knows of.
type baseline map[string]string

// baselines are those of all GPUs, by UUID.
type baselines map[string]baseline

// drift adds ConfigDrift to s. A GPU that is new begins with what it has.
func (b baselines) drift(s *Snapshot) {
	now := settings(s)
	for _, gpu := range slices.SortedFunc(maps.Keys(now), Entity.compare) {
		mine := now[gpu]
		pinned := b[gpu.UUID]
		if pinned == nil && len(b) < mostGPUs {
			pinned = baseline{}
			b[gpu.UUID] = pinned
		}
		for _, name := range slices.Sorted(maps.Keys(mine)) {
			if name == "model" || pinned == nil {
				continue
			}
			if _, known := pinned[name]; !known {
				pinned[name] = mine[name]
			}
			differs := pinned[name] != mine[name]
			if usual, ok := common(now, mine["model"], name); ok && name != "mig" { // some GPUs whole and some in parts is what hosts are for
				differs = differs || mine[name] != usual && pinned[name+" accepted"] != mine[name]
			}
			s.Add(collectors.Sample{Metric: ConfigDrift, Labels: []string{gpu.GPU, gpu.UUID, name}, Value: collectors.Bool(differs)})
		}
	}
}

// accept makes what a GPU has now its baseline.
func (b baselines) accept(gpu Entity, s *Snapshot) {
	mine := settings(s)[gpu]
	if mine == nil || b[gpu.UUID] == nil {
		return
	}
	for name, v := range mine {
		b[gpu.UUID][name], b[gpu.UUID][name+" accepted"] = v, v
	}
}

// mostGPUs bounds the GPUs that are remembered.
const mostGPUs = 64

// settings returns what an operator sets, by GPU.
func settings(s *Snapshot) map[Entity]baseline {
	all := map[Entity]baseline{}
	note := func(sample collectors.Sample, name, v string) {
		gpu := entityOf(sample, nil)
		if all[gpu] == nil {
			all[gpu] = baseline{}
		}
		all[gpu][name] = v
	}
	for _, sample := range s.Of(collectors.ModeEnabled) {
		if name := sample.Labels[2]; slices.Contains([]string{"ecc", "persistence", "mig", "accounting"}, name) {
			note(sample, name, strconv.FormatFloat(sample.Value, 'g', -1, 64))
		}
	}
	for _, sample := range s.Of(collectors.PowerLimit) {
		if sample.Labels[2] == "enforced" {
			note(sample, "power_limit", strconv.FormatFloat(sample.Value, 'g', -1, 64))
		}
	}
	for _, sample := range s.Of(collectors.ComputeMode) {
		note(sample, "compute_mode", strconv.FormatFloat(sample.Value, 'g', -1, 64))
	}
	for _, sample := range s.Of(collectors.Info) {
		for i, l := range sample.Metric.Labels {
			switch l {
			case "vbios":
				note(sample, l, sample.Labels[i])
			case "name":
				note(sample, "model", sample.Labels[i])
			}
		}
	}
	return all
}

// common returns what more than two thirds of at least four GPUs of a model
// have set; false where they do not agree.
func common(all map[Entity]baseline, model, name string) (string, bool) {
	votes, n := map[string]int{}, 0
	for _, b := range all {
		if v, ok := b[name]; ok && b["model"] == model {
			votes[v]++
			n++
		}
	}
	if n < 4 {
		return "", false
	}
	best := slices.MaxFunc(slices.Sorted(maps.Keys(votes)), func(a, b string) int { return cmp.Compare(votes[a], votes[b]) })
	return best, 3*votes[best] > 2*n
}
