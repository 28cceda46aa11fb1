package alerts

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// A scene is the series of several hosts around the moment after which a rule must fire once.
type scene struct {
	shows []shown
	want  [][2]string // the labels of the alert, without those that the rule adds
	says  string      // the description of the alert
}

// shown is a series of a scene.
type shown struct {
	name, labels  string // labels end in a comma
	host          int
	before, after float64 // values before and after the moment; NaN is no sample
}

// Values in scenes. The time of a scene starts at 0.
var (
	none    = math.NaN()
	longAgo = -2 * time.Hour.Seconds()
)

// on returns the same series on several hosts.
func on(hosts []int, name fmt.Stringer, labels string, before, after float64) (all []shown) {
	for _, h := range hosts {
		all = append(all, shown{name.String(), labels, h, before, after})
	}
	return all
}

// up returns Prometheus's own series about a target.
func up(host int, before, after float64) shown { return shown{"up", "", host, before, after} }

// test turns the scene into a test of r.
func (sc scene) test(r rule) ruleTest {
	t := ruleTest{name: r.alert, pace: paceFor(r.wait)}
	fires := t.pace.moment() + r.wait
	t.alerts = []expectation{{at: fires - time.Duration(t.pace), alert: r.alert}, {at: fires, alert: r.alert}}
	for _, s := range sc.shows {
		line := series{name: fmt.Sprintf("%s{%sinstance=\"host-%d:9836\",job=%q}", s.name, s.labels, s.host, job)}
		t.pace.steps(fires, func(at time.Duration) {
			if at < t.pace.moment() {
				line.values = append(line.values, s.before)
			} else {
				line.values = append(line.values, s.after)
			}
		})
		t.series = append(t.series, line)
	}
	r.description = sc.says
	for _, l := range sc.want {
		r.summary = strings.ReplaceAll(r.summary, ofLabel(l[0]), l[1])
	}
	t.alerts[1].firing = []firing{{slices.Concat(sc.want, r.labels()), r.annotations()}}
	return t
}
