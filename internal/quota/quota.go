// Package quota has the terms of a quota, one row each: the key and its form in
// the configuration, the check, and the texts and metrics that show it. It does
// no I/O.
package quota

import (
	"slices"

	"gpusteward/internal/input"
)

// A Quota is what a tenant may use of one GPU, with all its processes together.
// Each term has a field. The JSON names are those of the statistics.
type Quota struct {
	Guarantee float64 `json:"guarantee"` // part of the GPU's time that it gets whenever it wants it, 0 to 1
	// largest part of the GPU's time, even if nobody else wants it; 1 is no limit
	Limit      float64 `json:"limit"`
	Memory     uint64  `json:"memory"`          // cap of GPU memory, bytes; 0 is no cap
	MemoryPart float64 `json:"memory_part"`     // the cap as a part, 0 to 1; 0: Memory is the cap
	Reserved   uint64  `json:"memory_reserved"` // GPU memory that is kept for it, bytes
	LaunchWait Wait    `json:"launch_wait"`     // limit of 99 of 100 waits for a turn; 0 is no objective
	Bandwidth  float64 `json:"bandwidth"`       // largest part of the memory's and link's bandwidth; 1 is no limit
}

// Free returns the quota of a tenant without any terms.
func Free() Quota { return free }

// Check returns an error, with the key, for each term that is invalid.
func (q Quota) Check() error {
	var all input.Errors
	for _, t := range Terms {
		wrong := t.Check(q)
		all.If(wrong != "", "%s: %s", t.Key, wrong)
	}
	return all.Err()
}

// Explain returns, for people, the terms that hold besides the GPU's time.
func (q Quota) Explain() (said []string) {
	for _, t := range Terms {
		if t.Says != "" && t.holds(&q) {
			said = append(said, t.Says+" "+t.At(&q).String())
		}
	}
	return said
}

// Fit adapts the terms of q that are not written in w so that they are valid
// beside the others: a guarantee is at most the limit.
func (q Quota) Fit(w Written) Quota {
	for _, t := range Terms {
		if t.Yield != nil && !slices.Contains(w.terms, t) {
			q = t.Yield(q)
		}
	}
	return q
}
