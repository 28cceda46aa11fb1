package health

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"gpusteward/collectors/faults"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

var (
	truthDays = flag.Int("truth.days", fewDays, "healthy host-days that TestHealthyHostsAreQuiet simulates")
	truthSeed = flag.Uint64("truth.seed", 1, "seed of the first healthy host")
	truthShow = flag.Int("truth.show", 20, "false alarms that TestHealthyHostsAreQuiet describes")
)

// fewDays is the number of days that fit into every test.
const fewDays = 6

// An alarm is a level of a check that a healthy host entered.
type alarm struct {
	check    string
	severity incident.Severity
	shadow   bool
}

// A verdict is the result for some healthy hosts.
type verdict struct {
	alarms      map[alarm]int
	told        []string
	evaluations int
	judging     time.Duration
}

// active are the levels that an engine has entered.
type active map[string]bool

// entered returns the levels entered since the last call.
func (a active) entered(e *Engine, each func(*judge, *status, int)) {
	for _, j := range e.judges {
		for _, st := range j.order {
			for i := range st.levels {
				key := fmt.Sprint(j.ID, st.Entity, i)
				if st.levels[i].active && !a[key] {
					each(j, st, i)
				}
				if st.levels[i].active {
					a[key] = true
				} else {
					delete(a, key)
				}
			}
		}
	}
}

// judgeHost lets an engine judge a supposedly healthy host.
func judgeHost(t *testing.T, seed uint64, h *healthyHost, steps int) (v verdict) {
	e := NewEngine(Checks(), h.now())
	v.alarms = map[alarm]int{}
	on := active{}
	for range steps {
		samples, events := h.step()
		if h.restart {
			e = restarted(t, e, h.now())
		}
		s := derived.NewSnapshot(samples)
		began := time.Now()
		changes := e.Eval(s, events, h.now())
		v.judging += time.Since(began)
		v.evaluations++
		if len(changes) == 0 {
			continue
		}
		on.entered(e, func(j *judge, st *status, i int) {
			a := alarm{j.ID, j.Levels[i].Severity, j.Shadow}
			v.alarms[a]++
			v.told = append(v.told, fmt.Sprintf("seed %d, %s, %s, %s: %s %s %s: %s (level %d, %g)", seed,
				h.model.text["model"], h.style, h.now().Format("02 15:04:05"),
				a.check, a.severity, st.Entity, e.message(j, st), i, st.levels[i].value))
		})
	}
	return v
}

// restarted returns an engine's successor after a restart of the agent.
func restarted(t *testing.T, e *Engine, now time.Time) *Engine {
	saved, err := e.Save("boot")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(saved)
	if err != nil {
		t.Fatal(err)
	}
	var back Saved
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	e = NewEngine(Checks(), now)
	if _, err := e.Restore(back, "boot", now); err != nil {
		t.Fatal(err)
	}
	return e
}

// judgeAll judges enough healthy hosts for the days, on all cores.
func judgeAll(t *testing.T, days int) (all verdict) {
	each := min(max(days/40, 1), 7)
	hosts := make(chan uint64)
	var mu sync.Mutex
	var wait sync.WaitGroup
	all.alarms = map[alarm]int{}
	for range runtime.GOMAXPROCS(0) {
		wait.Go(func() {
			for seed := range hosts {
				v := judgeHost(t, seed, newHealthyHost(seed), each*stepsDay)
				mu.Lock()
				for a, n := range v.alarms {
					all.alarms[a] += n
				}
				all.told = append(all.told, v.told...)
				all.evaluations += v.evaluations
				all.judging += v.judging
				mu.Unlock()
			}
		})
	}
	for i := range uint64((days + each - 1) / each) {
		hosts <- *truthSeed + i
	}
	close(hosts)
	wait.Wait()
	return all
}

// trueAlarms are checks that a healthy host may fail, because it really has
// their condition.
var trueAlarms = []string{"xid_tenant", "xid_spread"}

// TestFaultyHostAlerts shows that silence has a meaning: the same host
// alerts with one GPU that is too hot, and one that had an error.
func TestFaultyHostAlerts(t *testing.T) {
	t.Parallel()
	h := busyHost(false)
	h.gpus[3].place += 60
	for i, s := range h.series {
		if s.metric == faults.RowRemapFailure && s.gpu == h.gpus[5] {
			h.series[i].value = &h.one
		}
	}
	v := judgeHost(t, 0, h, stepsHour)
	for _, want := range []alarm{{"thermal_margin", incident.Critical, false},
		{"remap_failed", incident.Emergency, false}} {
		if v.alarms[want] == 0 {
			t.Errorf("no %s %s; there are %v", want.check, want.severity, v.alarms)
		}
	}
}

// table returns the alarms by check, and the cost of the judgement.
func (v *verdict) table(weeks float64, took time.Duration) string {
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\ncheck\tinfo\twarning\tcritical\temergency\twarnings and worse in a host-week")
	names := map[string][incident.Emergency + 1]int{}
	for a, n := range v.alarms {
		name := a.check
		switch {
		case a.shadow:
			name += " (shadow: does not page)"
		case slices.Contains(trueAlarms, a.check):
			name += " (true)"
		}
		row := names[name]
		row[a.severity] += n
		names[name] = row
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		row := names[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%.3f\n", name, row[incident.Info], row[incident.Warning],
			row[incident.Critical], row[incident.Emergency],
			float64(row[incident.Warning]+row[incident.Critical]+row[incident.Emergency])/weeks)
	}
	_ = w.Flush() // into memory
	cores := runtime.GOMAXPROCS(0)
	fmt.Fprintf(&text, "%.0f host-days, %d evaluations on %d cores in %s: %.0f a second; Eval takes %s\n", weeks*7,
		v.evaluations, cores, took.Round(time.Second),
		float64(v.evaluations)/took.Seconds(), (v.judging / time.Duration(v.evaluations)).Round(time.Microsecond))
	return text.String()
}
