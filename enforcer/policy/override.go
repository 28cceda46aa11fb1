package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpusteward/internal/input"
	"gpusteward/internal/quota"
)

// An Override has other terms for some GPUs. Terms that are not written stay,
// as far as they fit the others: a guarantee is at most the limit.
type Override struct {
	GPUs []string // indices, UUIDs, or MIG devices by either; the name closest to a GPU's own UUID wins
	quota.Written
}

// gpuName is the form of a GPU's name: 0, 0:1 for the MIG devices of its GPU
// instance 1, or a UUID.
var gpuName = regexp.MustCompile(`^((0|[1-9][0-9]{0,4})(:(0|[1-9][0-9]?))?|` +
	`(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})$`)

// lineage returns the names of the table that a name is below, and the name
// itself: a GPU's index comes before its GPU instances. The table cannot know
// which GPU has a UUID.
func lineage(name string) []string {
	if index, _, below := strings.Cut(name, ":"); below {
		return []string{index, name}
	}
	return []string{name}
}

// checkGPUs reports the keys that cannot work, and the terms if those of the
// other GPUs are valid.
func (r *Rule) checkGPUs(valid bool) error {
	var wrong input.Errors
	seen := map[string]int{}
	for i := range r.GPUs {
		o, key := &r.GPUs[i], fmt.Sprintf("gpus[%d]", i)
		wrong.If(len(o.GPUs) == 0, "%s.gpu: it is missing: list indices, GPU instances (0:1) or UUIDs", key)
		for _, name := range o.GPUs {
			wrong.If(!gpuName.MatchString(name), "%s.gpu: %q is neither an index, such as 0, nor a GPU instance of MIG, "+
				"such as 0:1, nor a UUID as nvidia-smi -L gives it", key, name)
			first, twice := seen[name]
			wrong.If(twice, "%s.gpu: %q is in gpus[%d] too: merge the two entries", key, name, first)
			seen[name] = i
		}
		there := Terms{r.Priority, o.Over(r.Quota).Fit(o.Written), Reclaim{}}
		if valid {
			wrong.Below(key+".", there.check())
		}
	}
	return wrong.Err()
}

// quota returns the quota on a GPU with these names; the last name wins.
func (r *Rule) quota(names []string) Quota {
	q := r.Quota
	if len(r.GPUs) > 0 {
		for _, name := range names {
			for i := range r.GPUs {
				if slices.Contains(r.GPUs[i].GPUs, name) {
					q = r.GPUs[i].Over(q)
				}
			}
		}
	}
	if r.Priority == PriorityRealtime {
		q.Guarantee = q.Limit
	}
	return q.Fit(quota.Written{})
}
