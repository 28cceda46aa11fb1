//go:build tools

package alerts

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
)

// A track is the value at each scrape, or at each evaluation; NaN is none.
type track []float64

// newTrack returns a track without values.
func newTrack(n int) track { return slices.Repeat(track{math.NaN()}, n) }

// last returns the values of the last n times up to k.
func (v track) last(k, n int) (all []float64) {
	for _, x := range v[max(0, k-n+1) : k+1] {
		if !math.IsNaN(x) {
			all = append(all, x)
		}
	}
	return all
}

// sum adds up the values of the last n times up to k.
func (v track) sum(k, n int) (sum float64) {
	for _, x := range v.last(k, n) {
		sum += x
	}
	return sum
}

// increase is the increase of a counter over n scrapes, as Prometheus estimates it in a range that
// is a second shorter: that of rate, or of delta.
func (v track) increase(k, n int, rate bool) float64 {
	step := stragglerStep.Seconds()
	span := float64(n)*step - 1
	first, last, count, sum := -1, -1, 0, 0.0
	for i := max(0, k-n+1); i <= k; i++ {
		if math.IsNaN(v[i]) {
			continue
		}
		if count++; first < 0 {
			first = i
		} else if rate && v[i] < v[last] {
			sum += v[last]
		}
		last = i
	}
	if count < 2 {
		return math.NaN()
	}
	sum += v[last] - v[first]
	sampled := float64(last-first) * step
	before, after := span-float64(k-first)*step, float64(k-last)*step
	if rate && sum > 0 {
		before = min(before, sampled*v[first]/sum)
	}
	covers := sampled
	for _, gap := range []float64{before, after} {
		if between := sampled / float64(count-1); gap < 1.1*between {
			covers += gap
		} else {
			covers += between / 2
		}
	}
	return sum * covers / sampled
}

// quantile is Prometheus's, of values without NaN.
func quantile(q float64, of []float64) float64 {
	if len(of) == 0 {
		return math.NaN()
	}
	of = slices.Sorted(slices.Values(of))
	at := q * float64(len(of)-1)
	low := int(at)
	part := at - float64(low)
	return of[low]*(1-part) + of[min(low+1, len(of)-1)]*part
}

// A member is a rank of a communicator, with the series that the rules record of it.
type member struct {
	gpu                              string
	of                               map[string]track // by metric
	mean, ratio, lost, found, firing track
}

// rates returns the collectives a second of the members over the last n scrapes.
func rates(members []*member, k, n int) []float64 {
	all := newTrack(len(members))
	for i, m := range members {
		all[i] = m.of[workloads.RankCollectives.Name].increase(k, n, true) / (float64(n)*stragglerStep.Seconds() - 1)
	}
	return all.last(len(all)-1, len(all))
}

// writtenSeries matches a series of a test of promtool.
var writtenSeries = regexp.MustCompile(`series: '(\w+)\{.*uuid="([^"]*)".*communicator="([^"]*)".*\}'\n\s*values: '(.*)'`)

// membersOf returns the ranks in the series of a test, by their communicator.
func membersOf(series string) map[string][]*member {
	all := map[string][]*member{}
	for _, s := range writtenSeries.FindAllStringSubmatch(series, -1) {
		metric, gpu, communicator := s[1], s[2], s[3]
		i := slices.IndexFunc(all[communicator], func(m *member) bool { return m.gpu == gpu })
		if i < 0 {
			i = len(all[communicator])
			all[communicator] = append(all[communicator], &member{gpu: gpu, of: map[string]track{}})
		}
		var v track
		for field := range strings.SplitSeq(s[4], " ") {
			x, err := strconv.ParseFloat(field, 64)
			if err != nil {
				x = math.NaN()
			}
			v = append(v, x)
		}
		all[communicator][i].of[metric] = v
	}
	return all
}

// judge finds the members for which time is lost, and decides which of them are named. It needs what
// each GPU spent in collectives.
func judge(members []*member, spent map[string]track, calls track) {
	spread, found := newTrack(len(calls)), newTrack(len(calls))
	for k := range calls {
		var ratios []float64
		for _, m := range members {
			if len(m.mean.last(k, 1)) > 0 {
				m.ratio[k] = spent[m.gpu][k]
				ratios = append(ratios, m.ratio[k])
			}
		}
		typical := quantile(0.5, ratios)
		spread[k] = quantile(0.9, ratios) - typical
		usual := quantile(0.5, spread.last(k, stragglerUsual))
		young := k < stragglerOthers || len(calls.last(k-stragglerOthers, 1)) == 0
		for _, m := range members {
			m.lost[k] = typical - m.ratio[k]
			if m.lost[k] > 0.05 && m.lost[k] > 4*usual && m.lost[k] > 0.5*quantile(1, m.lost.last(k, stragglerFalls)) {
				m.found[k] = m.lost[k]
				if !(found[k] > m.lost[k]) {
					found[k] = m.lost[k]
				}
			}
		}
		for _, m := range members {
			count := func(v track, n int) float64 { return float64(len(v.last(k, n))) }
			if young || !(m.lost.sum(k, stragglerOf)/count(m.lost, stragglerOf) > 0.05) ||
				count(m.found, stragglerWithin) < stragglerFindings ||
				m.found.sum(k, stragglerWithin) < 0.35*quantile(1, m.found.last(k, stragglerWithin))*count(m.lost, stragglerWithin)+
					1.5*(found.sum(k, stragglerOthers)-m.found.sum(k, stragglerOthers)) {
				continue
			}
			if all := rates(members, k, stragglerWithin); quantile(0, all) > 0.7*quantile(1, all) {
				m.firing[k] = 1
			}
		}
	}
}

// native evaluates the rules as evaluate does, but itself, and ten times as fast.
func native(series string, looks []look) [][]naming {
	communicators := membersOf(series)
	names := slices.Sorted(maps.Keys(communicators))
	spent := map[string]track{} // in collectives, by GPU
	calls := map[string]track{}
	ticks := 0
	for _, name := range names {
		members := communicators[name]
		ticks = len(members[0].of[workloads.RankSeconds.Name])
		calls[name] = newTrack(ticks)
		for _, m := range members {
			m.mean, m.ratio, m.lost = newTrack(ticks), newTrack(ticks), newTrack(ticks)
			m.found, m.firing = newTrack(ticks), newTrack(ticks)
			if spent[m.gpu] == nil {
				spent[m.gpu] = make(track, ticks)
			}
		}
		over := func(m *member, metric *collectors.Metric, k int) float64 {
			return m.of[metric.Name].increase(k, 3, false)
		}
		for k := range ticks {
			calls[name][k] = quantile(0.5, rates(members, k, 3))
			most := quantile(1, calls[name].last(k, stragglerWithin))
			if !(calls[name][k] > 0.2*most) {
				continue
			}
			for _, m := range members {
				measured := over(m, workloads.RankMeasured, k)
				if !(measured > 0) {
					continue
				}
				m.mean[k] = (over(m, workloads.RankSeconds, k) - over(m, workloads.RankPaused, k)) / measured
				spent[m.gpu][k] += m.mean[k] * most
			}
		}
	}
	for _, name := range names {
		judge(communicators[name], spent, calls[name])
	}
	all := make([][]naming, len(looks))
	for i, l := range looks {
		k := int(l.at / stragglerStep.Seconds())
		for _, name := range names {
			for _, m := range communicators[name] {
				if len(m.firing.last(min(k, ticks-1), 1+int(l.lately/stragglerStep))) > 0 {
					all[i] = append(all[i], namings(fmt.Sprintf("uuid=%q", m.gpu))...)
				}
			}
		}
	}
	return all
}

// TestNativeRulesAgree compares both evaluations, on jobs with many findings.
func TestNativeRulesAgree(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*seed, 3))
	var b strings.Builder
	const length = 1200.0
	for n := range 6 {
		j := usualJob(fmt.Sprintf("c%d", n), 16, r)
		j.tensor, j.missed, j.save, j.restarts = n%3, 0.05, 300, float64(n/3)*900
		j.habits.turns = turns{lasting: [2]float64{5, 60}, by: [2]float64{0.05, 0.25}, ranks: 1}
		j.write(&b, length)
	}
	var looks []look
	for at := 60.0; at < length; at += 20 {
		looks = append(looks, look{at, 0}, look{at, 4 * time.Minute})
	}
	engine, count := evaluate(t, b.String(), looks), 0
	for i, found := range native(b.String(), looks) {
		for _, all := range [][]naming{engine[i], found} {
			slices.SortFunc(all, func(a, b naming) int {
				return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.rank, b.rank))
			})
		}
		found = slices.Compact(found)
		if count += len(found); !slices.Equal(engine[i], found) {
			t.Errorf("%+v: promtool names %v, this evaluation %v", looks[i], engine[i], found)
			break
		}
	}
	if count < 100 {
		t.Errorf("%d namings are too few to compare", count)
	}
}
