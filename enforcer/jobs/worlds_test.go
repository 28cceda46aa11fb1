package jobs

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/wire"
)

// The sizes of the worlds. These are for the lane long; docs/benchmarks.md has the sizes of its figures.
var (
	worldHangs      = flag.Int("world.hangs", 24, "`number` of jobs that hang")
	worldLives      = flag.Int("world.lives", 1, "`number` of healthy jobs that live for an hour")
	worldStragglers = flag.Int("world.stragglers", 10, "`number` of jobs with a straggler")
	worldCauses     = flag.Int("world.causes", 80, "`number` of jobs that become slow for a reason")
	worldUneven     = flag.Float64("world.uneven", 0, "`part` of its time by which a processor becomes slower, for half of the time")
	worldHealthy    = flag.Int("world.healthy", 6, "`number` of healthy jobs that step for ten minutes")
	worldJobs       = flag.String("world.jobs", "", "hang only jobs whose `program, fault` this matches")
	worldSeed       = flag.Uint64("world.seed", 0, "first `seed` of the jobs, in 2^32: another number gives other jobs")
)

const soon = 21 * time.Second // 20 s: looks are a second apart

// A tally counts how hangs were judged, by name of the fault and of the program.
type tally map[string]*struct{ right, soon, wrong, all int }

func (of tally) add(o outcome, names ...string) {
	for _, name := range names {
		if of[name] == nil {
			of[name] = new(struct{ right, soon, wrong, all int })
		}
		c := of[name]
		c.all++
		c.right += truth(o.right)
		c.soon += truth(o.right && o.after <= soon)
		c.wrong += truth(o.wrong)
	}
}

// check prints the table, the worst first, and judges the sum.
func (of tally) check(t *testing.T) {
	for _, name := range slices.SortedFunc(maps.Keys(of), func(a, b string) int {
		return of[a].right*of[b].all - of[b].right*of[a].all
	}) {
		c := of[name]
		t.Logf("%-22s %d of %d right, %d of them within 20 s, %d wrong", name, c.right, c.all, c.soon, c.wrong)
	}
	if sum := of["all"]; sum.right*100 < 95*sum.all || sum.wrong*100 > sum.all {
		t.Errorf("%d of %d right, %d wrong; want 95 %% and 1 %%", sum.right, sum.all, sum.wrong)
	}
}

// letHang lets jobs hang, and judges what is told.
func letHang(t *testing.T, tells func(p program, f fault) bool, prepare func(w *world)) {
	n, of, only := 0, tally{}, regexp.MustCompile(*worldJobs)
	for seed := uint64(0); n < *worldHangs; seed++ {
		p, f := programs[int(seed)%len(programs)], faults[int(seed/uint64(len(programs)))%len(faults)]
		if !tells(p, f) || !only.MatchString(p.name+", "+f.name) {
			continue
		}
		n++
		w := newWorld(t, p, *worldSeed<<32+seed)
		if f.name == "NCCL" && p.ranks == p.here {
			w.graph = w.graph || seed%2 == 0
		}
		prepare(w)
		o := w.judged(f)
		of.add(o, f.name, p.name, "all")
		if !o.right || o.wrong || o.after > soon {
			t.Logf("%-14s %-22s seed %d: right %v, wrong %v, after %v: %s", p.name, f.name, seed, o.right, o.wrong, o.after,
				o.told)
		}
	}
	of.check(t)
}

// shifts reports whether nothing hangs, because the next call takes the place of
// the one that is left out, or of one that is unknown.
func shifts(p program, f fault) bool {
	return p.buckets == 1 && f.name == "skipped collective" || p.layers > 0 && f.name == "crossed communicators"
}

// hangAll lets jobs hang; the culprit is on this host. The goals: it is named in 95 %, and a wrong rank in 1 %. The
// time is 20 s or three steps, 35 s for a single process, and 11 minutes if NCCL hangs on several hosts.
func hangAll(t *testing.T) {
	letHang(t, func(p program, f fault) bool {
		return (p.buckets > 0 || f.reason == "kernel") && // or no process waits for another
			!shifts(p, f) &&
			!(p.graph && f.reason == "kernel") // nothing tells
	}, func(*world) {})
}

// hangEarly lets jobs hang of which no step is known. The time is 75 s or three steps.
func hangEarly(t *testing.T) {
	letHang(t, func(p program, f fault) bool {
		return p.buckets > 0 && !shifts(p, f) && f.name != "NCCL" &&
			!(p.graph && slices.Contains([]string{"kernel", "unlike"}, f.reason))
	}, func(w *world) { w.early = 1 + w.IntN(trustedSteps-2) })
}

// An interruption is healthy.
type interruption struct {
	name string
	does func(w *world)
}

// one lets one actor do something before an operation of the next step.
func one(kind byte, least, most time.Duration) func(w *world) {
	return func(w *world) {
		among := w.members
		if kind == 't' {
			among = among[:w.here] // a debugger elsewhere is not seen, and the job waits for it
		}
		m := among[w.IntN(len(among))]
		d := least + time.Duration(w.Float64()*float64(most-least))
		w.before = once(m, w.IntN(w.launches), func() { m.does(kind, d) })
		w.train()
	}
}

// each lets every actor do something for a time of its own.
func each(kind byte, least, most time.Duration) func(w *world) {
	return func(w *world) {
		for _, m := range w.members {
			m.does(kind, least+time.Duration(w.Float64()*float64(most-least)))
		}
	}
}

// trains are so many steps of all.
func (w *world) trains(steps int) {
	for range steps {
		w.train()
	}
}

// lag lets GPUs be slower by up to so much, each by a part of its own, for so many steps.
func (w *world) lag(all []*actor, most float64, steps int) {
	for _, m := range all {
		m.slow = w.Float64() * most
	}
	w.lags = forever
	w.trains(steps)
	for _, m := range all {
		m.slow = 0
	}
	w.lags = w.h.at + max(2*int64(time.Minute), 10*int64(w.step))
}

var interruptions = []interruption{
	{"a rank saves, and computes", one('c', 5*time.Second, 9*time.Minute)},
	{"a rank saves, and writes", one('w', 5*time.Second, 9*time.Minute)},
	{"a rank saves, and stands in the kernel", one('D', 5*time.Second, 9*time.Minute)},
	{"a rank's child compiles", one('k', 5*time.Second, 4*time.Minute)},
	{"a rank compiles, and others wait for its lock", func(w *world) {
		w.members[0].does('c', 30*time.Second+time.Duration(w.Float64()*float64(3*time.Minute)))
		for i, m := range w.members[1:] {
			if locked := time.Duration(w.members[0].host - m.host); i%3 > 0 && locked > 0 {
				m.does('S', locked)
			}
		}
	}},
	{"a loader stalls", one('S', time.Second, 8*time.Second)},
	{"a debugger", one('t', time.Minute, 20*time.Minute)},
	{"garbage", one('c', 200*time.Millisecond, 3*time.Second)},
	{"all save", each('w', 5*time.Second, 5*time.Minute)},
	{"all compile", each('c', 30*time.Second, 4*time.Minute)},
	{"all wait for storage", each('D', 5*time.Second, time.Minute)},
	{"all sit", func(w *world) {
		for _, m := range w.members {
			m.host = max(m.host, m.gpu, m.stream)
		}
		at := w.members[0].host
		for _, m := range w.members {
			at = max(at, m.host)
		}
		for _, m := range w.members {
			m.host = at + int64(time.Hour/4)
		}
	}},
	{"a long kernel", func(w *world) {
		for _, m := range w.members {
			m.launch(777, 0, time.Duration(2+w.IntN(5))*time.Second)
			m.waits()
		}
	}},
	{"evaluation", func(w *world) {
		for _, m := range w.members {
			for range 400 + w.IntN(400) {
				for i := range 5 {
					m.launch(500+i, 0, 10*time.Millisecond)
				}
				m.waits()
			}
		}
	}},
	{"the first rank validates", func(w *world) {
		m := w.members[0]
		for range 1000 {
			m.launch(600, 0, 100*time.Millisecond)
			m.launch(601, 0, 10*time.Millisecond)
			m.waits()
		}
	}},
	{"the first rank validates, and runs ahead", func(w *world) {
		m := w.members[0]
		for range 800 {
			m.launch(600, 0, 10*time.Millisecond)
		}
		m.waits()
	}},
	{"a GPU slows down for a known reason", func(w *world) {
		i := w.IntN(w.here) // another host's is not seen
		until := int64(forever)
		w.h.Observer.Evidence = func(uuid string, _ int) Evidence {
			return Evidence{Power: w.h.at < until && uuid == fmt.Sprint("GPU-", i)}
		}
		w.lag(w.members[i:i+1], 1.5, 4)
		until = w.members[i].gpu // the last of its slow work
	}},
	{"a GPU slows down", func(w *world) {
		i := w.IntN(len(w.members))
		w.lag(w.members[i:i+1], 0.4, 4)
	}},
	{"ranks have different loads", func(w *world) { w.lag(w.members, 0.4, 10) }},
	{"new communicators", func(w *world) {
		for _, m := range w.members {
			m.host = max(m.host, m.gpu, m.stream)
		}
		w.forget()
	}},
}

// forget lets the job form new communicators after all have done their work.
func (w *world) forget() {
	at := int64(0)
	for _, m := range w.members {
		at = max(at, m.host)
	}
	for _, m := range w.members {
		m.host = at
	}
	w.pass(at)
	w.h.at = at + 1
	for _, m := range w.members {
		m.show()
		m.host += int64(3 * time.Second)
		m.entered, m.bytes, m.marks = [3]uint64{}, [3]uint64{}, nil
		m.peers = [wire.Peers]wire.Peer{}
		for i := range 3 {
			if m.r != nil {
				for j := range 16 {
					m.r.put64(128+i*128+8*j, 0)
				}
			}
		}
	}
	w.epoch++
}

// stayHealthy lets jobs live for an hour each with all that is healthy. Each second job starts with it, and is
// interrupted so often that its steps are not known for long.
func stayHealthy(t *testing.T) {
	hours := map[string]time.Duration{}
	told := map[string]int{}
	var sum time.Duration
	for i := range *worldLives {
		p := programs[i%len(programs)]
		w := newWorld(t, p, *worldSeed<<32+uint64(1000+i))
		began, last := w.h.at, ""
		w.alarm = func(h wire.HangStats) {
			what := fmt.Sprintf("%s, %s: %s", p.name, last, h.Reason)
			if told[what]++; told[what] == 1 {
				t.Errorf("false, in world %d: %s, rank %d", i, what, h.Rank)
			}
		}
		w.told = func(s wire.StragglerStats) {
			if w.h.at < w.lags {
				return
			}
			what := fmt.Sprintf("%s, %s: a straggler, %s", p.name, last, s.Cause)
			if told[what]++; told[what] == 1 {
				t.Errorf("false, in world %d: %s, rank %d, %.3f", i, what, s.Rank, s.Lost)
			}
		}
		for w.h.at-began < int64(time.Hour) {
			w.before = nil
			steps := 25 + w.IntN(25)
			if i%2 > 0 {
				steps = w.IntN(20)
			}
			w.trains(steps)
			what := interruptions[w.IntN(len(interruptions))]
			if p.ranks == 1 && w.IntN(3) == 0 {
				what = interruptions[4]
			}
			last = what.name
			what.does(w)
			w.train()
		}
		for _, m := range w.members {
			m.host = max(m.host, m.gpu, m.stream)
		}
		w.members[0].does('c', time.Minute) // the first is the last to end
		last = "the end"
		w.finish()
		sum += time.Duration(w.h.at - began)
		hours[p.name] += time.Duration(w.h.at - began)
	}
	t.Logf("%v of jobs: %v", sum, hours)
}

// straggleAll lets ranks be late by 10 to 50 %, and counts those that are named with their cause, within a minute, or
// within fifteen steps if these are long. The goals: 95 % right, and a wrong rank in 1 %.
func straggleAll(t *testing.T) {
	n, right, wrong, caused := 0, 0, 0, 0
	var times []time.Duration
	for seed := uint64(0); n < *worldStragglers; seed++ {
		p, l := programs[int(seed)%len(programs)], latenesses[int(seed/uint64(len(programs)))%len(latenesses)]
		if p.here < 2 || p.pipeline || p.graph || p.ahead > 0 && !l.all {
			continue // it has no peers, or is not measured, or nobody waits
		}
		n++
		w := newWorld(t, p, *worldSeed<<32+9000+seed)
		w.settle()
		by := 0.1 + 0.4*w.Float64()
		told, after := w.straggles(l, by, max(time.Minute, 15*w.step))
		switch {
		case len(told) == 0:
			t.Logf("%s, %s by %.2f, seed %d: not named", p.name, l.cause, by, seed)
		case slices.ContainsFunc(told, isWrong):
			wrong++
			t.Logf("%s, %s by %.2f, seed %d: %+v", p.name, l.cause, by, seed, told)
		default:
			right++
			caused += truth(told[0].Cause == l.cause)
			times = append(times, after)
		}
	}
	slices.Sort(times)
	t.Logf("%d of %d are named, the median after %v, 90 %% within %v; %d with the right cause; %d times another rank is named",
		right, n, times[len(times)/2], times[len(times)*9/10], caused, wrong)
	if right*100 < 95*n || wrong*100 > n || caused*100 < 95*right {
		t.Error("too few, or wrong")
	}
}

func isWrong(s wire.StragglerStats) bool { return s.Cause == "wrong" }

// slowAll makes steps longer by a part for a reason, all at once or little by little. The goals are 95 % right and 2 %
// wrong within a minute. Some jobs are slow for eight minutes, and must be told at the end of them too. All must be
// told no longer a minute after the end.
func slowAll(t *testing.T) {
	parts := []float64{0.2, 0.5, 2, 0} // 0: any
	type cell struct{ right, wrong, all int }
	cells := map[string]*cell{}
	sum, forgotten, stuck := cell{}, 0, 0
	for seed := *worldSeed; sum.all < *worldCauses; seed++ {
		r := rand.New(rand.NewPCG(seed, 3))
		s, c := styles[r.IntN(len(styles))], &reasons[int(seed)%len(reasons)]
		part := parts[r.IntN(len(parts))]
		if part == 0 {
			part = 0.2 * (1 + 9*r.Float64())
		}
		for c.fits != nil && !c.fits(&s) {
			s = styles[r.IntN(len(styles))]
		}
		s.uneven = *worldUneven
		all := burdens(r, s, c, part)
		if all[0].strong == 0 {
			continue
		}
		o := slowed(t, r, seed, s, all)
		if !o.right || o.wrong {
			t.Logf("seed %3d %-26s %-10s +%.2f (and %s): told %q, before %q", seed, s.name, c.name+" "+c.how, part,
				all[len(all)-1].reason.name, o.told, o.before)
		}
		if o.forgot || o.stuck {
			t.Logf("seed %3d %-26s %-10s +%.2f: forgotten %v, not cleared %v", seed, s.name, c.name, part, o.forgot, o.stuck)
		}
		forgotten, stuck = forgotten+truth(o.forgot), stuck+truth(o.stuck)
		for _, name := range []string{strings.TrimSpace(c.name + " " + c.how), s.name} {
			if cells[name] == nil {
				cells[name] = &cell{}
			}
			cells[name].all++
			cells[name].right += truth(o.right)
			cells[name].wrong += truth(o.wrong)
		}
		sum.all++
		sum.right, sum.wrong = sum.right+truth(o.right), sum.wrong+truth(o.wrong)
	}
	for name, c := range cells {
		t.Logf("%-26s %d of %d right, %d wrong", name, c.right, c.all, c.wrong)
	}
	t.Logf("all: %d of %d right, %d wrong; %d forgotten, %d not cleared", sum.right, sum.all, sum.wrong, forgotten, stuck)
	if sum.right*100 < 95*sum.all || sum.wrong*100 > 2*sum.all || 50*(forgotten+stuck) > sum.all {
		t.Error("want 95 % right, 2 % wrong, and next to none forgotten or not cleared")
	}
}

// stayAsUsual lets healthy jobs step; nothing may be told.
func stayAsUsual(t *testing.T) {
	told := 0
	for i := range *worldHealthy {
		r := rand.New(rand.NewPCG(uint64(i), 9))
		s := styles[i%len(styles)]
		s.uneven = *worldUneven
		o := newOffice(t, s, uint64(i), 0.01+0.04*r.Float64())
		o.knows = allDay(r)
		o.advance(10*time.Minute, func() {
			if o.IntN(120) == 0 { // circumstances change without an effect
				o.knows = allDay(r)
			}
			if o.told != "" {
				told++
				t.Errorf("%s, world %d, %d s: told %q", s.name, i, (o.h.at-1e12)/1e9, o.told)
				o.told = ""
			}
		})
	}
	t.Logf("told in %d of %d s", told, 600**worldHealthy)
}
