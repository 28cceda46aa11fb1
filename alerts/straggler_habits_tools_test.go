//go:build tools

package alerts

import "math"

// habits are what ranks do that are well, though they compute for longer than
// others at times. Parts are parts of a step's computation.
type habits struct {
	logs     float64 // part of each tenth step, by rank 0
	uploads  float64 // s after a checkpoint in which rank 0 is 10 % slower
	shards   bool    // all ranks write a checkpoint, and those of one host take twice as long
	experts  float64 // part by which the load of experts differs; it wanders among the ranks
	cold     float64 // part at the start, on one host, whose files are not in memory; none after a minute
	last     float64 // part by which the last stage of a pipeline is larger
	evaluate float64 // s between two evaluations, each of some data per rank
}

// expertsKeep is how long the load of an expert remains alike, s.
const expertsKeep = 60

// part returns how much longer a rank computes in a step.
func (h *habits) part(j *clusterJob, s *rankState, rank int, age float64) (part float64) {
	if h.experts > 0 {
		kept := math.Exp(-j.step / expertsKeep)
		s.load = kept*s.load + h.experts*math.Sqrt(1-kept*kept)*j.random.NormFloat64()
		part += s.load
	}
	if rank == 0 && len(s.at)%10 == 0 {
		part += h.logs
	}
	if rank == 0 && len(j.saved) > 0 && s.now()-j.saved[len(j.saved)-1][1] < h.uploads {
		part += 0.1
	}
	if rank < ranksOfHost && age < 60 {
		part += h.cold * (1 - age/60)
	}
	if j.tensor > 0 && rank%j.tensor == j.tensor-1 {
		part += h.last
	}
	return part
}

// saves returns how long a rank writes a checkpoint.
func (h *habits) saves(j *clusterJob, rank int, base float64) float64 {
	switch {
	case h.shards && rank < ranksOfHost:
		return 2 * base
	case h.shards:
		return base * (0.9 + 0.1*j.random.Float64())
	case rank == 0:
		return base
	}
	return 0
}
