package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// TestTasksEndInTime has a task that does not end, beside one that fails or a
// signal, and an enforcer that lets go of what it stopped.
func TestTasksEndInTime(t *testing.T) {
	failed := errors.New("failed")
	fails := func(context.Context) error { return failed }
	ends := func(ctx context.Context) error { <-ctx.Done(); return nil }
	for name, c := range map[string]struct {
		first task
		hangs bool          // the second
		rests time.Duration // until what was stopped goes on
		fails error
		took  time.Duration
	}{
		"all end":                 {ends, false, 0, nil, 0},
		"one does not":            {ends, true, 0, nil, obey},
		"one fails":               {fails, false, 0, failed, 0},
		"one fails, one does not": {fails, true, 0, failed, obey},
		"something is stopped":    {ends, true, time.Minute, nil, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				forever, second := make(chan struct{}), ends
				if c.hangs {
					second = func(context.Context) error { <-forever; return nil }
				}
				ctx, signal := context.WithCancel(t.Context())
				a := assembly{tasks: []task{c.first, second}}
				if c.rests > 0 {
					rested := make(chan struct{})
					a.rested = rested
					time.AfterFunc(c.rests, func() { close(rested) })
				}
				began := time.Now()
				if c.fails == nil {
					signal()
				}
				if err := a.run(ctx, obey, slog.New(slog.DiscardHandler)); !errors.Is(err, c.fails) {
					t.Errorf("%v, want %v", err, c.fails)
				}
				fixture.Equal(t, time.Since(began), c.took, "the end took")
				close(forever)
				signal()
			})
		})
	}
}

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

func TestFaultThatIsOver(t *testing.T) {
	t.Parallel()
	f := faultOf(health.Finding{Message: "Recovering. It was hot.", Recovered: time.Unix(60, 0), Clears: time.Unix(360, 0)})
	fixture.Equal(t, [2]string{f.What, f.Clears.Sub(*f.Recovered).String()}, [2]string{"It was hot.", "5m0s"}, "it is told as")
	fixture.Equal(t, faultOf(health.Finding{}).Recovered, nil, "a fault that lasts recovered at")
}
