package diag

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		value float64
		unit  string
		want  string
	}{
		{54.06e9, "B/s", "54.1 GB/s"}, {0, "B/s", ""},
		{1.98e9, "Hz", "1980.0 MHz"}, {0, "Hz", ""},
		{2.34e12, "operations/s", "2.3 T/s"}, {0, "operations/s", ""},
		{0, "wrong words", "0 wrong words"}, {2, "wrong words", "2 wrong words"},
		{0, "XIDs", "0 XIDs"}, {1, "XIDs", "1 XIDs"},
		{0, "lanes", ""}, {16, "lanes", "16 lanes"}, {1, "lanes", "1 lanes"},
		{0, "W", ""}, {699.6, "W", "700 W"},
		{0, "", ""}, {1, "%", "1.0 %"},
	} {
		fixture.Equal(t, amount(c.value, c.unit), c.want, "%v %s is", c.value, c.unit)
	}
}

func TestTableOfResults(t *testing.T) {
	r := &Report{Level: 2, Seconds: 1.25, Results: []Result{
		{Test: "clock", GPU: "0", Verdict: Pass, Value: 2e9, Least: 1.5e9, Unit: "Hz", Detail: "well"},
		{Test: "peer", GPU: "0", Peer: "1", Verdict: Skipped},
		{Test: "power", GPU: "0", Verdict: Measured, Value: 3, Least: .5, Unit: "W"},
	}}
	var got []string
	for line := range strings.Lines(r.table()) {
		got = append(got, strings.TrimRight(line, " \n"))
	}
	want := []string{
		"",
		"GPU     TEST   MEASURED    AT LEAST    VERDICT",
		"0       clock  2000.0 MHz  1500.0 MHz  pass      well",
		"0 to 1  peer                           skipped",
		"0       power  3 W         0 W         measured",
		"",
		"level 2, 1.2 s",
	}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	fixture.Equal(t, (&Report{Level: 2}).table(), "", "a table of nothing")
}

// TestExitStatuses expects the status of every outcome, and the report in each format.
func TestExitStatuses(t *testing.T) {
	t.Parallel()
	warns := func(t *test) { t.cards[0].readings[Copies].Link.Width = 8 }
	for name, c := range map[string]struct {
		change func(*test)
		least  incident.Severity
		want   int
	}{
		"well":               {func(*test) {}, incident.Warning, 0},
		"warning":            {warns, incident.Warning, 1},
		"warning, not asked": {warns, incident.Critical, 0},
		"critical": {func(t *test) { t.cards[0].readings[Memory].Memory.Errors = 1 },
			incident.Critical, 2},
		"skipped":               {func(t *test) { t.cards[0].skipped = "busy" }, incident.Warning, 3},
		"skipped and a warning": {func(t *test) { warns(t); t.cards[1].skipped = "busy" }, incident.Warning, 1},
	} {
		o := well(2)
		c.change(o)
		r := o.report()
		text, status := r.Report("text", c.least)
		fixture.If(t, status != c.want || !strings.HasSuffix(text, r.table()) || r.table() == "" || text == r.table(),
			"%s: exit status %d, want %d\n%s", name, status, c.want, text)
		text, status = r.Report("json", c.least)
		var back Report
		if err := json.Unmarshal([]byte(text), &back); err != nil || status != c.want ||
			len(back.Results) != len(r.Results) || !strings.HasPrefix(text, "{\n  \"node\"") {
			t.Errorf("%s: exit status %d, %v\n%s", name, status, err, text)
		}
		line, status := r.Report("line", c.least)
		judged, _ := r.Judgement.Report("line", c.least)
		fixture.If(t, status != c.want || line != judged,
			"%s: exit status %d, %q instead of %q", name, status, line, judged)
	}
}

// TestCouldNotBegin expects a hanging driver to be a fault, and all else to be unknown.
func TestCouldNotBegin(t *testing.T) {
	o := Options{Level: 3, Node: "node7"}
	for why, want := range map[error]int{
		errors.New("no"): 3,
		fmt.Errorf("the GPU %w survey", errHangs): 2,
	} {
		r := o.Unknown(why)
		if _, status := r.Report("text", incident.Warning); status != want || r.Level != 3 || r.Node != "node7" ||
			r.Source != "diag" || r.Reason != why.Error() || r.Results == nil || time.Since(r.Time) > time.Hour {
			t.Errorf("%v: exit status %d, %+v", why, status, r)
		}
	}
}
