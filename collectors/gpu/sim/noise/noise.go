// Package noise has numbers that look random and depend only on a seed and a
// position.
package noise

// Hash mixes two numbers into one that looks random (splitmix64).
func Hash(a, b uint64) uint64 {
	z := a ^ b*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// Ratio maps a hash to a number from 0 to 1.
func Ratio(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// White returns a number from -1 to 1 that is new at every step n.
func White(seed uint64, n int64) float64 { return 2*Ratio(Hash(seed, uint64(n))) - 1 }

// Slow returns a number from 0 to 1 that has a new value after each period, in
// steps, and changes evenly in between; n is at least 0.
func Slow(seed uint64, n, period int64) float64 {
	from, to := Cell(seed, n, period), Cell(seed, n+period, period)
	return from + (to-from)*float64(n%period)/float64(period)
}

// Cell returns a number from 0 to 1 that has a new value after each period, in
// steps; n is at least 0.
func Cell(seed uint64, n, period int64) float64 { return Ratio(Hash(seed, uint64(n/period))) }
