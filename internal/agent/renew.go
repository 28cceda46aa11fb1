package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// probeCommand is the hidden command that opens and closes the driver.
const probeCommand = "probe"

// firstSocket is the descriptor of the first socket that systemd hands over.
const firstSocket = 3

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

// renew does not return if a new process can open the driver. Otherwise it
// returns why not.
func (r *renewal) renew(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "/proc/self/exe", probeCommand).CombinedOutput(); err != nil {
		return fmt.Errorf("probe the driver: %w: %s", err, strings.TrimSpace(string(out)))
	}
	r.log.Warn("the driver's library was replaced: restarting as the same process to load it")
	env := os.Environ()
	if n := len(r.sockets); n > 0 {
		for i, fd := range r.sockets {
			if err := unix.Dup3(fd, firstSocket+i, 0); err != nil {
				return fmt.Errorf("pass systemd's socket on: %w", err)
			}
		}
		env = append(env, "LISTEN_FDS="+strconv.Itoa(n), "LISTEN_PID="+strconv.Itoa(os.Getpid()),
			"LISTEN_FDNAMES="+r.names)
	}
	return fmt.Errorf("restart: %w", syscall.Exec("/proc/self/exe", os.Args, env))
}
