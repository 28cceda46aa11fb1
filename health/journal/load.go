package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// maxLine bounds a record with its newline, in bytes.
const maxLine = 64 << 10

// maxBad bounds events.bad, in bytes.
const maxBad = 1 << 20

// load adds the last records of the files to last, and returns the repairs. It
// does not read files that are older than the records that fit in memory.
func (f *journalFile) load(last *recent) (repairs []incident.Event, err error) {
	var files []*recent // the newest first
	for i, n := 0, 0; i < f.keep && n < maxRecent; i++ {
		events, repaired, failed := loadFile(f.name(i))
		if repaired != nil {
			repairs = append(repairs, *repaired)
		}
		err = errors.Join(err, failed)
		files = append(files, events)
		n += events.records.Len()
	}
	for _, events := range slices.Backward(files) {
		for _, e := range events.all() {
			last.add(e)
		}
	}
	return repairs, err
}

// loadFile returns the last records of one file. Lines that are no records are
// moved to events.bad.
func loadFile(path string) (events *recent, repaired *incident.Event, err error) {
	events = newRecent()
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return events, nil, nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", path) // a pipe or a device may have no end
	}
	if err != nil {
		return events, nil, fmt.Errorf("read the journal: %w", err)
	}
	file, err := os.Open(path)
	if err != nil {
		return events, nil, fmt.Errorf("read the journal: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	var bad, size int
	if err := readLines(file, func(_ []byte, e incident.Event) error { events.add(e); return nil },
		func(piece []byte) error { bad++; size += len(piece); return nil }); err != nil {
		return events, nil, fmt.Errorf("read the journal: %w", err)
	}
	if bad == 0 {
		return events, nil, nil
	}
	e := incident.Event{Kind: incident.KindAgent, What: "journal_repaired", Severity: incident.Warning,
		Entity: incident.Entity{Device: "journal"},
		Message: fmt.Sprintf("%s held %d bytes that are not a record; they are now in events.bad",
			filepath.Base(path), size)}
	if err := repair(file, path); err != nil {
		e.What = "journal_damaged"
		e.Message = fmt.Sprintf("%s holds %d bytes that are not a record, and they cannot be moved: %v",
			filepath.Base(path), size, err)
	}
	return events, &e, nil
}

// repair keeps the good lines of the file at path, and moves the others to
// events.bad unchanged.
func repair(file *os.File, path string) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	bad, err := os.OpenFile(filepath.Join(filepath.Dir(path), "events.bad"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o640)
	if err != nil {
		return err
	}
	defer func() { _ = bad.Close() }() // it was synced
	room := int64(maxBad)
	if info, err := bad.Stat(); err == nil {
		room -= info.Size()
	}
	return host.ReplaceFile(path, host.StateMode, func(w io.Writer) error {
		good := bufio.NewWriter(w)
		err := readLines(file, func(text []byte, _ incident.Event) error {
			_, err := good.Write(append(text, '\n'))
			return err
		}, func(piece []byte) error {
			piece = piece[:max(0, min(room, int64(len(piece))))]
			room -= int64(len(piece))
			_, err := bad.Write(piece)
			return err
		})
		return errors.Join(err, good.Flush(), bad.Sync())
	})
}

// readLines calls good with each record of r and its line, and bad with
// everything else, in pieces. The arguments are valid during the call; an error
// of either function ends the reading.
func readLines(r io.Reader, good func(text []byte, e incident.Event) error, bad func(piece []byte) error) error {
	lines := bufio.NewReaderSize(r, maxLine)
	for long := false; ; {
		piece, err := lines.ReadSlice('\n')
		full := errors.Is(err, bufio.ErrBufferFull)
		text := bytes.TrimSuffix(piece, []byte{'\n'})
		var failed error
		if e, ok := parseLine(text); ok && !full && !long {
			failed = good(text, e)
		} else if len(text) > 0 || long {
			failed = bad(piece)
		}
		if failed != nil {
			return failed
		}
		if err != nil && !full {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		long = full
	}
}

// parseLine reads one record.
func parseLine(text []byte) (e incident.Event, ok bool) {
	if len(text) == 0 || text[0] != '{' {
		return e, false
	}
	err := json.Unmarshal(text, &e)
	return e, err == nil && e.ID != "" && e.Kind != "" && !e.Time.IsZero()
}
