package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/worker"
)

// probeCommand is the hidden command that opens and closes the driver.
const probeCommand = "probe"

// probe is the child that does so: the driver can hang.
var probe = worker.Kind{Command: []string{probeCommand}, Running: 1, Children: 2, Limit: 10 * time.Second}

// firstSocket is the descriptor of the first socket that systemd hands over.
const firstSocket = 3

// passedSockets is the variable that names the descriptors of systemd's sockets for
// the new process.
const passedSockets = "GPUSTEWARD_SOCKETS"

// A renewal replaces this process by exec with a new one of the same program,
// with the same PID, arguments and activated sockets. Only this way can a
// library be loaded that was replaced on disk: the dynamic linker keeps a
// library while the program has bound functions of it.
type renewal struct {
	log     *slog.Logger
	sockets []int  // copies of systemd's sockets
	names   string // LISTEN_FDNAMES
}

// newRenewal must be called before anything takes systemd's sockets.
func newRenewal(log *slog.Logger) *renewal {
	r := &renewal{log: log, names: os.Getenv("LISTEN_FDNAMES")}
	n, err := strconv.Atoi(os.Getenv("LISTEN_FDS"))
	if err != nil || os.Getenv("LISTEN_PID") != strconv.Itoa(os.Getpid()) {
		return r
	}
	for fd := firstSocket; fd < firstSocket+n; fd++ {
		if kept, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, firstSocket+n); err == nil {
			r.sockets = append(r.sockets, kept)
		}
	}
	return r
}

// renew says how to start a new process, if one can open the driver.
func (r *renewal) renew(ctx context.Context) (start func() error, err error) {
	if _, err := probe.Do(ctx, worker.Order{}); err != nil {
		return nil, fmt.Errorf("probe the driver: %w", err)
	}
	return func() error {
		r.log.Warn("the driver's library was replaced: restarting as the same process to load it")
		return r.again()
	}, nil
}

// again does not return unless it fails.
func (r *renewal) again() error {
	env := os.Environ()
	if len(r.sockets) > 0 {
		syscall.ForkLock.RLock() // no child inherits them
		defer syscall.ForkLock.RUnlock()
		var passed []string
		for _, fd := range r.sockets {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
				return fmt.Errorf("pass systemd's socket on: %w", err)
			}
			passed = append(passed, strconv.Itoa(fd))
		}
		env = append(env, passedSockets+"="+strings.Join(passed, ","), "LISTEN_FDNAMES="+r.names)
	}
	return fmt.Errorf("restart: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}

// takeSockets moves sockets that another process passed on to where systemd puts
// them, and begins the program anew. It must be called before anything else: in a
// process that has been running for a while, those descriptors may be in use.
func takeSockets() error {
	passed, ok := os.LookupEnv(passedSockets)
	if !ok {
		return nil
	}
	fds := strings.Split(passed, ",")
	for i, s := range fds {
		fd, err := strconv.Atoi(s)
		if err == nil {
			err = unix.Dup3(fd, firstSocket+i, 0)
		}
		if err != nil {
			return fmt.Errorf("take systemd's socket %s over: %w", s, err)
		}
		unix.CloseOnExec(fd)
	}
	env := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, passedSockets+"=") })
	env = append(env, "LISTEN_FDS="+strconv.Itoa(len(fds)), "LISTEN_PID="+strconv.Itoa(os.Getpid()))
	return fmt.Errorf("restart with systemd's sockets: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}
