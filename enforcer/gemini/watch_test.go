package gemini

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func TestReload(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "table")
	s := start(t, two, Options{File: file, Turn: time.Second})
	h, b := dial(t, s, "a"), dial(t, s, "b")
	h.call(take(900))
	b.call(Request{Kind: Quota})
	limit := func(want uint64) {
		t.Helper()
		until(t, s, fmt.Sprint("a limit of ", want), func(st Stats) bool { return st.Tenants[0].Memory == want })
		fixture.Equal(t, h.call(Request{Kind: MemoryLimit}).Limit, want, "Limit")
	}
	write := func(path, text string) {
		t.Helper()
		fixture.Must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	write(file, "2\na 0.5 1 5000\nb 0.5 1 2000\n")
	limit(5000)
	write(filepath.Join(dir, "new"), "2\na 0.5 1 6000\nb 0.5 1 2000\n")
	fixture.Must(t, os.Rename(filepath.Join(dir, "new"), file))
	limit(6000)
	bad := s.Stats().BadReloads
	write(file, "2\na 0.5 1 7000\n")
	until(t, s, "a bad file is seen", func(st Stats) bool { return st.BadReloads > bad })
	limit(6000)
	h.send(Request{Kind: Quota})
	until(t, s, "a waits", func(st Stats) bool { return st.Tenants[0].Waiting == 1 })
	write(file, "1\nb 0.5 1 2000\n")
	until(t, s, "a is gone", func(st Stats) bool { return len(st.Tenants) == 1 })
	h.silent(s, take(1))
	write(file, "1\na 0.5 1 1000\n")
	limit(1000)
	fixture.Equal(t, h.call(Request{Kind: MemoryLimit}).Used, 900, "what it had is forgotten: …")
	h.call(Request{Kind: Quota})
}

// A bad line changes nothing for its client, and the other lines hold.
func TestReloadWithABadLine(t *testing.T) {
	file := filepath.Join(t.TempDir(), "table")
	s := start(t, "3\na 0.5 1 1000\nb 0.5 1 2000\nc 0.5 1 1G\n", Options{File: file})
	if st := s.Stats(); st.BadLines != 1 || len(st.Tenants) != 2 {
		t.Errorf("at the start: %+v", st)
	}
	h := dial(t, s, "a")
	h.call(take(900))
	fixture.Must(t, os.WriteFile(file, []byte("3\na 0.5 1 5G\nb 0.5 1 6000\nc 0.5\n"), 0o644))
	until(t, s, "the others hold", func(st Stats) bool { return st.BadLines == 2 && st.Reloads == 2 })
	for _, n := range s.Stats().Tenants {
		fixture.Equal(t, n.Memory, map[string]uint64{"a": 1000, "b": 6000}[n.Name], "%s may have", n.Name)
	}
	a := h.call(Request{Kind: MemoryLimit})
	fixture.If(t, a.Used != 900 || a.Limit != 1000 || s.Stats().BadReloads != 0, "%+v, %+v", a, s.Stats())
	fixture.Must(t, os.WriteFile(file, []byte("2\na 0.5 1 5000\na 0.5 1 1\n"), 0o644))
	until(t, s, "of two lines of one name the last holds",
		func(st Stats) bool { return len(st.Tenants) == 1 && st.Tenants[0].Memory == 1 })
}

func TestReloadThroughALink(t *testing.T) {
	dir := t.TempDir()
	link := func(to, name string) {
		t.Helper()
		next := filepath.Join(dir, "next")
		fixture.Must(t, os.Symlink(to, next))
		fixture.Must(t, os.Rename(next, filepath.Join(dir, name)))
	}
	for of, memory := range map[string]int{"one": 1000, "two": 2000} { // as Kubernetes does
		fixture.Rewrite(t, filepath.Join(dir, of, "table"), fmt.Sprintf("1\na 0.5 1 %d\n", memory))
	}
	link("one", "..data")
	link(filepath.Join("..data", "table"), "table")
	s := start(t, "1\na 0.5 1 1000\n", Options{File: filepath.Join(dir, "table")})
	link("two", "..data")
	until(t, s, "the other table", func(st Stats) bool { return st.Tenants[0].Memory == 2000 })
}

func TestReloadAfterTheDirectoryWasGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	_ = os.Mkdir(dir, 0o755)
	file := filepath.Join(dir, "table")
	s := start(t, two, Options{File: file, tick: 20 * time.Millisecond})
	fixture.Must(t, os.RemoveAll(dir))
	until(t, s, "it is missed", func(st Stats) bool { return st.BadReloads > 0 && len(st.Tenants) == 2 })
	fixture.Rewrite(t, file, "1\na 0.5 1 5000\n")
	until(t, s, "it is there again", func(st Stats) bool { return len(st.Tenants) == 1 })
}
