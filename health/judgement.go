package health

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gpusteward/health/incident"
)

// Sources of a Judgement.
const (
	FromAgent  = "agent"
	Standalone = "standalone"
)

// stale is the greatest age of an agent's verdict.
const stale = 30 * time.Second

// A Judgement is the answer of gpusteward check about a host: a verdict and its
// source.
type Judgement struct {
	Verdict
	Source   string   `json:"source"`             // FromAgent or Standalone
	Unjudged []string `json:"unjudged,omitempty"` // checks that need more time than a look has
	Notes    []string `json:"notes,omitempty"`    // other gaps in its knowledge
}

// NoVerdict is a judgement on a host about which only the reason for its
// ignorance is known.
func NoVerdict(source, node string, why error) Judgement {
	return Judgement{Source: source, Verdict: Verdict{Node: node, Time: time.Now(), Status: incident.Unknown,
		Reason: why.Error(), GPUs: []Health{}, Findings: []Finding{}}}
}

// Answered returns the judgement in an agent's answer to GET /api/v1/health. A
// verdict older than 30 s counts as unknown. The error says that the answer is
// no verdict.
func Answered(answer []byte, now time.Time) (Judgement, error) {
	j := Judgement{Source: FromAgent}
	if err := json.Unmarshal(answer, &j.Verdict); err != nil || j.GPUs == nil && j.Reason == "" {
		return j, fmt.Errorf("the answer is not a verdict (%w): is that gpusteward?",
			cmp.Or(err, errors.New("it has no GPUs and no reason")))
	}
	if age := now.Sub(j.Time); age > stale && !j.Time.IsZero() {
		err := fmt.Errorf("the agent's last verdict is %v old", age.Round(time.Second))
		return NoVerdict(FromAgent, j.Node, err), nil
	}
	return j, nil
}

// Narrow reduces j to some GPUs, by index or UUID, with the node, and to the
// findings of some checks, without those of others; an empty list means all. A
// GPU that does not exist is unknown.
func (j *Judgement) Narrow(checks, without, gpus []string) {
	unnamed := func(names []string, name ...string) bool {
		return len(names) > 0 && !slices.ContainsFunc(name, func(n string) bool { return slices.Contains(names, n) })
	}
	j.Findings = slices.DeleteFunc(j.Findings, func(f Finding) bool {
		return unnamed(checks, f.Check) || slices.Contains(without, f.Check) ||
			f.Entity.Parent() != (incident.Entity{}) && unnamed(gpus, f.Entity.GPU, f.Entity.UUID)
	})
	if len(j.GPUs) > 0 {
		all := j.GPUs
		j.GPUs = slices.DeleteFunc(slices.Clone(all), func(g Health) bool { return unnamed(gpus, g.GPU, g.UUID) })
		for _, name := range gpus {
			if !slices.ContainsFunc(all, func(g Health) bool { return name == g.GPU || name == g.UUID }) {
				j.GPUs = append(j.GPUs, Health{GPU: name, Status: incident.Unknown, Reason: "is not on this host"})
			}
		}
	}
	for i, g := range j.GPUs {
		state := worst(j.Findings,
			func(f Finding) bool { return f.Entity.Parent() == incident.Entity{GPU: g.GPU, UUID: g.UUID} }).State()
		if state < incident.Degraded && (g.Status == incident.Unknown || g.Reason != "" && g.Status != incident.OK) {
			state = incident.Unknown
		}
		j.GPUs[i].Status = state
	}
	j.sum()
}

// Formats of a Judgement.
var Formats = []string{"text", "json", "npd"}

// Report returns j in a format, and the exit status: 0 is well, 1 a warning, 2
// critical or worse, 3 unknown. For node-problem-detector, 0 is well, 1 a
// problem and 2 unknown. If least is Critical, warnings are no failure. Text
// that others chose, such as names of workloads, is made safe to print.
func (j Judgement) Report(format string, least incident.Severity) (text string, status int) {
	j.tidy()
	status = map[incident.State]int{incident.OK: 0, incident.Suspect: 0, incident.Degraded: 1, incident.Unhealthy: 2,
		incident.Failed: 2, incident.Unknown: 3}[j.Status]
	if j.Status == incident.Degraded && least > incident.Warning {
		status = 0
	}
	switch format {
	case "json":
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetIndent("", "  ")
		_ = e.Encode(j) // a verdict holds only finite numbers
		return b.String(), status
	case "npd":
		return shorten(j.headline(status), longestOfNPD) + "\n", []int{0, 1, 1, 2}[status]
	}
	return j.text(status), status
}

// longestOfNPD is the number of bytes that node-problem-detector keeps of a
// line: its max_output_length, 80 by default. It may cut a character in half.
const longestOfNPD = 80

// shorten returns at most so many bytes of text, with dots at the cut.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return incident.Clean(text, most-3) + "..."
}

// words are the exit statuses in the language of monitoring plugins.
var words = []string{"OK", "WARNING", "CRITICAL", "UNKNOWN"}

// text returns a line with the verdict, and a line for each finding: those of the
// host, then those of jobs and tenants. The checks of an entity that have no more
// data share a line: a GPU that is lost has many.
func (j Judgement) text(status int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s - %s: %s\n", words[status], cmp.Or(j.Node, "this host"), j.headline(status))
	dark := map[incident.Entity][]string{}
	for _, f := range j.Findings {
		if f.dark() {
			dark[f.Entity] = append(dark[f.Entity], f.Check)
		}
	}
	var theirs strings.Builder
	for _, f := range j.Findings {
		w := &b
		if f.ofTenant() {
			w = &theirs
		}
		if all := dark[f.Entity]; f.dark() && len(all) > 1 {
			if f.Check == all[0] {
				fmt.Fprintf(w, "%-9s %s %d checks have no more data: %s\n", f.label(), f.Entity, len(all),
					strings.Join(all, ", "))
			}
			continue
		}
		fmt.Fprintf(w, "%-9s %s %s: %s%s\n", f.label(), f.Entity, f.Check, f.Message, f.standing())
	}
	for _, g := range j.GPUs {
		if g.Status == incident.Unknown {
			fmt.Fprintf(&b, "%-9s gpu=%s %s\n", incident.Unknown, g.GPU, cmp.Or(g.Reason, noData))
		}
	}
	if theirs.Len() > 0 {
		b.WriteString("Jobs and tenants, whose faults do not count:\n" + theirs.String())
	}
	if n := len(j.Unjudged); n > 0 {
		fmt.Fprintf(&b, "note: without an agent %d of %d checks cannot be made: they take minutes\n", n, len(Checks()))
	}
	if len(j.Disabled) > 0 {
		fmt.Fprintf(&b, "note: health.disable excludes %s\n", strings.Join(j.Disabled, ", "))
	}
	for _, note := range j.Notes {
		fmt.Fprintf(&b, "note: %s\n", note)
	}
	return b.String()
}

// standing says since when the finding is there, and what to do; of a fault that
// is over, when it ended.
func (f Finding) standing() (text string) {
	if !f.Recovered.IsZero() {
		return fmt.Sprintf(" [recovered %s, clears %s UTC]", f.Recovered.UTC().Format("15:04"),
			f.Clears.UTC().Format("15:04"))
	}
	if !f.Since.IsZero() {
		text = fmt.Sprintf(" [since %s]", f.Since.UTC().Format(time.RFC3339))
	}
	if f.Severity != incident.None && f.Action != "" {
		text += " Do: " + f.Action
	}
	if f.Latched {
		text += " Once that is done: " + toAck(f.Check, f.Entity)
	}
	return text
}

// dark reports whether the finding says only that its check has no more data.
func (f Finding) dark() bool { return f.Severity == incident.None && f.State == incident.Unknown }

// label returns the finding's severity, or its other state.
func (f Finding) label() string {
	switch {
	case f.Severity == incident.None:
		return f.State.String()
	case f.Shadow:
		return "shadow" // nobody acts on it, whatever its severity
	}
	return f.Severity.String()
}

// headline returns a one-line summary of j that agrees with an exit status: the
// worst of what counts, or how much is well.
func (j Judgement) headline(status int) string {
	if j.Status == incident.Unknown {
		return cmp.Or(j.Reason, noData)
	}
	var bad []Finding // they make the verdict
	theirs := 0
	for _, f := range j.Findings {
		switch {
		case f.Shadow || f.Severity < incident.Warning:
		case f.ofTenant():
			theirs++
		default:
			bad = append(bad, f)
		}
	}
	if status == 0 {
		text := plural(len(j.GPUs), "GPU") + ", no fault"
		if len(bad) > 0 {
			text = plural(len(j.GPUs), "GPU") + ", no critical fault; " + plural(len(bad), "warning")
		}
		if theirs > 0 {
			text += " of the host; " + plural(theirs, "fault") + " of jobs or tenants"
		}
		return text
	}
	if len(bad) == 0 {
		return cmp.Or(j.Reason, "it is "+j.Status.String())
	}
	first := bad[0]
	for _, f := range bad { // prefer an equally bad finding of a GPU, which says more
		if f.Severity == bad[0].Severity && f.Entity.Parent() != (incident.Entity{}) {
			first = f
			break
		}
	}
	text := fmt.Sprintf("%s %s: %s", first.Entity, first.Check, first.Message)
	for _, g := range j.GPUs {
		if g.Reason != "" && first.Entity.Parent() == (incident.Entity{GPU: g.GPU, UUID: g.UUID}) {
			text = fmt.Sprintf("GPU %s %s: %s", g.GPU, g.Reason, first.Message)
		}
	}
	if len(bad) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(bad)-1)
	}
	return text
}

// plural writes a number of things: "1 GPU", "2 GPUs".
func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// tidy makes every text in j safe to show; it copies what is shared.
func (j *Judgement) tidy() {
	j.Node, j.Reason = incident.Clean(j.Node, incident.LongestMessage),
		incident.Clean(j.Reason, incident.LongestMessage)
	j.Findings, j.GPUs, j.Notes = slices.Clone(j.Findings), slices.Clone(j.GPUs), slices.Clone(j.Notes)
	j.Disabled = slices.Clone(j.Disabled)
	for i := range j.Findings {
		f := &j.Findings[i]
		for _, s := range []*string{&f.Check, &f.Alert, &f.Entity.GPU, &f.Entity.UUID, &f.Entity.Link, &f.Entity.Tenant,
			&f.Entity.Workload, &f.Entity.Device} {
			*s = incident.Clean(*s, longestName)
		}
		f.Message, f.Action = incident.Clean(f.Message, 2*incident.LongestMessage),
			incident.Clean(f.Action, incident.LongestMessage)
	}
	for i := range j.GPUs {
		g := &j.GPUs[i]
		g.GPU, g.UUID, g.Reason = incident.Clean(g.GPU, longestName), incident.Clean(g.UUID, longestName),
			incident.Clean(g.Reason, incident.LongestMessage)
	}
	for i, check := range j.Disabled {
		j.Disabled[i] = incident.Clean(check, longestName)
	}
	for i, note := range j.Notes {
		j.Notes[i] = incident.Clean(note, 2*incident.LongestMessage)
	}
}

// longestName bounds a shown name, in bytes.
const longestName = 128
