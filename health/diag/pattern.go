package diag

import (
	_ "embed"
	"math"
)

// A Kind is a rule that says what a word of memory holds.
type Kind uint32

// The kinds, as the kernel numbers them.
const (
	OwnAddress Kind = iota // the word's address: what is written elsewhere is found
	Walking                // one bit, at another place in each word
	Random                 // a hash of the word's number
)

// A Pattern is what a pass writes to memory and reads back.
type Pattern struct {
	Kind    Kind
	Seed    uint64
	Inverse bool
}

//go:embed kernels/pattern.ptx
var patternPTX string

// shownMisreads is how many places the kernel has for words that differ.
const shownMisreads = 16

// flip is what each word is inverted by.
func (p Pattern) flip() uint64 {
	if p.Inverse {
		return math.MaxUint64
	}
	return 0
}

// Word returns word i, which stands at an address: the kernel's formula.
func (p Pattern) Word(i, address uint64) (word uint64) {
	switch p.Kind {
	case OwnAddress:
		word = address
	case Walking:
		word = 1 << ((i + p.Seed) % 64)
	case Random:
		word = (i + p.Seed) * 0x9E3779B97F4A7C15
		word = (word ^ word>>30) * 0xBF58476D1CE4E5B9
		word = (word ^ word>>27) * 0x94D049BB133111EB
		word ^= word >> 31
	}
	return word ^ p.flip()
}

// cycle returns the n-th passes over memory: each is written and read before
// the next. Every bit of a word is 0 and 1 in each cycle, and beside others
// that differ in every walk.
func cycle(n uint64) (all []Pattern) {
	for _, p := range []Pattern{{Kind: OwnAddress}, {Kind: Walking, Seed: n}, {Kind: Random, Seed: n << 32}} {
		all = append(all, p, Pattern{p.Kind, p.Seed, true})
	}
	return all
}
