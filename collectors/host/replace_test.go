package host

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"gpusteward/internal/fixture"
)

func TestFilesAreReplacedAtomically(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made")
	path := filepath.Join(dir, "x.json")
	for _, c := range []struct {
		text string
		err  error
		want string
	}{
		{"first", nil, "first"},
		{"half of the seco", errors.New("disk full"), "first"},
		{"3", nil, "3"},
	} {
		err := ReplaceFile(path, StateMode, func(w io.Writer) error {
			_, err := io.WriteString(w, c.text)
			return errors.Join(err, c.err)
		})
		fixture.Equal(t, errors.Is(err, c.err), true, "writing %q: that %v is %v", c.text, err, c.err)
		if text, err := os.ReadFile(path); err != nil || string(text) != c.want {
			t.Errorf("after %q: %q, %v; want %q", c.text, text, err, c.want)
		}
		if all, err := os.ReadDir(dir); err != nil || len(all) != 1 {
			t.Errorf("after %q: %q, %v; want no draft left", c.text, all, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("%v, %v: other users may read it", info.Mode(), err)
	}
	if err := ReplaceFile("/proc/no/such/file", StateMode, func(io.Writer) error { return nil }); err == nil {
		t.Error("an impossible file was written")
	}
}
