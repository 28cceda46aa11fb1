package gemini

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// Bounds of a file.
const (
	mostEntries = 256
	mostText    = 1 << 20 // bytes
)

// An Entry is the terms of a client.
type Entry struct {
	Name    string
	Request float64 // of the GPU's time while others want it too, 0 to 1
	Limit   float64 // of the GPU's time in any case, above 0, at most 1
	Memory  uint64  // bytes; 0 is none at all
}

// A Table is the content of a file.
type Table struct {
	Entries  []Entry
	Bad      []badLine // the others hold
	Warnings []string  // repaired or unread lines, by number
}

// A badLine is a line that makes no sense.
type badLine struct {
	Name string // of the client, if the line has one
	Err  error  // names the line
}

// parse reads a file's text: the number of clients, then as many lines of name,
// REQUEST, LIMIT and bytes. KubeShare has LIMIT before REQUEST, recognisable if
// the first is the larger one. As in Gemini's own parser, the last line of a
// name holds, and lines beyond the number are not read. A file with fewer lines
// may be half written, which is an error. Errors name the line.
func parse(text []byte) (t Table, err error) {
	lines := strings.Split(string(text), "\n")
	count, err := strconv.ParseUint(strings.TrimSpace(lines[0]), 10, 31)
	switch {
	case err != nil:
		return t, fmt.Errorf("line 1: %.40q is not the number of clients", lines[0])
	case count > mostEntries:
		return t, fmt.Errorf("line 1: there are %d clients; at most %d are allowed", count, mostEntries)
	}
	type place struct{ line, entry int }
	seen, found := map[string]place{}, 0
	for i, line := range lines[1:] {
		number := i + 2
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if found == int(count) {
			t.Warnings = append(t.Warnings, fmt.Sprintf("line %d: this line and the following ones are ignored, "+
				"because line 1 "+
				"announces %d clients", number, count))
			return t, nil
		}
		found++
		e, warning, err := parseEntry(fields)
		if err != nil {
			t.Bad = append(t.Bad, badLine{fields[0], fmt.Errorf("line %d: %w", number, err)})
			continue
		}
		if warning != "" {
			t.Warnings = append(t.Warnings, fmt.Sprintf("line %d: %s", number, warning))
		}
		if before, twice := seen[e.Name]; twice {
			t.Warnings = append(t.Warnings, fmt.Sprintf("line %d: %q is in line %d too, which has no effect", number,
				e.Name, before.line))
			t.Entries[before.entry] = e
			seen[e.Name] = place{number, before.entry}
			continue
		}
		seen[e.Name] = place{number, len(t.Entries)}
		t.Entries = append(t.Entries, e)
	}
	if found < int(count) {
		return Table{}, fmt.Errorf("line %d: the file ends after %d clients, but line 1 announces %d",
			len(lines), found, count)
	}
	return t, nil
}

func parseEntry(fields []string) (e Entry, warning string, err error) {
	if len(fields) != 4 {
		return e, "", fmt.Errorf("it has %d fields: write NAME REQUEST LIMIT BYTES", len(fields))
	}
	e.Name = fields[0]
	if len(e.Name) > longest[Quota] {
		warning = fmt.Sprintf("a name of %d bytes does not fit into a request for time; the longest has %d",
			len(e.Name),
			longest[Quota])
	}
	if e.Request, err = parsePart("REQUEST", fields[1]); err != nil {
		return e, "", err
	}
	if e.Limit, err = parsePart("LIMIT", fields[2]); err != nil {
		return e, "", err
	}
	if e.Request > e.Limit {
		e.Request, e.Limit = e.Limit, e.Request
		warning = fmt.Sprintf("%v is above %v: read in KubeShare's order, LIMIT before REQUEST", e.Limit, e.Request)
	}
	if e.Limit == 0 {
		return e, "", fmt.Errorf("LIMIT: %q permits nothing: write a part above 0", fields[2])
	}
	if e.Memory, err = strconv.ParseUint(fields[3], 10, 63); err != nil {
		return e, "", fmt.Errorf("memory: %q is not a number of bytes", fields[3])
	}
	return e, warning, nil
}

func parsePart(key, text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0 && v <= 1) {
		return 0, fmt.Errorf("%s: %q is not a part of the GPU's time, from 0 to 1", key, text)
	}
	return v, nil
}

// readText returns the file's text.
func readText(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	text, err := io.ReadAll(io.LimitReader(file, mostText+1))
	if err == nil && len(text) > mostText {
		err = fmt.Errorf("%s: more than %d bytes", path, mostText)
	}
	return text, err
}
