package gemini

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// mostDescriptors bounds the search for a process: the descriptors in its own
// cgroup that are examined.
const mostDescriptors = 1 << 16

var errNobody = errors.New("no process is found that has the socket")

// A peer is the process at the other end of a connection. The zero value is an
// unknown one.
type peer struct {
	socket
	pid    int    // 0: it was not found
	pidfd  int    // the owner of the peer closes it
	groups string // its cgroups, as /proc has them
}

// known reports whether the kernel says in which cgroup the peer is.
func (p peer) known() bool { return p.pid != 0 || p.cgroup > rootCgroup }

// beside reports whether two peers are known to be in one cgroup.
func (p peer) beside(o peer) bool {
	unified := p.cgroup > rootCgroup && strings.Count(p.groups, "\n") < 2 && strings.Count(o.groups, "\n") < 2
	return p.cgroup == o.cgroup && (unified || p.pid != 0 && o.pid != 0 && p.groups == o.groups)
}

// A finder finds processes by their sockets, one search at a time for each
// cgroup: a cgroup with many descriptors delays only itself.
type finder struct {
	procFS   string
	cgroupFS string
	most     int // descriptors that are examined
	mu       sync.Mutex
	searches map[uint64]*search // by cgroup
}

// A search is running, or waited for.
type search struct {
	sync.Mutex
	by int
}

// begin waits until no other search in the cgroup runs, and returns a function
// that ends this one.
func (f *finder) begin(cgroup uint64) (end func()) {
	f.mu.Lock()
	if f.searches == nil {
		f.searches = map[uint64]*search{}
	}
	s := f.searches[cgroup]
	if s == nil {
		s = &search{}
		f.searches[cgroup] = s
	}
	s.by++
	f.mu.Unlock()
	s.Lock()
	return func() {
		s.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		if s.by--; s.by == 0 {
			delete(f.searches, cgroup)
		}
	}
}

// find returns the owner of the socket, between begin and its end. It examines
// the processes in first, then those in the socket's cgroup. With an error it
// returns a peer without a process.
func (f *finder) find(s socket, first []int) (peer, error) {
	link := fmt.Sprintf("socket:[%d]", s.inode)
	budget := f.most
	for _, pid := range first {
		if fd, ok := f.has(pid, link, &budget); ok {
			pid, fd = f.eldest(pid, fd, link, &budget)
			return f.open(s, pid, fd, link)
		}
	}
	dir, err := os.Open(f.procFS)
	if err != nil {
		return peer{socket: s}, err
	}
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || slices.Contains(first, pid) || f.elsewhere(pid, s.cgroup) {
				continue
			}
			if fd, ok := f.has(pid, link, &budget); ok {
				pid, fd = f.eldest(pid, fd, link, &budget)
				return f.open(s, pid, fd, link)
			}
			if budget <= 0 {
				return peer{socket: s}, fmt.Errorf("%w within %d descriptors", errNobody, f.most)
			}
		}
		if err != nil {
			return peer{socket: s}, errNobody
		}
	}
}

// elsewhere reports whether a process is in another cgroup of version 2, as far as is
// known.
func (f *finder) elsewhere(pid int, cgroup uint64) bool {
	groups, err := os.ReadFile(filepath.Join(f.procFS, strconv.Itoa(pid), "cgroup"))
	path, ok := procs.Cgroup(string(groups), "")
	if err != nil || !ok {
		return err != nil // it is gone
	}
	seen := false
	for _, mount := range []string{"", "unified"} { // the latter if both versions are mounted
		var st unix.Stat_t
		if unix.Stat(filepath.Join(f.cgroupFS, mount, path), &st) == nil {
			if seen = true; st.Ino == cgroup {
				return false
			}
		}
	}
	return seen
}

// has returns the process's descriptor of the socket.
func (f *finder) has(pid int, link string, budget *int) (string, bool) {
	path := filepath.Join(f.procFS, strconv.Itoa(pid), "fd")
	dir, err := os.Open(path)
	if err != nil {
		return "", false // gone, or not ours to see
	}
	defer func() { _ = dir.Close() }()
	for {
		names, err := dir.Readdirnames(256)
		names = names[:max(0, min(len(names), *budget))]
		*budget -= len(names)
		for i := range names {
			names[i] = filepath.Join("fd", names[i])
		}
		targets, _ := procs.AwaitLinks(f.procFS, pid, names) // a search is apart from the server
		for fd, target := range targets {
			if target == link {
				return fd, true
			}
		}
		if *budget <= 0 {
			return "", false
		}
		if err != nil {
			return "", false
		}
	}
}

// eldest returns the oldest ancestor of a process such that all between them have the socket: a child
// inherits it, at least until it executes a program, and may end before the client.
func (f *finder) eldest(pid int, fd, link string, budget *int) (int, string) {
	for {
		stat, err := procs.AwaitStat(f.procFS, pid)
		if err != nil || stat.Parent <= 1 {
			return pid, fd
		}
		at, has := f.has(stat.Parent, link, budget)
		if !has {
			return pid, fd
		}
		pid, fd = stat.Parent, at
	}
}

// open opens the process. It is the one that was found if it still has the
// socket: a later process with its number does not.
func (f *finder) open(s socket, pid int, fd, link string) (peer, error) {
	var groups []byte
	pidfd, err := procs.Pidfd(pid, func() (err error) {
		groups, err = os.ReadFile(filepath.Join(f.procFS, strconv.Itoa(pid), "cgroup"))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if target, err := procs.AwaitLink(f.procFS, pid, fd); err != nil || target != link {
			return errNobody
		}
		return nil
	})
	if err != nil {
		return peer{socket: s}, fmt.Errorf("look at process %d: %w", pid, err)
	}
	return peer{socket: s, pid: pid, pidfd: pidfd, groups: string(groups)}, nil
}

// gone reports whether the process has ended.
func (p peer) gone() bool {
	return p.pid == 0 || procs.Ended(p.pidfd)
}

func (p peer) close() {
	if p.pid != 0 {
		_ = unix.Close(p.pidfd)
	}
}
