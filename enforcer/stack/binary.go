package stack

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// binaries are the files that a process runs code of.
type binaries struct {
	maps    []mapping
	dir     string // the process's in procfs
	mounted *mounts
	mem     memory
	file    *budget
	open    map[string]*object
	at      map[uint64]*Native
}

func newBinaries(dir string, maps []mapping, mounted *mounts, mem memory) *binaries {
	return &binaries{maps: maps, dir: dir, mounted: mounted, mem: mem, file: &budget{left: maxFiles},
		open: map[string]*object{}, at: map[uint64]*Native{}}
}

func (b *binaries) close() {
	for _, o := range b.open {
		if o != nil {
			o.close()
		}
	}
}

// budget is what may still be read of files.
type budget struct{ left int }

var errBudget = fmt.Errorf("the files of the process take more than %d MiB to search", maxFiles>>20)

// of bounds r.
func (b *budget) of(r io.ReaderAt) io.ReaderAt { return budgeted{r, b} }

type budgeted struct {
	io.ReaderAt
	*budget
}

func (r budgeted) ReadAt(p []byte, at int64) (int, error) {
	if at < 0 || len(p) > r.left {
		return 0, errBudget
	}
	r.left -= len(p)
	return r.ReaderAt.ReadAt(p, at)
}

// object is an open ELF file, and how far it lies from its own addresses.
type object struct {
	*elf.File
	content io.ReaderAt
	bias    uint64
	closer  io.Closer
}

func (o *object) close() { o.closer.Close() }

// object opens the file behind a mapping once; nil is one that cannot be read.
func (b *binaries) object(path string) (*object, error) {
	if o, known := b.open[path]; known {
		if o == nil {
			return nil, errors.New("it cannot be read")
		}
		return o, nil
	}
	b.open[path] = nil
	i := slices.IndexFunc(b.maps, func(m mapping) bool { return m.path == path && m.offset == 0 })
	if i < 0 {
		return nil, errors.New("its first page is not mapped")
	}
	m := b.maps[i]
	if err := b.mounted.refuses(m); err != nil {
		return nil, err
	}
	// The first name is the very file even if it was replaced, which needs more
	// privileges than the second.
	var failed error
	for i, name := range []string{fmt.Sprintf("map_files/%x-%x", m.start, m.end), filepath.Join("root", path)} {
		if i == 1 {
			if err := b.mounted.refusesPath(path); err != nil {
				return nil, err
			}
		}
		f, err := b.regular(filepath.Join(b.dir, name), m)
		if err == nil {
			var o *object
			if o, err = newObject(f, b.file.of(f), m.start, b.mem); err == nil {
				b.open[path] = o
				return o, nil
			}
			f.Close()
		}
		failed = err
	}
	return nil, failed
}

// regular opens the regular file that is mapped, and nothing that an opening could change
// or wait for. A file of an overlay has the inode of another one on some kernels.
func (b *binaries) regular(path string, m mapping) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var is unix.Stat_t
	if err := unix.Fstat(fd, &is); err != nil {
		return nil, err
	}
	if is.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("it is not a regular file")
	}
	if is.Ino != m.inode && b.mounted.types[device(uint(unix.Major(is.Dev)), uint(unix.Minor(is.Dev)))] != "overlay" {
		return nil, errReplaced
	}
	return os.Open(fmt.Sprintf("/proc/self/fd/%d", fd))
}

var errReplaced = errors.New("it was replaced since the process began: " +
	"run gpusteward as root on the host, which reaches the old one")

// newObject reads the head of a file that is mapped at start, and wants the first
// page of the memory to be the file's. The file is the process's: it may be anything.
func newObject(c io.Closer, r io.ReaderAt, start uint64, mem memory) (o *object, err error) {
	defer func() {
		if p := recover(); p != nil { // debug/elf promises nothing of a hostile file
			o, err = nil, fmt.Errorf("it is not a complete ELF file: %v", p)
		}
	}()
	var page, mapped [4096]byte
	n, err := r.ReadAt(page[:], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if err := mem.read(start, mapped[:n]); err != nil {
		return nil, err
	}
	if !bytes.Equal(page[:n], mapped[:n]) {
		return nil, errReplaced
	}
	f, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	if f.Class != elf.ELFCLASS64 || f.ByteOrder != binary.LittleEndian {
		return nil, errors.New("it is not a 64-bit file, and only those can be read")
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Off < 4096 {
			return &object{f, r, start - (p.Vaddr - p.Off), c}, nil
		}
	}
	return nil, errors.New("it has no segment for its first page")
}

const symbolSize = elf.Sym64Size

// symbols visits the symbols of a file with what their names are relative to,
// those for the dynamic linker first, until visit returns false.
func (o *object) symbols(visit func(s elf.Sym64, names *elf.Section) bool) error {
	chunk := make([]byte, 1024*symbolSize)
	for _, kind := range []elf.SectionType{elf.SHT_DYNSYM, elf.SHT_SYMTAB} {
		for _, s := range o.Sections {
			if s.Type != kind || int(s.Link) >= len(o.Sections) {
				continue
			}
			for at := uint64(0); at < s.FileSize; at += uint64(len(chunk)) {
				part := chunk[:min(uint64(len(chunk)), s.FileSize-at)]
				if _, err := o.content.ReadAt(part, int64(s.Offset+at)); err != nil {
					return err
				}
				for ; len(part) >= symbolSize; part = part[symbolSize:] {
					sym := elf.Sym64{Name: words(part).u32(0), Info: part[4],
						Shndx: binary.LittleEndian.Uint16(part[6:]), Value: words(part).u64(8),
						Size: words(part).u64(16)}
					if sym.Shndx != 0 && !visit(sym, o.Sections[s.Link]) {
						return nil
					}
				}
			}
		}
	}
	return nil
}

// find returns the addresses of symbols in the process; one that is missing is 0.
func (o *object) find(wanted ...string) (map[string]uint64, error) {
	found := map[string]uint64{}
	var table *elf.Section
	var names []byte
	var failed error
	err := o.symbols(func(s elf.Sym64, t *elf.Section) bool {
		if t != table {
			table, names = t, make([]byte, min(t.FileSize, 16<<20))
			if _, failed = o.content.ReadAt(names, int64(t.Offset)); failed != nil {
				return false
			}
		}
		if uint64(s.Name) >= uint64(len(names)) {
			return true
		}
		for _, w := range wanted {
			if found[w] == 0 && bytes.HasPrefix(names[s.Name:], []byte(w+"\x00")) {
				found[w] = o.bias + s.Value
			}
		}
		return len(found) < len(wanted)
	})
	return found, errors.Join(err, failed)
}

// nearest returns the function that an address of the process lies in.
func (o *object) nearest(at uint64) (name string, offset uint64) {
	at -= o.bias
	var best elf.Sym64
	var names *elf.Section
	err := o.symbols(func(s elf.Sym64, t *elf.Section) bool {
		// One without a size is written in assembly, and reaches to the next symbol.
		if elf.ST_TYPE(s.Info) == elf.STT_FUNC && s.Value <= at && (s.Size == 0 || at-s.Value < s.Size) &&
			(names == nil || s.Value > best.Value) {
			best, names = s, t
		}
		return true
	})
	if err != nil || names == nil {
		return "", 0
	}
	text := make([]byte, maxString)
	n, _ := o.content.ReadAt(text, int64(names.Offset+uint64(best.Name)))
	text, _, _ = bytes.Cut(text[:n], []byte{0})
	return clean(string(text)), at - best.Value
}

// place names what an address of code lies in.
func (b *binaries) place(at uint64) *Native {
	if n, known := b.at[at]; known || at == 0 {
		return n
	}
	m, mapped := find(b.maps, at)
	if !mapped {
		return nil
	}
	n := &Native{File: clean(m.path), Offset: at - m.start + m.offset}
	switch {
	case m.path == "":
		n.File = "[anonymous]"
	case strings.HasPrefix(m.path, "/"):
		if o, err := b.object(m.path); err == nil {
			if name, offset := o.nearest(at); name != "" {
				n.Symbol, n.Offset = name, offset
			}
		}
	}
	b.at[at] = n
	return n
}
