package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
)

// A door is where processes connect. One goroutine accepts.
type door struct {
	*common
	doubt    *doubt
	listener *net.UnixListener
	file     *os.File // the listener's, for cheaper accepts than its own
}

// listen creates the socket; any process may connect to it.
func listen(path string) (*net.UnixListener, error) {
	address := &net.UnixAddr{Name: path, Net: "unixpacket"}
	l, err := net.ListenUnix("unixpacket", address)
	if errors.Is(err, unix.EADDRINUSE) {
		conn, dialed := net.DialUnix("unixpacket", nil, address)
		if dialed == nil {
			_ = conn.Close()
			return nil, fmt.Errorf("open broker socket %s: another broker answers there", path)
		}
		st, missing := os.Lstat(path)
		if missing == nil && st.Mode().Type() != os.ModeSocket {
			dialed = errors.New("the file there is not a socket")
		}
		if !errors.Is(dialed, unix.ECONNREFUSED) {
			return nil, fmt.Errorf("open broker socket %s: %w", path, dialed)
		}
		if err = os.Remove(path); err == nil {
			l, err = net.ListenUnix("unixpacket", address)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open broker socket: %w", err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("open broker socket: %w", err)
	}
	return l, nil
}

func (d *door) close() {
	_ = d.listener.Close()
	_ = d.file.Close()
}

// accept has each connection met until ctx ends. An owner that connects too often
// costs only its identification.
func (d *door) accept(ctx context.Context, meet func(fd int, now time.Duration)) error {
	raw, err := d.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("accept on broker socket: %w", err)
	}
	begun := d.clock.now() // with those who wait
	for {
		fd, err := procs.Accept(raw, func() { begun = 0 })
		now := d.clock.now()
		if begun == 0 {
			begun = now
		}
		switch {
		case ctx.Err() != nil:
			if err == nil {
				_ = unix.Close(fd)
			}
			return nil
		case starving(err):
			// The client waits in the kernel's queue until a descriptor is
			// free.
			d.doubt.starve(fmt.Errorf("accept on broker socket: %w", err))
			select {
			case <-ctx.Done():
			case <-time.After(d.timing.poll):
			}
			continue
		case err != nil:
			return fmt.Errorf("accept on broker socket: %w", err)
		}
		if now-begun > d.timing.behind {
			begun = now
			d.doubt.starve(errBehind)
		}
		meet(fd, now)
	}
}
