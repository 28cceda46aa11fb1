//go:build tools

package alerts

import (
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
)

// A clusterJob is a job of a simulated cluster: its ranks compute, and then wait for each other, step by step, in one
// communicator or in two. Times are in seconds.
type clusterJob struct {
	name      string
	ranks     int
	step      float64 // computation of a step
	exchange  float64 // the collectives themselves, as a part of it
	calls     float64 // collectives of a step
	jitter    float64 // of each step of each rank, as a part
	skew      float64 // between the ranks, for good
	imbalance float64 // as jitter, by the data of the step
	pauses    float64 // probability of a pause of a rank in a step (garbage collection)
	save      float64 // between two checkpoints, which rank 0 writes
	wander    float64 // how long a rank is slow before the next one is; 0: none
	stages    bool    // of a pipeline
	drift     float64 // of a rank's computation in an hour, as a part, away from the others'
	tensor    int     // ranks that wait for each other before those of the same place in other groups do; 0: none
	restarts  float64 // between two starts, each with a new communicator
	missed    float64 // scrapes, as a part
	gradual   float64 // how long an injection grows
	throttles float64 // an injection comes and goes, in turns of this length, twice as strong; 0: it is steady
	blind     float64 // between two restarts of Prometheus, of 30 to 90 s
	most      float64 // part by which an injection is slow, at most; 0: 0.5
	habits    habits
	faults    []slowness
	random    *rand.Rand

	saved [][2]float64 // begin and end of the checkpoints so far
	turn  turn
}

// stood returns how long the job wrote checkpoints in a period.
func (j *clusterJob) stood(from, until float64) (sum float64) {
	for _, s := range j.saved {
		sum += max(0, min(until, s[1])-max(from, s[0]))
	}
	return sum
}

// A slowness is an injection: a rank, or the ranks of a host, compute for longer, at once or gradually.
type slowness struct {
	from, until float64
	first, n    int // ranks
	by          float64
	grows       float64 // how long before from it begins
	turns       float64 // as throttles of its job
}

const ranksOfHost = 8

// A rankState is a rank of a start of a job, with its counters after each step.
type rankState struct {
	skew, drift float64
	load        float64     // of its experts, or of its file, as a part
	file        float64     // when it opens the next one
	in          [2]counters // the communicator of its group, and that of all
	at          []rankReading
}

// counters are a rank's in a communicator: calls, and seconds.
type counters struct{ entered, seconds, paused float64 }

type rankReading struct {
	time float64
	in   [2]counters
}

// add counts calls, in one of which the rank waits.
func (c *counters) add(calls, wait, exchange, usual float64) {
	c.entered += calls
	c.seconds += wait + exchange
	if wait > usual {
		c.paused += wait
	}
}

// now returns the time of the rank's last step.
func (s *rankState) now() float64 {
	if len(s.at) == 0 {
		return 0
	}
	return s.at[len(s.at)-1].time
}

// part returns how much of a slowness there is at a time.
func (f slowness) part(at float64) float64 {
	switch {
	case f.turns > 0 && at >= f.from:
		return 2 * float64(int((at-f.from)/f.turns+1)%2)
	case at >= f.from:
		return 1
	case at <= f.from-f.grows:
		return 0
	}
	return 1 - (f.from-at)/f.grows
}

// slowest returns the part by which an injection is slow, at most.
func (j *clusterJob) slowest() float64 {
	if j.most > 0 {
		return j.most
	}
	return 0.5
}

// slow returns the factor of a rank's computation at a time.
func (j *clusterJob) slow(rank int, at float64) float64 {
	factor := 1.0
	for _, f := range j.faults {
		if at < f.until && rank >= f.first && rank < f.first+f.n {
			factor += f.by * f.part(at)
		}
	}
	if j.wander > 0 && rank == 7*int(at/j.wander)%j.ranks {
		factor += 0.2
	}
	return factor
}

// run lets a start of the job compute from begin to end, and returns its ranks.
func (j *clusterJob) run(begin, end float64) []rankState {
	r := j.random
	ranks := make([]rankState, j.ranks)
	for i := range ranks {
		ranks[i].skew, ranks[i].drift = 1+j.skew*r.NormFloat64(), j.drift*r.NormFloat64()/3600
		if j.stages {
			ranks[i].skew = 1 + 0.15*r.Float64()
		}
	}
	save, evaluate := begin+j.save*r.Float64(), begin+j.habits.evaluate*(0.5+r.Float64())
	took, met := make([]float64, j.ranks), make([]float64, j.ranks)
	usual := j.step * (1 + j.exchange)
	for now := begin; now < end; {
		last, saves, evaluates := 0.0, 0.0, 0.0
		if now >= save {
			saves, save = 5+25*r.Float64(), now+j.save*(0.5+r.Float64())
		}
		if j.habits.evaluate > 0 && now >= evaluate {
			evaluates, evaluate = 20+40*r.Float64(), now+j.habits.evaluate*(0.5+r.Float64())
		}
		for i := range ranks {
			took[i] = j.step * (ranks[i].skew + ranks[i].drift*(now-begin) + j.habits.part(j, &ranks[i], i, now-begin)) *
				j.slow(i, now) * (1 + j.jitter*r.NormFloat64() + j.imbalance*math.Abs(r.NormFloat64()))
			if r.Float64() < j.pauses {
				took[i] += 0.05 + 0.45*r.Float64()
			}
			took[i] += j.habits.saves(j, i, saves) + evaluates*(0.8+0.2*r.Float64())
			last = max(last, took[i])
		}
		if saves > 0 {
			j.saved = append(j.saved, [2]float64{now, now + last})
		}
		for i := range ranks {
			group := max(1, j.tensor)
			met[i] = slices.Max(took[i/group*group : min(j.ranks, i/group*group+group)])
		}
		now += last + j.exchange*j.step
		for i := range ranks {
			s := &ranks[i]
			calls := j.calls
			if j.stages && (i == 0 || i == j.ranks-1) {
				calls /= 2
			}
			if j.tensor > 0 {
				s.in[0].add(4*calls, met[i]-took[i], 0.5*j.exchange*j.step, usual)
				s.in[1].add(calls, last-met[i], 0.5*j.exchange*j.step, usual)
			} else {
				s.in[1].add(calls, last-took[i], j.exchange*j.step, usual)
			}
			s.at = append(s.at, rankReading{now, s.in})
		}
	}
	return ranks
}

// write adds the job's series from 0 to end, as they are scraped: each host has
// its own phase, and what it shows is a second or two old.
func (j *clusterJob) write(b *strings.Builder, end float64) {
	life := end
	if j.restarts > 0 {
		life = j.restarts
	}
	for start, n := 0.0, 0; start < end; start, n = start+life, n+1 {
		until := min(end, start+life-20*min(1, j.restarts))
		ranks := j.run(start, until)
		for host := 0; host*ranksOfHost < j.ranks; host++ {
			j.writeHost(b, fmt.Sprintf("%s-%d", j.name, n), host, ranks, until, end)
		}
	}
}

func (j *clusterJob) writeHost(b *strings.Builder, name string, host int, ranks []rankState, until, end float64) {
	step := scrape.Seconds()
	phase := step*j.random.Float64() + 1 + j.random.Float64()
	missed := make([]bool, int(end/step))
	for i := range missed {
		missed[i] = j.random.Float64() < j.missed || j.blindAt(float64(i)*step)
	}
	for i := host * ranksOfHost; i < min(j.ranks, (host+1)*ranksOfHost); i++ {
		for place, communicator := range j.communicators(i) {
			if communicator == "" {
				continue
			}
			labels := fmt.Sprintf(`{job=%q,instance="%s-%d",gpu="%d",uuid="%[2]s-%[5]d",tenant="t",workload="w",`+
				`communicator="%[2]s%[6]s",rank="%[5]d"}`, job, name, host, i%ranksOfHost, i, communicator)
			var lines [4][]string
			at := 0
			for k := range missed {
				now := float64(k)*step - phase
				for at < len(ranks[i].at) && ranks[i].at[at].time <= now {
					at++
				}
				show := [4]string{"_", "_", "_", "_"}
				switch ended := now > until+5; {
				case at == 0 || missed[k]:
				case ended && now <= until+5+step:
					show = [4]string{"stale", "stale", "stale", "stale"}
				case ended:
				default:
					s := ranks[i].at[at-1].in[place]
					calls := strconv.FormatFloat(s.entered, 'f', 1, 64)
					show = [4]string{calls, calls, strconv.FormatFloat(s.seconds, 'f', 4, 64),
						strconv.FormatFloat(s.paused, 'f', 4, 64)}
				}
				for n := range lines {
					lines[n] = append(lines[n], show[n])
				}
			}
			for n, m := range []*collectors.Metric{workloads.RankCollectives, workloads.RankMeasured, workloads.RankSeconds,
				workloads.RankPaused} {
				fmt.Fprintf(b, "      - series: '%s%s'\n        values: '%s'\n", m, labels, strings.Join(lines[n], " "))
			}
		}
	}
}

// blindAt reports whether Prometheus restarts at a time. It takes 30 to 90 s.
func (j *clusterJob) blindAt(at float64) bool {
	n := math.Floor(at / max(1, j.blind))
	return j.blind > 0 && n > 0 && at-n*j.blind < 30+math.Mod(37*n, 60)
}

// communicators returns the suffixes of the names of a rank's communicators.
func (j *clusterJob) communicators(rank int) [2]string {
	switch {
	case j.tensor == 0:
		return [2]string{"", "-all"}
	case j.habits.last > 0: // what waits in sends and receives is not measured
		return [2]string{"", fmt.Sprintf("-place-%d", rank%j.tensor)}
	}
	return [2]string{fmt.Sprintf("-group-%d", rank/j.tensor), fmt.Sprintf("-place-%d", rank%j.tensor)}
}

// usualJob returns a job of a cluster, drawn at random: data parallel, with the
// jitter, the pauses and the checkpoints of real ones.
func usualJob(name string, ranks int, r *rand.Rand) *clusterJob {
	return &clusterJob{name: name, ranks: ranks, random: r,
		step: 0.2 * math.Pow(10, r.Float64()), exchange: 0.05 + 0.35*r.Float64(), calls: 1 + float64(r.IntN(40)),
		jitter: 0.01 + 0.02*r.Float64(), skew: 0.003 + 0.005*r.Float64(), pauses: 0.0005 * r.Float64(),
		save: 600 + 1200*r.Float64(), missed: 0.005}
}

// A naming is a firing alert: the job, with the number of its start, and the rank, by its GPU.
type naming struct {
	job  string
	rank int
}

// named matches the GPU of a rank.
var named = regexp.MustCompile(`uuid="([^"]*)-(\d+)"`)

// namings returns those in promtool's output.
func namings(got string) (all []naming) {
	for _, m := range named.FindAllStringSubmatch(got, -1) {
		n := naming{job: m[1]}
		n.rank, _ = strconv.Atoi(m[2])
		if !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

// promTime formats seconds for promtool.
func promTime(s float64) string { return health.PromDuration(time.Duration(s) * time.Second) }
