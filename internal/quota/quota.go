// Package quota has the terms of a quota, a row each: what configuration calls a
// term and how it is written there, what it must be, and what people and
// Prometheus are told of it. It is pure.
package quota

import (
	"fmt"
	"slices"
)

// A Quota is what a tenant may use of one GPU: all its processes together. Each
// term has a field. Names in JSON are as the statistics have them.
type Quota struct {
	Guarantee  float64 `json:"guarantee"`       // of the GPU's time, that it gets whenever it wants it; 0 to 1
	Limit      float64 `json:"limit"`           // most of the GPU's time, also where nobody else wants it; 1 is no limit
	Memory     uint64  `json:"memory"`          // most of the GPU's memory, bytes; 0 is no cap
	MemoryPart float64 `json:"memory_part"`     // the same as a part of it, 0 to 1; 0 is that Memory says it
	Reserved   uint64  `json:"memory_reserved"` // of the GPU's memory, that is kept for it, bytes
	LaunchWait Wait    `json:"launch_wait"`     // that 99 of 100 waits for a turn should not exceed; 0 is no objective
	Bandwidth  float64 `json:"bandwidth"`       // most of the bandwidth of the GPU's memory and link; 1 is no limit
}

// Free returns what a tenant may use of whom nothing is written.
func Free() Quota { return Quota{Limit: 1, Bandwidth: 1} }

// Check reports the first term that cannot be, by its key.
func (q Quota) Check() error {
	for _, t := range Terms {
		if wrong := t.Check(q); wrong != "" {
			return fmt.Errorf("%s: %s", t.Key, wrong)
		}
	}
	return nil
}

// Explain returns, for people, the terms that hold beside the GPU's time.
func (q Quota) Explain() (said []string) {
	for _, t := range Terms {
		if t.Says != "" && t.holds(&q) {
			said = append(said, t.Says+" "+t.At(&q).String())
		}
	}
	return said
}

// Fit returns q, in which the terms that are not written in w give way as far as
// they cannot be beside the others: a guarantee is at most the limit.
func (q Quota) Fit(w Written) Quota {
	for _, t := range Terms {
		if t.Yield != nil && !slices.Contains(w.terms, t) {
			q = t.Yield(q)
		}
	}
	return q
}
