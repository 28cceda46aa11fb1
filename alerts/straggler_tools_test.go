//go:build tools

package alerts

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

var (
	injections = flag.Int("straggler.injections", 16, "injections of a slow rank or host")
	hoursQuiet = flag.Int("straggler.hours", 4, "hours of communicators without a straggler")
	seed       = flag.Uint64("straggler.seed", 1, "seed of the simulated cluster")
	scrape     = flag.Duration("straggler.scrape", stragglerStep, "interval of scrapes")
	style      = flag.String("straggler.style", "usual", "of the jobs with injections: "+
		strings.Join(slices.Sorted(maps.Keys(styles)), ", "))
	row    = flag.String("straggler.row", "", "of the jobs without a straggler: this kind alone")
	slower = flag.Int("straggler.slower", 1, "factor of all durations of the rules")
)

// styles of jobs are harder than the usual one.
var styles = map[string]func(j *clusterJob){
	"usual":         func(*clusterJob) {},
	"skewed":        func(j *clusterJob) { j.skew = 0.012 },  // up to 3 % for good
	"drifts":        func(j *clusterJob) { j.drift = 0.012 }, // up to 3 % in an hour
	"tensor":        func(j *clusterJob) { j.tensor = 2 },
	"tensor4":       func(j *clusterJob) { j.tensor = 4 },
	"trios":         func(j *clusterJob) { j.ranks = 3 },
	"few":           func(j *clusterJob) { j.ranks = 8 },
	"gradual":       func(j *clusterJob) { j.gradual = 60 },
	"imbalance":     func(j *clusterJob) { j.imbalance = 0.05 },
	"missed":        func(j *clusterJob) { j.missed = 0.05 },
	"restless":      func(j *clusterJob) { j.save = 90 },
	"long":          func(j *clusterJob) { j.step = 4 + 4*j.random.Float64() },
	"throttles":     func(j *clusterJob) { j.throttles = 4 },
	"experts":       func(j *clusterJob) { j.habits.experts = 0.01 },
	"pipelines":     func(j *clusterJob) { j.tensor, j.habits.last = 4, 0.15 },
	"vast":          func(j *clusterJob) { j.ranks = 512 },
	"slight":        func(j *clusterJob) { j.most = 0.12 },
	"slightExperts": func(j *clusterJob) { j.most, j.habits.experts = 0.12, 0.01 },
	"slightSaves":   func(j *clusterJob) { j.most, j.save = 0.12, 240 },
	"partly":        func(j *clusterJob) { j.throttles = 20 },
}

// A look asks which alerts fire at a time, or fired in some time before.
type look struct {
	at     float64
	lately time.Duration
}

// expr is what Prometheus is asked.
func (l look) expr() string {
	firing := `ALERTS{alertname="JobStraggler",alertstate="firing"}`
	if l.lately > 0 {
		return fmt.Sprintf("max_over_time(%s[%s])", firing, health.PromDuration(l.lately))
	}
	return firing
}

// everyRange matches the ranges of a rule.
var everyRange = regexp.MustCompile(`\[\w+\]`)

// evaluate lets promtool evaluate the rules over the series, and returns what each look finds. It expects something
// impossible, so that promtool prints what there is.
func evaluate(t *testing.T, series string, looks []look) [][]naming {
	t.Helper()
	dir := t.TempDir()
	rules, _ := stragglerFiles()
	rules = strings.ReplaceAll(rules, "        keep_firing_for: 5m\n", "")
	rules = everyRange.ReplaceAllStringFunc(rules, func(found string) string {
		d := fixture.Value(time.ParseDuration(strings.Trim(found, "[]")))(t)
		d *= time.Duration(*slower)
		if d%stragglerStep == 0 {
			d -= time.Second // promtool has samples at the very times of evaluations: one too many
		}
		return "[" + health.PromDuration(d) + "]"
	})
	rules = strings.ReplaceAll(rules, "interval: 5s", "interval: "+health.PromDuration(time.Duration(*slower)*stragglerStep))
	var b strings.Builder
	fmt.Fprintf(&b, "rule_files: [rules.yml]\nevaluation_interval: %s\ntests:\n  - interval: %s\n    input_series:\n%s"+
		"    promql_expr_test:\n", health.PromDuration(time.Duration(*slower)*stragglerStep), health.PromDuration(*scrape), series)
	for _, l := range looks {
		fmt.Fprintf(&b, "      - expr: '%s'\n        eval_time: %s\n        exp_samples: [{labels: 'none', value: 0}]\n",
			l.expr(), promTime(l.at))
	}
	for name, text := range map[string]string{"rules.yml": rules, "test.yml": b.String()} {
		fixture.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	out, _ := exec.Command("promtool", "test", "rules", filepath.Join(dir, "test.yml")).CombinedOutput()
	found := regexp.MustCompile(`(?s)expr: "(?:[^"\\]|\\.)*", time: [^\n]*\n\s*exp:[^\n]*\n\s*got:\s?([^\n]*)`).
		FindAllStringSubmatch(string(out), -1)
	fixture.Stop(t, len(found) != len(looks),
		"promtool answers %d of %d questions:\n%.3000s", len(found), len(looks), out)
	all := make([][]naming, len(looks))
	for i, f := range found {
		all[i] = namings(f[1])
	}
	return all
}

// TestStragglersAreNamed injects slow ranks and slow hosts into 512 ranks, and counts those that are named within a
// minute, or within as many as -straggler.slower says.
func TestStragglersAreNamed(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*seed, 1))
	// Injections are this far apart, last this long, and are to be named within this time.
	cycle, lasting, within := 300*float64(*slower), 150*float64(*slower), 60*float64(*slower)
	var jobs []*clusterJob
	for ranks := 0; ranks < 512 && len(jobs) < 8; ranks += jobs[len(jobs)-1].ranks {
		j := usualJob(fmt.Sprintf("c%d", len(jobs)), 64, r)
		styles[*style](j)
		jobs = append(jobs, j)
	}
	var looks []look
	var which []slowness
	of := map[int]int{}
	end := 0.0
	for n := range *injections {
		j, at := n%len(jobs), 120+cycle*float64(n/len(jobs))+60*r.Float64()
		at = math.Round(at)
		f := slowness{from: at, until: at + lasting, first: r.IntN(512) % jobs[j].ranks, n: 1,
			by: 0.1 * math.Pow(jobs[j].slowest()/0.1, r.Float64()), grows: jobs[j].gradual, turns: jobs[j].throttles}
		if n%4 == 3 && jobs[j].ranks > 2*ranksOfHost {
			f.first, f.n = f.first/ranksOfHost*ranksOfHost, ranksOfHost
		}
		jobs[j].faults = append(jobs[j].faults, f)
		which, of[n] = append(which, f), j
		lately := time.Duration(*slower) * 4 * time.Minute
		looks = append(looks, look{at + within, 0}, look{at + cycle - 70 - jobs[j].gradual, lately})
		end = max(end, at+cycle)
	}
	var b strings.Builder
	for _, j := range jobs {
		j.write(&b, end)
	}
	// The questions are asked in the order of time.
	order := make([]int, len(looks))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(looks[a].at - looks[b].at) })
	sorted := make([]look, len(looks))
	for k, i := range order {
		sorted[k] = looks[i]
	}
	answers := evaluate(t, b.String(), sorted)
	found := make([][]naming, len(looks))
	for k, i := range order {
		found[i] = answers[k]
	}
	named, late, wrong := 0, 0, 0
	for n, f := range which {
		right, later, others := false, false, false
		for _, a := range found[2*n] {
			if a.job == fmt.Sprintf("c%d-0", of[n]) {
				right = right || a.rank >= f.first && a.rank < f.first+f.n
			}
		}
		for _, a := range found[2*n+1] {
			if a.job == fmt.Sprintf("c%d-0", of[n]) {
				is := a.rank >= f.first && a.rank < f.first+f.n
				later, others = later || is, others || !is
			}
		}
		j := jobs[of[n]]
		switch {
		case right:
			named++
		case later && j.stood(f.from, f.from+within) > 0:
			late++ // the job did not step all the time
			t.Logf("late: it stood for %.0f s of the minute", j.stood(f.from, f.from+within))
		default:
			t.Logf("not named: %+v, step %.2f s, exchange %.2f, jitter %.3f; then %v", f, j.step, j.exchange, j.jitter,
				found[2*n+1])
		}
		if others {
			wrong++
			t.Logf("wrong: %+v: %v", f, found[2*n+1])
		}
	}
	t.Logf("%d of %d injections are named within %.0f s, %d later because of a checkpoint; %d times another rank is named",
		named, *injections, within, late, wrong)
	fixture.If(t, (named+late)*100 < *injections*99 || named*100 < *injections*97 || wrong*100 > *injections,
		"too few, or wrong")
}

// A kind of jobs is a change of the usual one.
type kind struct {
	name   string
	change func(j *clusterJob)
}

// wellJobs are the kinds of jobs without a straggler.
func wellJobs(r *rand.Rand) []kind {
	return []kind{
		{"usual", func(*clusterJob) {}},
		{"logs", func(j *clusterJob) { j.habits.logs = 0.3 * r.Float64() }},
		{"uploads", func(j *clusterJob) { j.habits.uploads = 5 + 15*r.Float64() }},
		{"shards", func(j *clusterJob) { j.habits.shards, j.save = true, 300 }},
		{"experts", func(j *clusterJob) { j.habits.experts = 0.03 * r.Float64() }},
		{"cold", func(j *clusterJob) { j.restarts, j.habits.cold = 600, 0.3*r.Float64() }},
		{"pipelines", func(j *clusterJob) { j.tensor, j.habits.last = 4, 0.05+0.2*r.Float64() }},
		{"evaluates", func(j *clusterJob) { j.habits.evaluate = 600 }},
		{"long", styles["long"]},
		{"blind", func(j *clusterJob) { j.blind = 600 }},
		{"large", func(j *clusterJob) { j.ranks = 128 }},
		{"restarts", func(j *clusterJob) { j.restarts = 600 }},
		{"imbalance", func(j *clusterJob) { j.imbalance = 0.1 * r.Float64() }},
		{"turns", func(j *clusterJob) { j.wander = 3 + 9*r.Float64() }},
		{"stages", func(j *clusterJob) { j.stages, j.ranks = true, 3+r.IntN(14) }},
		{"pairs", func(j *clusterJob) { j.stages, j.ranks = true, 2 }},
		{"pauses", func(j *clusterJob) { j.pauses = 0.01 }},
		{"saves", func(j *clusterJob) { j.save = 120 }},
		{"missed", func(j *clusterJob) { j.missed = 0.05 }},
		{"skewed", styles["skewed"]},
		{"drifts", styles["drifts"]},
		{"tensor", styles["tensor"]},
		{"trios", styles["trios"]},
		{"small", func(j *clusterJob) { j.ranks = 3 + r.IntN(6) }},
		{"hot", func(j *clusterJob) {
			j.habits.turns = turns{lasting: [2]float64{5, 30}, by: [2]float64{0.05, 0.25}, ranks: 1}
		}},
		{"writers", func(j *clusterJob) {
			j.habits.turns = turns{gap: [2]float64{60, 180}, lasting: [2]float64{5, 20}, by: [2]float64{0.1, 0.25}, ranks: ranksOfHost}
		}},
		{"accumulates", func(j *clusterJob) {
			j.habits.experts, j.habits.keep = 0.02+0.04*r.Float64(), 5+10*r.Float64()
		}},
		{"loader", func(j *clusterJob) { j.habits.loader = 0.06 }},
		{"loggers", func(j *clusterJob) { j.habits.loggers = 0.3 + 0.7*r.Float64() }},
		{"bubbles", func(j *clusterJob) {
			j.tensor, j.habits.last, j.habits.experts, j.habits.keep = 4, 0.05+0.2*r.Float64(), 0.01+0.01*r.Float64(), 30
		}},
	}
}

// TestNoStragglersNoAlerts simulates what is no straggler.
func TestNoStragglersNoAlerts(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(*seed, 2))
	kinds := wellJobs(r)
	const length, batch = 3600.0, 50 // hours; promtool takes no more at a time
	kinds = slices.DeleteFunc(kinds, func(k kind) bool { return *row != "" && k.name != *row })
	var looks []look
	for at := 300.0; at < length; at += 300 {
		looks = append(looks, look{at, 5 * time.Minute})
	}
	alarms := map[string]bool{}
	for from := 0; from < *hoursQuiet; from += batch {
		var b strings.Builder
		for n := from; n < min(*hoursQuiet, from+batch); n++ {
			k := kinds[n%len(kinds)]
			j := usualJob(fmt.Sprintf("%s%d", k.name, n), []int{8, 16, 32, 64}[r.IntN(4)], r)
			k.change(j)
			j.write(&b, length)
		}
		for _, found := range evaluate(t, b.String(), looks) {
			for _, a := range found {
				alarms[fmt.Sprintf("rank %d of %s", a.rank, a.job)] = true
			}
		}
		t.Logf("%d hours of communicators: %d false alarms: %v", min(*hoursQuiet, from+batch), len(alarms),
			slices.Sorted(maps.Keys(alarms)))
	}
	fixture.AtMost(t, 1000*len(alarms), *hoursQuiet, "too many")
}
