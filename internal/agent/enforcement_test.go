package agent

import (
	"os"
	"path/filepath"
	"testing"
)

func TestObserverIsOwnerOfDirectory(t *testing.T) {
	t.Parallel()
	f := flags{runtimeDir: t.TempDir()}
	me := uint32(os.Getuid())
	if f.isObserver(me) {
		t.Error("there is an observer without a directory")
	}
	if err := os.Mkdir(filepath.Join(f.runtimeDir, "agent"), 0o755); err != nil {
		t.Fatal(err)
	}
	if !f.isObserver(me) || f.isObserver(me+1) {
		t.Errorf("uid %d is not the observer, or another is", me)
	}
	other := flags{runtimeDir: t.TempDir()}
	if err := os.Symlink(filepath.Join(f.runtimeDir, "agent"), filepath.Join(other.runtimeDir, "agent")); err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 {
		if err := os.Lchown(filepath.Join(other.runtimeDir, "agent"), 1, 1); err != nil {
			t.Fatal(err)
		}
		if other.isObserver(me) {
			t.Error("a link is followed")
		}
	}
}
