package stack

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// library is a small ELF file: two functions, one of assembly without a size, a variable, and a section .PyRuntime.
func library() []byte {
	var b bytes.Buffer
	names := "\x00plain\x00assembly\x00_PyRuntime\x00elsewhere\x00"
	sections := "\x00.dynsym\x00.dynstr\x00.shstrtab\x00.PyRuntime\x00"
	name := func(in, s string) uint32 { return uint32(strings.Index(in, "\x00"+s+"\x00") + 1) }
	symbols := []elf.Sym64{{},
		{Name: name(names, "plain"), Info: byte(elf.STT_FUNC), Shndx: 1, Value: 0x1100, Size: 0x40},
		{Name: name(names, "assembly"), Info: byte(elf.STT_FUNC), Shndx: 1, Value: 0x1200},
		{Name: name(names, "_PyRuntime"), Info: byte(elf.STT_OBJECT), Shndx: 1, Value: 0x3000, Size: 64},
		{Name: name(names, "elsewhere"), Info: byte(elf.STT_FUNC)}}
	const head, prog, sym = 64, 56, 24
	at := uint64(head + prog)
	strs, shstr := at+uint64(len(symbols))*sym, at+uint64(len(symbols))*sym+uint64(len(names))
	table := shstr + uint64(len(sections))
	for _, part := range []any{
		elf.Header64{Ident: [16]byte{0x7f, 'E', 'L', 'F', 2, 1, 1}, Type: uint16(elf.ET_DYN),
			Machine: uint16(elf.EM_X86_64), Version: 1, Phoff: head, Shoff: table, Ehsize: head,
			Phentsize: prog, Phnum: 1, Shentsize: 64, Shnum: 5, Shstrndx: 3},
		elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: 5, Vaddr: 0x1000, Filesz: 4096, Memsz: 4096, Align: 4096},
		symbols, []byte(names), []byte(sections),
		[]elf.Section64{{},
			{Name: name(sections, ".dynsym"), Type: uint32(elf.SHT_DYNSYM), Off: at,
				Size: uint64(len(symbols)) * sym, Link: 2, Entsize: sym},
			{Name: name(sections, ".dynstr"), Type: uint32(elf.SHT_STRTAB), Off: strs, Size: uint64(len(names))},
			{Name: name(sections, ".shstrtab"), Type: uint32(elf.SHT_STRTAB), Off: shstr, Size: uint64(len(sections))},
			{Name: name(sections, ".PyRuntime"), Type: uint32(elf.SHT_PROGBITS), Addr: 0x3000}},
	} {
		binary.Write(&b, binary.LittleEndian, part)
	}
	return b.Bytes()
}

// loaded opens file as it is mapped at 0x701000, where memory is its first page.
func loaded(file, memory []byte, left int) (*object, error) {
	m := image{}
	m.write(0x701000, memory...)
	b := &budget{left: left}
	return newObject(io.NopCloser(nil), b.of(bytes.NewReader(file)), 0x701000, m)
}

func TestSymbols(t *testing.T) {
	o := fixture.Value(loaded(library(), library(), maxFiles))(t)
	found, err := o.find(symbols...)
	fixture.If(t, err != nil || len(found) != 1 || found["_PyRuntime"] != 0x703000, "%v, %#x", err, found)
	for at, want := range map[uint64]Native{0x701100: {"", "plain", 0}, 0x70113f: {"", "plain", 0x3f},
		0x701140: {"", "", 0}, 0x7010ff: {"", "", 0}, 0x701240: {"", "assembly", 0x40}} {
		if name, offset := o.nearest(at); name != want.Symbol || offset != want.Offset {
			t.Errorf("%#x is %s+%#x, want %+v", at, name, offset, want)
		}
	}
}

func TestRefusedFiles(t *testing.T) {
	changed := func(at int, b byte) []byte { l := library(); l[at] = b; return l }
	for name, c := range map[string]struct {
		file, memory []byte
		left         int
		want         string
	}{
		"another file":     {library(), changed(200, 99), maxFiles, "replaced since the process began"},
		"32 bits":          {changed(4, 1), changed(4, 1), maxFiles, ""},
		"no ELF":           {[]byte("#!/bin/sh\n"), []byte("#!/bin/sh\n"), maxFiles, ""},
		"empty":            {nil, nil, maxFiles, ""},
		"too much to read": {library(), library(), 700, "more than 64 MiB"},
		"no first page":    {changed(64, 2), changed(64, 2), maxFiles, "no segment"},
	} {
		o, err := loaded(c.file, c.memory, c.left)
		fixture.If(t, err == nil || o != nil || !strings.Contains(err.Error(), c.want),
			"%s: %v, want %s", name, err, c.want)
	}
}

func FuzzLibrary(f *testing.F) {
	for at := range len(library()) {
		f.Add(uint16(at), uint8(255))
	}
	f.Fuzz(func(t *testing.T, at uint16, b uint8) {
		l := library()
		l[int(at)%len(l)] = b
		o, err := loaded(l, l, 1<<20)
		if err != nil {
			return
		}
		o.find(symbols...)
		name, _ := o.nearest(0x701110)
		fixture.If(t, len(name) > maxString, "%q", name)
	})
}

// TestOnlyRegularFiles wants what a process could have put in a file's place not
// to be opened: opening a FIFO waits, and opening a device may act.
func TestOnlyRegularFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "libpython3.11.so")
	fixture.Must(t, unix.Mkfifo(fifo, 0o600))
	b := newBinaries(t.TempDir(), nil, &mounts{}, nil)
	for _, path := range []string{fifo, "/dev/null", t.TempDir()} {
		f, err := b.regular(path, mapping{})
		fixture.If(t, err == nil || f != nil, "%s was opened", path)
	}
	is := fixture.Value(os.Stat(os.Args[0]))(t).Sys().(*syscall.Stat_t)
	f := fixture.Value(b.regular(os.Args[0], mapping{inode: is.Ino}))(t)
	f.Close()
	fixture.Fails(t, fixture.Error(b.regular(os.Args[0], mapping{inode: is.Ino + 1})), "it was replaced", "another file")
}
