package policy

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// An Override has other terms for some GPUs; what is nil stays, as far as it
// still can beside the others: a guarantee is at most the limit.
type Override struct {
	GPUs       []string // indices or UUIDs; what is said of a UUID counts more
	Guarantee  *float64
	Limit      *float64
	Memory     *uint64
	MemoryPart float64 // counts where Memory is there
	Reserved   *uint64
	LaunchWait *time.Duration
	Bandwidth  *float64
}

// uuid is what a GPU's UUID looks like.
var uuid = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

func (r *Rule) checkGPUs() error {
	seen := map[string]int{}
	for i := range r.GPUs {
		o, key := &r.GPUs[i], fmt.Sprintf("gpus[%d]", i)
		if len(o.GPUs) == 0 {
			return fmt.Errorf("%s.gpu: on which GPUs? A list of indices or UUIDs", key)
		}
		for _, name := range o.GPUs {
			if n, err := strconv.ParseUint(name, 10, 16); (err != nil || strconv.FormatUint(n, 10) != name) && !uuid.MatchString(name) {
				return fmt.Errorf("%s.gpu: %q is neither an index, such as 0, nor a UUID as nvidia-smi -L gives it", key, name)
			}
			if first, twice := seen[name]; twice {
				return fmt.Errorf("%s.gpu: %q is in gpus[%d] already: make one entry of it", key, name, first)
			}
			seen[name] = i
		}
		q := o.Of(r.Quota)
		o.yield(&q)
		if err := q.check(r.Priority); err != nil {
			return fmt.Errorf("%s.%w", key, err)
		}
	}
	return nil
}

// Of returns q with what the override says.
func (o Override) Of(q Quota) Quota {
	replace(&q.Guarantee, o.Guarantee)
	replace(&q.Limit, o.Limit)
	if o.Memory != nil {
		q.Memory, q.MemoryPart = *o.Memory, o.MemoryPart
	}
	replace(&q.Reserved, o.Reserved)
	replace(&q.LaunchWait, o.LaunchWait)
	replace(&q.Bandwidth, o.Bandwidth)
	return q
}

func replace[T any](value *T, by *T) {
	if by != nil {
		*value = *by
	}
}

// yield makes what the override does not say give way to what it says.
func (o *Override) yield(q *Quota) {
	if o.Guarantee == nil {
		q.Guarantee = min(q.Guarantee, q.Limit)
	}
	if o.Reserved == nil && q.Memory > 0 {
		q.Reserved = min(q.Reserved, q.Memory)
	}
	if o.LaunchWait == nil && q.Guarantee == 0 {
		q.LaunchWait = 0
	}
}

// quota returns what holds on a GPU, given what tells its names.
func (r *Rule) quota(means func(name string) bool) Quota {
	q := r.Quota
	if len(r.GPUs) > 0 {
		for _, byUUID := range []bool{false, true} {
			for i := range r.GPUs {
				if slices.ContainsFunc(r.GPUs[i].GPUs, func(name string) bool { return (name[0] == 'G') == byUUID && means(name) }) {
					q = r.GPUs[i].Of(q)
				}
			}
		}
	}
	if r.Priority == PriorityRealtime {
		q.Guarantee = q.Limit
	}
	new(Override).yield(&q)
	return q
}
