package host

import (
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

// SetAside renames an unusable file to PATH.bad, so that its replacement does
// not destroy it. A missing file is not an error.
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
		return fmt.Errorf("sync the state directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync the state directory: %w", err)
	}
	return nil
}
