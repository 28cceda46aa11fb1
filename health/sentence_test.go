package health

import (
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A told is a check of one level with a test's signal, and the check's statements about it.
type told struct {
	*world
	check  *Check
	entity incident.Entity
	value  float64 // NaN for none
	every  time.Duration
	last   []incident.Event // changes of the last sample
}

// alone returns a level of a check with a test's signal. Its additional conditions hold.
func alone(t *testing.T, c *Check, index int) *told {
	l := c.Levels[index]
	s := &told{check: new(Check), value: math.NaN(), every: max(l.For.spelled().Every, step)}
	for _, name := range l.When.Signal.Labels() {
		*map[string]*string{"gpu": &s.entity.GPU, "uuid": &s.entity.UUID, "link": &s.entity.Link,
			"tenant": &s.entity.Tenant, "workload": &s.entity.Workload, "device": &s.entity.Device,
		}[name] = "some-" + name
	}
	l.When.Signal = &Signal{read: func(_ *memory, _ *derived.Snapshot, put func(incident.Entity, float64)) {
		if !math.IsNaN(s.value) {
			put(s.entity, s.value)
		}
	}}
	l.When.While = nil
	*s.check = *c
	s.check.Levels = []Level{l}
	s.world = newWorld(t, s.check)
	return s
}

// reads lets the signal read v a number of times.
func (s *told) reads(v float64, times int) {
	s.value = v
	for range times {
		s.last = s.step(s.every, nil)
	}
}

// finding returns the engine's current finding.
func (s *told) finding() Finding {
	s.t.Helper()
	all := s.engine.Findings()
	fixture.Need(s.t, len(all), 1, "… findings: %+v", all)
	return all[0]
}

var clocks = regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC`)

// holds reports an error unless a sentence begins with one of the beginnings and has the check's detail with the value,
// and no numbers except worst and the time at.
func (s *told) holds(when, sentence, begins string, value, worst float64, at time.Time) {
	s.t.Helper()
	detail := s.check.Detailed(s.check.Levels[0])
	wrong := func(format string, args ...any) {
		s.t.Helper()
		s.t.Errorf("%s, %s, %s: %q %s", s.check.ID, s.check.Levels[0].Severity, when, sentence,
			fmt.Sprintf(format, args...))
	}
	if !strings.HasPrefix(sentence, begins) {
		wrong("does not begin with %q", begins)
	}
	past := strings.Contains(begins, ". ")
	said, worstSaid := quantities.FindString(detail), ""
	if said != "" {
		said, worstSaid = fill(said, past, value), fill(said, past, worst)
	}
	pattern := strings.NewReplacer(`\{labels\}`, `(?:: [^.]+)?`).Replace("(?i)" + regexp.QuoteMeta(fill(detail, past, value,
		"{entity}", s.entity.Name(), "{xids}", "an XID", "{event}", someEvent)))
	m := regexp.MustCompile(pattern).FindStringSubmatch(sentence)
	if m == nil {
		wrong("does not say %q", pattern)
		return
	}
	rest := strings.Replace(sentence, m[0], "", 1)
	for _, text := range clocks.FindAllString(rest, -1) {
		if text != at.UTC().Format("2006-01-02 15:04:05 UTC") {
			wrong("has another time than %v", at)
		}
	}
	if n := len(clocks.FindAllString(rest, -1)); (n > 0) != !at.IsZero() {
		wrong("has %d times", n)
	}
	if math.IsNaN(worst) {
		worstSaid = ""
	}
	if told := " At worst: " + worstSaid; said != "" && strings.Contains(rest, told) == math.IsNaN(worst) {
		wrong("should say the worst, %q: %v", told, !math.IsNaN(worst))
	}
}

// TestQuantities checks values as they are written, with their units.
func TestQuantities(t *testing.T) {
	for detail, want := range map[string]map[float64]string{
		"{value}":          {0: "0", .25: "0.25", 1e-12: "1e-12", 12.3456: "12.35", 360000: "360000", 2e10: "20000000000"},
		"{percent}":        {.5: "50 %", 1.0051: "101 %", .01234: "1.23 %", 20: "2000 %"},
		"{bytes}":          {512: "512 bytes", 2e10: "18.6 GiB", 500 << 20: "500 MiB", 2048: "2 KiB", 5e12: "4657 GiB"},
		"{apart}":          {-.05: "5 % below", 0: "at", .1234: "12.3 % above"},
		"{margin}":         {3: "3 degrees Celsius below", 1: "1 degree Celsius below", 0: "at", -2.5: "2.5 degrees Celsius above"},
		"{recovery}":       {1: "end the work on the GPU and reset it", 2: "reboot the host", 9: "take recovery action 9"},
		"{is|was} {value}": {1: "is 1"},
		"{count:fan|fans}": {0: "0 fans", 1: "1 fan", .99999: "1 fan", 2: "2 fans", 360000: "360000 fans"},
		"{time}": {0: "less than a second", -3: "less than a second", 1: "1 second", 60: "1 minute", 3599: "59 minutes 59 seconds",
			3660: "1 hour 1 minute", 7205: "2 hours", 90000: "1 day 1 hour", 3 * 86400: "3 days"},
	} {
		for v, text := range want {
			fixture.Equal(t, fill(detail, false, v), text, "%s of %v", detail, v)
		}
	}
}

// TestSentences reads the sentences of each level of each check, in both tenses, and what to do about it: each says
// what was measured of which entity, one of a thing is no plural, no number has an exponent, and what is over is past.
// Shown with -v, they are there to be read.
func TestSentences(t *testing.T) {
	bare := regexp.MustCompile(`\{value\} ([A-Za-z ]*s|s)\b`)
	present := regexp.MustCompile(`\b(is|are|has|have|does|do|can|cannot|runs|says|holds|lists)\b`)
	for _, c := range Checks() {
		for i, l := range c.Levels {
			detail, about := c.Detailed(l), fmt.Sprintf("%s, level %d", c.ID, i)
			fixture.If(t, detail == "" || c.Advised(l, incident.Entity{}) == "", "%s: it has no sentence, or says nothing to do", about)
			fixture.If(t, bare.MatchString(detail),
				"%s: what is counted has no singular, or no unit for people: %q", about, detail)
			fixture.If(t, len(l.When.Signal.Labels()) > 0 && !strings.Contains(detail, "{entity}"),
				"%s: it does not say of what: %q", about, detail)
			entry, _ := l.When.sides()
			for n, v := range []float64{1, 36000, 2e10, entry} {
				all := []string{c.Advised(l, someone(l.When.Signal))}
				for _, past := range []bool{false, true} {
					all = append(all, capital(fill(detail, past, v, "{entity}", someone(l.When.Signal).Name(), "{xids}", "XID 48",
						"{labels}", "", "{event}", someEvent)))
				}
				for _, text := range all {
					if strings.Contains(text, "e+") || strings.ContainsAny(text, "|<>{}") || !strings.HasSuffix(text, ".") {
						t.Errorf("%s: %q", about, text)
					}
				}
				fixture.Equal(t, present.MatchString(all[2]), false, "%s: what is over is still so: %q", about, all[2])
				if n == 3 {
					t.Logf("%s, %s: %s\n\tOver: %s\n\tDo: %s", c.Summary, l.Severity, all[1], all[2], all[0])
				}
			}
		}
	}
}

// TestSentencesMatchReadings lets every level of every check begin, worsen, improve, recover and end, and compares each
// number in a sentence with the readings.
func TestSentencesMatchReadings(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		for i := range c.Levels {
			s := alone(t, c, i)
			l := s.check.Levels[0]
			entry, fails := l.When.sides()
			worst, clear := entry+3*(entry-fails), l.When.Clear-(entry-fails)
			if l.When.Op == "==" || l.When.Op == "!=" {
				worst, clear = entry, fails
			}
			detail := s.check.Detailed(l)
			counts := quantities.MatchString(detail)
			past, worse := "Until ", math.NaN()
			if counts {
				past = "At its worst, at "
			}
			first := capital(strings.Split(detail, "{")[0])

			s.reads(clear, 1)
			s.reads(entry, l.For.spelled().N)
			s.holds("at the beginning", s.finding().Message, first, entry, math.NaN(), time.Time{})
			began := s.now.Add(-time.Duration(l.For.spelled().N-1) * s.every)
			s.reads(worst, 1)
			at := s.now
			s.holds("at its worst", s.finding().Message, first, worst, math.NaN(), time.Time{})
			s.reads(entry, 1)
			bad, told := s.now, time.Time{}
			if quantity := quantities.FindString(detail); fill(quantity, false, worst) != fill(quantity, false, entry) {
				told, worse = at, worst
			}
			s.holds("after the worst", s.finding().Message, first, entry, worse, told)
			if at.Equal(bad) || worst == entry {
				at = began
			}
			if !counts {
				at = bad
			}
			s.reads(clear, 1)
			held, from := s.finding(), "Recovering. "
			if c.Latched {
				from = "Latched. "
			}
			s.holds("while it recovers", held.Message, from+past, worst, math.NaN(), at)
			if held.Value != clear || held.Worst != worst || held.State == incident.Recovering == c.Latched {
				t.Errorf("%s: %+v; want the value %v and the worst %v", c.ID, held, clear, worst)
			}
			if s.engine.Tune(Settings{EnableAlerts: []string{c.ID}}, s.engine.memory.now); c.Alert != "" {
				a := s.engine.Alerts(nil)[0].Annotations
				s.holds("in its alert", a["description"], from+past, worst, math.NaN(), at)
				fixture.Equal(t, a["value"], plain(worst, 4), "%s: the alert's value is", c.ID)
			}
			end := incident.Event{}
			if c.Latched {
				end, _ = s.engine.Ack(c.ID, s.entity, s.now)
			}
			for n := 0; end.To != incident.OK || end.ID == ""; n++ {
				fixture.Need(t, n > 1000, false, "%s: it does not end", c.ID)
				s.reads(clear, 1)
				if i := slices.IndexFunc(s.last, func(e incident.Event) bool { return e.To == incident.OK }); i >= 0 {
					end = s.last[i]
				}
			}
			s.holds("at the end", end.Message, "Over. "+past, worst, math.NaN(), at)
		}
	}
}

// TestHeldLevelIsInThePastTense checks the sentence while only a lower level of a check remains of a fault.
func TestHeldLevelIsInThePastTense(t *testing.T) {
	w := newWorld(t, hotCheck)
	w.steps(2, hotAt(-12))
	worst := w.now.Add(-step)
	w.steps(4, hotAt(-1))
	f := w.engine.Findings()[0]
	want := "At its worst, at " + worst.Format("2006-01-02 15:04:05 UTC") +
		": GPU 0 had -12 left."
	fixture.If(t, f.State != incident.Unhealthy || f.Message != want, "%v, %q; want %q", f.State, f.Message, want)
	for _, a := range w.engine.Alerts(nil) {
		if got := a.Annotations["description"]; a.Labels["severity"] == "warning" &&
			!strings.HasPrefix(got, "GPU 0 has -1 left. At worst: -12, at ") {
			t.Errorf("the warning, which is still so, says %q", got)
		}
	}
}

// TestOutlierIsForgotten holds that a fault's worst value does not come from
// long before it: a sample counts for as many samples as the level needs.
func TestOutlierIsForgotten(t *testing.T) {
	for clear, want := range map[int]float64{1: -50, 3: -50, 4: -1, 10: -1} {
		w := newWorld(t, hotCheck)
		w.steps(1, hotAt(-50))
		w.steps(clear, hotAt(20))
		w.steps(3, hotAt(-1))
		fixture.Equal(t, w.engine.judges[0].order[0].levels[0].worst, want,
			"a sample of -50, %d clear ones and three of -1: the worst is", clear)
	}
}

// TestReturningDataDoesNotEndAFault checks the sentence after a gap in the data.
func TestReturningDataDoesNotEndAFault(t *testing.T) {
	w := newWorld(t, hotCheck)
	w.steps(3, hotAt(20))
	for _, lasting := range [][]collectors.Sample{nil, {on("0", collectors.Up, 1)}} { // then only a reading is lost
		w.steps(3, lasting...)
		changes := w.steps(1, append(lasting, hotAt(20))...)
		fixture.If(t, len(changes) != 1 || changes[0].To != incident.OK ||
			changes[0].Message != "There is data again to judge hot by.", "%v: %+v", lasting, changes)
	}
	w.steps(4, hotAt(-1))
	changes := w.steps(3)
	fixture.If(t, len(changes) != 1 || changes[0].To != incident.Unknown ||
		!strings.HasPrefix(changes[0].Message, "There is no more data. At its worst, at "),
		"a fault without data: %+v", changes)
}

// TestLostDataIsReportedOnce holds that a loss of data and its return are one line
// each for a cause, however many GPUs and checks they concern.
func TestLostDataIsReportedOnce(t *testing.T) {
	t.Parallel()
	const all = "GPU 0, GPU 1, GPU 2, GPU 3, GPU 4, GPU 5, GPU 6, GPU 7"
	third := incident.Entity{GPU: "3", UUID: "GPU-3"}
	none := func(collectors.Sample) bool { return false }
	for name, c := range map[string]struct {
		play func(s *stage) // while it lasts
		lost func(collectors.Sample) bool
		what string
		on   incident.Entity
	}{
		"a drained reload": {func(s *stage) { s.drained = 1 }, none, all + ", the node", incident.Entity{}},
		"one GPU":          {func(s *stage) { s.gpus[3].stuck = "late" }, none, "GPU 3", third},
		"two GPUs":         {func(s *stage) { s.gpus[3].stuck, s.gpus[4].stuck = "late", "late" }, none, "GPU 3, GPU 4", incident.Entity{}},
		"a reading of all": {func(*stage) {}, func(x collectors.Sample) bool { return x.Metric == workloads.Processes },
			"orphan_memory of " + all, incident.Entity{}},
		"a reading of one GPU": {func(*stage) {}, func(x collectors.Sample) bool {
			return x.Metric == links.NVLinkUp && x.Labels[0] == "3"
		}, "nvlink_down", incident.Entity{GPU: "3", UUID: "GPU-3", Link: "all"}},
	} {
		w, s, got := newWorld(t, Checks()...), newStage(8), []incident.Event(nil)
		for ; s.at < 35*time.Minute; s.at += step {
			lasts := s.during(5*time.Minute, 20*time.Minute) || s.during(20*time.Minute+3*step, 30*time.Minute)
			s.drained, s.gpus[3].stuck, s.gpus[4].stuck = 0, "", ""
			if lasts {
				c.play(s)
			}
			samples := slices.DeleteFunc(s.samples(), func(x collectors.Sample) bool { return lasts && c.lost(x) })
			for _, e := range w.step(step, nil, samples...) {
				if e.Severity == incident.None && (e.From == incident.Unknown || e.To == incident.Unknown) {
					got = append(got, e)
				}
			}
		}
		fixture.Equal(t, len(got), 4, "%s, twice: lines", name)
		for i, e := range got {
			want := []string{"There is no more data to judge ", "There is data again to judge "}[i%2] + c.what + " by."
			fixture.If(t, e.Message != want || e.Entity != c.on,
				"%s: %q of %v; want %q of %v", name, e.Message, e.Entity, want, c.on)
		}
	}
}

// TestFaultThatEndsWithALossOfData holds that the end of a fault is told by
// itself if data is there again at that moment.
func TestFaultThatEndsWithALossOfData(t *testing.T) {
	now := &Check{ID: "now", Detail: "{entity} {is|was}.", Levels: []Level{{Severity: incident.Warning,
		When: Value(device.TemperatureMargin).AtMost(0)}}}
	w := newWorld(t, now, hotCheck)
	w.steps(1, hotAt(0))
	w.steps(29)
	told := map[string]string{}
	for _, e := range w.steps(1, hotAt(20)) {
		told[e.Check] = strings.Split(e.Message, " ")[0]
	}
	want := map[string]string{"now": "Over.", "hot": "There"}
	fixture.If(t, !maps.Equal(told, want), "%v, want %v", told, want)
}

// TestLabelsOfAFaultStay holds that a sentence has the labels of the faulty
// series also when the fault is over, and after a restart.
func TestLabelsOfAFaultStay(t *testing.T) {
	w := newWorld(t, &Check{ID: "stuck", Detail: "{entity} {is|was} stuck{labels}.", Levels: []Level{
		{Severity: incident.Warning, When: Value(collectors.WorkerStuck).Above(0)}}})
	stuck := func(v float64) collectors.Sample { return on("0", collectors.WorkerStuck, v, "late") }
	w.steps(1, stuck(1))
	now := w.engine.Findings()[0].Message
	w.steps(2, stuck(0))
	past := w.engine.Findings()[0].Message
	w.restart("same")
	after := w.engine.Findings()[0].Message
	end := w.steps(60, stuck(0))
	for said, want := range map[string]string{now: "GPU 0 is stuck: reason late.", past: "Recovering. Until 2026-01-01 00:00:10 UTC: " +
		"GPU 0 was stuck: reason late.", after: past, end[len(end)-1].Message: strings.Replace(past, "Recovering", "Over", 1)} {
		fixture.Equal(t, said, want, "it says")
	}
}

// someXIDs is here, because each signal of incidents is counted from then on, in all worlds.
var someXIDs = Incidents{Name: "xid", Window: time.Hour, Match: xids(48, 94, 998)}.Signal()

// TestActionOfAFault checks what to do: what the tables say of an incident, if the check leaves that to them, and else
// what the level or the check says. The sentence describes the last incident.
func TestActionOfAFault(t *testing.T) {
	own := &Check{ID: "own", Detail: "It is.", Action: "Ask.", Levels: []Level{{Severity: incident.Info, When: Value(device.TemperatureMargin).
		AtMost(9), Action: "Wait."}, {Severity: incident.Warning, When: Value(device.TemperatureMargin).AtMost(0)}}}
	table := &Check{ID: "table", Detail: "{entity} had {xids}.", Action: "Ask.", Remedies: true, Levels: []Level{{Severity: incident.Warning,
		When: someXIDs.Above(0)}}}
	mine := *table
	mine.ID, mine.Detail, mine.Remedies = "mine", "{entity} had {count:XID|XIDs}.", false
	for _, c := range []struct {
		margin float64
		xids   []int
		want   map[string]string
	}{
		{9, nil, map[string]string{"own": "It is. Wait."}},
		{0, nil, map[string]string{"own": "It is. Ask."}},
		{20, []int{48}, map[string]string{"mine": "GPU 0 had 1 XID. The last: XID 48, text. Ask.",
			"table": "GPU 0 had XID 48, text. " + capital(incident.Remedy("WORKFLOW_XID_48")) + "."}},
		{20, []int{94, 48}, map[string]string{"mine": "GPU 0 had 2 XIDs. The last: XID 48, text. Ask.",
			"table": "GPU 0 had XID 48, 94; the last: XID 48, text. " + capital(incident.Remedy("WORKFLOW_XID_48")) + "."}},
		{20, []int{48, 94}, map[string]string{"mine": "GPU 0 had 2 XIDs. The last: XID 94, text. Ask.",
			"table": "GPU 0 had XID 48, 94; the last: XID 94, text. Restart the program that failed."}},
		{20, []int{998}, map[string]string{"mine": "GPU 0 had 1 XID. The last: XID 998, text. Ask.",
			"table": "GPU 0 had XID 998, text. Ask."}},
	} {
		w, got := newWorld(t, own, table, &mine), map[string]string{}
		var events []incident.Event
		for i, code := range c.xids {
			e := happened(fmt.Sprint(i), incident.WhatXID, code, "0", w.now)
			e.Action, e.Message = incident.XIDs()[code].Action, fmt.Sprintf("XID %d, text.", code)
			events = append(events, e)
		}
		w.step(step, events, hotAt(c.margin), on("0", collectors.Up, 1))
		for _, f := range w.engine.Findings() {
			got[f.Check] = f.Message + " " + f.Action
		}
		fixture.If(t, !maps.Equal(got, c.want), "a margin of %g, XIDs %v: %v, want %v", c.margin, c.xids, got, c.want)
	}
}

// TestCapital lets sentences begin with a capital letter, but no names.
func TestCapital(t *testing.T) {
	for text, want := range map[string]string{"": "", "the node is": "The node is", "link 3 of": "Link 3 of", "GPU 0": "GPU 0",
		"pod:a/b/c has": "pod:a/b/c has", "mlx5_0/1 is": "mlx5_0/1 is"} {
		fixture.Equal(t, capital(text), want, "%q", text)
	}
}

// TestWorstValueSurvivesARestart checks the sentence of a fault that recovers while the agent is restarted.
func TestWorstValueSurvivesARestart(t *testing.T) {
	w := newWorld(t, hotCheck)
	w.steps(3, hotAt(-5))
	w.steps(1, hotAt(20))
	before := w.engine.Findings()[0]
	saved := fixture.Value(w.engine.Save("boot"))(t)
	w.engine = NewEngine([]*Check{hotCheck}, w.now)
	fixture.Must(t, fixture.Error(w.engine.Restore(saved, "boot", w.now)))
	after := w.engine.Findings()[0]
	fixture.If(t, after.Message != before.Message || after.Worst != -5 ||
		!after.WorstAt.Equal(before.WorstAt), "after a restart: %+v; want %+v", after, before)
}

// States of a level: its fault is present, is clear, has just been left, or never was.
const (
	isThere = iota
	isClear
	isJustLeft
	neverWas
)

// levelThat returns a level in such a state.
func levelThat(stands int) level {
	l := level{active: stands <= isClear, value: 3, worst: 7, when: birth}
	switch stands {
	case isClear:
		l.clear = 1
	case neverWas:
		l.when = time.Time{}
	}
	return l
}

// TestLevelOfASentence checks which of a check's levels its sentence describes.
func TestLevelOfASentence(t *testing.T) {
	for _, c := range []struct {
		severities []incident.Severity
		stand      []int
		want       int
	}{
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{neverWas, neverWas}, 0},
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{isThere, isThere}, 1},
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{isThere, isClear}, 1},
		{[]incident.Severity{incident.Critical, incident.Critical}, []int{isThere, isClear}, 0},
		{[]incident.Severity{incident.Critical, incident.Critical}, []int{isClear, isThere}, 1},
		{[]incident.Severity{incident.Critical, incident.Critical}, []int{isThere, isThere}, 0},
		{[]incident.Severity{incident.Emergency, incident.Info}, []int{isJustLeft, isClear}, 1},
		{[]incident.Severity{incident.Info, incident.Emergency}, []int{isClear, isJustLeft}, 0},
		{[]incident.Severity{incident.Warning, incident.Critical}, []int{isJustLeft, isJustLeft}, 1},
		{[]incident.Severity{incident.Critical, incident.Warning}, []int{isJustLeft, isJustLeft}, 0},
		{[]incident.Severity{incident.Critical, incident.Info}, []int{neverWas, isJustLeft}, 1},
		{[]incident.Severity{incident.Info, incident.Info, incident.Warning}, []int{isClear, isThere, isClear}, 2},
	} {
		check, st := &Check{}, &status{}
		for i, s := range c.severities {
			check.Levels = append(check.Levels, Level{Severity: s})
			st.levels = append(st.levels, levelThat(c.stand[i]))
		}
		fixture.Equal(t, st.told(check), c.want, "%v that stand as %v: level … is told of", c.severities, c.stand)
	}
}

// TestValueOfASentence checks when a level's sentence has the current value, and when the worst one.
func TestValueOfASentence(t *testing.T) {
	for _, c := range []struct {
		stands int
		state  incident.State
		value  float64
		past   bool
	}{
		{isThere, incident.Degraded, 3, false}, {isThere, incident.Failed, 3, false},
		{isThere, incident.Recovering, 7, true}, {isThere, incident.Unknown, 7, true},
		{isClear, incident.Degraded, 7, true}, {isJustLeft, incident.OK, 7, true}, {neverWas, incident.OK, 3, true},
	} {
		st := &status{state: c.state, levels: []level{{}, levelThat(c.stands)}}
		if v, past := st.says(1); v != c.value || past != c.past {
			t.Errorf("a level that stands as %d, %v: %g, past %v; want %g, %v", c.stands, c.state, v, past, c.value, c.past)
		}
	}
}
