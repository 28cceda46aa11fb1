package health

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// told returns the index of the level for the sentence: the worst failing
// level, preferably one with a present fault; if none fails, the worst of those
// that were just left.
func (st *status) told(c *Check) (index int) {
	most := -1
	for i := range st.levels {
		l, rank := &st.levels[i], -1
		switch weight := 2 * int(c.Levels[i].Severity); {
		case l.active && l.clear == 0:
			rank = 2*int(incident.Emergency) + weight + 1
		case l.active:
			rank = 2*int(incident.Emergency) + weight
		case l.isLeft():
			rank = weight
		}
		if rank > most {
			index, most = i, rank
		}
	}
	return index
}

// says returns the value for the sentence about a level: the present value
// while it is a fault, otherwise the worst one, which is past.
func (st *status) says(index int) (v float64, past bool) {
	l := &st.levels[index]
	if past = !l.active || l.clear > 0 || st.state == incident.Recovering || st.state == incident.Unknown; past &&
		!l.when.IsZero() {
		return l.worst, true
	}
	return l.value, past
}

// message describes the fault.
func (e *Engine) message(j *judge, st *status) string { return e.sentences(j, st, st.told(j.Check)) }

// sentences describe the fault by a level of the check, and the known
// circumstances. A fault that is over is in the past tense, with its worst
// value.
func (e *Engine) sentences(j *judge, st *status, level int) string {
	l, severity := &st.levels[level], st.severity(j.Check)
	switch {
	case severity == incident.None && st.state == incident.Unknown:
		return "There is no more data to judge " + j.ID + " by."
	case severity == incident.None && !l.isLeft():
		return "There is data again to judge " + j.ID + " by."
	}
	detail := j.Detailed(j.Levels[level])
	value, past := st.says(level)
	ev := e.evidence(j, st)
	text, counts := fill(detail, past, value, "{entity}", st.Name(), "{labels}", l.labels, "{xids}", e.xids(j, st),
		"{event}", eventOf(ev)), quantities.MatchString(detail)
	switch {
	case past && counts && !l.when.IsZero(): // the state of an older version lacks it
		text = "At its worst, at " + e.clock(l.when) + ": " + text
	case past && ev != nil:
		text = "At " + e.clock(ev.First) + ": " + text
	case past && !l.bad.IsZero():
		text = "Until " + e.clock(l.bad) + ": " + text
	case counts && !past && j.Levels[level].When.worse(l.worst, value):
		quantity := quantities.FindString(detail)
		if worst := fill(quantity, past, l.worst); worst != fill(quantity, past, value) {
			text += " At worst: " + worst + ", at " + e.clock(l.when) + "."
		}
	}
	switch {
	case severity == incident.None:
		text = "Over. " + text
	case st.state == incident.Recovering:
		text = "Recovering. " + text
	case st.state == incident.Unknown:
		text = "There is no more data. " + text
	case past && st.latched:
		text = "Latched. " + text
	}
	if ev != nil && !strings.Contains(detail, "{xids}") && !strings.Contains(detail, "{event}") {
		text += " The last: " + strings.TrimSuffix(ev.Message, ".") + "."
	}
	if e.memory.holding(j.Check, st) {
		text = strings.TrimSuffix(text, ".") + ". Only a reset ends this, and none was seen since."
	}
	return capital(text)
}

// tenses matches a verb in a detail: {is|was}.
var tenses = regexp.MustCompile(`\{([^{}:|]+)\|([^{}|]+)\}`)

// tense chooses the tense of a detail.
func tense(detail string, past bool) string {
	if past {
		return tenses.ReplaceAllString(detail, "$2")
	}
	return tenses.ReplaceAllString(detail, "$1")
}

// Present returns a detail in the present tense.
func Present(detail string) string { return tense(detail, false) }

// fill puts a value and other texts, as pairs of a placeholder and its text,
// into a check's detail.
func fill(detail string, past bool, value float64, others ...string) string {
	detail = Quantities(tense(detail, past), func(q Quantity) string { return q.Of(value) })
	return strings.NewReplacer(others...).Replace(detail)
}

// capital lets a sentence begin with a capital letter, unless it begins with
// somebody's name: "pod:a/b/c", "mlx5_0/1".
func capital(text string) string {
	first, _, _ := strings.Cut(text, " ")
	if text == "" || strings.ContainsAny(first, ":/_.-") {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// eventOf says what happened.
func eventOf(ev *incident.Event) string {
	if ev == nil {
		return someEvent
	}
	return strings.TrimSuffix(ev.Message, ".")
}

// someEvent stands for an event that is not known.
const someEvent = "there was a fault"

// parts names the series of a gauge that have an entity's value, if the gauge has
// several for an entity: ": setting persistence, value off, expected on".
func (g *Signal) parts(s *derived.Snapshot, entity incident.Entity, v float64) string {
	if g.source == nil {
		return ""
	}
	var all []string
	g.source.each(s, func(sample collectors.Sample) {
		if rest := g.source.rest(sample); rest != "" && incident.EntityOf(sample, g.source.by) == entity &&
			sample.Value == v && !slices.Contains(all, rest) {
			all = append(all, rest)
		}
	})
	if all == nil {
		return ""
	}
	return ": " + strings.Join(all, "; ")
}

// rest names the labels of a sample that belong to no entity and that the
// signal does not name, and says what their values mean.
func (src source) rest(s collectors.Sample) string {
	var all []string
	for i, l := range s.Metric.Labels {
		if s.Labels[i] != "" && src.tells(i, l) {
			text := l + " " + s.Labels[i]
			if words := s.Metric.Words(l, s.Labels[i]); words != "" {
				text += " (" + words + ")"
			}
			all = append(all, text)
		}
	}
	return strings.Join(all, ", ")
}

// xids names the XIDs that a check counted, and describes the newest: "XID 48, 94;
// the last: XID 94, Contained memory error".
func (e *Engine) xids(j *judge, st *status) string {
	newest, over := e.evidence(j, st), st.severity(j.Check) == incident.None
	if newest == nil || newest.What != incident.WhatXID {
		return "an XID"
	}
	codes := []int{newest.Code}
	for i, l := range st.levels {
		counted := j.Levels[i].When.Signal.counts
		for n := range e.memory.incidents {
			ev := &e.memory.incidents[n]
			if counted == nil || !l.active && !(over && l.isLeft()) || ev.What != incident.WhatXID ||
				slices.Contains(codes, ev.Code) || newest.First.Sub(ev.First) > counted.Window &&
				!(counted.Holds && e.memory.holds(ev)) {
				continue
			}
			if entity, ok := counted.entity(ev); ok && entity == st.Entity && counted.Match(ev) {
				codes = append(codes, ev.Code)
			}
		}
	}
	if len(codes) == 1 {
		return eventOf(newest)
	}
	slices.Sort(codes)
	return "XID " + strings.Trim(strings.ReplaceAll(fmt.Sprint(codes), " ", ", "), "[]") + "; the last: " +
		eventOf(newest)
}

// clock formats a time for a sentence.
func (e *Engine) clock(t time.Time) string { return e.dated(t).UTC().Format("2006-01-02 15:04:05 UTC") }

// locate returns the place of an entity, for the beginning of a summary:
// "node7, GPU 3: ".
func locate(node string, e incident.Entity) string {
	switch {
	case e == incident.Entity{}:
		return strings.TrimPrefix(node+": ", ": ")
	case node == "":
		return e.Name() + ": "
	}
	return node + ", " + e.Name() + ": "
}

// action returns what to do about a level of a check. For an incident, its table
// may know that better than the check.
func (e *Engine) action(j *judge, st *status, level int) string {
	if ev := e.evidence(j, st); j.Remedies && ev != nil && ev.Action != "" {
		return capital(incident.Remedy(ev.Action)) + "."
	}
	return j.Advised(j.Levels[level], st.Entity)
}

// evidence returns the newest incident that the check counted, or counts no
// more since just now; nil if there is none.
func (e *Engine) evidence(j *judge, st *status) *incident.Event {
	over := st.severity(j.Check) == incident.None
	for i := range st.levels {
		l, counted := &st.levels[i], j.Levels[i].When.Signal.counts
		if counted == nil || !l.active && !(over && l.isLeft()) {
			continue
		}
		for n := len(e.memory.incidents) - 1; n >= 0; n-- {
			ev := &e.memory.incidents[n]
			if entity, ok := counted.entity(ev); ok && entity == st.Entity && counted.Match(ev) {
				return ev
			}
		}
	}
	return nil
}
