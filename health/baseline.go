package health

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// ConfigDrift says which settings are not what they were.
var ConfigDrift = collectors.Gauge("nvgpu_config_drift",
	"Whether a setting of the GPU is not the expected one. It was changed while a workload ran, and not on all GPUs of "+
		"the model; or most GPUs of the model have another value. An acknowledgement makes the value the expected one. "+
		"The labels have both, as people say them: \"500 W\", \"off\".", "setting",
	"value", "expected")

// A baseline is the settings of a GPU that an operator sets.
type baseline map[string]string

// baselines are those of all GPUs, by UUID.
type baselines map[string]baseline

// An observation is the value of a setting at its last reading, the users of
// the GPU then, and the time since which the setting may belong to a job.
type observation struct {
	value     string
	workloads []string
	since     time.Time
	before    bool // by the last agent: nobody saw what happened since
}

// A savedSetting is an observation that outlives a restart of the agent.
type savedSetting struct {
	UUID      string    `json:"uuid"`
	Setting   string    `json:"setting"`
	Value     string    `json:"value"`
	Workloads []string  `json:"workloads"`
	Since     time.Time `json:"since"`
}

// save returns what a new agent needs to know of the settings.
func (o *observed) save(dated func(time.Time) time.Time) (all []savedSetting) {
	for uuid, of := range o.settings {
		for name, was := range of {
			all = append(all, savedSetting{uuid, name, was.value, was.workloads, dated(was.since)})
		}
	}
	return all
}

// restore takes what the last agent saw.
func (o *observed) restore(all []savedSetting, restored func(time.Time) time.Time) {
	for _, s := range all {
		if o.settings[s.UUID] == nil {
			o.settings[s.UUID] = map[string]observation{}
		}
		o.settings[s.UUID][s.Setting] = observation{s.Value, s.Workloads, restored(s.Since), true}
	}
}

// observed are those of all GPUs' settings, and when jobs came or went.
type observed struct {
	settings map[string]map[string]observation // by UUID and setting
	jobs     []string                          // on the host; nil: not read yet
	turned   time.Time                         // when the last one came or went
}

// watch notes which workloads are on the host.
func (o *observed) watch(workloads map[incident.Entity][]string, now time.Time) {
	jobs := []string{}
	for _, w := range workloads {
		jobs = append(jobs, w...)
	}
	slices.Sort(jobs)
	if jobs = slices.Compact(jobs); o.jobs != nil && !slices.Equal(jobs, o.jobs) {
		o.turned = now
	}
	o.jobs = jobs
}

// byAdmin are the settings that schedulers and administrators change for some
// GPUs of a host and not for others.
var byAdmin = []string{"compute_mode", ofPower, "mig"}

// The enforced power limit, the requested one, and the one that a driver sets
// when it is loaded. The board or the chassis can lower the enforced limit
// below the requested one.
const (
	ofPower = "power_limit"
	asked   = "power_limit asked"
	preset  = "power_limit preset"
)

// powerLimits are their labels.
var powerLimits = map[string]string{"enforced": ofPower, "requested": asked, "default": preset}

// unjudged are the settings that only help to judge others.
var unjudged = []string{"model", asked, preset}

// Times for settings that the prolog of a job changes and its epilog restores.
const (
	turnover = time.Hour     // on hosts with prologs, jobs come and go within it
	lentFor  = 4 * time.Hour // a setting that lasts longer is not a job's
)

// drift adds ConfigDrift to s. The settings of a new GPU are its baseline. A
// change becomes the baseline if it is deliberate: it affects all GPUs of a
// model, comes with a reset, comes while no earlier workload runs, or restores
// the value from before or that of most siblings, or an administrator made it
// while no agent ran. A change under a workload is not deliberate. A GPU that
// keeps its setting while its siblings get another is not to blame. But where jobs come and go, a setting may be lent to a job
// beside that workload until the job ends; and where none do, a power limit
// that somebody requested is deliberate. So is a limit that was requested
// before the GPU was first seen, because no driver sets it.
func (b baselines) drift(s *derived.Snapshot, before *observed, at time.Time) {
	now, workloads, settling := settings(s), workloadsOf(s), map[incident.Entity]bool{}
	before.watch(workloads, at)
	for _, sample := range s.Of(Settling) {
		settling[incident.EntityOf(sample, nil)] = sample.Value == 1
	}
	off, had := b.unpersistent(now)
	if had {
		trains := slices.Contains(slices.Collect(maps.Values(settling)), true)
		s.Add(collectors.Sample{Metric: ConfigDrift, Labels: []string{"", "", persistence, "off", "on"},
			Value: collectors.Bool(off && !trains)})
	}
	for _, gpu := range slices.SortedFunc(maps.Keys(now), incident.Entity.Compare) {
		mine := now[gpu]
		pinned := b.of(gpu)
		if before.settings[gpu.UUID] == nil && pinned != nil {
			before.settings[gpu.UUID] = map[string]observation{}
		}
		for _, name := range slices.Sorted(maps.Keys(mine)) {
			if slices.Contains(unjudged, name) || pinned == nil {
				continue
			}
			v, was, admin := mine[name], before.settings[gpu.UUID][name], slices.Contains(byAdmin, name)
			unseen := was.before || was.value == "" // what happened since it had the last value
			if was.value != v {
				was.since = at
			}
			before.settings[gpu.UUID][name] = observation{v, workloads[gpu], was.since, false}
			usual, agreed := common(now, mine["model"], name)
			if agreed && usual == v && !settling[gpu] {
				pinned[name+" shared"] = v
			}
			switch _, known := pinned[name]; {
			case name == persistence && off && pinned[name] == "1":
				continue // all of them are off: the node reports it, and nobody wants it
			case !known && name == ofPower && v == mine[asked] && mine[preset] != "" && v != mine[preset]:
				pinned.accept(name, v)
			case !known, uniform(now, mine["model"], name):
				pinned[name] = v
			case was.value == v && agreed && admin && pinned[name+" shared"] == v && pinned[name] == v:
				if usual != v { // the siblings were changed
					pinned.accept(name, v)
				}
			case was.value == v:
			case unseen && !admin:
			case settling[gpu]:
				pinned.become(name, v)
			case unseen:
				if name != ofPower || mine[asked] == "" || mine[asked] == v {
					pinned.accept(name, v)
				}
			case admin && (v == pinned[name+" before"] || agreed && v == usual):
				pinned.accept(name, v)
			case !slices.ContainsFunc(workloads[gpu], func(w string) bool { return slices.Contains(was.workloads, w) }):
				if admin {
					pinned.accept(name, v)
				}
				pinned[name] = v
			case admin && v != pinned[name] && !before.turned.IsZero() && at.Sub(before.turned) <= turnover:
				pinned[name+" lent"] = v
			case name == ofPower && v == mine[asked]:
				pinned.accept(name, v)
			}
			expected := pinned[name]
			// Hosts may well have whole and divided GPUs, or shared and
			// exclusive ones.
			if agreed && name != "mig" && name != "compute_mode" {
				if expected == v && pinned[name+" accepted"] != v {
					expected = usual
				}
			}
			lent := pinned[name+" lent"] == v && at.Sub(was.since) < lentFor
			s.Add(collectors.Sample{Metric: ConfigDrift, Value: collectors.Bool(expected != v && !lent),
				Labels: []string{gpu.GPU, gpu.UUID, name, inWords(name, v), inWords(name, expected)}})
		}
	}
}

// computeModes are the names of the driver's compute modes.
var computeModes = map[string]string{"0": "default", "1": "exclusive thread", "2": "prohibited", "3": "exclusive process"}

// inWords returns a value of a setting as people say it: "500 W", "off".
func inWords(setting, v string) string {
	switch setting {
	case "vbios":
		return v
	case ofPower:
		return v + " W"
	case "compute_mode":
		return cmp.Or(computeModes[v], v)
	}
	return cmp.Or(map[string]string{"0": "off", "1": "on"}[v], v)
}

// of returns the baseline of a GPU; nil if there are too many.
func (b baselines) of(gpu incident.Entity) baseline {
	if b[gpu.UUID] == nil && len(b) < derived.MostGPUs {
		b[gpu.UUID] = baseline{}
	}
	return b[gpu.UUID]
}

// become makes a setting the GPU's baseline, if its siblings have it too.
func (b baseline) become(name, v string) {
	if old := b[name]; old != v {
		b[name], b[name+" before"] = v, old
	}
}

// accept makes a setting the GPU's baseline, whatever its siblings have.
func (b baseline) accept(name, v string) {
	b.become(name, v)
	b[name+" accepted"] = v
	delete(b, name+" lent")
}

// persistence is the setting that a daemon of the host keeps on all GPUs.
const persistence = "persistence"

// unpersistent reports whether persistence mode is off on all GPUs although
// most had it on; known is whether any had. This is never deliberate: the
// daemon is down, or did not come back after the driver was reloaded.
func (b baselines) unpersistent(all map[incident.Entity]baseline) (off, known bool) {
	had := 0
	off = len(all) > 0
	for gpu, mine := range all {
		if b[gpu.UUID][persistence] == "1" {
			had++
		}
		off = off && mine[persistence] == "0"
	}
	return off && 2*had > len(all), had > 0
}

// workloadsOf returns the workloads on each GPU.
func workloadsOf(s *derived.Snapshot) map[incident.Entity][]string {
	all := map[incident.Entity][]string{}
	for _, sample := range s.Of(workloads.WorkloadMemory) {
		gpu := incident.EntityOf(sample, nil)
		all[gpu] = append(all[gpu], sample.Labels[2])
	}
	return all
}

// uniform reports whether all GPUs of a model, at least two, have the same
// setting.
func uniform(all map[incident.Entity]baseline, model, name string) bool {
	values, n := map[string]bool{}, 0
	for _, b := range all {
		if v, ok := b[name]; ok && b["model"] == model {
			values[v] = true
			n++
		}
	}
	return n > 1 && len(values) == 1
}

// accept makes the present settings of a GPU, or of each GPU of the node, its
// baseline.
func (b baselines) accept(gpu incident.Entity, s *derived.Snapshot) {
	all := settings(s)
	if gpu == (incident.Entity{}) {
		for each := range all {
			b.accept(each, s)
		}
		return
	}
	mine := all[gpu]
	if mine == nil || b[gpu.UUID] == nil {
		return
	}
	for name, v := range mine {
		b[gpu.UUID][name], b[gpu.UUID][name+" accepted"] = v, v
	}
}

// settings returns the settings that an operator sets, by GPU.
func settings(s *derived.Snapshot) map[incident.Entity]baseline {
	all := map[incident.Entity]baseline{}
	note := func(sample collectors.Sample, name, v string) {
		gpu := incident.EntityOf(sample, nil)
		if all[gpu] == nil {
			all[gpu] = baseline{}
		}
		all[gpu][name] = v
	}
	for _, sample := range s.Of(device.ModeEnabled) {
		if name := sample.Labels[2]; slices.Contains([]string{"ecc", persistence, "mig", "accounting"}, name) {
			note(sample, name, strconv.FormatFloat(sample.Value, 'g', -1, 64))
		}
	}
	for _, sample := range s.Of(device.PowerLimit) {
		if name := powerLimits[sample.Labels[2]]; name != "" {
			note(sample, name, strconv.FormatFloat(sample.Value, 'g', -1, 64))
		}
	}
	for _, sample := range s.Of(device.ComputeMode) {
		note(sample, "compute_mode", strconv.FormatFloat(sample.Value, 'g', -1, 64))
	}
	for _, sample := range s.Of(device.Info) {
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

// common returns the setting of more than two thirds of at least four GPUs of a
// model; false if they do not agree.
func common(all map[incident.Entity]baseline, model, name string) (string, bool) {
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
	best := slices.MaxFunc(slices.Sorted(maps.Keys(votes)),
		func(a, b string) int { return cmp.Compare(votes[a], votes[b]) })
	return best, 3*votes[best] > 2*n
}
