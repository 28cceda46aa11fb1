package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/collectors/host"
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
		fixture.If(t, !errors.Is(err, full) || good != c.good || bad != c.bad,
			"%+v: %v after %d records and %d others", c, err, good, bad)
	}
}

// TestFileStaysOpen holds that a journal continues in its open file, and in
// a new one if that file was removed or its name belongs to another.
func TestFileStaysOpen(t *testing.T) {
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
		"no kind": {one + `{"id":"x","time":"2026-01-01T00:00:00Z"}` + "\n", `{"id":"x","time":"2026-01-01T00:00:00Z"}` +
			"\n", []int{1}},
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
		fixture.Stop(t, err != nil || repaired == nil || len(events.byID) != 1 ||
			!strings.Contains(repaired.Message, "700700 bytes"), "%+v, %v", repaired, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "events.bad")); err != nil || info.Size() > maxBad ||
		info.Size() < maxBad/2 {
		t.Errorf("events.bad has %d bytes, %v", info.Size(), err)
	}
}

func TestImmovableDamage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events.jsonl")
	fixture.Must(t, os.Symlink("/dev/full", filepath.Join(dir, "events.bad")))
	text := "junk\n" + journalText(t, happened(1))
	fixture.Must(t, os.WriteFile(path, []byte(text), 0o600))
	events, repaired, err := loadFile(path)
	fixture.If(t, err != nil || repaired == nil || repaired.What != "journal_damaged" || len(events.byID) != 1,
		"%+v, %v", repaired, err)
	if kept, err := os.ReadFile(path); err != nil || string(kept) != text {
		t.Errorf("the file is now %q, %v; want it as it was", kept, err)
	}
}

// TestUnreadableFileIsNotRepaired holds that a repair that could not begin does not count.
func TestUnreadableFileIsNotRepaired(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	file := fixture.Value(os.Create(path))(t)
	fixture.Must(t, file.Close())
	fixture.If(t, repair(file, path) == nil, "it was repaired")
}

// FuzzReadLines holds that damage never removes an earlier record, that good and bad lines together are the whole file,
// and that a repaired file needs no further repair.
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
			fixture.Must(t, readLines(bytes.NewReader(text), func(line []byte, e incident.Event) error {
				found[e.ID], good = true, append(append(good, line...), '\n')
				return nil
			}, func(piece []byte) error { bad = append(bad, piece...); return nil }))
			return found, good, bad
		}
		found, good, bad := read(text)
		// A line that continues with noise is no longer the written line.
		for _, e := range events[:strings.Count(whole[:min(int(at), len(whole))], "\n")] {
			fixture.Equal(t, found[e.ID], true, "%s is lost", e.ID)
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

func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "events.jsonl")
	fixture.Must(t, os.Symlink("/dev/full", path))
	synctest.Test(t, func(t *testing.T) {
		j, _, log, _ := testJournal(t, Options{Dir: dir})
		for n := range 3 {
			j.Append(happened(n))
			time.Sleep(10 * retryAfter)
		}
		wantCodes(t, j, Filter{}, 2, 1, 0)
		if j.Lost() != 0 || j.Late() != 3 || journalSample(t, j, LateTotal, "no_space") != 3 ||
			journalSample(t, j, QueueLength) != 3 || strings.Count(log.String(), "cannot write the journal") != 1 {
			t.Errorf("lost %d, log %s", j.Lost(), log)
		}
		long := happened(3) // fills the queue
		long.Message = strings.Repeat("x", maxLine-1000)
		for range maxQueue/(maxLine-1000) + 10 {
			j.Append(long)
		}
		lost := j.Lost()
		if lost < 9 || lost > 12 || journalSample(t, j, LostTotal, "no_space") != float64(lost) ||
			queuedBytes(j) > maxQueue {
			t.Errorf("lost %d, queue %d bytes", lost, queuedBytes(j))
		}
		fixture.Must(t, os.Remove(path)) // there is room again
		time.Sleep(retryAfter)
		synctest.Wait()
		codes := fileCodes(t, dir, 0)
		fixture.If(t, fmt.Sprint(codes[:4]) != "[0 1 2 3]" || codes[len(codes)-1] != 0,
			"written when there is room again: %v", codes)
		e := j.Events(Filter{Kind: incident.KindAgent})[0]
		fixture.If(t, e.What != "journal_lost" || e.Count != int(lost) ||
			e.Severity != incident.Warning, "%+v, want a record of the gap", e)
		if queuedBytes(j) != 0 || strings.Count(log.String(), "journal written again") != 1 || journalSample(t, j, QueueLength) != 0 {
			t.Errorf("queue %d bytes, log %s", queuedBytes(j), log)
		}
		j.Append(happened(7))
		synctest.Wait()
		fixture.Equal(t, len(j.Events(Filter{Kind: incident.KindAgent})), 1, "the gap is told of … times")
	})
}

func TestFillingFileSystem(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skip("only root can mount a small file system:", err)
	}
	defer syscall.Unmount(dir, syscall.MNT_DETACH)
	synctest.Test(t, func(t *testing.T) {
		j, _, log, end := testJournal(t, Options{Dir: dir})
		long := func(n int) incident.Event {
			e := happened(n)
			e.Message = strings.Repeat("x", 5000)
			return e
		}
		for n := range 20 {
			j.Append(long(n))
		}
		synctest.Wait()
		codes := fileCodes(t, dir, 0) // fails on a half of a record
		fixture.If(t, len(codes) < 5 || len(codes) > 13 || strings.Count(log.String(), "no space left") != 1,
			"%v fitted, log %s", codes, log)
		fixture.Must(t, syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT, "size=1m"))
		time.Sleep(retryAfter)
		synctest.Wait()
		if codes := fileCodes(t, dir, 0); len(codes) != 20 || codes[19] != 19 || j.Lost() != 0 {
			t.Errorf("with room again: %v, lost %d", codes, j.Lost())
		}
		end()
	})
}

func TestDisappearingDirectories(t *testing.T) {
	t.Run("gone", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		synctest.Test(t, func(t *testing.T) {
			j, _, _, _ := testJournal(t, Options{Dir: dir})
			j.Append(happened(1))
			synctest.Wait()
			fixture.Must(t, os.RemoveAll(dir))
			j.Append(happened(2))
			synctest.Wait()
			codes := fileCodes(t, dir, 0)
			fixture.If(t, fmt.Sprint(codes) != "[2]" || j.Lost() != 0, "file holds %v", codes)
		})
	})
	t.Run("not yet", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "state")
		fixture.Must(t, os.WriteFile(dir, nil, 0o600))
		synctest.Test(t, func(t *testing.T) {
			j, _, log, _ := testJournal(t, Options{Dir: dir})
			j.Append(happened(1))
			time.Sleep(3 * retryAfter)
			fixture.Equal(t, strings.Count(log.String(), "cannot write the journal"), 1, "log %s", log)
			fixture.Must(t, os.Remove(dir))
			time.Sleep(retryAfter)
			synctest.Wait()
			fixture.Equal(t, fmt.Sprint(fileCodes(t, dir, 0)), "[1]", "file holds")
		})
	})
	t.Run("never", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			j, _, log, end := testJournal(t, Options{Dir: "/proc/no/such"})
			j.Append(happened(1))
			end()
			wantCodes(t, j, Filter{}, 1)
			if j.Lost() != 1 || strings.Count(log.String(), "journal ends with records that are not written") != 1 {
				t.Errorf("lost %d, log %s", j.Lost(), log)
			}
			j.Append(happened(2))
			fixture.Equal(t, journalSample(t, j, LostTotal, "ended"), 1,
				"an event after the end of the journal is not counted")
		})
	})
}

// TestLockOfKilledAgent has a lock that outlives the process that took it, as it does while
// one of its threads hangs in the driver, or a child of it has not begun yet.
func TestLockOfKilledAgent(t *testing.T) {
	t.Parallel()
	space := fixture.Value(os.Readlink("/proc/self/ns/pid"))(t)
	lives, ended := exec.Command("sleep", "600"), exec.Command("true")
	for _, cmd := range []*exec.Cmd{lives, ended} {
		fixture.Must(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	zombie := ended.Process.Pid
	fixture.Must(t, unix.Waitid(unix.P_PID, zombie, nil, unix.WEXITED|unix.WNOWAIT, nil))
	gone := exec.Command("true")
	fixture.Must(t, gone.Run())
	for name, c := range map[string]struct {
		owner string
		taken bool
	}{
		"it lives":                {fmt.Sprintf("%d %s\n", lives.Process.Pid, space), false},
		"it was killed":           {fmt.Sprintf("%d %s\n", zombie, space), true},
		"it has ended":            {fmt.Sprintf("%d %s\n", gone.Process.Pid, space), true},
		"it is in a container":    {fmt.Sprintf("%d pid:[1]\n", zombie), false},
		"it is of a version ago":  {"", false},
		"somebody wrote the file": {"everybody " + space, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "events.lock")
			held := fixture.Value(host.TakeLock(path, 0o640))(t)
			defer held.Release()
			fixture.Must(t, os.WriteFile(path, []byte(c.owner), 0))
			file, err := lockFile(path)
			fixture.Stop(t, err == nil != c.taken || !c.taken && !isLocked(err), "%v, want it taken: %v", err, c.taken)
			if !c.taken {
				return
			}
			if _, err := lockFile(path); !isLocked(err) {
				t.Errorf("another one: %v", err)
			}
			file.Release()
			file, err = lockFile(path)
			fixture.Stop(t, err != nil, "the next one: %v", err)
			file.Release()
		})
	}
}

// TestLockOnAFullDisk has no room for the name of the owner.
func TestLockOnAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4k"); err != nil {
		t.Skip("only root can mount a small file system:", err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "other"), make([]byte, 4096), 0o600))
	path := filepath.Join(dir, "events.lock")
	file := fixture.Value(lockFile(path))(t)
	defer file.Release()
	_, err := lockFile(path)
	fixture.Equal(t, isLocked(err), true, "another one, %v: it is locked", err)
	fixture.Equal(t, len(fixture.Value(os.ReadFile(path))(t)), 0, "the disk is full, and the owner's name has bytes:")
	other := fixture.Value(host.LockDir(dir))(t)
	defer other.Release()
	_, err = lockFile(filepath.Join(dir, "another.lock"))
	fixture.Equal(t, isLocked(err), true, "while another agent replaces a lock, %v: it is locked", err)
}

func TestKilled(t *testing.T) {
	for status, want := range map[string]bool{
		"Name:\tgpusteward\nState:\tS (sleeping)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n":      false,
		"Name:\tgpusteward\nState:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n":    false,
		"Name:\tgpusteward\nState:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n":    true,
		"Name:\tgpusteward\nState:\tD (disk sleep)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000004100\n":    true,
		"Name:\tgpusteward\nState:\tS (sleeping)\nSigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\n":      false,
		"Name:\tgpusteward\nState:\tZ (zombie)\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000000\n":        true,
		"Name:\tZ\nState:\tR (running)\nSigPnd:\t0000000000000000\nShdPnd:\tffff\nSigBlk:\tffffffffffffffff\n": true,
		"Name:\tgpusteward\nState:\tS (sleeping)\nSigBlk:\t0000000000000100\nSigCgt:\tfffffffffffffeff\n":      false,
		"": false,
	} {
		fixture.Equal(t, killed([]byte(status)), want, "%q", status)
	}
}
