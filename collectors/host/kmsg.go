package host

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Record is one record of the kernel's log.
type Record struct {
	Priority int       // severity, 0 to 7, plus 8 times the facility: see Kernel
	Sequence uint64    // number of the record since boot; an overrun leaves a gap
	Time     time.Time // see recordReader
	Text     string    // as in /dev/kmsg, with unprintable bytes as \x and two digits
}

// Kernel reports whether the kernel itself logged r. Writers to /dev/kmsg can
// use any facility except the kernel's, which is 0.
func (r Record) Kernel() bool { return r.Priority>>3 == 0 }

// escaped is a byte as /dev/kmsg writes those that are not ASCII or not printable,
// and the backslash.
var escaped = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// Unescape returns a part of a record's text as it was logged, which may be
// anything.
func Unescape(text string) string {
	return escaped.ReplaceAllStringFunc(text, func(s string) string {
		b, _ := hex.DecodeString(s[len(`\x`):])
		return string(b)
	})
}

// A recordReader reads /dev/kmsg from the start of the kernel's ring, so that
// messages from before the agent's start are not lost. It belongs to one
// goroutine.
//
// The kernel stamps a record with microseconds of its own clock, which begins
// at boot and drifts by some seconds a day. A record that follow waited for is
// therefore dated by its arrival, which calibrates that clock. Other records
// are dated from the last calibration, or from CLOCK_MONOTONIC before the
// first.
type recordReader struct {
	file    *os.File
	raw     syscall.RawConn
	sysRead func(fd int, p []byte) (int, error)
	buffer  [8192]byte     // the kernel's records are shorter
	rest    []byte         // unparsed rest of buffer
	waited  bool           // whether the read of rest waited
	zero    time.Time      // time at which the kernel's clock read 0
	next    uint64         // sequence number after the last record; 0 before the first
	overran bool           // the kernel dropped unread records
	lost    func(n uint64) // receives the number of dropped records
}

// lookAgain is the interval at which the end of a plain file is polled.
const lookAgain = time.Second

// openRecords opens the log at path, which may also be a plain file or a pipe
// of records. The caller closes it.
func openRecords(path string) (*recordReader, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open kernel log: %w", err)
	}
	l := &recordReader{file: file, raw: raw, sysRead: syscall.Read, lost: func(uint64) {}}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &up); err != nil {
		file.Close()
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	l.zero = time.Now().Add(-time.Duration(up.Nano()))
	return l, nil
}

// each calls take for every record present. It never waits.
func (l *recordReader) each(ctx context.Context, take func(Record)) error {
	for ctx.Err() == nil {
		r, err := l.record(false)
		switch {
		case err == nil:
			take(r)
		case errors.Is(err, io.EOF), errors.Is(err, syscall.EAGAIN):
			return nil
		default:
			return fmt.Errorf("read kernel log: %w", err)
		}
	}
	return nil
}

// follow calls take for every record, present and future, as soon as the kernel
// logs it, until ctx ends (nil) or the log cannot be read.
func (l *recordReader) follow(ctx context.Context, take func(Record)) error {
	// A plain file has no deadlines, but its reads do not wait either.
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(time.Now()) })
	defer stop()
	for {
		r, err := l.record(true)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			take(r)
			continue
		case !errors.Is(err, io.EOF):
			return fmt.Errorf("read kernel log: %w", err)
		}
		l.waited = true
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
		}
	}
}

// record returns the next record. At the end of the log the error is io.EOF if
// there is nothing to wait for, and EAGAIN if wait is false.
func (l *recordReader) record(wait bool) (Record, error) {
	for {
		for {
			line, rest, whole := bytes.Cut(l.rest, []byte("\n"))
			if !whole {
				break
			}
			l.rest = rest
			if r, ok := l.parse(line); ok {
				l.account(r)
				return r, nil
			}
		}
		if err := l.read(wait); err != nil {
			return Record{}, err
		}
	}
}

// read reads more. /dev/kmsg returns one whole record; other files may end
// within a record, whose beginning is kept.
func (l *recordReader) read(wait bool) error {
	kept := copy(l.buffer[:], l.rest)
	if kept == len(l.buffer) {
		kept = 0 // no record is that long
	}
	var n int
	var err error
	waits := false
	e := l.raw.Read(func(fd uintptr) bool {
		n, err = l.sysRead(int(fd), l.buffer[kept:])
		again := errors.Is(err, syscall.EAGAIN)
		waits = waits || again
		return !again || !wait
	})
	l.rest = l.buffer[:kept+max(n, 0)]
	switch {
	case e != nil:
		return e
	case errors.Is(err, syscall.EPIPE):
		l.overran = true // the next read continues with the oldest record left
		return nil
	case errors.Is(err, syscall.EINTR):
		return nil
	case err != nil:
		return err
	case n == 0:
		return io.EOF
	}
	l.waited = l.waited || wait && waits
	return nil
}

// account counts the records that the kernel dropped before r. Their number
// before the first record is unknown, and counts as one.
func (l *recordReader) account(r Record) {
	switch {
	case !l.overran:
	case l.next == 0:
		l.lost(1)
	case r.Sequence > l.next:
		l.lost(r.Sequence - l.next)
	}
	l.next, l.overran = max(l.next, r.Sequence+1), false
}

// parse parses "priority,sequence,microseconds,flags;text". Lines that begin
// with a space belong to the previous record.
func (l *recordReader) parse(line []byte) (Record, bool) {
	head, text, ok := bytes.Cut(line, []byte(";"))
	fields := bytes.SplitN(head, []byte(","), 4)
	if !ok || len(fields) < 3 {
		return Record{}, false
	}
	priority, err1 := strconv.ParseUint(string(fields[0]), 10, 31)
	sequence, err2 := strconv.ParseUint(string(fields[1]), 10, 64)
	stamp, err3 := strconv.ParseUint(string(fields[2]), 10, 53) // 285 years still fit a Duration
	if errors.Join(err1, err2, err3) != nil {
		return Record{}, false
	}
	since := time.Duration(stamp) * time.Microsecond
	if l.waited {
		l.zero, l.waited = time.Now().Add(-since), false
	}
	return Record{Priority: int(priority), Sequence: sequence, Time: l.zero.Add(since), Text: string(text)}, true
}
