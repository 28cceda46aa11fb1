package health

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.yaml.in/yaml/v3"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// A detection is a fault of a simulated host and the expected finding: an element of testdata/detect.
type detection struct {
	Row                string `yaml:"row"` // the check, or none
	scenarios.Scenario `yaml:",inline"`
	Enable             []string `yaml:"enable"`   // collectors that are off by default
	PerLink            bool     `yaml:"per_link"` // series of each NVLink
	Inject             string   `yaml:"inject"`   // a key of injections, for changes that a simulated GPU does not support
	Find               finding  `yaml:"find"`
	Also               []string `yaml:"also"` // checks that may have a true finding too
}

// A finding is an expected finding: its check, entity, severity and time limit.
// Without a severity no finding is permitted.
type finding struct {
	Check    string             `yaml:"check"` // defaults to the row's
	On       string             `yaml:"on"`
	Severity incident.Severity  `yaml:"severity"`
	Within   scenarios.Duration `yaml:"within"` // since the first fault began
	Over     scenarios.Duration `yaml:"over"`   // limit for the recovery, since then too
	Stays    scenarios.Duration `yaml:"stays"`  // no recovery before, since then too
	Says     string             `yaml:"says"`   // part of the message
}

// begin returns the start of the first fault.
func (d *detection) begin() time.Duration {
	first := injected
	for i, f := range d.Faults {
		if at := time.Duration(f.At); i == 0 || at < first {
			first = at
		}
	}
	return first
}

// elements reads the elements of files of YAML that a pattern matches.
func elements[T any](t *testing.T, pattern string) (all []*T) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	fixture.Need(t, err != nil || len(files) == 0, false, "%d files, %v", len(files), err)
	for _, file := range files {
		var these []*T
		d := yaml.NewDecoder(bytes.NewReader(fixture.Value(os.ReadFile(file))(t)))
		d.KnownFields(true)
		fixture.Need(t, d.Decode(&these), nil, "%s", file)
		all = append(all, these...)
	}
	return all
}

// detections reads testdata/detect.
func detections(t *testing.T) []*detection {
	t.Helper()
	all := elements[detection](t, "testdata/detect/*.yml")
	for _, d := range all {
		d.Find.Check = cmp.Or(d.Find.Check, d.Row)
	}
	return all
}

// A trace is the result of a detection.
type trace struct {
	worst       incident.Severity // of the expected finding
	found, over time.Duration     // when it reached that severity, and when it ended; -1: never
	warned      map[string]bool   // checks that had a warning or worse
}

func (d *detection) test(t *testing.T) {
	f, begin, start := d.Find, d.begin(), time.Now()
	tr := trace{found: -1, over: -1, warned: map[string]bool{}}
	for _, e := range d.run(t, begin+time.Duration(max(f.Within, f.Over, f.Stays))+2*beat) {
		if e.Kind == incident.KindTransition {
			d.follow(t, &tr, e, e.Time.Sub(start)-begin)
		}
	}
	for _, check := range d.Also {
		fixture.Equal(t, tr.warned[check], true, "%s finds nothing, although it may", check)
	}
	switch {
	case tr.worst != f.Severity:
		t.Errorf("%s of %s: %v, want %v", f.Check, f.On, tr.worst, f.Severity)
	case tr.worst != incident.None && (tr.found < 0 || tr.found > time.Duration(f.Within)):
		t.Errorf("found after %v, want at most %v", tr.found, time.Duration(f.Within))
	}
	switch {
	case f.Stays > 0 && tr.over >= 0:
		t.Errorf("over after %v, and it should stay", tr.over)
	case f.Over > 0 && (tr.over < 0 || tr.over > time.Duration(f.Over)):
		t.Errorf("over after %v, want within %v", tr.over, time.Duration(f.Over))
	}
	if tr.worst != incident.None {
		t.Logf("found after %v of %v, over after %v", tr.found, time.Duration(f.Within), tr.over)
	}
}

// follow records a transition, at a time since the fault began.
func (d *detection) follow(t *testing.T, tr *trace, e incident.Event, at time.Duration) {
	own := e.Check == d.Find.Check && e.Entity.String() == d.Find.On && d.Find.Severity != incident.None
	text := fmt.Sprintf("%7v %s of %s: %v, %v: %s", at, e.Check, e.Entity, e.Severity, e.To, e.Message)
	if e.Severity != incident.None {
		t.Log(text)
	}
	switch {
	case own && e.Severity > tr.worst:
		fixture.Contains(t, e.Message, d.Find.Says, "does")
		tr.found, tr.worst, tr.over = at, e.Severity, -1
	case own && e.To == incident.OK:
		tr.over = at
	case own && e.Severity != incident.None:
		tr.over = -1
	case !own && e.Severity >= incident.Warning && !slices.Contains(d.Also, e.Check) && !tr.warned[e.Check]:
		t.Errorf("found as well: %s", text)
	}
	tr.warned[e.Check] = tr.warned[e.Check] || !own && e.Severity >= incident.Warning
}

// eachDetection tests one of n detections.
func eachDetection(t *testing.T, n int) {
	t.Parallel()
	for i, d := range detections(t) {
		if i%n != 0 {
			continue
		}
		t.Run(strings.ReplaceAll(d.Row, " / ", "+")+"/"+d.Name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, d.test)
		})
	}
}

// TestEveryCheckIsDetected holds that a scenario is found by each check.
func TestEveryCheckIsDetected(t *testing.T) {
	finds := map[string]bool{"retired_pages": true} // TestLongWindows: no simulated GPU retires pages
	for _, d := range detections(t) {
		finds[d.Find.Check] = true
	}
	for _, c := range Checks() {
		fixture.Equal(t, finds[c.ID], true, "no scenario is found by %s", c.ID)
	}
}
