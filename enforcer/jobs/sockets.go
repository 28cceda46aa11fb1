package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
	"gpusteward/internal/worker"
)

// How it is found what waits at the sockets of a server. A child process of this program duplicates each socket
// (pidfd_getfd), asks the kernel, and closes the duplicate at once. So it sees the sockets of these processes and no
// others, in whatever network namespace they are, without netlink. It receives nothing. It holds a duplicate for
// microseconds: a socket that its process closes meanwhile is closed that much later.

// Ways in which input waits.
const (
	unaccepted = "unaccepted" // a connection
	unread     = "unread"     // bytes of a connection
	unanswered = "unanswered" // a connection whose client has sent something, and has got nothing for a while
)

// An input is a socket at which a client waits.
type input struct {
	PID    int    `json:"pid"`    // of a process that has it
	Socket uint64 `json:"socket"` // inode
	How    string `json:"how"`
	At     string `json:"at"` // port or path of the server
}

// sockets are what is known of those of a server.
type sockets struct {
	Listeners []int   `json:"listeners"` // PIDs
	Inputs    []input `json:"inputs"`
}

const askSockets = "ask-sockets"

// asker are the children that ask.
var asker = worker.Kind{Command: worker.Begins(askSockets), Running: 1, Children: maxAskers, Limit: 2 * time.Second,
	Memory: 512 << 20, Output: 256 << 10, Confined: true, Keeps: []int{unix.CAP_SYS_PTRACE, unix.CAP_DAC_READ_SEARCH,
		unix.CAP_DAC_OVERRIDE}}

func init() {
	worker.Register(askSockets, func(args []string) error {
		if len(args) < 2 {
			return errors.New("no process is named")
		}
		return json.NewEncoder(os.Stdout).Encode(socketsOf(args[0], args[1], args[2:]))
	})
}

// ask returns what waits at the sockets of those of the processes that are of the party (procs.Whose).
func ask(procfs, whose string, pids []int) (s sockets, err error) {
	args := []string{procfs, whose}
	for _, pid := range pids {
		args = append(args, strconv.Itoa(pid))
	}
	ctx, cancel := context.WithTimeout(context.Background(), serveEvery)
	defer cancel()
	out, err := asker.Do(ctx, worker.Order{Args: args, Of: whose})
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	return s, err
}

// socketsOf does the child's work.
func socketsOf(procfs, whose string, pids []string) (s sockets) {
	served, seen, all, left := map[string]bool{}, map[uint64]bool{}, []input{}, maxOpen
	for _, text := range pids {
		pid, _ := strconv.Atoi(text)
		process, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		names, _ := entries(filepath.Join(procfs, text, "fd"))
		if procs.Whose(procfs, pid) != whose {
			names = nil
		}
		names = names[:min(len(names), left)]
		left -= len(names)
		for _, name := range names {
			target, _ := os.Readlink(filepath.Join(procfs, text, "fd", name))
			inode, is := strings.CutPrefix(target, "socket:[")
			socket := number([]byte(strings.TrimSuffix(inode, "]")))
			if !is || seen[socket] {
				continue
			}
			seen[socket] = true
			in, listens := inputOf(process, int(number([]byte(name))))
			if listens {
				served[in.At], s.Listeners = true, append(s.Listeners, pid)
			}
			if in.How != "" {
				in.PID, in.Socket = pid, socket
				all = append(all, in)
			}
		}
		_ = unix.Close(process)
	}
	for _, in := range all { // others are connections of the server to its own servers, or made in pairs
		if served[in.At] && len(s.Inputs) < maxInputs {
			s.Inputs = append(s.Inputs, in)
		}
	}
	return s
}

// inputOf returns what waits at a socket of the process, and whether it listens. How is empty if nothing waits.
func inputOf(process, number int) (in input, listens bool) {
	fd, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return in, false
	}
	defer unix.Close(fd)
	option := func(name int) int { v, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, name); return v }
	if option(unix.SO_TYPE) != unix.SOCK_STREAM {
		return in, false
	}
	name, _ := unix.Getsockname(fd)
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		in.At = fmt.Sprintf("port %d", a.Port)
	case *unix.SockaddrInet6:
		in.At = fmt.Sprintf("port %d", a.Port)
	case *unix.SockaddrUnix:
		if a.Name != "" {
			in.At = fmt.Sprintf("%.*q", maxName, a.Name)
		}
	}
	listens = option(unix.SO_ACCEPTCONN) != 0
	poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN | unix.POLLRDHUP}}
	_, _ = unix.Poll(poll, 0)
	tcp, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case in.At == "" || poll[0].Revents&^unix.POLLIN != 0: // the client has gone
	case listens && poll[0].Revents != 0:
		in.How = unaccepted
	case listens:
	case poll[0].Revents != 0:
		in.How = unread
	case err == nil && tcp.Bytes_received > 0 && tcp.Bytes_sent == 0 && tcp.Last_data_recv >= answers:
		in.How = unanswered
	}
	return in, listens
}
