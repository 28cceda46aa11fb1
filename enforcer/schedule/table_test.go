package schedule

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// begin is the time after which a program is no newcomer any more: its lone pace was
// measured again after its first report.
const begin = 1500 * ms

// A subject is a program's result: parts of its lone throughput.
type subject struct {
	kind                    string
	needs                   float64 // part of the GPU's time that it uses alone
	guarantee               float64
	plain, hooked, worst    float64
	p50, p99, alone         time.Duration // of a step, and its 99th percentile alone
	loneWorst, lone, served float64
}

// rates returns the steps per second, and the lowest rate of any second.
func (p *program) rates(to time.Duration) (all, worst float64) {
	all = p.rate(begin, to)
	worst = all
	for at := begin; at+time.Second <= to; at += 250 * ms {
		worst = min(worst, p.rate(at, at+time.Second))
	}
	return all, worst
}

func percentile(d []time.Duration, part float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	d = slices.Sorted(slices.Values(d))
	return d[int(float64(len(d)-1)*part)]
}

// lones are the lone results, by kind.
var (
	lones    = map[string]subject{}
	measures sync.Mutex
)

func alone(t testing.TB, name string) subject {
	measures.Lock()
	defer measures.Unlock()
	if s, ok := lones[name]; ok {
		return s
	}
	p := kind(name, 1)
	w := newWorld(t, true, nil, p)
	w.run(4 * time.Second)
	s := subject{kind: name, alone: percentile(p.took, 0.99), needs: w.gpus[0].busy.Seconds() / w.now.Seconds()}
	s.lone, s.loneWorst = p.rates(4 * time.Second)
	s.loneWorst /= s.lone
	lones[name] = s
	return s
}

// course runs programs beside one another, without the hook and with it.
func course(t testing.TB, long time.Duration, kinds []string, weights []float64) (all []*subject, w *world) {
	sum := 0.0
	for i, name := range kinds {
		s := alone(t, name)
		all = append(all, &s)
		sum += weights[i]
	}
	for _, plain := range []bool{true, false} {
		var programs []*program
		for i, name := range kinds {
			p := kind(name, weights[i])
			p.name = fmt.Sprint(i, name)
			programs = append(programs, p)
		}
		w = newWorld(t, plain, nil, programs...)
		w.run(long)
		for i, p := range programs {
			s := all[i]
			rate, worst := p.rates(long)
			if s.guarantee = weights[i] / sum; plain {
				s.plain = rate / s.lone
				continue
			}
			s.hooked, s.worst = rate/s.lone, worst/s.lone
			s.p50, s.p99 = percentile(p.took, 0.5), percentile(p.took, 0.99)
			s.served = w.gpus[0].g.Stats(p.name).Served.Seconds() / long.Seconds()
		}
	}
	return all, w
}

// modest reports whether a program needs less than its guarantee.
func modest(a *subject) bool { return a.needs <= a.guarantee }

// moved returns the sum of parts that plain slicing would have at the split that guarantees enforce.
func moved(all []*subject) (sum float64, enforced bool) {
	had, has, kept, rest := 0.0, 0.0, 0.0, 0.0
	for _, a := range all {
		switch {
		case modest(a):
			sum += a.plain
			kept += a.needs * a.plain
		case a.plain < a.guarantee:
			enforced = true
			had, has = had+a.plain, has+a.guarantee
		default:
			rest += a.plain
		}
	}
	scale := 1.0
	if before := 1 - had - kept; before > 0 {
		scale = min(1, max(0, (1-has-kept)/before))
	}
	return sum + has + rest*scale, enforced
}

// judge returns the missed goals.
func judge(all []*subject) (missed []string) {
	miss := func(what string, got, want float64) {
		if !(got >= want) {
			missed = append(missed, fmt.Sprintf("%s %.3f < %.3f", what, got, want))
		}
	}
	hooked, plain := 0.0, 0.0
	for _, a := range all {
		hooked, plain = hooked+a.hooked, plain+a.plain
		part, second := a.guarantee-0.02, a.guarantee-0.05
		if modest(a) {
			part = min(0.97, a.plain-0.02)
			second = part - 0.06 // two lone paces are measured in a second, for 30 ms each
		}
		miss(a.kind, a.hooked, part)
		miss(a.kind+" in 1 s", a.worst, second*min(1, a.loneWorst))
	}
	want := 0.98 * plain
	if sum, enforced := moved(all); enforced {
		want = 0.96 * sum
	}
	miss("sum", hooked, want)
	return missed
}

func numbers(t *testing.T, words string) (all []float64) {
	for word := range strings.FieldsSeq(words) {
		all = append(all, fixture.Value(strconv.ParseFloat(word, 64))(t))
	}
	return all
}

// TestMatrix compares the schedule with the guarantees, and with plain slicing, for the programs of testdata/matrix.tsv. With -v it prints the table.
func TestMatrix(t *testing.T) {
	t.Parallel()
	const long = 5 * time.Second
	for _, c := range fixture.Rows(t, "testdata/matrix.tsv") {
		kinds, parts := strings.Fields(c[0]), numbers(t, c[1])
		all, w := course(t, long, kinds, parts)
		var row strings.Builder
		for _, a := range all {
			fmt.Fprintf(&row, " | %s %.0f: plain %.3f hooked %.3f, in 1 s %.2f, p50 %v p99 %v (alone %v), served %.2f",
				a.kind, 100*a.guarantee, a.plain, a.hooked, a.worst, a.p50, a.p99, a.alone, a.served)
		}
		missed := judge(all)
		t.Logf("%v%s | %d decisions, %+v %s", kinds, row.String(), w.decides, w.gpus[0].g.System(),
			strings.Join(missed, ", "))
		for _, m := range missed {
			t.Errorf("%v %v: %s", kinds, parts, m)
		}
		for i, card := range numbers(t, strings.Join(c[2:], "")) {
			if off := all[i].hooked - card; max(off, -off) > 0.05 {
				t.Errorf("%v %v: %s has %.3f, on a card %.3f", kinds, parts, all[i].kind, all[i].hooked, card)
			}
		}
		if most := 2500 * int(long/time.Second); w.decides > most {
			t.Errorf("%v %v: %d decisions, more than %d", kinds, parts, w.decides, most)
		}
	}
}

// TestRoughPrograms shares a GPU with programs whose launches differ much from one another, so that
// a moment tells little of their pace: forward, loss, backward and optimizer, or a loader's waits.
// Whenever they start, no program lacks much in its first seconds.
func TestRoughPrograms(t *testing.T) {
	t.Parallel()
	const long = 2500 * ms
	for _, c := range []struct {
		kinds []string
		parts []float64
		least []float64 // of the lone pace
	}{
		{[]string{"queue", "train"}, []float64{70, 30}, []float64{0.67, 0.32}},
		{[]string{"queue", "resnet"}, []float64{70, 30}, []float64{0.66, 0.43}},
		{[]string{"resnet", "steps"}, []float64{70, 30}, []float64{0.77, 0.47}},
		{[]string{"train", "steps", "decode"}, []float64{50, 30, 20}, []float64{0.69, 0.31, 0.9}},
	} {
		parts := slices.Repeat([]float64{1}, len(c.kinds))
		for start := range uint64(16) {
			random := rand.New(rand.NewPCG(start, 9))
			var programs []*program
			for i, name := range c.kinds {
				p := kind(name, c.parts[i])
				p.from = time.Duration(random.IntN(100)) * ms
				programs = append(programs, p)
			}
			w := newWorld(t, false, nil, programs...)
			w.random = random
			w.run(long)
			for i, p := range programs {
				parts[i] = min(parts[i], p.rate(500*ms, long)/alone(t, c.kinds[i]).lone)
			}
		}
		t.Logf("%v %v: %.3f", c.kinds, c.parts, parts)
		for i, part := range parts {
			if part < c.least[i] {
				t.Errorf("%v %v: %s has %.3f, less than %.3f", c.kinds, c.parts, c.kinds[i], part, c.least[i])
			}
		}
	}
}
