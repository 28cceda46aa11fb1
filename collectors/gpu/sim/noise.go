package sim

// hash mixes two numbers into one that looks random (splitmix64).
func hash(a, b uint64) uint64 {
	z := a ^ b*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// ratio maps a hash to a number from 0 to 1.
func ratio(h uint64) float64 { return float64(h>>11) / (1 << 53) }

// noise returns a number from -1 to 1 that changes with every step. Channels
// are independent of each other.
func (g *gpu) noise(channel uint64) float64 {
	return 2*ratio(hash(g.seed+channel, uint64(g.n))) - 1
}

// slow returns a number from 0 to 1 that has a new value after each period, in
// steps, and changes evenly in between.
func (g *gpu) slow(channel uint64, period int64) float64 {
	n := g.n + preroll
	from := ratio(hash(g.seed+channel, uint64(n/period)))
	to := ratio(hash(g.seed+channel, uint64(n/period+1)))
	return from + (to-from)*float64(n%period)/float64(period)
}

// cell returns a number from 0 to 1 that has a new value after each period, in
// steps.
func (g *gpu) cell(channel uint64, period int64) float64 {
	return ratio(hash(g.seed+channel, uint64((g.n+preroll)/period)))
}
