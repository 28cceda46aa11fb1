package policy

import (
	"math/rand/v2"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a/b", true}, {"a", "a", true}, {"a", "b", false},
		{"a", "ab", false},
		{"?", "", false}, {"?", "a", true}, {"a?c", "abc", true}, {"pod:*/vllm", "pod:a/b/vllm", true},
		{"pod:*/vllm", "pod:a/vllm2", false},
		{"*a*b", "xaxaxb", true}, {"*a*b", "xaxbx", false}, {"**", "x", true}, {"a*a", "a", false},
		{"unit:*.service", "unit:x.scope", false}, {"[a]", "a", false},
		{"?", "é", true}, {"??", "é", false}, {"*??", "€", false}, {"*?b", "€b", true}, {"a?", "a\xff", true},
		{strings.Repeat("*a", 40) + "b", strings.Repeat("a", 4000), false}, // without backtracking
	} {
		fixture.Equal(t, glob(c.pattern, c.name), c.want, "glob(%.20q, %.20q) =", c.pattern, c.name)
		p := newPattern(c.pattern)
		fixture.Equal(t, p.fits(c.name), c.want, "the pattern %.20q fits %.20q", c.pattern, c.name)
	}
}

func TestRankIsTheLiteralCharacters(t *testing.T) {
	for text, want := range map[string]uint16{"*": 1, "?": 1, "a*": 2, "*.service": 9, "é?": 2, "a": exact} {
		fixture.Equal(t, newPattern(text).rank, want, "%q has rank", text)
	}
}

func TestOverlapHasAnExample(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"*", "*", true}, {"a*", "*b", true}, {"a*", "b*", false},
		{"*a", "*b", false},
		{"a?", "?b", true}, {"a?", "a", false}, {"a*c", "ab*", true}, {"*ab*", "*ba*", true}, {"?", "*", true},
		{"??*", "x", false},
		{"triton*.service", "triton-?.service", true}, {"inference/*", "*/vllm", true}, {"é*", "*é", true},
		{"", "*", true}, {"", "?", false},
		{strings.Repeat("a*", 100) + "b", strings.Repeat("*a", 100), false}, // without backtracking
	} {
		for _, pair := range [][2]string{{c.a, c.b}, {c.b, c.a}} {
			example, ok := overlap(pair[0], pair[1])
			if ok != c.want || ok && (!glob(c.a, example) || !glob(c.b, example)) {
				t.Errorf("overlap(%.20q, %.20q) = %q, %v; want %v", pair[0], pair[1], example, ok, c.want)
			}
		}
	}
}

// Two patterns that overlap have an example that both match. No text matches two patterns that do not overlap.
func TestOverlapIsRight(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(letters string, most int) string {
		s := make([]byte, random.IntN(most+1))
		for i := range s {
			s[i] = letters[random.IntN(len(letters))]
		}
		return string(s)
	}
	both := 0
	for range 20000 {
		a, b, s := text("ab*?", 6), text("ab*?", 6), text("ab", 7)
		example, ok := overlap(a, b)
		fixture.Stop(t, ok && (!glob(a, example) || !glob(b, example)), "%q and %q do not both fit %q", a, b, example)
		if glob(a, s) && glob(b, s) {
			both++
			fixture.Stop(t, !ok, "%q and %q overlap: %q", a, b, s)
		}
	}
	fixture.AtLeast(t, both, 100, "only … pairs fitted the same text")
}
