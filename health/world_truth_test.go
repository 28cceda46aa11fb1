package health

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// A sentry is an agent on a site: its monitor, and the monitor's reports.
type sentry struct {
	site    *site
	monitor *Monitor
	samples []collectors.Sample
	worst   map[string]incident.Severity // by check and entity, now
	cries   []cry
	told    map[string]cry // the alerts at their first report, by identity
	passes  int
}

// A cry is a finding that began or worsened.
type cry struct {
	style, check string
	severity     incident.Severity
	shadow       bool
	entity       incident.Entity
	at           time.Duration
	text         string
}

var (
	truthDays  = flag.Int("truth.days", 1, "healthy host-days that TestWorldIsQuiet simulates")
	truthSeed  = flag.Uint64("truth.seed", 1, "seed of the first host")
	truthShow  = flag.Int("truth.show", 20, "false alarms that TestWorldIsQuiet describes")
	truthStyle = flag.String("truth.style", "", "the one style of hosts that TestWorldIsQuiet simulates; empty: all")
)

// shadows says which checks are in shadow mode.
var shadows = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for _, c := range Checks() {
		all[c.ID] = c.Shadow
	}
	return all
})

// guard starts an agent on a site.
func guard(s *site) *sentry {
	w := &sentry{site: s, worst: map[string]incident.Severity{}, told: map[string]cry{}}
	w.start(nil)
	return w
}

// start starts the agent with its saved state.
func (w *sentry) start(kept []byte) {
	s := w.site
	m := NewMonitor(Options{
		Samples: func() []collectors.Sample { return w.samples },
		Process: func(pid int, _ time.Time) (host.Process, bool) {
			if p := s.people[pid]; p != nil {
				return p.Process, true
			}
			return host.Process{}, false
		},
		Stays:  s.stays,
		Record: w.note, Tell: w.hear, Load: idle, Boot: s.bootID(), Node: "site", Log: slog.New(slog.DiscardHandler),
	}, Settings{})
	m.begin(s.now())
	m.following.Store(true)
	if kept != nil {
		var saved Saved
		if err := json.Unmarshal(kept, &saved); err != nil {
			panic(err)
		}
		if _, err := m.engine.Restore(saved, s.bootID(), s.now()); err != nil {
			panic(err)
		}
		m.cursor, m.gpus = w.monitor.cursor, w.monitor.gpus
	}
	w.monitor = m
}

// pass runs one pass of the agent.
func (w *sentry) pass() {
	s, boot := w.site, w.site.bootID()
	w.samples = s.pass()
	if len(s.starts) > 0 {
		s.starts = nil
		saved, err := w.monitor.engine.Save(boot)
		if err != nil {
			panic(err)
		}
		text, err := json.Marshal(saved)
		if err != nil {
			panic(err)
		}
		w.start(text)
	}
	for _, tell := range s.seen {
		tell(w.monitor)
	}
	s.seen = s.seen[:0]
	w.monitor.judge(w.monitor.waiting(), s.now())
	w.passes++
}

// note records the monitor's reports.
func (w *sentry) note(e incident.Event) {
	if e.Kind != incident.KindTransition {
		return
	}
	key := e.Check + " " + e.Entity.String()
	if e.Severity > w.worst[key] {
		w.cries = append(w.cries, cry{w.site.style["style"], e.Check, e.Severity, shadows()[e.Check], e.Entity,
			w.site.clock, e.Message})
	}
	w.worst[key] = e.Severity
}

// hear records the monitor's alerts, none of which another silences.
func (w *sentry) hear(all []Alert) {
	for _, a := range all {
		if id := a.Identity(); w.told[id].check == "" {
			entity := incident.Entity{GPU: a.Labels["gpu"], UUID: a.Labels["uuid"], Link: a.Labels["link"],
				Workload: a.Labels["workload"], Device: a.Labels["device"]}
			w.told[id] = cry{w.site.style["style"], a.Labels["check"], severityOf(a), false, entity, w.site.clock,
				a.Annotations["description"]}
		}
	}
}

// tally sums up the reports on the sites of a style, or of all.
type tally struct {
	name   string
	days   float64
	hosts  int
	silent int // hosts without a report
	cries  []cry
}

// weekly returns the number of findings of a severity per host-week; Critical includes worse ones.
func (t *tally) weekly(severity incident.Severity) float64 {
	n := 0
	for _, c := range t.cries {
		if !c.shadow && (c.severity == severity || severity == incident.Critical && c.severity > incident.Critical) {
			n++
		}
	}
	return float64(n) / t.days * 7
}

// checks returns the number of cries of each check, the largest first.
func (t *tally) checks(shadow bool) string {
	counts := map[string]int{}
	for _, c := range t.cries {
		if c.shadow == shadow && c.severity >= incident.Warning {
			counts[fmt.Sprintf("%s %s", c.check, c.severity)]++
		}
	}
	names := slices.SortedFunc(maps.Keys(counts),
		func(a, b string) int { return 10000*(counts[b]-counts[a]) + strings.Compare(a, b) })
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%s %.2f", name, float64(counts[name])/t.days*7))
	}
	return strings.Join(all, ", ")
}

// judgeWorld judges sites of all styles for a total of so many days. The
// tallies are by style, in the order of the table; the last is of all.
func judgeWorld(days int, seed uint64) (all []*tally) {
	styles := slices.DeleteFunc(slices.Clone(worldTable("styles")[1:]),
		func(r worldRow) bool { return *truthStyle != "" && r["style"] != *truthStyle })
	for _, style := range styles {
		all = append(all, &tally{name: style["style"]})
	}
	total := &tally{name: "all"}
	share := time.Duration(days) * day / time.Duration(len(styles))
	hosts := max(1, min(4, int(share/day)), int(share/(7*day)))
	each := share / time.Duration(hosts)
	var mu sync.Mutex
	var wait sync.WaitGroup
	jobs := make(chan int)
	for range 2 {
		wait.Go(func() {
			for i := range jobs {
				t := all[i%len(styles)]
				w := guard(newSite(styles[i%len(styles)], seed+uint64(i)))
				begin := w.site.clock
				for w.site.clock-begin < each {
					w.pass()
				}
				mu.Lock()
				for _, to := range []*tally{t, total} {
					to.days += each.Hours() / 24
					to.hosts++
					if !slices.ContainsFunc(w.cries,
						func(c cry) bool { return !c.shadow && c.severity >= incident.Warning }) {
						to.silent++
					}
					to.cries = append(to.cries, w.cries...)
				}
				mu.Unlock()
			}
		})
	}
	for i := range hosts * len(styles) {
		jobs <- i
	}
	close(jobs)
	wait.Wait()
	return append(all, total)
}

// ceilings are the highest permitted numbers of findings in a host-week: the
// goal for warnings, and no critical ones in a test's days.
const (
	worldWarnings  = 1
	worldCriticals = 0
)
