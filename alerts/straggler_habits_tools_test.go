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
	keep     float64 // s for which that load remains alike; 0: a minute
	evaluate float64 // s between two evaluations, each of some data per rank
	turns    turns
	loader   float64 // part by which the files of a rank's data differ; each lasts 1 to 4 min, and to open it takes 0.5 to 2 s
	loggers  float64 // part of each tenth step, by one rank after the other
}

// turns are times in which some ranks have more to do, and then others. Ranges
// are the least and the most; times are in seconds.
type turns struct {
	gap, lasting, by [2]float64
	ranks            int // that have more to do at a time: the first of them is any multiple of this number
}

// A turn is the present one of a job, or the next one.
type turn struct {
	from, until, by float64
	first           int
}

// within draws from a range.
func (j *clusterJob) within(r [2]float64) float64 { return r[0] + (r[1]-r[0])*j.random.Float64() }

// turn returns how much longer a rank computes at a time.
func (h *habits) turn(j *clusterJob, rank int, now float64) float64 {
	if now >= j.turn.until {
		from, groups := now+j.within(h.turns.gap), j.ranks/h.turns.ranks
		next := (j.turn.first/h.turns.ranks + 1 + j.random.IntN(max(1, groups-1))) % groups // another one's: two of one are one
		j.turn = turn{from, from + j.within(h.turns.lasting), j.within(h.turns.by), next * h.turns.ranks}
	}
	if now >= j.turn.from && rank >= j.turn.first && rank < j.turn.first+h.turns.ranks {
		return j.turn.by
	}
	return 0
}

// part returns how much longer a rank computes in a step.
func (h *habits) part(j *clusterJob, s *rankState, rank int, age float64) (part float64) {
	if h.experts > 0 {
		keep := 60.0
		if h.keep > 0 {
			keep = h.keep
		}
		kept := math.Exp(-j.step / keep)
		s.load = kept*s.load + h.experts*math.Sqrt(1-kept*kept)*j.random.NormFloat64()
		part += s.load
	}
	if h.turns.ranks > 0 {
		part += h.turn(j, rank, s.now())
	}
	if h.loader > 0 {
		if s.now() >= s.file {
			s.file, s.load = s.now()+60+180*j.random.Float64(), h.loader*j.random.Float64()
			part += (0.5 + 1.5*j.random.Float64()) / j.step
		}
		part += s.load
	}
	if len(s.at)%10 == 0 && rank == len(s.at)/10%j.ranks {
		part += h.loggers
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
