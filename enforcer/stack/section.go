package stack

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"gpusteward/internal/procs"
	"gpusteward/internal/worker"
)

// A Search is for a section of the files that a process has mapped.
type Search struct {
	wanted func(base string) bool
	name   string
	read   func(section io.Reader) string
	kind   worker.Kind
}

// Sections makes a search: for what read returns of the section of that name of each
// file that a process has mapped and whose base name is wanted. It is called by
// variables, so that a child process knows it, too.
func Sections(wanted func(base string) bool, name string, read func(section io.Reader) string) *Search {
	command := "read-sections-" + name
	s := &Search{wanted: wanted, name: name, read: read, kind: worker.Kind{Command: worker.Begins(command), Running: 1,
		Children: maxSearches, Limit: timeAllowed, Memory: maxChild, Confined: true, Keeps: reader.Keeps}}
	worker.Register(command, func(args []string) error {
		pid, err := strconv.Atoi(args[0])
		if err != nil {
			return err
		}
		all, err := s.search(pid, args[1])
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(all)
	})
	return s
}

// Of searches a process, in a child process that is given up where the kernel holds it. It
// fails at a file that is not the one that is mapped or that lies where the process's user
// can hold up its readers, and reads 64 MiB of files at most.
func (s *Search) Of(ctx context.Context, pid int, o Options) (all []string, err error) {
	procfs, id := cmp.Or(o.Procfs, "/proc"), strconv.Itoa(pid)
	out, err := s.kind.Do(ctx, worker.Order{Args: []string{id, procfs}, Of: procs.Whose(procfs, pid)})
	if err != nil {
		return nil, err
	}
	return all, json.Unmarshal(out, &all)
}

func (s *Search) search(pid int, procfs string) (all []string, err error) {
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
		if m.offset != 0 || seen[m.path] || !s.wanted(filepath.Base(m.path)) {
			continue
		}
		seen[m.path] = true
		o, err := files.object(m.path)
		if err != nil {
			return nil, err
		}
		if in := o.Section(s.name); in != nil && in.FileSize < maxFiles {
			all = append(all, s.read(io.NewSectionReader(o.content, int64(in.Offset), int64(in.FileSize))))
		}
	}
	return all, nil
}
