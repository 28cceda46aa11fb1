package enforcer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "enforcer.lock")
	fixture.Must(t, os.WriteFile(path, []byte("4194303999\n"), 0o600)) // the PID of an ended process
	release, err := lock(dir)
	fixture.Must(t, err)
	_, err = lock(dir)
	fixture.Fails(t, err, fmt.Sprintf("process %d holds %s", os.Getpid(), path), "a second one")
	release()
	if release, err = lock(dir); err != nil {
		t.Fatalf("after it was released: %v", err)
	}
	release()
}

func TestLockWithoutAName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	release, err := lock(dir)
	fixture.Must(t, err)
	defer release()
	// The holder has not written its PID yet.
	fixture.Must(t, os.Truncate(filepath.Join(dir, "enforcer.lock"), 0))
	if _, err = lock(dir); err == nil || !strings.Contains(err.Error(), "another enforcer is running: it holds "+dir) {
		t.Error(err)
	}
}

// TestLockOfAnEndedEnforcer has a lock that outlives its enforcer for a moment.
func TestLockOfAnEndedEnforcer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before := fixture.Value(lock(dir))(t)
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "enforcer.lock"), []byte("4194303999\n"), 0o600))
	time.AfterFunc(50*time.Millisecond, before)
	release := fixture.Value(lock(dir))(t)
	release()
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
