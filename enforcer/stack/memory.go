package stack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// memory is a process's memory: read fills p from an address, or fails.
type memory interface {
	read(addr uint64, p []byte) error
}

// process is the memory of a process, as far as reading it waits neither for the process
// nor for a file system that it can have stopped.
type process struct {
	pid     int
	pages   *os.File // its pagemap
	maps    []mapping
	mounted *mounts
}

// The bits of a page in /proc/PID/pagemap.
const (
	pagePresent = 1 << 63
	pageSwapped = 1 << 62
)

// errAbsent is of a page that would first have to be made: by a file system, or by the
// process itself, as userfaultfd lets it.
var errAbsent = errors.New("some of its memory is not there before a file system or the process itself provides it, " +
	"which may take for ever: it is not read")

func (p *process) read(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	if err := p.there(addr, len(b)); err != nil {
		return err
	}
	local := []unix.Iovec{{Base: &b[0]}}
	local[0].SetLen(len(b))
	n, err := unix.ProcessVMReadv(p.pid, local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n < len(b) {
		err = syscall.EFAULT
	}
	return err
}

// there returns an error unless all pages can be read at once: those that the process has
// now, those of anonymous memory on a swap device, and those of files that are read.
func (p *process) there(addr uint64, size int) error {
	page := uint64(os.Getpagesize())
	first, last := addr/page, (addr+uint64(size)-1)/page
	if last < first || last >= 1<<52 {
		return syscall.EFAULT
	}
	bits := make(words, 8*(last-first+1))
	if n, err := p.pages.ReadAt(bits, int64(8*first)); n < len(bits) {
		if err == nil || errors.Is(err, io.EOF) {
			err = syscall.EFAULT
		}
		return err
	}
	for i := range last - first + 1 {
		is := bits.u64(8 * i)
		if is&pagePresent != 0 {
			continue
		}
		m, mapped := find(p.maps, max(addr, (first+i)*page))
		switch {
		case mapped && m.inode == 0 && is&pageSwapped != 0:
		case mapped && m.inode != 0 && p.mounted.refuses(m) == nil:
		default:
			return errAbsent
		}
	}
	return nil
}

// final is an error that another try cannot mend.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// bounded is memory of which only so much is read.
type bounded struct {
	memory
	left int
}

func (b *bounded) read(addr uint64, p []byte) error {
	if b.left -= len(p); b.left < 0 {
		return final{fmt.Errorf("the stacks take more than %d MiB to read: nothing further is read", maxMemory>>20)}
	}
	err := b.memory.read(addr, p)
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ESRCH) {
		return final{err}
	}
	return err
}

// permission says what to do about an error of the kernel's.
func permission(pid int, err error) error {
	switch {
	case errors.Is(err, syscall.ESRCH):
		return fmt.Errorf("process %d ended meanwhile: nothing of it is left to read", pid)
	case !errors.Is(err, fs.ErrPermission):
		return err
	case strings.HasPrefix(small("/proc/sys/kernel/yama/ptrace_scope"), "3"):
		return errors.New("kernel.yama.ptrace_scope is 3, so no process can read another: " +
			"set it to 2 or less and restart the host")
	case os.Geteuid() == 0:
		return fmt.Errorf("the kernel does not let this container read process %d: "+
			"give it CAP_SYS_PTRACE, or run gpusteward on the host", pid)
	}
	return fmt.Errorf("the kernel does not let this user read process %d: "+
		"run gpusteward as root, or with CAP_SYS_PTRACE", pid)
}

// words are the fields of a structure, little-endian as amd64 and arm64 are.
type words []byte

func (w words) u64(at uint64) uint64 { return binary.LittleEndian.Uint64(w[at:]) }
func (w words) u32(at uint64) uint32 { return binary.LittleEndian.Uint32(w[at:]) }

// structure reads size bytes.
func structure(m memory, addr, size uint64) (words, error) {
	w := make(words, size)
	return w, m.read(addr, w)
}

// pointer reads the pointer at an address.
func pointer(m memory, addr uint64) (uint64, error) {
	w, err := structure(m, addr, 8)
	if err != nil {
		return 0, err
	}
	return w.u64(0), nil
}
