//go:build tools

package alerts

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A clusterJob is a communicator of a simulated cluster: its ranks compute, and
// then wait for each other, step by step. Times are in seconds.
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
	restarts  float64 // between two starts, each with a new communicator
	missed    float64 // scrapes, as a part
	faults    []slowness
	random    *rand.Rand

	saved [][2]float64 // begin and end of the checkpoints so far
}

// stands reports whether the job wrote a checkpoint in a period.
func (j *clusterJob) stands(from, until float64) bool {
	return slices.ContainsFunc(j.saved, func(s [2]float64) bool { return s[0] < until && s[1] > from })
}

// A slowness is an injection: a rank, or the ranks of a host, compute for
// longer.
type slowness struct {
	from, until float64
	first, n    int // ranks
	by          float64
}

const ranksOfHost = 8

// A rankState is a rank of a start of a job, with its counters after each step.
type rankState struct {
	skew                       float64
	entered, measured, seconds float64
	at                         []rankReading
}

type rankReading struct{ time, entered, measured, seconds float64 }

// slow returns the factor of a rank's computation at a time.
func (j *clusterJob) slow(rank int, at float64) float64 {
	factor := 1.0
	for _, f := range j.faults {
		if at >= f.from && at < f.until && rank >= f.first && rank < f.first+f.n {
			factor += f.by
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
		ranks[i].skew = 1 + j.skew*r.NormFloat64()
		if j.stages {
			ranks[i].skew = 1 + 0.15*r.Float64()
		}
	}
	save := begin + j.save*r.Float64()
	took := make([]float64, j.ranks)
	for now := begin; now < end; {
		last := 0.0
		for i := range ranks {
			took[i] = j.step * ranks[i].skew * j.slow(i, now) *
				(1 + j.jitter*r.NormFloat64() + j.imbalance*math.Abs(r.NormFloat64()))
			if r.Float64() < j.pauses {
				took[i] += 0.05 + 0.45*r.Float64()
			}
			if i == 0 && now >= save {
				took[i] += 5 + 25*r.Float64()
				save = now + j.save*(0.5+r.Float64())
				j.saved = append(j.saved, [2]float64{now, now + took[i]})
			}
			last = max(last, took[i])
		}
		now += last + j.exchange*j.step
		for i := range ranks {
			s := &ranks[i]
			calls := j.calls
			if j.stages && (i == 0 || i == j.ranks-1) {
				calls /= 2
			}
			s.entered += calls
			s.measured += calls
			s.seconds += last - took[i] + j.exchange*j.step
			s.at = append(s.at, rankReading{now, s.entered, s.measured, s.seconds})
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
	phase := stragglerStep.Seconds()*j.random.Float64() + 1 + j.random.Float64()
	steps := int(end / stragglerStep.Seconds())
	missed := make([]bool, steps)
	for i := range missed {
		missed[i] = j.random.Float64() < j.missed
	}
	for i := host * ranksOfHost; i < min(j.ranks, (host+1)*ranksOfHost); i++ {
		labels := fmt.Sprintf(`{job=%q,instance="%s-%d",gpu="%d",uuid="%[2]s-%[5]d",tenant="t",workload="w",`+
			`communicator="%[2]s",rank="%[5]d"}`, job, name, host, i%ranksOfHost, i)
		lines := [3][]string{}
		at := 0
		for k := range steps {
			now := float64(k)*stragglerStep.Seconds() - phase
			for at < len(ranks[i].at) && ranks[i].at[at].time <= now {
				at++
			}
			var show [3]string
			switch ended := now > until+5; {
			case at == 0 || missed[k]:
				show = [3]string{"_", "_", "_"}
			case ended && now <= until+5+stragglerStep.Seconds():
				show = [3]string{"stale", "stale", "stale"}
			case ended:
				show = [3]string{"_", "_", "_"}
			default:
				s := ranks[i].at[at-1]
				show = [3]string{strconv.FormatFloat(s.entered, 'f', 1, 64),
					strconv.FormatFloat(s.measured, 'f', 1, 64), strconv.FormatFloat(s.seconds, 'f', 4, 64)}
			}
			for n := range lines {
				lines[n] = append(lines[n], show[n])
			}
		}
		for n, metric := range []string{"nvgpu_rank_collectives_total", "nvgpu_rank_collectives_measured_total",
			"nvgpu_rank_collective_seconds_total"} {
			fmt.Fprintf(b, "      - series: '%s%s'\n        values: '%s'\n", metric, labels,
				strings.Join(lines[n], " "))
		}
	}
}

// usualJob returns a job of a cluster, drawn at random: data parallel, with the
// jitter, the pauses and the checkpoints of real ones.
func usualJob(name string, ranks int, r *rand.Rand) *clusterJob {
	return &clusterJob{name: name, ranks: ranks, random: r,
		step: 0.2 * math.Pow(10, r.Float64()), exchange: 0.05 + 0.35*r.Float64(), calls: 1 + float64(r.IntN(40)),
		jitter: 0.01 + 0.02*r.Float64(), skew: 0.003 + 0.005*r.Float64(), pauses: 0.0005 * r.Float64(),
		save: 600 + 1200*r.Float64(), missed: 0.005}
}

// A naming is a firing alert.
type naming struct {
	communicator string
	rank         int
}

// readings of promtool's output: the labels of ALERTS.
func namings(got string) (all []naming) {
	for part := range strings.SplitSeq(got, "{") {
		var n naming
		for label := range strings.SplitSeq(part, ", ") {
			if v, is := strings.CutPrefix(label, `communicator="`); is {
				n.communicator, _, _ = strings.Cut(v, `"`)
			}
			if v, is := strings.CutPrefix(label, `rank="`); is {
				v, _, _ = strings.Cut(v, `"`)
				n.rank, _ = strconv.Atoi(v)
			}
		}
		if n.communicator != "" && !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

// promTime formats seconds for promtool.
func promTime(s float64) string { return promDuration(time.Duration(s) * time.Second) }
