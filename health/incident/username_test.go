package incident

import (
	"regexp/syntax"
	"strings"
	"testing"

	"gpusteward/collectors/host"
)

// shortest returns texts that an expression finds, with as little as possible
// where it skips text.
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

// TestUsersCannotSpeakForTheKernel puts into every place that the kernel leaves to
// its users, a comm of 15 bytes or a longer text such as the name of a file,
// parts of every line that matters and of the shortest ones like it.
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
