package stack

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
)

// Sections returns what read returns of the section of that name of each file that
// a process has mapped and whose base name is wanted. It fails at a file that is
// not the one that is mapped or that lies where the process's user can hold up its
// readers, and reads 64 MiB of files at most. A disk can hang: the caller must not
// depend on the end of the call.
func Sections(ctx context.Context, pid int, o Options, wanted func(base string) bool, name string,
	read func(section io.Reader) string) (all []string, err error) {
	procfs := cmp.Or(o.Procfs, "/proc")
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	maps, err := mappings(dir)
	if err != nil {
		return nil, err
	}
	pages, err := os.Open(filepath.Join(dir, "pagemap"))
	if err != nil {
		return nil, err
	}
	defer pages.Close()
	mounted := mountsOf(procfs, dir)
	files := newBinaries(dir, maps, mounted, &process{pid, pages, maps, mounted})
	defer files.close()
	seen := map[string]bool{}
	for _, m := range maps {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if m.offset != 0 || seen[m.path] || !wanted(filepath.Base(m.path)) {
			continue
		}
		seen[m.path] = true
		o, err := files.object(m.path)
		if err != nil {
			return nil, err
		}
		if s := o.Section(name); s != nil && s.FileSize < maxFiles {
			all = append(all, read(io.NewSectionReader(o.content, int64(s.Offset), int64(s.FileSize))))
		}
	}
	return all, nil
}
