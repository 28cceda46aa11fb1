package enforcer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "enforcer.lock")
	fixture.Must(t, os.WriteFile(path, []byte("4194303999\n"), 0o600)) // the PID of an ended process
	held := fixture.Value(lock(dir))(t)
	fixture.Fails(t, fixture.Error(lock(dir)), "another enforcer is running: it holds "+dir, "before it has its name")
	fixture.Must(t, held.Name())
	fixture.Fails(t, fixture.Error(lock(dir)), fmt.Sprintf("process %d holds %s", os.Getpid(), path), "a second one")
	held.Release()
	before := fixture.Value(lock(dir))(t) // that of an enforcer that has ended, for a moment more
	fixture.Must(t, os.WriteFile(path, []byte("4194303999\n"), 0o600))
	time.AfterFunc(50*time.Millisecond, before.Release)
	fixture.Value(lock(dir))(t).Release()

	fixture.Fails(t, fixture.Error(lock(filepath.Join(dir, "none"))), "take the enforcer's lock", "without a directory")
	fixture.Must(t, errors.Join(os.Remove(path), os.Symlink(filepath.Join(dir, "else"), path)))
	fixture.Fails(t, fixture.Error(lock(dir)), "", "following a link")
}
