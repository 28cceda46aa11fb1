package health

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	_ "gpusteward/collectors/all"
	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/links"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A worldFault is an element of testdata/world/faults.yml, which explains its keys.
type worldFault struct {
	Fault  string             `yaml:"fault"`
	Board  string             `yaml:"board"`
	Work   string             `yaml:"work"`
	Find   string             `yaml:"find"`
	Least  incident.Severity  `yaml:"least"` // Warning, if it is not given
	Within scenarios.Duration `yaml:"within"`
	Alerts int                `yaml:"alerts"` // at most; 0: not limited
	Acts   []act              `yaml:"acts"`
}

// An act is a part of a fault.
type act struct {
	At     scenarios.Duration `yaml:"at"`
	Every  scenarios.Duration `yaml:"every"`
	Times  int                `yaml:"times"`
	Board  string             `yaml:"board"`
	XID    int                `yaml:"xid"`
	Event  string             `yaml:"event"`
	Line   string             `yaml:"line"`
	Metric string             `yaml:"metric"`
	Where  []string           `yaml:"where"`
	To     *float64           `yaml:"to"`
	By     float64            `yaml:"by"`
	Rises  float64            `yaml:"rises"`
	Gone   bool               `yaml:"gone"`
	Period scenarios.Duration `yaml:"period"`
	On     scenarios.Duration `yaml:"on"`
	Silent string             `yaml:"silent"`
	Do     string             `yaml:"do"`
}

// acts are the changes of a site, by name. The board is the one at fault.
var acts = map[string]func(*site, *board){
	"flap": func(s *site, _ *board) {
		p := &s.ports[2]
		p.up, p.downed = 0, p.downed+1
		s.attend(10 * time.Second)
		s.after(6*time.Second, func() { p.up = 1 })
	},
	"port down": func(s *site, _ *board) { s.ports[2].up, s.ports[2].downed = 0, s.ports[2].downed+1 },
	"ports down": func(s *site, _ *board) {
		for i := range s.ports {
			s.ports[i].up, s.ports[i].downed = 0, s.ports[i].downed+1
		}
	},
	"lost port": func(s *site, _ *board) {
		reboot(s)
		s.after(2*time.Minute, func() { s.ports[2].up = 0 })
	},
	"reboot":  func(s *site, _ *board) { reboot(s) },
	"recover": func(_ *site, b *board) { b.v.linkRecoveries[b.line()]++ },
	"reload":  func(s *site, _ *board) { s.reload(true, 40*time.Second) },
	"other firmware": func(s *site, b *board) {
		b.vbios = "96.00.A5.00.01"
		reboot(s)
	},
	"lowest limit": func(s *site, b *board) {
		s.reload(true, 30*time.Second)
		s.after(45*time.Second, func() { b.limit = b.number("w_min") })
	},
	"unload": func(s *site, _ *board) { s.driver = false },
	"one fewer": func(s *site, b *board) {
		reboot(s)
		b.away = "nobody"
		s.broken = append(s.broken, &breakage{board: b, metric: links.PCIDevicePresent,
			change: func(float64, float64) float64 { return math.NaN() }},
			&breakage{board: b, metric: links.PCIDeviceBound, change: func(float64, float64) float64 { return math.NaN() }},
			&breakage{metric: links.PCIDevices, change: func(v, _ float64) float64 { return v - 1 }})
	},
	"end instance": func(s *site, b *board) {
		for _, l := range s.slots {
			if l.boards[0] == b && l.gi == "3" {
				l.stop(s)
				l.next = math.MaxInt64
			}
		}
	},
	"leave memory": func(s *site, b *board) {
		for _, l := range s.slots {
			if slices.Contains(l.boards, b) {
				l.stop(s)
				l.next = math.MaxInt64
			}
		}
		b.cache = 40 << 30
	},
	"leak": func(s *site, b *board) {
		for _, l := range s.slots {
			if t := l.task; t != nil && slices.Contains(l.boards, b) {
				old, began := t.program, s.clock
				t.ends = math.MaxInt64
				t.program = func(age, dt time.Duration) (need, float64) {
					wants, memory := old(age, dt)
					return wants, min(1, memory+0.3*(s.clock-began).Hours())
				}
			}
		}
	},
}

// metricByName returns a family of the catalogue.
func metricByName(t *testing.T, name string) *collectors.Metric {
	t.Helper()
	for _, m := range collectors.Metrics() {
		if m.Name == name {
			return m
		}
	}
	t.Fatalf("faults.yml: no metric is called %s", name)
	return nil
}

// inject starts an act.
func (a act) inject(t *testing.T, s *site) {
	boards := []*board{s.boards[3]}
	switch a.Board {
	case "all":
		boards = s.boards
	case "host":
		boards = []*board{nil}
	case "":
	default:
		i, err := strconv.Atoi(a.Board)
		fixture.Stop(t, err != nil, "faults.yml: board %q", a.Board)
		boards = s.boards[i : i+1]
	}
	for _, b := range boards {
		switch {
		case a.XID != 0:
			s.xid(a.XID, b, s.pid, "python3")
		case a.Event != "":
			s.event(a.Event, 1, b)
		case a.Line != "":
			s.line(a.Line, b)
		case a.Silent != "":
			b.silent = a.Silent
		case a.Do != "":
			fixture.Stop(t, acts[a.Do] == nil, "faults.yml: no act is called %q", a.Do)
			acts[a.Do](s, b)
		default:
			s.broken = append(s.broken, &breakage{board: b, metric: metricByName(t, a.Metric), where: a.Where,
				change: a.change, from: s.clock,
				period: time.Duration(a.Period), on: time.Duration(a.On)})
		}
	}
}

// change returns an act's replacement for a value.
func (a act) change(v, hours float64) float64 {
	switch {
	case a.Gone:
		return math.NaN()
	case a.To != nil:
		return *a.To
	case a.By != 0:
		return a.By * v
	}
	return math.Floor(v + a.Rises*hours)
}

// found is the result for a fault.
type found struct {
	*worldFault
	after  time.Duration // when it was found under one of its names; -1: never
	shadow bool          // only by a check in shadow mode
	names  []string      // of all findings
	alerts int           // checks and entities with a warning or worse
	pages  int           // messages about these: Alertmanager sends one for the alerts of a name on a host
}

// find puts a fault into a healthy site, after a while.
func (f *worldFault) find(t *testing.T) *found {
	style := worldRow{"style": f.Fault, "boards": f.Board, "work": f.Work}
	s := newSite(style, 7)
	w := guard(s)
	for _, l := range s.slots { // permanent work
		l.next = s.clock
	}
	settled := s.clock + 40*time.Minute
	for s.clock < settled {
		w.pass()
		for _, l := range s.slots {
			if l.task != nil {
				l.task.ends, l.task.end = settled+day, "done"
			}
		}
	}
	for _, c := range w.cries {
		fixture.If(t, !c.shadow && c.severity >= incident.Warning,
			"%s: before the fault: %s of %s: %s", f.Fault, c.check, c.entity, c.text)
	}
	w.cries, w.told = nil, map[string]cry{}
	begin := s.clock
	for _, a := range f.Acts {
		for i := range max(1, a.Times) {
			s.after(time.Duration(a.At)+time.Duration(i)*time.Duration(a.Every), func() {
				s.attend(5 * time.Second)
				a.inject(t, s)
			})
		}
	}
	for s.clock-begin < time.Duration(f.Within)+2*step {
		w.pass()
	}
	r := &found{worldFault: f, after: -1}
	name := regexp.MustCompile("(?i)" + f.Find)
	told, paged := map[string]bool{}, map[string]bool{}
	all := slices.SortedFunc(maps.Values(w.told), func(a, b cry) int {
		return cmp.Or(cmp.Compare(a.at, b.at), strings.Compare(a.check, b.check), a.entity.Compare(b.entity),
			cmp.Compare(b.severity, a.severity))
	})
	for _, c := range append(all, slices.DeleteFunc(w.cries, func(c cry) bool { return !c.shadow })...) {
		if c.severity < cmp.Or(f.Least, incident.Warning) {
			continue
		}
		if key := c.check + " of " + c.entity.String(); !told[key] {
			told[key] = true
			if !c.shadow && c.severity >= incident.Warning {
				r.alerts++
				paged[c.check] = true
			}
			r.names = append(r.names,
				fmt.Sprintf("%s %s%s", c.check, c.severity, map[bool]string{true: " (shadow)"}[c.shadow]))
		}
		at := c.at - begin
		if name.MatchString(strings.Join([]string{c.check, c.text}, " ")) && at <= time.Duration(f.Within) &&
			(r.after < 0 || r.shadow && !c.shadow) {
			r.after, r.shadow = at, c.shadow
		}
	}
	r.pages = len(paged)
	return r
}

// foundToday is the minimum number of found faults. The goal is 95 of a hundred.
const foundToday = 87

// findAll tests one of n faults, and returns the results, nil for the others.
func findAll(t *testing.T, n int) []*found {
	faults := elements[worldFault](t, "testdata/world/faults.yml")
	all := make([]*found, len(faults))
	t.Run("each", func(t *testing.T) {
		for i, f := range faults {
			if i%n != 0 {
				continue
			}
			t.Run(f.Fault, func(t *testing.T) {
				t.Parallel()
				r := f.find(t)
				t.Logf("found after %v of %v, %d alerts: %q", r.after, time.Duration(f.Within), r.alerts, r.names)
				fixture.If(t, f.Alerts > 0 && r.alerts > f.Alerts, "%d alerts, want %d at most", r.alerts, f.Alerts)
				all[i] = r
			})
		}
	})
	return all
}
