package journal

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// testJournal opens a journal and runs it until end is called or the test is over.
func testJournal(t *testing.T, o Options) (j *Journal, repairs []incident.Event, log *fixture.Transcript, end func()) {
	t.Helper()
	log = new(fixture.Transcript)
	o.Log = slog.New(slog.NewTextHandler(log, nil))
	j, repairs, err := Open(o)
	fixture.Must(t, err)
	return j, repairs, log, fixture.Running(t, j.Run)
}

// happened returns an incident with its number as ID, code and second.
func happened(n int) incident.Event {
	return incident.Event{ID: fmt.Sprint("i", n), Kind: incident.KindIncident, What: "xid", Code: n,
		Severity: incident.Warning, Time: time.Unix(1e9+int64(n), 0).UTC()}
}

// wantCodes fails unless the journal's events have these codes, the newest first.
func wantCodes(t *testing.T, j *Journal, f Filter, want ...int) {
	t.Helper()
	got := []int{}
	for _, e := range j.Events(f) {
		got = append(got, e.Code)
	}
	fixture.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "events")
}

// journalSample returns the value of one of the journal's samples.
func journalSample(t *testing.T, j *Journal, m *collectors.Metric, labels ...string) float64 {
	t.Helper()
	for _, s := range j.Samples() {
		if s.Metric == m && fmt.Sprint(s.Labels) == fmt.Sprint(labels) {
			return s.Value
		}
	}
	t.Fatalf("no sample of %s%v", m, labels)
	return 0
}

// queuedBytes returns the size of the queue.
func queuedBytes(j *Journal) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.queued
}

// fileCodes returns the codes in the journal's i-th file, in order.
func fileCodes(t *testing.T, dir string, i int) (codes []int) {
	t.Helper()
	file := fixture.Value(os.Open((&journalFile{dir: dir}).name(i)))(t)
	defer file.Close()
	err := readLines(file, func(_ []byte, e incident.Event) error { codes = append(codes, e.Code); return nil },
		func(piece []byte) error { return fmt.Errorf("no record: %q", piece) })
	fixture.Must(t, err)
	return codes
}

func TestNewestOfAnIDIsKept(t *testing.T) {
	t.Parallel()
	j, _, err := Open(Options{Node: "n1", Boot: "b1"})
	fixture.Must(t, err)
	for _, n := range []int{1, 2, 3} {
		j.Append(happened(n))
	}
	again := happened(1)
	again.Count = 5
	j.Append(again)
	wantCodes(t, j, Filter{}, 1, 3, 2)
	e := j.Events(Filter{Limit: 1})[0]
	fixture.If(t, e.Count != 5 || e.Node != "n1" || e.Boot != "b1" ||
		e.Version != incident.EventVersion, "%+v, want the second record, with what it lacked", e)
	for n := range maxRecent {
		j.Append(happened(100 + n))
	}
	if all := j.Events(Filter{Limit: maxRecent}); len(all) != maxRecent || all[0].Code != 99+maxRecent ||
		len(j.recent.byID) != maxRecent {
		t.Errorf("%d events, %d IDs, the newest %d", len(all), len(j.recent.byID), all[0].Code)
	}
	j.Append(incident.Event{Kind: incident.KindAgent, Value: math.NaN(), Threshold: math.Inf(1)})
	j.Append(incident.Event{Kind: incident.KindAgent})
	two := j.Events(Filter{Limit: 2})
	fixture.If(t, two[0].ID == "" || two[0].ID == two[1].ID || two[0].Time.IsZero() || two[1].Value != 0,
		"%+v: want IDs and times of their own, and no NaN", two)
}

func TestUnencodableRecordsAreCounted(t *testing.T) {
	log := new(fixture.Transcript)
	j, _, err := Open(Options{Log: slog.New(slog.NewTextHandler(log, nil))})
	fixture.Must(t, err)
	j.Append(incident.Event{ID: "long", Kind: incident.KindIncident, Message: strings.Repeat("x", maxLine)})
	j.Append(incident.Event{ID: "year", Kind: incident.KindIncident, Time: time.Unix(1<<50, 0)})
	if j.Lost() != 2 || journalSample(t, j, LostTotal, "encoding") != 2 || len(j.Events(Filter{})) != 0 ||
		strings.Count(log.String(), "event lost") != 2 {
		t.Errorf("lost %d, events %v", j.Lost(), j.Events(Filter{}))
	}
}

func TestEventsSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made")
	synctest.Test(t, func(t *testing.T) {
		o := Options{Dir: dir, MaxBytes: 2000, Files: 3}
		j, _, _, end := testJournal(t, o)
		for n := range 40 {
			j.Append(happened(n))
			synctest.Wait()
		}
		newest := fileCodes(t, dir, 0)
		middle, oldest := fileCodes(t, dir, 1), fileCodes(t, dir, 2)
		all := append(append(append([]int{}, oldest...), middle...), newest...)
		for i, n := range all {
			fixture.Need(t, n, 40-len(all)+i, "files hold %v, %v, %v", oldest, middle, newest)
		}
		fixture.If(t, len(all) == 40 || len(middle) < 5,
			"files hold %v, %v, %v: not rotated as they should", oldest, middle, newest)
		var size int64
		for i := range 3 {
			info, err := os.Stat(j.file.name(i))
			fixture.If(t, err != nil || info.Size() > 2000 || info.Mode().Perm()&0o007 != 0, "%v, %v", info, err)
			size += info.Size()
		}
		fixture.Equal(t, journalSample(t, j, Bytes), float64(size), "the journal has … bytes")
		_, err := os.Stat(j.file.name(3))
		fixture.Equal(t, os.IsNotExist(err), true, "there is no fourth file:")
		again := happened(38)
		again.Count = 9
		j.Append(again)
		end()

		j, repairs, log, end := testJournal(t, o)
		fixture.If(t, len(repairs) != 0 || strings.Count(log.String(), "level=") != 0,
			"repaired %v, log %s", repairs, log)
		wantCodes(t, j, Filter{Limit: 3}, 38, 39, 37)
		fixture.Equal(t, j.Events(Filter{Limit: 1})[0].Count, 9, "… want the second record")
		n := len(j.Events(Filter{}))
		fixture.If(t, n < 15 || n != len(all), "%d events, want the %d of all files", n, len(all))
		fixture.AtLeast(t, journalSample(t, j, Bytes), float64(size), "… bytes before anything is written")
		end()

		o.Files = 1
		j, _, _, _ = testJournal(t, o)
		left, _ := filepath.Glob(filepath.Join(dir, "events.*.jsonl"))
		fixture.If(t, len(left) != 0, "%v are left where one file is kept", left)
		for n := range 30 {
			j.Append(happened(100 + n))
		}
		synctest.Wait()
		codes := fileCodes(t, dir, 0)
		fixture.If(t, codes[len(codes)-1] != 129 || len(codes) > 20, "one file holds %v", codes)
	})
}

func TestSevereEventsAreSynced(t *testing.T) {
	j, _, err := Open(Options{Dir: t.TempDir()})
	fixture.Must(t, err)
	for _, c := range []struct {
		event incident.Event
		want  bool
	}{
		{incident.Event{Kind: incident.KindIncident, Severity: incident.Warning}, false},
		{incident.Event{Kind: incident.KindIncident, Severity: incident.Critical}, true},
		{incident.Event{Kind: incident.KindTransition, Severity: incident.Emergency}, true},
		{incident.Event{Kind: incident.KindTransition, Latched: true}, true},
		{incident.Event{Kind: incident.KindTransition}, false},
		{incident.Event{Kind: incident.KindAck}, true},
		{incident.Event{Kind: incident.KindEnforcement}, true},
	} {
		j.Append(c.event)
		fixture.Equal(t, j.queue[len(j.queue)-1].sync, c.want, "%+v is synced", c.event)
	}
}

func TestUnsyncedRecordsAreLate(t *testing.T) {
	dir := t.TempDir()
	// it accepts all writes, and cannot be synced
	fixture.Must(t, os.Symlink("/dev/null", filepath.Join(dir, "events.jsonl")))
	synctest.Test(t, func(t *testing.T) {
		j, _, _, _ := testJournal(t, Options{Dir: dir})
		j.Append(happened(1))
		synctest.Wait()
		fixture.Equal(t, j.Late() != 0 || journalSample(t, j, QueueLength) != 0, false, "a warning: %d late", j.Late())
		bad := happened(2)
		bad.Severity = incident.Critical
		j.Append(bad)
		synctest.Wait()
		if journalSample(t, j, LateTotal, "io") != 1 || journalSample(t, j, QueueLength) != 1 {
			t.Errorf("what is critical: %d late, want it to wait", j.Late())
		}
	})
}

func TestRecordsAreWrittenAtTheEnd(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for n := range 50 { // the end and the event come at once, in either order
			j, _, _, end := testJournal(t, Options{Dir: dir})
			j.Append(happened(n))
			end()
			fixture.Need(t, j.Lost(), 0, "the last event is lost")
		}
		fixture.Equal(t, len(fileCodes(t, dir, 0)), 50, "file holds")
	})
}

func TestOneAgentOnADirectory(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		first, _, _, end := testJournal(t, Options{Dir: dir})
		_, _, err := Open(Options{Dir: dir})
		fixture.If(t, err == nil || !strings.Contains(err.Error(),
			"another agent writes it; --state.dir takes another directory"), "a second agent: %v", err)
		first.Append(happened(1))
		end()
		second, _, _, _ := testJournal(t, Options{Dir: dir})
		wantCodes(t, second, Filter{}, 1)
	})
}

func TestAppendNeverWaits(t *testing.T) {
	t.Parallel()
	j, _, err := Open(Options{Dir: t.TempDir()}) // no writer runs, as with a disk that hangs
	fixture.Must(t, err)
	for n := range maxQueue / 100 {
		j.Append(happened(n))
	}
	if j.Lost() == 0 || journalSample(t, j, LostTotal, "queue") != float64(j.Lost()) || queuedBytes(j) > maxQueue {
		t.Errorf("lost %d, queue %d bytes", j.Lost(), queuedBytes(j))
	}
	wantCodes(t, j, Filter{Limit: 1}, maxQueue/100-1)
}
