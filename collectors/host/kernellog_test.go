package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/internal/fixture"
)

// A written is a plain file in place of the kernel's log.
type written struct {
	t        *testing.T
	path     string
	sequence int
}

func newWritten(t *testing.T) *written {
	return &written{t: t, path: filepath.Join(t.TempDir(), "kmsg")}
}

// say writes n lines to the log.
func (w *written) say(n int) {
	w.t.Helper()
	for range n {
		w.write(fmt.Sprintf("4,%d,1,-;line %d\n", w.sequence, w.sequence))
		w.sequence++
	}
}

func (w *written) write(text string) {
	w.t.Helper()
	f := fixture.Value(os.OpenFile(w.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))(w.t)
	defer f.Close()
	fixture.Must(w.t, fixture.Error(f.WriteString(text)))
}

// keep drops all but the last n lines.
func (w *written) keep(n int) {
	w.t.Helper()
	text := fixture.Value(os.ReadFile(w.path))(w.t)
	lines := strings.SplitAfter(string(text), "\n")
	fixture.Must(w.t, os.Rename(w.path, w.path+".old")) // open descriptors continue to read it
	w.write(strings.Join(lines[len(lines)-1-n:], ""))
}

// opened returns the number of this process's descriptors for the file.
func (w *written) opened() (n int) {
	fds := fixture.Value(os.ReadDir("/proc/self/fd"))(w.t)
	for _, fd := range fds {
		if at, _ := os.Readlink("/proc/self/fd/" + fd.Name()); at == w.path {
			n++
		}
	}
	return n
}

// A listener records what it receives.
type listener struct {
	seen  []uint64
	ended chan error
	leave context.CancelFunc
}

// listen follows log until the listener leaves, and calls first before each record.
func listen(t *testing.T, log *KernelLog, first func()) *listener {
	ctx, cancel := context.WithCancel(t.Context())
	l := &listener{ended: make(chan error, 1), leave: cancel}
	go func() {
		l.ended <- log.Follow(ctx, func(r Record) {
			first()
			l.seen = append(l.seen, r.Sequence)
		})
	}()
	synctest.Wait() // until it waits for more
	return l
}

func atOnce() {}

// end makes l leave, and returns what it has seen.
func (l *listener) end(t *testing.T) []uint64 {
	t.Helper()
	l.leave()
	fixture.Must(t, <-l.ended)
	return l.seen
}

// upTo returns 0 to n-1.
func upTo(n int) (all []uint64) {
	for i := range n {
		all = append(all, uint64(i))
	}
	return all
}

// look polls the end of the log once more, in the bubble's time.
func look() {
	time.Sleep(2 * lookAgain)
	synctest.Wait()
}

func TestOneReaderServesAllFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(t)
		w.say(3)
		log := NewKernelLog(w.path)
		var all []*listener
		for range 4 { // each joins later than the one before
			all = append(all, listen(t, log, atOnce))
			w.say(2)
			fixture.Equal(t, w.opened(), 1, "%d followers have the log open … times", len(all))
		}
		w.write("12,99,1,-;a user's\n")
		look()
		for i, l := range all {
			fixture.EqualSlices(t, l.end(t), upTo(11), "follower %d saw", i)
		}
		if n := w.opened(); n != 0 || log.Lost() != 0 {
			t.Errorf("without a follower the log is open %d times; %d lost", n, log.Lost())
		}
		fixture.EqualSlices(t, listen(t, log, atOnce).end(t), upTo(11), "the first follower after all had left saw")
	})
}

// TestSlowFollowerDoesNotDelayOthers keeps one follower busy while the kernel logs more than can wait for it. It reads
// the rest from the ring, and the records that the ring dropped are counted.
func TestSlowFollowerDoesNotDelayOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(t)
		w.say(1)
		log := NewKernelLog(w.path)
		hold := make(chan struct{})
		wait := atOnce
		slow, quick := listen(t, log, func() { wait() }), listen(t, log, atOnce)
		wait = func() { <-hold }
		flood := func(n int) {
			w.say(1) // which keeps the slow one busy
			look()
			w.say(n)
			look()
		}
		const most, dropped = 2 * mostWaiting, 10
		flood(most)
		fixture.Equal(t, len(quick.seen), most+2, "the quick one saw … records")
		close(hold)
		look()
		if got := slow.seen; !slices.Equal(got, upTo(most+2)) || log.Lost() != 0 {
			t.Errorf("the slow one saw %d records, want %d; %d lost", len(got), most+2, log.Lost())
		}
		hold = make(chan struct{})
		flood(most)
		w.keep(most - mostWaiting - dropped)
		close(hold)
		look()
		if got := slow.end(t); len(got) != 2*most+3-dropped || log.Lost() != dropped {
			t.Errorf("the slow one saw %d records, %d lost, want %d and %d", len(got), log.Lost(), 2*most+3-dropped,
				dropped)
		}
		if got := quick.end(t); !slices.Equal(got, upTo(2*most+3)) {
			t.Errorf("the quick one saw %d records, want %d", len(got), 2*most+3)
		}
	})
}

// TestFailedKernelLogIsReopened lets a read fail while there are followers: all
// get the error, and a follower that returns misses nothing logged meanwhile.
func TestFailedKernelLogIsReopened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWritten(t)
		w.say(2)
		log := NewKernelLog(w.path)
		var fails atomic.Bool
		open := log.open
		log.open = func() (*recordReader, error) {
			r, err := open()
			r.sysRead = func(fd int, p []byte) (int, error) {
				if fails.Load() {
					return -1, syscall.EIO
				}
				return syscall.Read(fd, p)
			}
			return r, err
		}
		one, other := listen(t, log, atOnce), listen(t, log, atOnce)
		fails.Store(true)
		w.say(2)
		look()
		for _, l := range []*listener{one, other} {
			fixture.Fails(t, <-l.ended, "read kernel log", "a follower")
		}
		fixture.If(t, log.Follow(t.Context(), func(Record) {}) == nil,
			"a follower that returns too early gets no error")
		fixture.Equal(t, w.opened(), 0, "a log that failed is open … times")
		fails.Store(false)
		again := listen(t, log, atOnce)
		w.say(1)
		look()
		fixture.EqualSlices(t, again.end(t), upTo(5), "the follower that returned saw")
	})
}

func TestMissingLogFile(t *testing.T) {
	log := NewKernelLog(filepath.Join(t.TempDir(), "none"))
	fixture.Equal(t, errors.Is(log.Follow(t.Context(), func(Record) {}), fs.ErrNotExist), true, "that there is none")
}
