package journal

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

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
		if fmt.Sprint(codes[:4]) != "[0 1 2 3]" || codes[len(codes)-1] != 0 {
			t.Errorf("written when there is room again: %v", codes)
		}
		if e := j.Events(Filter{Kind: incident.KindAgent})[0]; e.What != "journal_lost" || e.Count != int(lost) ||
			e.Severity != incident.Warning {
			t.Errorf("%+v, want a record of the gap", e)
		}
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
		if len(codes) < 5 || len(codes) > 13 || strings.Count(log.String(), "no space left") != 1 {
			t.Errorf("%v fitted, log %s", codes, log)
		}
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
			if codes := fileCodes(t, dir, 0); fmt.Sprint(codes) != "[2]" || j.Lost() != 0 {
				t.Errorf("file holds %v", codes)
			}
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
			if codes := fileCodes(t, dir, 0); fmt.Sprint(codes) != "[1]" {
				t.Errorf("file holds %v", codes)
			}
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
