package journal

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// TestFilesAreForTheAgentsUserAndGroup checks the modes of a journal's files,
// and that it removes the files of a time when more were kept.
func TestFilesAreForTheAgentsUserAndGroup(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "journal")
	fixture.Must(t, os.MkdirAll(dir, 0o755))
	f := &journalFile{dir: dir}
	text := "damage\n" + journalText(t, happened(1))
	for i := range 5 {
		fixture.Must(t, os.WriteFile(f.name(i), []byte(text), 0o600))
	}
	_, repairs, _, end := testJournal(t, Options{Dir: dir, Files: 3})
	end()
	fixture.Equal(t, len(repairs), 3, "repairs of three files")
	left := fixture.Value(os.ReadDir(dir))(t)
	var names []string
	for _, entry := range left {
		info, err := entry.Info()
		if err != nil || info.Mode() != 0o640 {
			t.Errorf("%s: %v, %v", entry.Name(), info.Mode(), err)
		}
		names = append(names, entry.Name())
	}
	fixture.Equal(t, strings.Join(names, " "), "events.1.jsonl events.2.jsonl events.bad events.jsonl events.lock",
		"left are")
}

// TestReadingEndsWithTheFirstFailure has a disk that fails while damage is
// moved aside. A line that could not be written must not count as moved.
func TestReadingEndsWithTheFirstFailure(t *testing.T) {
	t.Parallel()
	text := journalText(t, happened(1)) + "damage\n" + journalText(t, happened(2))
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
		err := readLines(strings.NewReader(text), func([]byte, incident.Event) error { return count(&good, c.goods) },
			func([]byte) error { return count(&bad, c.bads) })
		if !errors.Is(err, full) || good != c.good || bad != c.bad {
			t.Errorf("%+v: %v after %d records and %d others", c, err, good, bad)
		}
	}
}

// TestFileStaysOpen holds that a journal continues in its open file, and in
// a new one if that file was removed or its name belongs to another.
func TestFileStaysOpen(t *testing.T) {
	t.Parallel()
	f := &journalFile{dir: t.TempDir(), most: 1 << 20, keep: 2}
	defer f.close()
	write := func() *os.File {
		if n, err := f.append([]line{{text: []byte("{}\n")}}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		return f.file
	}
	first := write()
	fixture.Equal(t, write(), first, "the file was opened anew")
	fixture.Must(t, os.Remove(f.name(0)))
	second := write()
	fixture.Must(t, os.Rename(f.name(0), f.name(1)))
	fixture.Must(t, os.WriteFile(f.name(0), nil, 0o600))
	third := write()
	if text, err := os.ReadFile(f.name(0)); second == first || third == second || string(text) != "{}\n" {
		t.Errorf("a file that was taken away is still written to: there is %q, %v", text, err)
	}
}

// TestTruncatedLineIsEndedOnce lets a file end within a line. The next write ends that
// line once, even if the file was closed in between.
func TestTruncatedLineIsEndedOnce(t *testing.T) {
	t.Parallel()
	f := &journalFile{dir: t.TempDir(), most: 1 << 20, keep: 2}
	defer f.close()
	fixture.Must(t, os.WriteFile(f.name(0), []byte("{"), 0o600))
	record := line{text: []byte("{}\n")}
	for range 2 {
		if n, err := f.append([]line{record, record}); n != 2 || err != nil {
			t.Fatal(n, err)
		}
		f.close()
	}
	if text, err := os.ReadFile(f.name(0)); err != nil || string(text) != "{\n{}\n{}\n{}\n{}\n" {
		t.Errorf("%q, %v", text, err)
	}
}
