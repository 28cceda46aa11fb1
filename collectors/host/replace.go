package host

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// StateMode is the mode of files that only the agent's user and group may read.
const StateMode fs.FileMode = 0o640

// ReplaceFile replaces the file at path with the output of write, whole or not
// at all, even if the host crashes. Open descriptors keep the old file. It
// creates the directory if needed. Calls for one path must not overlap. The
// error names the obstacle and its remedy.
func ReplaceFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	return Explain(replaceFile(path, mode, write), Reads|Writes)
}

func replaceFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	draft := path + ".new"
	_ = os.Remove(draft) // left by an interrupted call
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("replace the file: %w", err)
	}
	// Only data on the disk may take the name; otherwise a crash leaves an
	// empty file.
	err = errors.Join(write(f), f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft) // on a full disk others need the space
		return fmt.Errorf("replace the file: %w", err)
	}
	return SyncDir(dir)
}

// A StateFile keeps state over restarts. Content that cannot be read is set
// aside, as PATH.bad, before other content takes its place. Its methods belong to
// one goroutine.
type StateFile struct {
	Path    string // empty: nothing is kept
	spoiled bool   // the content could not be read
	written [sha256.Size]byte
}

// MostState bounds a StateFile that is read, in bytes.
const MostState = 16 << 20

// Read has decode read the content, if any is found.
func (f *StateFile) Read(decode func(text []byte) error) (found bool, err error) {
	if f.Path == "" {
		return false, nil
	}
	text, err := ReadFile(f.Path, MostState)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = decode(text)
	}
	if f.spoiled = err != nil; f.spoiled {
		return false, Explain(err, Reads)
	}
	f.written = sha256.Sum256(text)
	return true, nil
}

// Write replaces the content by text, unless that is what was last written.
func (f *StateFile) Write(text []byte) error {
	sum := sha256.Sum256(text)
	if f.Path == "" || sum == f.written {
		return nil
	}
	if f.spoiled {
		if err := os.Rename(f.Path, f.Path+".bad"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Explain(fmt.Errorf("set the state aside: %w", err), Reads|Writes)
		}
		f.spoiled = false
	}
	err := ReplaceFile(f.Path, StateMode, func(w io.Writer) error { _, err := w.Write(text); return err })
	if err == nil {
		f.written = sum
	}
	return err
}

// SyncDir waits until the names in dir are on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync the state directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the state directory: %w", err)
	}
	return nil
}
