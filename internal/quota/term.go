package quota

import "fmt"

// A Term is a row: everything about a key of a quota.
type Term struct {
	Key    string               // name in the configuration
	At     func(q *Quota) Value // the field
	Check  func(q Quota) string // returns what is invalid and the remedy; empty if valid
	Yield  func(q Quota) Quota  // returns q with this term adapted to the others; nil if it never conflicts
	Says   string               // name in an explanation; empty if another sentence has it
	Free   string               // written value of a quota without the term; empty: 0
	Metric Metric               // the exported metric
}

// A Metric is a gauge of a term, in base units. It has no name if the broker's
// books have the term, as the escalation leaves it.
type Metric struct {
	Name, Help string
	Always     bool // exported even if the term is not written
}

// Terms are all terms. They must not be changed.
var Terms = []*Term{
	{
		Key: "guarantee", At: func(q *Quota) Value { return (*Part)(&q.Guarantee) },
		Check: func(q Quota) string {
			switch {
			case !(q.Guarantee >= 0 && q.Guarantee <= 1):
				return fmt.Sprintf("%v is not a part of the GPU's time: write 0 to 1, or 0 %% to 100 %%%s", q.Guarantee,
					Meant(q.Guarantee))
			case q.Limit > 0 && q.Guarantee > q.Limit:
				return fmt.Sprintf("%v is more than the limit, %v: lower it, or raise the limit",
					Part(q.Guarantee), Part(q.Limit))
			}
			return ""
		},
		Yield: func(q Quota) Quota {
			q.Guarantee = max(min(q.Guarantee, q.Limit), 0)
			return q
		},
		Metric: Metric{"nvgpu_quota_compute_guarantee_ratio",
			"Part of its lone pace on the GPU that the tenant gets whenever it wants the GPU.", true},
	},
	{
		Key: "limit", At: func(q *Quota) Value { return (*Part)(&q.Limit) }, Free: "100 %",
		Check: func(q Quota) string { return bad(q.Limit, "GPU's time") },
	},
	{
		Key: "memory", At: func(q *Quota) Value { return (*capacity)(q) },
		Check: func(q Quota) string {
			if q.MemoryPart >= 0 && q.MemoryPart <= 1 {
				return ""
			}
			return fmt.Sprintf("%v is not a part of the GPU's memory, above 0 %% and at most 100 %%",
				Part(q.MemoryPart))
		},
		Says: "memory",
	},
	{
		Key: "memory_guarantee", At: func(q *Quota) Value { return (*Size)(&q.Reserved) },
		Check: func(q Quota) string {
			if q.Memory == 0 || q.Reserved <= q.Memory {
				return ""
			}
			return fmt.Sprintf("%v is more than memory, the cap of %v: lower it, or raise the cap",
				Size(q.Reserved), Size(q.Memory))
		},
		Yield: func(q Quota) Quota {
			if q.Memory > 0 {
				q.Reserved = min(q.Reserved, q.Memory)
			}
			return q
		},
		Says:   "memory kept for it",
		Metric: Metric{"nvgpu_quota_memory_guarantee_bytes", "GPU memory that is kept for the tenant.", true},
	},
	{
		Key: "launch_wait", At: func(q *Quota) Value { return &q.LaunchWait },
		Check: func(q Quota) string {
			switch {
			case q.LaunchWait < 0:
				return fmt.Sprintf("%v is not a time to wait: write a duration, or 0 for no objective", q.LaunchWait)
			case q.LaunchWait > 0 && q.Guarantee == 0:
				return "it has no effect without a guarantee: add a guarantee or remove the key"
			}
			return ""
		},
		Yield: func(q Quota) Quota {
			if q.Guarantee == 0 {
				q.LaunchWait = 0
			}
			return q
		},
		Says: "99 of 100 waits for a turn at most",
		Metric: Metric{"nvgpu_quota_launch_wait_objective_seconds",
			"Time within which 99 of 100 of the tenant's waits for a turn should end; absent without an " +
				"objective.", false},
	},
	{
		Key: "bandwidth", At: func(q *Quota) Value { return (*Part)(&q.Bandwidth) }, Free: "100 %",
		Check: func(q Quota) string { return bad(q.Bandwidth, "bandwidth") },
		Says:  "bandwidth",
		Metric: Metric{"nvgpu_quota_bandwidth_limit_ratio",
			"Largest part of the memory's bandwidth that the tenant may use; absent without a limit.", false},
	},
}

// bad returns what is invalid about a limit; empty if it is valid.
func bad(limit float64, of string) string {
	if limit > 0 && limit <= 1 {
		return ""
	}
	return fmt.Sprintf("%v is not a part of the %s: write up to 1, or up to 100 %%, which is no limit%s", limit, of, Meant(limit))
}

// Find returns the term of a key; nil if there is none.
func Find(key string) *Term {
	for _, t := range Terms {
		if t.Key == key {
			return t
		}
	}
	return nil
}

// Keys returns the keys of all terms.
func Keys() []string {
	keys := make([]string, len(Terms))
	for i, t := range Terms {
		keys[i] = t.Key
	}
	return keys
}

// Form returns the written form, by examples.
func (t *Term) Form() string { return t.At(new(Quota)).Form() }

// free is the quota without any terms.
var free = func() (q Quota) {
	for _, t := range Terms {
		if t.Free == "" {
			continue
		}
		if err := t.At(&q).UnmarshalText([]byte(t.Free)); err != nil {
			panic(err)
		}
	}
	return q
}()

// holds reports whether the term of q differs from that of a free quota.
func (t *Term) holds(q *Quota) bool { return t.At(q).Number() != t.At(&free).Number() }

// Told returns the value of the term's metric, and whether to export it.
func (t *Term) Told(q *Quota) (float64, bool) { return t.At(q).Number(), t.Metric.Always || t.holds(q) }
