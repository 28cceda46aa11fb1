package enforcer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "enforcer.lock")
	if err := os.WriteFile(path, []byte("4194303999\n"), 0o600); err != nil { // the PID of an ended process
		t.Fatal(err)
	}
	release, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lock(dir)
	if want := fmt.Sprintf("process %d holds %s", os.Getpid(), path); err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("a second one: %v, want %s", err, want)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	// The holder has not written its PID yet.
	if err := os.Truncate(filepath.Join(dir, "enforcer.lock"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err = lock(dir); err == nil || !strings.Contains(err.Error(), "another enforcer is running: it holds "+dir) {
		t.Error(err)
	}
}

// TestLockOfAnEndedEnforcer has a lock that outlives its enforcer for a moment.
func TestLockOfAnEndedEnforcer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "enforcer.lock"), []byte("4194303999\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(50*time.Millisecond, before)
	release, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	release()
}

func TestLockThatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := lock(filepath.Join(dir, "none")); err == nil ||
		!strings.Contains(err.Error(), "open the enforcer's lock") {
		t.Error(err)
	}
	if err := os.Symlink(filepath.Join(dir, "else"), filepath.Join(dir, "enforcer.lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil {
		t.Error("it follows a link")
	}
}
