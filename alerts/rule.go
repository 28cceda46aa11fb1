package alerts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors/faults"
	"gpusteward/health"
	"gpusteward/health/incident"
)

// A rule is a Prometheus alerting rule.
type rule struct {
	alert, expr                  string
	wait                         time.Duration // its "for"
	severity                     incident.Severity
	check                        string // empty for a fleet rule
	window                       string // of a service level
	class                        incident.Class
	summary, description, action string
}

// labels returns the labels that the rule adds to those of its series, in order.
func (r rule) labels() [][2]string {
	all := [][2]string{{"severity", r.severity.String()}, {"check", r.check}, {"class", string(r.class)},
		{"window", r.window}}
	return slices.DeleteFunc(all, func(l [2]string) bool { return l[1] == "" })
}

// annotations returns the rule's annotations, in order.
func (r rule) annotations() [][2]string {
	return [][2]string{
		{"summary", r.summary}, {"description", r.description}, {"action", r.action},
		{"runbook_url", health.Runbook + "#" + anchor(r.alert)},
	}
}

// anchor returns the URL fragment of a section of the runbook.
func anchor(alert string) string { return strings.ToLower(alert) }

// checkRules returns the rules of a check: one for each severity.
func checkRules(c *health.Check) (all []rule) {
	for s := incident.Info; s <= incident.Emergency; s++ {
		levels := slices.DeleteFunc(slices.Clone(c.Levels), func(l health.Level) bool { return l.Severity != s })
		if len(levels) == 0 {
			continue
		}
		r := rule{
			alert: c.Alert, severity: s, check: c.ID, class: c.Class,
			summary: place(levels) + c.Summary, action: action(c, levels, ofLabel),
		}
		r.expr, r.wait = either(levels)
		r.description = description(c, levels, ofValue, lastXIDs, rest(levels[0]), ofLabel)
		if differ(levels) { // some are about the node
			r.description = strings.ReplaceAll(r.description, "GPU "+ofLabel("gpu"),
				"{{ with $labels.gpu }}GPU {{ . }}{{ else }}the node{{ end }}")
			r.action = strings.ReplaceAll(r.action, "gpu="+ofLabel("gpu"),
				"{{ with $labels.gpu }}gpu={{ . }}{{ else }}node{{ end }}")
		}
		all = append(all, r)
	}
	return all
}

// either returns an expression for any of the levels, and how long it must hold. If the levels
// differ in their wait, each has its own in the expression.
func either(levels []health.Level) (expr string, wait time.Duration) {
	wait = levels[0].Wait()
	differ := slices.ContainsFunc(levels, func(l health.Level) bool { return l.Wait() != wait })
	var all []string
	for _, l := range levels {
		if differ && l.Wait() > 0 {
			all = append(all, l.Counted())
		} else {
			all = append(all, l.Expr())
		}
	}
	if differ {
		wait = 0
	}
	return strings.Join(all, "\nor\n"), wait
}

// lastXIDs is a template that lists the GPU's XIDs of the last five minutes.
var lastXIDs = fmt.Sprintf(
	"{{ with printf `max by (xid) (%s{uuid=%%q}) > time() - 300` $labels.uuid | query | sortByLabel \"xid\" }}"+
		"XID{{ range $i, $x := . }}{{ if $i }},{{ end }} {{ $x.Labels.xid }}{{ end }}{{ else }}an XID{{ end }}",
	faults.XIDLast)

// rest returns a template of the labels that a gauge with the alert's value has and the alert
// lacks: ", rank 3, reason absent".
func rest(l health.Level) string {
	m, labels := l.When.Signal.Rest()
	if labels == nil {
		return ""
	}
	var of, values, told strings.Builder
	for _, name := range append([]string{"instance"}, l.When.Signal.Labels()...) {
		fmt.Fprintf(&of, "%s=%%q,", name)
		fmt.Fprintf(&values, " $labels.%s", name)
	}
	for _, name := range labels {
		fmt.Fprintf(&told, "{{ with .Labels.%s }}, %[1]s {{ . }}{{ end }}", name)
	}
	return fmt.Sprintf("{{ range printf `%s{%s} == %%v`%s $value | query }}%s{{ end }}", m,
		strings.TrimSuffix(of.String(), ","), values.String(), told.String())
}

// ofLabel returns the template of a label.
func ofLabel(name string) string { return "{{ $labels." + name + " }}" }

// place returns a template of the origin of an alert: the host and, if all levels have the same,
// the entity.
func place(levels []health.Level) string {
	if e := entityBy(levels[0], ofLabel); e != (incident.Entity{}) && !differ(levels) {
		return ofLabel("instance") + ", " + e.Name() + ": "
	}
	return ofLabel("instance") + ": "
}

// differ reports whether levels are about different kinds of entities.
func differ(levels []health.Level) bool {
	e := entityBy(levels[0], ofLabel)
	return slices.ContainsFunc(levels, func(l health.Level) bool { return entityBy(l, ofLabel) != e })
}

// description returns the sentence about a check's levels with its placeholders filled in.
func description(c *health.Check, levels []health.Level, value func(health.Quantity) string,
	xids, rest string, label func(name string) string) string {
	detail, e := c.Ruled(levels[0], levels[1:]...), entityBy(levels[0], label)
	if predicate, begins := strings.CutPrefix(detail, "{entity}"); begins && e.Workload == "" && e.Device == "" {
		detail = strings.ToUpper(e.Name()[:1]) + e.Name()[1:] + predicate
	}
	return strings.NewReplacer("{xids}", xids, "{entity}", e.Name(),
		"{labels}", rest).Replace(health.Quantities(health.Present(detail), value))
}

// action returns what to do about a check's levels: that of the check, if they differ.
func action(c *health.Check, levels []health.Level, label func(name string) string) string {
	l, e := levels[0], entityBy(levels[0], label)
	if slices.ContainsFunc(levels, func(o health.Level) bool { return c.Advised(o, e) != c.Advised(l, e) }) {
		l.Action = ""
	}
	return c.Advised(l, e)
}

// ofValue returns the template of an alert's value.
func ofValue(q health.Quantity) string {
	switch q.Unit {
	case "percent":
		return "{{ $value | humanizePercentage }}"
	case "bytes":
		return "{{ $value | humanize1024 }}B"
	case "time":
		return "{{ $value | humanizeDuration }}"
	case "apart":
		return beside("gt", "humanizePercentage", "")
	case "margin":
		return beside("lt", "humanize",
			" {{ if or (eq $value 1.0) (eq $value -1.0) }}degree{{ else }}degrees{{ end }} Celsius")
	case "recovery":
		return recoveries()
	case "count":
		return "{{ $value | humanize }} {{ if eq $value 1.0 }}" + q.One + "{{ else }}" + q.Many + "{{ end }}"
	}
	return "{{ $value | humanize }}"
}

// beside returns the template of a distance without its sign, and of the side of it.
func beside(above, by, unit string) string {
	return fmt.Sprintf("{{ if eq $value 0.0 }}at{{ else }}{{ $value | %s | reReplaceAll \"-\" \"\" }}%s "+
		"{{ if %s $value 0.0 }}above{{ else }}below{{ end }}{{ end }}", by, unit, above)
}

// recoveries returns the template of what the driver asks for.
func recoveries() string {
	var b strings.Builder
	for value := 1; incident.KnowsRecovery(value); value++ {
		fmt.Fprintf(&b, "{{ if eq $value %d.0 }}%s{{ else }}", value, incident.Recovery(value))
	}
	ends := strings.Count(b.String(), "{{ else }}")
	return b.String() + "take recovery action {{ $value }}" + strings.Repeat("{{ end }}", ends)
}

// entityBy returns the entity of a level by its labels.
func entityBy(l health.Level, label func(name string) string) (e incident.Entity) {
	for _, name := range l.When.Signal.Labels() {
		*map[string]*string{
			"gpu": &e.GPU, "uuid": &e.UUID, "link": &e.Link,
			"tenant": &e.Tenant, "workload": &e.Workload, "device": &e.Device,
		}[name] = label(name)
	}
	return e
}

// longRange matches a range of an hour or more over raw samples: too many to read every ten
// seconds.
var longRange = regexp.MustCompile(`\[(\d+[hd]|\d{3,}m)\]`)

// group writes the groups of a rule file. Rules with a long range form a group with a longer
// interval.
func group(b *strings.Builder, name string, rules []rule) {
	b.WriteString("groups:\n")
	for _, g := range []struct {
		suffix, interval string
		long             bool
	}{{"", "10s", false}, {"-slow", "5m", true}} {
		mine := slices.DeleteFunc(slices.Clone(rules),
			func(r rule) bool { return longRange.MatchString(r.expr) != g.long })
		if len(mine) == 0 {
			continue
		}
		fmt.Fprintf(b, "  - name: %s%s\n    interval: %s\n    rules:\n", name, g.suffix, g.interval)
		for _, r := range mine {
			r.write(b)
		}
	}
}

func (r rule) write(b *strings.Builder) {
	fmt.Fprintf(b, "      - alert: %s\n        expr: |-\n", r.alert)
	for line := range strings.SplitSeq(r.expr, "\n") {
		fmt.Fprintf(b, "          %s\n", line)
	}
	if r.wait > 0 {
		fmt.Fprintf(b, "        for: %s\n", health.PromDuration(r.wait))
	}
	b.WriteString("        keep_firing_for: 5m\n        labels:\n")
	for _, l := range r.labels() {
		fmt.Fprintf(b, "          %s: %s\n", l[0], l[1])
	}
	b.WriteString("        annotations:\n")
	for _, a := range r.annotations() {
		fmt.Fprintf(b, "          %s: %q\n", a[0], a[1])
	}
}
