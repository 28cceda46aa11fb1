package gemini

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestParse(t *testing.T) {
	long := strings.Repeat("n", 48)
	for name, c := range map[string]struct {
		text     string
		want     []Entry
		warnings string // expression for their lines
	}{
		"every form": {"3\nclient1 0.3 1.0 1073741824\n\n  ns/pod-2\t0.5 0.5 2\r\nlast 0 1e-1 0",
			[]Entry{{"client1", 0.3, 1, 1 << 30}, {"ns/pod-2", 0.5, 0.5, 2}, {"last", 0, 0.1, 0}}, ""},
		"no client": {"0\n", nil, ""},
		"KubeShare's order": {"2\nns/pod 1.0 0.3 100\n" + long + " 0.1 0.2 3\n",
			[]Entry{{"ns/pod", 0.3, 1, 100}, {long, 0.1, 0.2, 3}}, "line 2: .*KubeShare.*\nline 3: .*"},
		// Gemini's own parser stops after the number of clients on the first line, and its example has more lines.
		"more lines": {"1\nclient1 0.5 0.5 327374182400\nclient2 0.5 0.5 327374182400\nnonsense\n\n",
			[]Entry{{"client1", 0.5, 0.5, 327374182400}}, "line 3: .*1 clients.*"},
		// If a name has two lines, the last one holds, as in Gemini's own parser.
		"a name twice": {"4\na 0.1 0.2 3\nb 0.3 0.4 5\na 0.5 0.6 7\na 0.8 0.9 10\nc 0.1 0.2 3\n",
			[]Entry{{"a", 0.8, 0.9, 10}, {"b", 0.3, 0.4, 5}}, `line 4: "a" is in line 2 too, which has no effect
line 5: "a" is in line 4 too, which has no effect
line 6: this line.*`},
	} {
		got := fixture.Value(parse([]byte(c.text)))(t)
		fixture.EqualSlices(t, got.Entries, c.want, "%s", name)
		fixture.If(t, len(got.Bad) > 0 || !regexp.MustCompile("^"+c.warnings+"$").MatchString(strings.Join(got.Warnings, "\n")),
			"%s: bad %+v, warnings %q", name, got.Bad, got.Warnings)
	}
}

func TestParseNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                   "line 1: ",
		"two\n":              "line 1: ",
		"-1\n":               "line 1: ",
		"257\n":              "line 1: there are 257 clients",
		"2\na 0.1 0.2 3\n":   "line 3: the file ends after 1 clients",
		"2\na 0.1 0.2\n":     "line 3: the file ends after 1 clients",
		"[client1]\nM = 1\n": "line 1: ",
	} {
		got, err := parse([]byte(text))
		fixture.If(t, err == nil || !strings.HasPrefix(err.Error(), want) ||
			!reflect.DeepEqual(got, Table{}), "%q: %+v, %v, want %s", text, got, err, want)
	}
}

// A bad line is reported, and the others hold.
func TestBadLine(t *testing.T) {
	for text, want := range map[string]string{
		"bad 0.1 0.2":                     "line 3: it has 3 fields",
		"bad 0.1 0.2 3 4":                 "line 3: it has 5 fields",
		"bad -0.1 0.2 3":                  "line 3: REQUEST: ",
		"bad NaN 0.2 3":                   "line 3: REQUEST: ",
		"bad 0.1 1.5 3":                   "line 3: LIMIT: ",
		"bad 0.1 Inf 3":                   "line 3: LIMIT: ",
		"bad 0 0 3":                       "line 3: LIMIT: ",
		"bad 0.1 0.2 -3":                  "line 3: memory: ",
		"bad 0.1 0.2 3G":                  "line 3: memory: ",
		"bad 0.1 0.2 9223372036854775808": "line 3: memory: ",
	} {
		got, err := parse([]byte("3\nfirst 0.1 0.2 3\n" + text + "\nlast 0.3 0.4 5\n"))
		if err != nil || !reflect.DeepEqual(got.Entries, []Entry{{"first", 0.1, 0.2, 3}, {"last", 0.3, 0.4, 5}}) {
			t.Errorf("%q: %+v, %v", text, got, err)
		}
		fixture.If(t, len(got.Bad) != 1 || got.Bad[0].Name != strings.Fields(text)[0] ||
			!strings.HasPrefix(got.Bad[0].Err.Error(), want), "%q: %v, want %s", text, got.Bad, want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("1\na 0.1 0.2 3\n"))
	f.Add([]byte("2\na 0.9 0.2 3\n\nb 0 1 0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		table, err := parse(text)
		if err != nil {
			return
		}
		entries := table.Entries
		var b strings.Builder
		fmt.Fprintln(&b, len(entries))
		for _, e := range entries {
			fixture.Stop(t, e.Name == "" || !(e.Request >= 0 && e.Request <= e.Limit && e.Limit > 0 && e.Limit <= 1),
				"%q: %+v", text, e)
			fmt.Fprintln(&b, e.Name, e.Request, e.Limit, e.Memory)
		}
		again, err := parse([]byte(b.String()))
		fixture.Stop(t, err != nil || len(again.Bad) > 0 || len(again.Entries) != len(entries) ||
			len(entries) > 0 && !reflect.DeepEqual(again.Entries, entries),
			"%q came back as %+v, %v", text, again, err)
	})
}
