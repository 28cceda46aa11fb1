package host

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// StateMode is the mode of files that the agent's user and group alone may read.
const StateMode fs.FileMode = 0o640

// ReplaceFile puts what write writes, with a mode, in the place of the file at
// path, whole or not at all, whatever fails and whenever the host crashes. Who
// has the old file open keeps that. The directory is made if it is not there.
// Calls for one path must not overlap. The error says what stands in the way,
// and what to do about it.
func ReplaceFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	return Explain(replaceFile(path, mode, write), Reads|Writes)
}

func replaceFile(path string, mode fs.FileMode, write func(io.Writer) error) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory: %w", err)
	}
	draft := path + ".new"
	_ = os.Remove(draft) // of one that was cut off, whoever's it was
	f, err := os.OpenFile(draft, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return fmt.Errorf("replace the file: %w", err)
	}
	// Only what is on the disk may take the name: else a crash leaves an empty file.
	err = errors.Join(write(f), f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		_ = os.Remove(draft) // on a full disk it holds what others need
		return fmt.Errorf("replace the file: %w", err)
	}
	return SyncDir(dir)
}

// SetAside gives a file that cannot be used the name PATH.bad, so that what is
// written in its place does not destroy it. That there is none is no error.
func SetAside(path string) error {
	if err := os.Rename(path, path+".bad"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Explain(fmt.Errorf("set the state aside: %w", err), Reads|Writes)
	}
	return nil
}

// SyncDir waits until the names in dir are on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("keep the names in the state directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("keep the names in the state directory: %w", err)
	}
	return nil
}
