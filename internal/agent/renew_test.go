package agent

import (
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/coreos/go-systemd/v22/activation"

	"gpusteward/internal/fixture"
)

// A process passes systemd's socket on though its threads open and close files all
// the time: each of them may have the descriptor at which systemd puts the socket.
func TestSocketsOutliveARenewal(t *testing.T) {
	const begins = "GPUSTEWARD_BEGINS"
	if n, err := strconv.Atoi(os.Getenv(begins)); err == nil { // the processes below, which are one
		if takeSockets(); n == 0 {
			listeners, err := activation.Listeners()
			if fixture.Must(t, err); len(listeners) != 1 || listeners[0] == nil {
				t.Errorf("%d sockets: %v", len(listeners), listeners)
			}
			return
		}
		r := newRenewal(nil)
		_, err := activation.Listeners()
		fixture.Must(t, err)
		for range 4 {
			go func() {
				for {
					if f, err := os.Open("/proc/self/stat"); err == nil {
						_ = f.Close()
					}
				}
			}()
		}
		fixture.Must(t, os.Setenv(begins, strconv.Itoa(n-1)))
		t.Fatal(r.again())
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	fixture.Must(t, err)
	defer l.Close()
	socket, err := l.File()
	fixture.Must(t, err)
	cmd := exec.Command("/bin/sh", "-c", `LISTEN_PID=$$ exec "$0" -test.run=^TestSocketsOutliveARenewal$`, os.Args[0])
	cmd.Env = append(os.Environ(), "LISTEN_FDS=1", begins+"=50")
	cmd.ExtraFiles = []*os.File{socket}
	if said, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, said)
	}
}
