package diag

import (
	_ "embed"
	"math"
)

// A Kind is a rule for the contents of a word of memory.
type Kind uint32

// The kinds, as the kernel numbers them.
const (
	OwnAddress Kind = iota // the word's address, which finds words that are written elsewhere
	Walking                // one bit, at another place in each word
	Random                 // a hash of the word's number
)

// A Pattern is the data that a pass writes to memory and reads back.
type Pattern struct {
	Kind    Kind
	Seed    uint64
	Inverse bool
}

//go:embed kernels/pattern.ptx
var patternPTX string

// shownMisreads is the number of different words for which the kernel has space.
const shownMisreads = 16

// flip returns the mask that inverts each word.
func (p Pattern) flip() uint64 {
	if p.Inverse {
		return math.MaxUint64
	}
	return 0
}

// Word returns word i, at an address. It is the kernel's formula.
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

// cycle returns the passes of the n-th cycle over memory. Each is written and read before the next.
// In each cycle every bit of a word is once 0 and once 1.
func cycle(n uint64) (all []Pattern) {
	for _, p := range []Pattern{{Kind: OwnAddress}, {Kind: Walking, Seed: n}, {Kind: Random, Seed: n << 32}} {
		all = append(all, p, Pattern{p.Kind, p.Seed, true})
	}
	return all
}
