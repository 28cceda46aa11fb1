package stack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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

// process is the memory of the process with this PID.
type process int

func (pid process) read(addr uint64, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &p[0]}}
	local[0].SetLen(len(p))
	n, err := unix.ProcessVMReadv(int(pid), local, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(p)}}, 0)
	if err == nil && n < len(p) {
		err = syscall.EFAULT
	}
	return err
}

// final is an error that another try cannot mend.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// bounded is memory of which only so much is read, and only until ctx ends.
type bounded struct {
	memory
	ctx  context.Context
	left int
}

func (b *bounded) read(addr uint64, p []byte) error {
	if err := context.Cause(b.ctx); err != nil {
		return final{err}
	}
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
