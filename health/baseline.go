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
		"The labels value and expected have both, such as \"500 W\" or \"off\".", "setting",
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

// drift adds ConfigDrift to s. The settings of a new GPU are its baseline. A change that learn finds
// deliberate becomes the baseline; one under a workload is not deliberate, and is a drift.
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
		mine, pinned := now[gpu], b.of(gpu)
		if pinned == nil {
			continue
		}
		if before.settings[gpu.UUID] == nil {
			before.settings[gpu.UUID] = map[string]observation{}
		}
		for _, name := range slices.Sorted(maps.Keys(mine)) {
			if slices.Contains(unjudged, name) {
				continue
			}
			r := setting{name: name, value: mine[name], asked: mine[asked], preset: mine[preset],
				was: before.settings[gpu.UUID][name], workloads: workloads[gpu], settling: settling[gpu],
				uniform: uniform(now, mine["model"], name), turning: before.turning(at)}
			r.usual, r.agreed = common(now, mine["model"], name)
			since := r.was.since
			if r.was.value != r.value {
				since = at
			}
			before.settings[gpu.UUID][name] = observation{r.value, r.workloads, since, false}
			if name == persistence && off && pinned[name] == "1" {
				continue // all of them are off: the node reports it, and that is never wanted
			}
			pinned.learn(r)
			expected := pinned.expected(r)
			lent := pinned[name+" lent"] == r.value && at.Sub(since) < lentFor
			s.Add(collectors.Sample{Metric: ConfigDrift, Value: collectors.Bool(expected != r.value && !lent),
				Labels: []string{gpu.GPU, gpu.UUID, name, inWords(name, r.value), inWords(name, expected)}})
		}
	}
}

// turning reports whether jobs have come or gone recently.
func (o *observed) turning(at time.Time) bool {
	return !o.turned.IsZero() && at.Sub(o.turned) <= turnover
}

// A setting is one of a GPU as it is now, and what tells whether a change of it is deliberate.
type setting struct {
	name, value   string
	asked, preset string // power limits that were requested, and that the driver sets
	was           observation
	workloads     []string // on the GPU now
	usual         string   // value of most siblings, if they agreed
	agreed        bool
	uniform       bool // all GPUs of the model have the value
	settling      bool // the GPU comes back from a reset
	turning       bool // jobs come and go
}

// admin reports whether administrators change the setting for some GPUs of a host.
func (r setting) admin() bool { return slices.Contains(byAdmin, r.name) }

// unseen reports whether no agent saw what happened since the last value.
func (r setting) unseen() bool { return r.was.before || r.was.value == "" }

// requested reports whether somebody requested this power limit.
func (r setting) requested() bool { return r.name == ofPower && r.value == r.asked }

// worked reports whether a workload has been on the GPU since the last reading.
func (r setting) worked() bool {
	return slices.ContainsFunc(r.workloads, func(w string) bool { return slices.Contains(r.was.workloads, w) })
}

// learn makes the value the GPU's baseline if it is deliberate: it affects all GPUs of the model, comes
// with a reset, comes while no earlier workload runs, or restores the value from before or that of most
// siblings, or an administrator made it while no agent ran. A GPU that keeps its setting while its
// siblings get another is not to blame. But where jobs come and go, a setting may be lent to a job
// beside that workload until the job ends; and where none do, a power limit that somebody requested is
// deliberate. So is a limit that was requested before the GPU was first seen, because no driver sets it.
func (b baseline) learn(r setting) {
	name, v := r.name, r.value
	if r.agreed && r.usual == v && !r.settling {
		b[name+" shared"] = v
	}
	_, known := b[name]
	switch {
	case !known && r.requested() && r.preset != "" && v != r.preset:
		b.accept(name, v)
	case !known, r.uniform:
		b[name] = v
	case v == r.was.value:
		if b.left(r) {
			b.accept(name, v)
		}
	case r.unseen() && !r.admin():
	case r.settling:
		b.become(name, v)
	case r.unseen():
		if name != ofPower || r.asked == "" || r.requested() {
			b.accept(name, v)
		}
	case b.restores(r):
		b.accept(name, v)
	case !r.worked():
		if r.admin() {
			b.accept(name, v)
		}
		b[name] = v
	case r.admin() && v != b[name] && r.turning:
		b[name+" lent"] = v
	case r.requested():
		b.accept(name, v)
	}
}

// left reports whether an administrator changed the siblings and left the GPU as it is.
func (b baseline) left(r setting) bool {
	return r.agreed && r.admin() && r.usual != r.value && b[r.name+" shared"] == r.value && b[r.name] == r.value
}

// restores reports whether the value is the one from before, or that of most siblings.
func (b baseline) restores(r setting) bool {
	return r.admin() && (r.value == b[r.name+" before"] || r.agreed && r.value == r.usual)
}

// expected returns the value that the setting should have: the baseline, or that of most siblings, unless
// an operator accepted another. Hosts may well have whole and divided GPUs, or shared and exclusive ones.
func (b baseline) expected(r setting) string {
	if r.agreed && r.name != "mig" && r.name != "compute_mode" && b[r.name] == r.value && b[r.name+" accepted"] != r.value {
		return r.usual
	}
	return b[r.name]
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
