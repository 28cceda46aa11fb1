package gemini

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Bounds of the search for a process.
const (
	mostSockets     = 16 << 20 // bytes of /proc/net/tcp
	mostDescriptors = 1 << 16
)

var errNobody = errors.New("no process is found that has the socket")

// A peer is the process at the other end of a connection. The zero value is
// one that is not known.
type peer struct {
	pid    int
	pidfd  int // whoever has the peer closes it
	cgroup string
}

// A finder finds processes by their sockets, one search at a time.
type finder struct {
	procFS string
	mu     sync.Mutex
}

// find returns who has the socket that is bound to remote and connected to
// local. It looks at the processes in first before all others.
func (f *finder) find(local, remote netip.AddrPort, first []int) (peer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	inode, err := f.inode(remote, local)
	if err != nil {
		return peer{}, err
	}
	link := "socket:[" + inode + "]"
	budget := mostDescriptors
	for _, pid := range first {
		if fd, ok := f.has(pid, link, &budget); ok {
			return f.open(pid, fd, link)
		}
	}
	dir, err := os.Open(f.procFS)
	if err != nil {
		return peer{}, err
	}
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || slices.Contains(first, pid) {
				continue
			}
			if fd, ok := f.has(pid, link, &budget); ok {
				return f.open(pid, fd, link)
			}
			if budget <= 0 {
				return peer{}, fmt.Errorf("%w within %d descriptors", errNobody, mostDescriptors)
			}
		}
		if err != nil {
			return peer{}, errNobody
		}
	}
}

// inode returns the number of the socket of an established connection, as the
// kernel lists it.
func (f *finder) inode(own, other netip.AddrPort) (string, error) {
	for _, list := range []string{"tcp", "tcp6"} {
		file, err := os.Open(filepath.Join(f.procFS, "net", list))
		if errors.Is(err, os.ErrNotExist) {
			continue
		} else if err != nil {
			return "", err
		}
		text, err := io.ReadAll(io.LimitReader(file, mostSockets))
		_ = file.Close()
		if err != nil {
			return "", err
		}
		for _, mapped := range []bool{list == "tcp6", false} {
			if inode, ok := search(text, hexAddr(own, mapped)+" "+hexAddr(other, mapped)+" 01 "); ok {
				return inode, nil
			}
		}
	}
	return "", fmt.Errorf("%w: the kernel does not list it", errNobody)
}

// search returns the inode in the line that has both addresses.
func search(text []byte, addresses string) (string, bool) {
	at := bytes.Index(text, []byte(" "+addresses))
	if at < 0 {
		return "", false
	}
	line, _, _ := bytes.Cut(text[at:], []byte("\n"))
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[8]) == "0" {
		return "", false
	}
	return string(fields[8]), true
}

// hexAddr returns an address as the kernel lists it: words in the order of
// this machine's bytes. As mapped, IPv4 looks as a socket of IPv6 has it.
func hexAddr(a netip.AddrPort, mapped bool) string {
	ip := a.Addr().Unmap()
	raw := ip.AsSlice()
	if ip.Is4() && mapped {
		whole := ip.As16()
		raw = whole[:]
	}
	var b strings.Builder
	for word := range slices.Chunk(raw, 4) {
		fmt.Fprintf(&b, "%08X", binary.NativeEndian.Uint32(word))
	}
	fmt.Fprintf(&b, ":%04X", a.Port())
	return b.String()
}

// has returns the descriptor of the process that is the socket.
func (f *finder) has(pid int, link string, budget *int) (string, bool) {
	path := filepath.Join(f.procFS, strconv.Itoa(pid), "fd")
	dir, err := os.Open(path)
	if err != nil {
		return "", false // gone, or not ours to see
	}
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if *budget--; *budget < 0 {
				return "", false
			}
			fd := filepath.Join(path, name)
			if target, err := os.Readlink(fd); err == nil && target == link {
				return fd, true
			}
		}
		if err != nil {
			return "", false
		}
	}
}

// open opens the process. It is the one that was found if it has the socket
// still: a number's next owner does not.
func (f *finder) open(pid int, fd, link string) (peer, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return peer{}, fmt.Errorf("open pidfd of %d: %w", pid, err)
	}
	cgroup, err := os.ReadFile(filepath.Join(f.procFS, strconv.Itoa(pid), "cgroup"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		_ = unix.Close(pidfd)
		return peer{}, fmt.Errorf("read cgroup of %d: %w", pid, err)
	}
	if target, err := os.Readlink(fd); err != nil || target != link {
		_ = unix.Close(pidfd)
		return peer{}, errNobody
	}
	return peer{pid: pid, pidfd: pidfd, cgroup: string(cgroup)}, nil
}

// gone reports whether the process has ended.
func (p peer) gone() bool {
	if p.pid == 0 {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(p.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

func (p peer) close() {
	if p.pid != 0 {
		_ = unix.Close(p.pidfd)
	}
}
