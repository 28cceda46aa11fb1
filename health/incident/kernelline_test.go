package incident

import (
	"fmt"
	"regexp/syntax"
	"slices"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// lines returns lines of kernels in a file: what each is a sign of, the text, and its values.
func lines(t testing.TB, file string) [][]string { return fixture.Rows(t, "testdata/"+file+".tsv") }

func TestLinesOfTheKernel(t *testing.T) {
	seen := map[string]bool{}
	at := time.Unix(1e9, 0)
	isDriver := func(pid int) bool { return pid == 731 }
	for _, l := range lines(t, "kernel-lines") {
		r := host.Record{Priority: 4, Sequence: 7, Time: at, Text: l[1]}
		s, ok := ParseLine(r, isDriver)
		if l[0] == "-" {
			fixture.Equal(t, ok, false, "%q is %+v, want nothing", l[1], s)
			continue
		}
		seen[l[0]] = true
		if got := fmt.Sprintf("device=%s pid=%d comm=%s", s.Entity.Device, s.PID, s.Comm); !ok || s.What != l[0] ||
			got != l[2] || s.Source != SourceKernel || s.Sequence != 7 || !s.Time.Equal(at) || s.Text == "" {
			t.Errorf("%q is %s %s (%+v), want %s %s", l[1], s.What, got, s, l[0], l[2])
		}
		r.Priority = 12
		if s, ok := ParseLine(r, isDriver); ok {
			t.Errorf("%+v, though a user wrote %q", s, l[1])
		}
	}
	for _, h := range kernelLines() {
		fixture.Equal(t, seen[h.name], true, "testdata has no line for %s", h.name)
		// Text that users control never comes first.
		fixture.If(t, !strings.HasPrefix(h.expression.String(), "^"),
			"%s: the expression finds text within a line", h.name)
	}
}

func FuzzParseLine(f *testing.F) {
	for _, l := range lines(f, "kernel-lines") {
		f.Add(l[1])
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, ok := ParseLine(host.Record{Text: text}, nil)
		if !ok {
			return
		}
		_, known := happenings()[s.What]
		fixture.If(t, !known || s.PID < 0 || s.Code < 0, "%q is %+v", text, s)
		for _, e := range NewCorrelator(CorrelatorOptions{}, s.Time).Add(s, s.Time) {
			readable(t, e)
		}
	})
}

// shortest returns texts that an expression finds, with as little as possible where it skips text.
func shortest(re *syntax.Regexp) []string {
	all := []string{""}
	join := func(more []string) {
		var longer []string
		for _, a := range all {
			for _, b := range more {
				longer = append(longer, a+b)
			}
		}
		all = longer
	}
	switch re.Op {
	case syntax.OpLiteral:
		return []string{string(re.Rune)}
	case syntax.OpCharClass:
		return []string{string(max(re.Rune[0], ' '))}
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return []string{" "}
	case syntax.OpStar, syntax.OpQuest:
		return append(all, shortest(re.Sub[0])...)
	case syntax.OpAlternate:
		all = nil
		for _, sub := range re.Sub {
			all = append(all, shortest(sub)...)
		}
	case syntax.OpRepeat:
		for range re.Min {
			join(shortest(re.Sub[0]))
		}
	case syntax.OpCapture, syntax.OpPlus, syntax.OpConcat:
		for _, sub := range re.Sub {
			join(shortest(sub))
		}
	}
	return all // nothing for an anchor
}

// TestAlertableXIDs: a tenant's fault matters to checks though it is not critical, and an event of no one's fault does not.
func TestAlertableXIDs(t *testing.T) {
	all := AlertableXIDs()
	for code, want := range map[int]bool{13: true, 79: true, 1: false} {
		fixture.Equal(t, slices.Contains(all, code), want, "XID %d matters", code)
	}
}

// TestUsersCannotSpeakForTheKernel puts into every place that the kernel leaves to its users, a comm of 15 bytes or a
// longer text such as the name of a file, parts of every line that matters and of the shortest ones like it.
func TestUsersCannotSpeakForTheKernel(t *testing.T) {
	t.Parallel()
	told := map[string]bool{}
	for _, l := range lines(t, "kernel-lines") {
		told[l[1]] = true
	}
	for _, h := range kernelLines() {
		re, _ := syntax.Parse(h.expression.String(), syntax.Perl)
		for _, text := range shortest(re) {
			told[text] = true
			fixture.Contains(t, text, h.literal, "%s: a line that it finds", h.name)
		}
	}
	said, tried := lines(t, "user-lines"), map[[2]string]bool{}
	try := func(comm, text string) {
		if tried[[2]string{comm, text}] {
			return
		}
		tried[[2]string{comm, text}] = true
		put := strings.NewReplacer("{comm}", comm, "{text}", text)
		for _, l := range said {
			line := put.Replace(l[1])
			s, ok := ParseLine(host.Record{Text: line}, nil)
			if ok != (l[0] != "-") || ok && (s.What != l[0] || s.PID != 1234) {
				t.Errorf("%q is %s of PID %d, want %s", line, s.What, s.PID, l[0])
			}
		}
	}
	for text := range told {
		for n := range min(len(text), 15) {
			try(text[:n+1], text[n+1:]) // goes on where the user has another word
		}
		for i := range text {
			try(text[i:min(i+15, len(text))], "segv")
		}
	}
}
