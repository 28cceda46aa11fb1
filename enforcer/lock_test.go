package enforcer

import (
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
	fixture.Must(t, held.name())
	fixture.Fails(t, fixture.Error(lock(dir)), fmt.Sprintf("process %d holds %s", os.Getpid(), path), "a second one")
	held.release()
	fixture.Value(lock(dir))(t).release()
}

// TestLockOfAnEndedEnforcer has a lock that outlives its enforcer for a moment.
func TestLockOfAnEndedEnforcer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := fixture.Value(lock(dir))(t)
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "enforcer.lock"), []byte("4194303999\n"), 0o600))
	time.AfterFunc(50*time.Millisecond, before.release)
	fixture.Value(lock(dir))(t).release()
}

func TestLockThatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fixture.Fails(t, fixture.Error(lock(filepath.Join(dir, "none"))), "open the enforcer's lock", "the call")
	fixture.Must(t, os.Symlink(filepath.Join(dir, "else"), filepath.Join(dir, "enforcer.lock")))
	if _, err := lock(dir); err == nil {
		t.Error("it follows a link")
	}
}
