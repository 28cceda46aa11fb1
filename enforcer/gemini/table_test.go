package gemini

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	text := "3\nclient1 0.3 1.0 1073741824\n\n  ns/pod-2\t0.5 0.5 2\r\nlast 0 1e-1 0"
	got, warnings, err := Parse([]byte(text))
	want := []Entry{{"client1", 0.3, 1, 1 << 30}, {"ns/pod-2", 0.5, 0.5, 2}, {"last", 0, 0.1, 0}}
	if err != nil || !reflect.DeepEqual(got, want) || len(warnings) != 0 {
		t.Errorf("%+v, %q, %v", got, warnings, err)
	}
	if got, _, err := Parse([]byte("0\n")); err != nil || len(got) != 0 {
		t.Errorf("of nobody: %+v, %v", got, err)
	}
}

func TestParseMends(t *testing.T) {
	got, warnings, err := Parse([]byte("2\nns/pod 1.0 0.3 100\n" + strings.Repeat("n", 48) + " 0.1 0.2 3\n"))
	if err != nil || got[0] != (Entry{"ns/pod", 0.3, 1, 100}) {
		t.Errorf("KubeShare's order: %+v, %v", got, err)
	}
	if len(warnings) != 2 || !strings.HasPrefix(warnings[0], "line 2: ") || !strings.Contains(warnings[0], "KubeShare") || !strings.HasPrefix(warnings[1], "line 3: ") {
		t.Errorf("warnings %q", warnings)
	}
}

func TestParseNamesTheLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                                 "line 1: ",
		"two\n":                            "line 1: ",
		"-1\n":                             "line 1: ",
		"257\n":                            "line 1: 257 clients are too many",
		"2\na 0.1 0.2 3\n":                 "line 3: the file ends after 1 clients",
		"1\na 0.1 0.2 3\nb 0.1 0.2 3\n":    "line 3: line 1 says",
		"1\na 0.1 0.2\n":                   "line 2: 3 fields",
		"1\na 0.1 0.2 3 4\n":               "line 2: 5 fields",
		"2\na 0.1 0.2 3\n\na 0.1 0.2 3\n":  `line 4: "a" is in line 2 too`,
		"1\na -0.1 0.2 3\n":                "line 2: REQUEST: ",
		"1\na NaN 0.2 3\n":                 "line 2: REQUEST: ",
		"1\na 0.1 1.5 3\n":                 "line 2: LIMIT: ",
		"1\na 0.1 Inf 3\n":                 "line 2: LIMIT: ",
		"1\na 0 0 3\n":                     "line 2: LIMIT: ",
		"1\na 0.1 0.2 -3\n":                "line 2: memory: ",
		"1\na 0.1 0.2 3G\n":                "line 2: memory: ",
		"1\na 0.1 0.2 9223372036854775808": "line 2: memory: ",
		"[client1]\nMinUtil = 0.1\n":       "line 1: ",
	} {
		if entries, _, err := Parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) || entries != nil {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("1\na 0.1 0.2 3\n"))
	f.Add([]byte("2\na 0.9 0.2 3\n\nb 0 1 0"))
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, _, err := Parse(text)
		if err != nil {
			return
		}
		var b strings.Builder
		fmt.Fprintln(&b, len(entries))
		for _, e := range entries {
			if e.Name == "" || !(e.Request >= 0 && e.Request <= e.Limit && e.Limit > 0 && e.Limit <= 1) {
				t.Fatalf("%q: %+v", text, e)
			}
			fmt.Fprintln(&b, e.Name, e.Request, e.Limit, e.Memory)
		}
		again, _, err := Parse([]byte(b.String()))
		if err != nil || len(again) != len(entries) || len(entries) > 0 && !reflect.DeepEqual(again, entries) {
			t.Fatalf("%q came back as %+v, %v", text, again, err)
		}
	})
}
