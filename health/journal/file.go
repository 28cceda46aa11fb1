package journal

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"

	"gpusteward/collectors/host"
)

// A journalFile is events.jsonl and its predecessors events.1.jsonl,
// events.2.jsonl and so on. Only bytes is safe for concurrent use.
type journalFile struct {
	dir  string
	most int64 // bytes of a file, many times maxLine
	keep int   // files, with the one that is written

	lock   *host.Lock // nil: the directory is not taken yet
	file   *os.File   // nil: the file is not open yet
	size   int64      // of file
	ragged bool       // file does not end with a newline
	bytes  atomic.Int64
}

// A line is a record as it is written.
type line struct {
	text []byte // with its newline
	sync bool   // must be on the disk to count as written
	late bool   // counted in LateTotal already
}

// name returns the path of the i-th file; 0 is the one that is written.
func (f *journalFile) name(i int) string {
	if i == 0 {
		return filepath.Join(f.dir, "events.jsonl")
	}
	return filepath.Join(f.dir, fmt.Sprintf("events.%d.jsonl", i))
}

// take creates the directory, and locks it for this agent alone.
func (f *journalFile) take() error {
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return fmt.Errorf("make the journal's directory: %w", err)
	}
	lock, err := lockFile(filepath.Join(f.dir, "events.lock"))
	if isLocked(err) {
		err = fmt.Errorf("another agent writes it; --state.dir takes another directory (%w)", err)
	}
	if err != nil {
		return fmt.Errorf("lock the journal in %s: %w", f.dir, err)
	}
	f.lock = lock
	f.measure()
	return nil
}

// begin opens the file, to append to it.
func (f *journalFile) begin() (err error) {
	if f.file, err = os.OpenFile(f.name(0), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o640); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	if f.size, err = f.file.Seek(0, io.SeekEnd); err != nil {
		return fmt.Errorf("open the journal: %w", err)
	}
	last := []byte{'\n'}
	if f.size > 0 {
		if _, err := f.file.ReadAt(last, f.size-1); err != nil {
			return fmt.Errorf("open the journal: %w", err)
		}
	}
	f.ragged = last[0] != '\n'
	f.measure()
	return nil
}

// close releases the file and the directory.
func (f *journalFile) close() {
	if f.file != nil {
		_ = f.file.Close() // every line that must be on the disk was synced
	}
	if f.lock != nil {
		f.lock.Release()
	}
	f.file, f.lock = nil, nil
}

// append writes lines in turn, and returns how many are as safe as they must
// be. After a failure the next call opens everything again.
func (f *journalFile) append(lines []line) (n int, err error) {
	if f.file != nil && !f.there() {
		f.close()
	}
	if f.lock == nil {
		err = f.take()
	}
	if err == nil && f.file == nil {
		err = f.begin()
	}
	needsSync := false
	for ; err == nil && n < len(lines); n++ {
		if err = f.write(lines[n].text); err != nil {
			break
		}
		needsSync = needsSync || lines[n].sync
	}
	if needsSync {
		if failed := f.file.Sync(); failed != nil {
			n, err = 0, fmt.Errorf("write the journal to the disk: %w", failed)
		}
	}
	if err != nil {
		f.close()
	}
	return n, err
}

// there reports whether the open file still has its name.
func (f *journalFile) there() bool {
	named, err := os.Stat(f.name(0))
	if err != nil {
		return false
	}
	open, err := f.file.Stat()
	return err == nil && os.SameFile(named, open)
}

// write appends one line, to a new file if this one is full. It removes a line
// that was written only in part.
func (f *journalFile) write(text []byte) error {
	if f.size+int64(len(text)) > f.most {
		if err := f.rotate(); err != nil {
			return err
		}
	}
	if f.ragged {
		text = append([]byte{'\n'}, text...)
	}
	n, err := f.file.Write(text)
	if err != nil {
		if n > 0 {
			_ = f.file.Truncate(f.size) // otherwise the next agent to open it finds it ragged
		}
		return fmt.Errorf("write the journal: %w", err)
	}
	f.ragged = false
	f.size += int64(n)
	f.bytes.Add(int64(n))
	return nil
}

// rotate turns the file into its own predecessor, and begins a new one.
func (f *journalFile) rotate() error {
	if err := f.file.Sync(); err != nil {
		return fmt.Errorf("rotate the journal: %w", err)
	}
	if err := os.Remove(f.name(f.keep - 1)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("rotate the journal: %w", err)
	}
	for i := f.keep - 1; i > 0; i-- {
		if err := os.Rename(f.name(i-1), f.name(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("rotate the journal: %w", err)
		}
	}
	if err := f.file.Close(); err != nil {
		return fmt.Errorf("rotate the journal: %w", err)
	}
	if err := f.begin(); err != nil {
		return err
	}
	return host.SyncDir(f.dir)
}

// measure returns the size of all files.
func (f *journalFile) measure() {
	var sum int64
	for i := range f.keep {
		if info, err := os.Stat(f.name(i)); err == nil {
			sum += info.Size()
		}
	}
	f.bytes.Store(sum)
}

// prune removes the files from a time when more were kept.
func (f *journalFile) prune() {
	for i := f.keep; os.Remove(f.name(i)) == nil; i++ {
	}
}

// reason classifies a failure for the metric.
func reason(err error) string {
	switch {
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		return "no_space"
	case errors.Is(err, syscall.EROFS), errors.Is(err, os.ErrPermission):
		return "not_writable"
	case isLocked(err):
		return "locked"
	}
	return "io"
}
