package host

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// mostWaiting bounds the records waiting for a follower. A follower with more
// is behind, and later reads them from the kernel's ring.
const mostWaiting = 256

// A KernelLog distributes the records of the kernel's log to its followers. One
// goroutine reads for all of them, as long as there are any. Only records of
// the kernel itself count, because users can write to the log. The methods are
// safe for concurrent use.
type KernelLog struct {
	open func() (*recordReader, error)
	lost atomic.Uint64

	mu   sync.Mutex
	feed *feed // nil without followers
}

// A feed is the log, opened once.
type feed struct {
	followers map[*follower]bool // guarded by the KernelLog's mu
	stop      context.CancelFunc
	ended     chan struct{}
	err       error // why it ended; read only after done
}

// A follower receives records from a feed.
type follower struct {
	records chan Record
	behind  atomic.Bool // records was full, and the feed skips this follower
}

// NewKernelLog returns the log at path, which is /dev/kmsg or a plain file of
// records.
func NewKernelLog(path string) *KernelLog {
	return &KernelLog{open: func() (*recordReader, error) { return openRecords(path) }}
}

// Lost returns the number of records that the kernel dropped before they were
// read; each follower missed at most that many.
func (l *KernelLog) Lost() uint64 { return l.lost.Load() }

// Follow calls each for every record in the kernel's ring, and for every new
// one as soon as the kernel logs it, until ctx ends (nil) or the log cannot be
// read. A slow follower delays no other.
func (l *KernelLog) Follow(ctx context.Context, each func(Record)) error {
	me := &follower{records: make(chan Record, mostWaiting)}
	f, err := l.join(me)
	if err != nil {
		return err
	}
	defer l.leave(f, me)
	next, err := l.Replay(ctx, 0, each)
	for err == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-f.ended:
			return f.err
		case r := <-me.records:
			if r.Sequence >= next { // earlier ones were in the ring
				next = r.Sequence + 1
				each(r)
			}
		}
		if len(me.records) == 0 && me.behind.Swap(false) {
			next, err = l.Replay(ctx, next, each)
		}
	}
	return err
}

// Pauses between attempts to read the kernel's log.
const followFirst, followMost = time.Second, time.Minute

// FollowLog calls each for every record that log follows, once, until ctx ends. If log fails, that
// is told, and tried again, ever more rarely.
func FollowLog(ctx context.Context, log func(ctx context.Context, each func(Record)) error, each func(Record),
	failed func(err error, first bool)) {
	next := uint64(0) // sequence number of the first record that is new
	for wait := followFirst; ; wait = min(2*wait, followMost) {
		began := time.Now()
		err := log(ctx, func(r Record) {
			if r.Sequence >= next {
				next = r.Sequence + 1
				each(r)
			}
		})
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= followMost { // it was read: this failure is a new one
			wait = followFirst
		}
		failed(err, wait == followFirst)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// Replay calls each for every record now in the kernel's ring from the sequence
// number next on, and returns the number after the last.
func (l *KernelLog) Replay(ctx context.Context, next uint64, each func(Record)) (uint64, error) {
	r, err := l.reader()
	if err != nil {
		return next, err
	}
	defer r.file.Close()
	r.next, r.overran = next, next > 0 // records that the ring has dropped are lost
	err = r.each(ctx, func(r Record) {
		if r.Sequence >= next {
			next = r.Sequence + 1
			if r.Kernel() {
				each(r)
			}
		}
	})
	return next, err
}

// reader opens the log.
func (l *KernelLog) reader() (*recordReader, error) {
	r, err := l.open()
	if err != nil {
		return nil, Explain(err, Reads)
	}
	r.lost = func(n uint64) { l.lost.Add(n) }
	return r, nil
}

// join gives me everything that the kernel logs from now on. The first follower
// opens the log.
func (l *KernelLog) join(me *follower) (*feed, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.feed == nil {
		r, err := l.reader()
		if err != nil {
			return nil, err
		}
		if _, err := r.file.Seek(0, io.SeekEnd); err != nil {
			r.file.Close()
			return nil, fmt.Errorf("find the end of the kernel log: %w", err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		l.feed = &feed{followers: map[*follower]bool{}, stop: cancel, ended: make(chan struct{})}
		go l.read(ctx, l.feed, r)
	}
	l.feed.followers[me] = true
	return l.feed, nil
}

// leave ends a follower's membership. The last follower closes the log.
func (l *KernelLog) leave(f *feed, me *follower) {
	l.mu.Lock()
	delete(f.followers, me)
	last := len(f.followers) == 0
	if last && l.feed == f {
		l.feed = nil
	}
	l.mu.Unlock()
	if last {
		f.stop()
		<-f.ended
	}
}

// read hands on the records of r until ctx ends or the log cannot be read.
func (l *KernelLog) read(ctx context.Context, f *feed, r *recordReader) {
	defer close(f.ended)
	defer r.file.Close()
	f.err = r.follow(ctx, func(r Record) { l.hand(f, r) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.feed == f {
		l.feed = nil
	}
}

// hand gives r to every follower that is not behind.
func (l *KernelLog) hand(f *feed, r Record) {
	if !r.Kernel() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for one := range f.followers {
		if one.behind.Load() {
			continue
		}
		select {
		case one.records <- r:
		default:
			one.behind.Store(true)
		}
	}
}
