package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/derived"
	"gpusteward/health/incident"
)

// A Signal is a number for each entity, for checks to compare. On the host it
// is read from a Snapshot; for Prometheus it is an expression of PromQL: two
// forms of one declaration. Signals are package variables without state; the
// engine remembers what they need.
type Signal struct {
	query    string
	words    string   // query, for people
	node     bool     // it concerns the node, not GPUs
	by       []string // labels of the entity, beside gpu and uuid
	uses     []*collectors.Metric
	window   time.Duration // the past that it covers
	lifetime bool          // its counters continue while the agent is down, and their rise counts
	optional bool          // its absence means nothing: a GPU may have no peers
	counts   *Incidents    // the incidents that it counts, if it does
	source   *source       // of a gauge's value: its series name the parts
	merges   *source       // gauges of which the value is the largest or the sum
	read     func(m *memory, s *derived.Snapshot, put func(incident.Entity, float64))
	example  func(e incident.Entity, before, after float64) []Example
	excused  func(e incident.Entity) [][]Example // series that look like the example and give no value
}

// String returns the signal as PromQL.
func (g *Signal) String() string { return g.query }

// Words returns the signal for people, in Markdown.
func (g *Signal) Words() string { return g.words }

// Labels returns the labels of the signal's entities in Prometheus: those of a
// GPU, or none for the node, and those below it.
func (g *Signal) Labels() []string {
	if g.node {
		return g.by
	}
	return append([]string{"gpu", "uuid"}, g.by...)
}

// Rest returns the metric of a gauge's value, and its labels that belong to no
// entity and that the signal does not name: they tell more about a fault.
func (g *Signal) Rest() (m *collectors.Metric, labels []string) {
	if g.source == nil {
		return nil, nil
	}
	for i, l := range g.source.metric.Labels {
		if g.source.tells(i, l) {
			labels = append(labels, l)
		}
	}
	return g.source.metric, labels
}

// tells reports whether a label belongs to no entity, and its value is not known
// from the signal.
func (src source) tells(at int, label string) bool {
	return label != "gpu" && label != "uuid" && !slices.Contains(src.by, label) &&
		!slices.ContainsFunc(src.matches, func(m match) bool { return m.at == at && m.one() })
}

// source are the series of a metric that a signal takes.
type source struct {
	metric  *collectors.Metric
	matches []match
	by      []string
}

// match is a condition on a label.
type match struct {
	at     int // index among the metric's labels
	name   string
	values []string // any of them
}

// from reads pairs of "label", "value", and pairs of "by", "label". A value may
// be alternatives, "a|b", or a prefix, "a.*". "by" makes the label a part of
// the entity. It panics with the reason at pairs that no metric can meet: the
// program does not start with such a check.
func from(m *collectors.Metric, where []string) source {
	src := source{metric: m}
	for pair := range slices.Chunk(where, 2) {
		if len(pair) < 2 {
			panic(fmt.Sprintf("health: a signal of %s: %q has no value", m, pair[0]))
		}
		label := pair[0]
		if label == "by" {
			label = pair[1]
		}
		at := slices.Index(m.Labels, label)
		switch {
		case at < 0:
			panic(fmt.Sprintf("health: a signal of %s: it has no label %q, but %q", m, label, m.Labels))
		case pair[0] != "by":
			src.matches = append(src.matches, match{at, label, strings.Split(pair[1], "|")})
		case !slices.Contains(incident.Below, label):
			panic(fmt.Sprintf("health: a signal of %s: %q is no part of an entity; by takes one of %q", m, label, incident.Below))
		default:
			src.by = append(src.by, label)
		}
	}
	return src
}

// one reports whether only one value fits.
func (m match) one() bool { return len(m.values) == 1 && !strings.HasSuffix(m.values[0], "*") }

func (m match) fits(value string) bool {
	for _, v := range m.values {
		if start, open := strings.CutSuffix(v, ".*"); v == value || open && strings.HasPrefix(value, start) {
			return true
		}
	}
	return false
}

// selector returns the series in PromQL.
func (src source) selector() string {
	var all []string
	for _, m := range src.matches {
		op, value := "=", strings.Join(m.values, "|")
		if strings.ContainsAny(value, "|*") {
			op = "=~"
		}
		all = append(all, fmt.Sprintf("%s%s%q", m.name, op, value))
	}
	if all == nil {
		return src.metric.Name
	}
	return src.metric.Name + "{" + strings.Join(all, ",") + "}"
}

// words returns the series for people.
func (src source) words() string { return "`" + src.selector() + "`" }

// peak returns the highest value of a gauge in the last day. It looks at every
// tenth minute, because all samples of all links would be a million per host.
func (src source) peak() string {
	return src.collapsed("max", fmt.Sprintf("max_over_time(%s[1d:10m])", src.selector()))
}

// collapsed returns query, aggregated over the labels that are not part of the
// entity.
func (src source) collapsed(aggregate, query string) string {
	var drop []string
	for _, l := range src.metric.Labels {
		if l != "gpu" && l != "uuid" && !slices.Contains(src.by, l) {
			drop = append(drop, l)
		}
	}
	if drop == nil {
		return query
	}
	return fmt.Sprintf("%s without (%s) (%s)", aggregate, strings.Join(drop, ", "), query)
}

// each calls f with the samples that match.
func (src source) each(s *derived.Snapshot, f func(collectors.Sample)) {
next:
	for _, sample := range s.Of(src.metric) {
		for _, m := range src.matches {
			if !m.fits(sample.Labels[m.at]) {
				continue next
			}
		}
		f(sample)
	}
}

// alone reports whether an entity has at most one series that matches.
func (src source) alone() bool {
	return !slices.ContainsFunc(src.metric.Labels, func(l string) bool {
		return l != "gpu" && l != "uuid" && !slices.Contains(src.by, l) &&
			!slices.ContainsFunc(src.matches, func(m match) bool {
				return m.name == l && m.one()
			})
	})
}

func (src source) signal(query, words string) *Signal {
	return &Signal{query: query, words: words, example: src.gauge, node: !slices.Contains(src.metric.Labels, "gpu"),
		by: src.by, uses: []*collectors.Metric{src.metric}}
}

// Value is a gauge, the largest if an entity has several. The pairs are
// "label", "value" for the series that count ("a|b": either), and "by", "label"
// for a label that is part of the entity.
func Value(m *collectors.Metric, where ...string) *Signal {
	src := from(m, where)
	g := src.signal(src.collapsed("max", src.selector()), src.words())
	g.source, g.merges = &src, &src
	g.read = func(_ *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		gather(src, s, func(a, b float64) float64 { return max(a, b) }, put)
	}
	return g
}

// Sum is the sum of gauges over an entity.
func Sum(m *collectors.Metric, where ...string) *Signal {
	src := from(m, where)
	g := src.signal(src.collapsed("sum", src.selector()), "the sum of "+src.words())
	g.merges = &src
	g.read = func(_ *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		gather(src, s, func(a, b float64) float64 { return a + b }, put)
	}
	return g
}

// gather puts one value for each entity.
func gather(src source, s *derived.Snapshot, merge func(a, b float64) float64, put func(incident.Entity, float64)) {
	if src.alone() {
		src.each(s, func(sample collectors.Sample) { put(incident.EntityOf(sample, src.by), sample.Value) })
		return
	}
	var all answers
	src.each(s, func(sample collectors.Sample) {
		all = all.merge(incident.EntityOf(sample, src.by), sample.Value, merge)
	})
	for _, r := range all {
		put(r.Entity, r.value)
	}
}

// Increase is the rise of counters within the window, summed over the entity. A
// counter that fell began again: that is no increase. Prometheus extrapolates
// to the ends of the window and makes slightly more of an increase of 1. Its
// result is therefore rounded, because these are counts.
func Increase(m *collectors.Metric, window time.Duration, where ...string) *Signal {
	src := from(m, where)
	rise := src.collapsed("sum", fmt.Sprintf("increase(%s[%s])", src.selector(), PromDuration(window)))
	g := src.signal("round("+rise+")", "the increase of "+src.words()+" in "+PromDuration(window))
	g.window, g.example = window, src.counter(window, 1)
	g.read = func(m *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		m.counters(g, src).read(m, s, put)
	}
	return g
}

// Lifetime makes an Increase include the rise of its counters while the agent
// was down; the driver or the board keeps these counters.
func (g *Signal) Lifetime() *Signal {
	g.lifetime = true
	return g
}

// Optional marks a signal with an absence that is no loss of data: a comparison
// without peers, a forecast without a trend.
func (g *Signal) Optional() *Signal {
	g.optional = true
	return g
}

// comesAndGoes reports whether the absence of a signal is no loss of data:
// entities without incidents have no count of them.
func (g *Signal) comesAndGoes() bool { return g.optional || g.counts != nil && g.counts.Per != "" }

// OrZero makes a signal 0 for GPUs without a value, as of a gauge that exists
// only while something is wrong.
func (g *Signal) OrZero() *Signal {
	read := g.read
	g.read = func(m *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		var has answers
		read(m, s, func(e incident.Entity, v float64) {
			has = append(has, reading{e, v})
			put(e, v)
		})
		for _, up := range s.Of(collectors.Up) {
			if e := incident.EntityOf(up, nil); !slices.ContainsFunc(has,
				func(r reading) bool { return r.Entity == e }) {
				put(e, 0)
			}
		}
	}
	return g
}

// Rate is Increase per second of the window.
func Rate(m *collectors.Metric, window time.Duration, where ...string) *Signal {
	src := from(m, where)
	g := src.signal(src.collapsed("sum", fmt.Sprintf("rate(%s[%s])", src.selector(), PromDuration(window))),
		"the rate of "+src.words()+" over "+PromDuration(window))
	g.window, g.example = window, src.counter(window, window.Seconds())
	g.read = func(m *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		m.counters(g, src).read(m, s, func(e incident.Entity, v float64) { put(e, v/window.Seconds()) })
	}
	return g
}

// Div is a divided by b, for entities that have both.
func Div(a, b *Signal) *Signal {
	return combine(a, b, "/", func(x, y float64) (float64, bool) { return x / y, y != 0 },
		func(v, y float64) float64 { return v * y })
}

// Sub is a minus b, for entities that have both.
func Sub(a, b *Signal) *Signal {
	return combine(a, b, "-", func(x, y float64) (float64, bool) { return x - y, true },
		func(v, y float64) float64 { return v + y })
}

// combine returns the signal a op b. f calculates it, and back returns the a
// that gives it a value.
func combine(a, b *Signal, op string, f func(x, y float64) (float64, bool), back func(v, y float64) float64) *Signal {
	g := &Signal{query: fmt.Sprintf("(%s %s %s)", a, op, b), words: fmt.Sprintf("%s %s %s", a.words, op, b.words),
		node: a.node, by: a.by, uses: append(slices.Clone(a.uses), b.uses...), window: max(a.window, b.window)}
	g.example = func(e incident.Entity, before, after float64) []Example {
		from, to := baseOf(before, f, back), baseOf(after, f, back)
		return append(a.Example(e, back(before, from), back(after, to)), b.Example(e, from, to)...)
	}
	g.read = func(m *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		right, at := readings(b, m, s), 0
		a.read(m, s, func(e incident.Entity, x float64) {
			y, next, ok := right.from(at, e)
			if at = next; ok {
				if v, ok := f(x, y); ok {
					put(e, v)
				}
			}
		})
	}
	return g
}

// Lost is 1 for a GPU that answers and has lost a reading: there is neither a
// value nor the driver's statement that it has none. It is 0 while there is a
// value. For Prometheus, the GPU's values of the last day tell what it had.
func Lost(m *collectors.Metric, where ...string) *Signal {
	src := from(m, where)
	g := &Signal{words: "the loss of " + src.words(), uses: []*collectors.Metric{m, collectors.Up,
		collectors.Unsupported}, example: src.loss, excused: src.noLoss}
	g.query = fmt.Sprintf("((%s == 1) and (%s) unless (%s) unless ignoring (feature) %s{feature=%q})",
		collectors.Up, src.peak(), src.collapsed("max", src.selector()), collectors.Unsupported, m.Name)
	own, lacks := Value(m, where...), Value(collectors.Unsupported, "feature", m.Name)
	g.read = func(mem *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		present, none := readings(own, mem, s), readings(lacks, mem, s)
		for _, up := range s.Of(collectors.Up) {
			e := incident.EntityOf(up, nil)
			_, has := present.of(e)
			_, unsupported := none.of(e)
			if mem.most(g, e, collectors.Bool(has)) == 1 && up.Value == 1 && !unsupported {
				put(e, collectors.Bool(!has))
			}
		}
	}
	return g
}

// Fell is the distance of a gauge from its highest value on this host: links
// that were up, ports that had a carrier. It is a gauge of the host, also for
// Prometheus: the host remembers it, and Prometheus only as much as a query
// says.
func Fell(m *collectors.Metric, where ...string) *Signal {
	own := Value(m, where...)
	src := from(BelowPeak, []string{"metric", m.Name})
	src.by = own.by
	g := src.signal(src.collapsed("max", src.selector()), "the fall of "+from(m, where).words())
	g.node, g.uses, g.window = own.node, append(g.uses, m), day // the host's life, which no short look covers
	if !slices.ContainsFunc(falls, func(f *fall) bool { return f.name == m.Name && slices.Equal(f.where, where) }) {
		falls = append(falls, &fall{m.Name, where, own})
	}
	g.read = func(_ *memory, s *derived.Snapshot, put func(incident.Entity, float64)) {
		gather(src, s, func(a, b float64) float64 { return max(a, b) }, put)
	}
	return g
}

// reading is a signal's value for an entity.
type reading struct {
	incident.Entity
	value float64
}

// answers are a signal's readings. They are few, so a linear search is cheap.
type answers []reading

func readings(g *Signal, m *memory, s *derived.Snapshot) (all answers) {
	g.read(m, s, func(e incident.Entity, v float64) { all = append(all, reading{e, v}) })
	return all
}

func (r answers) of(e incident.Entity) (float64, bool) {
	v, _, ok := r.from(0, e)
	return v, ok
}

// from looks for e from an index on, and returns the index for the next search:
// callers mostly ask in the order of the entries.
func (r answers) from(at int, e incident.Entity) (v float64, next int, ok bool) {
	for n := range r {
		if i := (at + n) % len(r); r[i].Entity == e {
			return r[i].value, i + 1, true
		}
	}
	return 0, at, false
}

// merge sets the value of e to v, or to f of both if e has a value already.
// Mostly e is the last entry.
func (r answers) merge(e incident.Entity, v float64, f func(a, b float64) float64) answers {
	for i := len(r) - 1; i >= 0; i-- {
		if r[i].Entity == e {
			r[i].value = f(r[i].value, v)
			return r
		}
	}
	return append(r, reading{e, v})
}

// PromDuration formats d as PromQL does: 5m, 1h30m, 7d, 20s.
func PromDuration(d time.Duration) (text string) {
	for _, unit := range []struct {
		name string
		of   time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}, {"ms", time.Millisecond}} {
		if n := d / unit.of; n > 0 {
			text += fmt.Sprintf("%d%s", n, unit.name)
		}
		d %= unit.of
	}
	return text
}
