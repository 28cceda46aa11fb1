package journal

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// journalText returns events as the journal writes them.
func journalText(t testing.TB, events ...incident.Event) string {
	t.Helper()
	var text strings.Builder
	for _, e := range events {
		fixture.Must(t, json.NewEncoder(&text).Encode(e))
	}
	return text.String()
}

func TestDamageIsRepaired(t *testing.T) {
	one, two := journalText(t, happened(1)), journalText(t, happened(2))
	for name, c := range map[string]struct {
		text string
		bad  string // the lines that are moved aside
		want []int
	}{
		"cut":            {one + two[:len(two)/2], two[:len(two)/2], []int{1}},
		"cut at the \\n": {one + two[:len(two)-1], "", []int{2, 1}},
		"nul":            {one + strings.Repeat("\x00", 4096), strings.Repeat("\x00", 4096), []int{1}},
		"nul within":     {one + "\x00\x00\n" + two, "\x00\x00\n", []int{2, 1}},
		"garbage":        {"\xff\xfe{}\n" + one + "[1]\nnull\n" + two, "\xff\xfe{}\n[1]\nnull\n", []int{2, 1}},
		"no event": {one + "{}\n" + `{"id":"x","kind":"incident"}` + "\n" + two, "{}\n" +
			`{"id":"x","kind":"incident"}` + "\n", []int{2, 1}},
		"bad severity": {strings.Replace(one, `"warning"`, `"awful"`, 1) +
			two, strings.Replace(one, `"warning"`, `"awful"`, 1), []int{2}},
		"too long": {one + strings.Repeat("x", 3*maxLine) + "\n" + two, strings.Repeat("x", 3*maxLine) +
			"\n", []int{2, 1}},
		"just too long": {one + strings.Repeat("x", maxLine) + "\n" + two, strings.Repeat("x", maxLine) +
			"\n", []int{2, 1}},
		"long, then one": {strings.Repeat("x", maxLine) + one + two, strings.Repeat("x", maxLine) + one, []int{2}},
		"empty lines":    {"\n\n" + one + "\n" + two + "\n", "", []int{2, 1}},
		"nothing":        {"", "", nil},
		"all of it":      {"no journal at all", "no journal at all", nil},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "events.jsonl")
			fixture.Must(t, os.WriteFile(path, []byte(c.text), 0o600))
			synctest.Test(t, func(t *testing.T) {
				j, repairs, log, end := testJournal(t, Options{Dir: dir})
				wantCodes(t, j, Filter{Kind: incident.KindIncident}, c.want...)
				moved, _ := os.ReadFile(filepath.Join(dir, "events.bad"))
				fixture.Equal(t, string(moved), c.bad, "moved aside")
				told := j.Events(Filter{Kind: incident.KindAgent})
				switch {
				case c.bad == "" && (len(repairs) > 0 || len(told) > 0 || strings.Count(log.String(), "level=") > 0):
					t.Errorf("nothing was bad, but: %+v, log %s", repairs, log)
				case c.bad != "" && (len(repairs) != 1 || len(told) != 1 || told[0].ID != repairs[0].ID ||
					told[0].What != "journal_repaired" || strings.Count(log.String(), "journal repaired") != 1):
					t.Errorf("told %+v, returned %+v, log %s", told, repairs, log)
				}
				j.Append(happened(3))
				end()
				j, repairs, _, _ = testJournal(t, Options{Dir: dir})
				wantCodes(t, j, Filter{Kind: incident.KindIncident}, append([]int{3}, c.want...)...)
				fixture.Equal(t, len(repairs), 0, "repaired again: %+v", repairs)
			})
		})
	}
}

func TestBadRecordsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "events.jsonl")
	for range 3 {
		text := strings.Repeat(strings.Repeat("x", 1000)+"\n", 700) + journalText(t, happened(1))
		fixture.Must(t, os.WriteFile(path, []byte(text), 0o600))
		events, repaired, err := loadFile(path)
		if err != nil || repaired == nil || len(events.byID) != 1 ||
			!strings.Contains(repaired.Message, "700700 bytes") {
			t.Fatalf("%+v, %v", repaired, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "events.bad")); err != nil || info.Size() > maxBad ||
		info.Size() < maxBad/2 {
		t.Errorf("events.bad has %d bytes, %v", info.Size(), err)
	}
}

func TestImmovableDamage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "events.jsonl")
	fixture.Must(t, os.Symlink("/dev/full", filepath.Join(dir, "events.bad")))
	text := "junk\n" + journalText(t, happened(1))
	fixture.Must(t, os.WriteFile(path, []byte(text), 0o600))
	events, repaired, err := loadFile(path)
	if err != nil || repaired == nil || repaired.What != "journal_damaged" || len(events.byID) != 1 {
		t.Errorf("%+v, %v", repaired, err)
	}
	if kept, err := os.ReadFile(path); err != nil || string(kept) != text {
		t.Errorf("the file is now %q, %v; want it as it was", kept, err)
	}
}

// TestUnreadableFileIsNotRepaired holds that a repair that could
// not begin does not count.
func TestUnreadableFileIsNotRepaired(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "events.jsonl")
	file := fixture.Value(os.Create(path))(t)
	fixture.Must(t, file.Close())
	if err := repair(file, path); err == nil {
		t.Error("it was repaired")
	}
}

// FuzzReadLines holds that damage never removes an earlier record, that good
// and bad lines together are the whole file, and that a repaired file needs no
// further repair.
func FuzzReadLines(f *testing.F) {
	f.Add([]byte("\x00\x00\x00"), uint16(10))
	f.Add([]byte("{\"id\":\"\n"), uint16(400))
	f.Add([]byte(strings.Repeat("x", maxLine+5)), uint16(0))
	events := []incident.Event{happened(1), happened(2), happened(3)}
	whole := journalText(f, events...)
	f.Fuzz(func(t *testing.T, noise []byte, at uint16) {
		text := append([]byte(whole[:min(int(at), len(whole))]), noise...)
		read := func(text []byte) (found map[string]bool, good, bad []byte) {
			found = map[string]bool{}
			if err := readLines(bytes.NewReader(text), func(line []byte, e incident.Event) error {
				found[e.ID], good = true, append(append(good, line...), '\n')
				return nil
			}, func(piece []byte) error { bad = append(bad, piece...); return nil }); err != nil {
				t.Fatal(err)
			}
			return found, good, bad
		}
		found, good, bad := read(text)
		// A line that continues with noise is no longer the written line.
		for _, e := range events[:strings.Count(whole[:min(int(at), len(whole))], "\n")] {
			if !found[e.ID] {
				t.Errorf("%s is lost", e.ID)
			}
		}
		count := func(text []byte) int { return len(text) - bytes.Count(text, []byte{'\n'}) }
		if count(good)+count(bad) != count(text) {
			t.Errorf("%d bytes are good and %d bad, of %d", count(good), count(bad), count(text))
		}
		if again, _, bad := read(good); len(again) != len(found) || len(bad) > 0 {
			t.Errorf("after the repair: %d records of %d, bad are %q", len(again), len(found), bad)
		}
	})
}
