package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/health"
)

// TestFilesAreForTheAgentsUserAndGroup holds the modes of what a journal
// makes, and that it leaves no file of a time when more were kept.
func TestFilesAreForTheAgentsUserAndGroup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "journal")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f := &journalFile{dir: dir}
	text := "damage\n" + journalText(t, incident(1))
	for i := range 5 {
		if err := os.WriteFile(f.name(i), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, repairs, _, end := testJournal(t, Options{Dir: dir, Files: 3})
	end()
	if len(repairs) != 3 {
		t.Errorf("%d repairs of three files", len(repairs))
	}
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range left {
		info, err := entry.Info()
		if err != nil || info.Mode() != 0o640 {
			t.Errorf("%s: %v, %v", entry.Name(), info.Mode(), err)
		}
		names = append(names, entry.Name())
	}
	if got := strings.Join(names, " "); got != "events.1.jsonl events.2.jsonl events.bad events.jsonl events.lock" {
		t.Errorf("left are %s", got)
	}
}

// TestReadingEndsWithTheFirstFailure is of a disk that fails while damage is
// moved aside: what could not be written must not count as moved.
func TestReadingEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	text := journalText(t, incident(1)) + "damage\n" + journalText(t, incident(2))
	full := errors.New("no space left")
	var good, bad int
	count := func(n *int, most int) error {
		if *n++; *n > most {
			return full
		}
		return nil
	}
	for _, c := range []struct{ goods, bads, good, bad int }{{0, 9, 1, 0}, {1, 9, 2, 1}, {9, 0, 1, 1}} {
		good, bad = 0, 0
		err := readLines(strings.NewReader(text), func([]byte, health.Event) error { return count(&good, c.goods) }, func([]byte) error { return count(&bad, c.bads) })
		if !errors.Is(err, full) || good != c.good || bad != c.bad {
			t.Errorf("%+v: %v after %d records and %d others", c, err, good, bad)
		}
	}
}
