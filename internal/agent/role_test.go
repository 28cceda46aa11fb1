package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coreos/go-systemd/v22/activation"

	"gpusteward/health"
	"gpusteward/internal/fixture"
)

// A wall is a log that nobody reads.
type wall struct {
	slog.Handler
	end <-chan struct{}
}

func (w wall) Enabled(context.Context, slog.Level) bool  { return true }
func (w wall) Handle(context.Context, slog.Record) error { <-w.end; return nil }

// TestTasksEndInTime has parts of the program never end, when a signal comes or another part fails. The others
// end, and save what they have.
func TestTasksEndInTime(t *testing.T) {
	failed := errors.New("failed")
	for name, c := range map[string]struct {
		hangs   string        // parts that never end, of 0, 1 and log
		returns time.Duration // for so long the driver gives memory back
		fails   error
		took    time.Duration
	}{
		"all end":                     {"", 0, nil, 0},
		"the first does not":          {"0", 0, nil, obey},
		"no part does":                {"0 1 log", 0, nil, obey + lastWord},
		"one fails":                   {"", 0, failed, 0},
		"one fails, one does not end": {"1", 0, failed, obey},
		"nobody reads the log":        {"log", 0, nil, lastWord},
		"memory comes back":           {"", time.Minute, nil, time.Minute},
		"and a part does not end":     {"1", time.Minute, nil, time.Minute + obey},
		"memory never comes back":     {"", time.Hour, nil, returns},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, signal := context.WithCancel(t.Context())
				forever, release := context.WithCancel(t.Context())
				returning, saved := make(chan bool, 2), atomic.Int64{}
				log, a := slog.New(slog.DiscardHandler), assembly{returning: returning}
				for i := range 3 {
					a.tasks = append(a.tasks, func(ctx context.Context) error {
						if <-ctx.Done(); strings.Contains(c.hangs, strconv.Itoa(i)) {
							<-forever.Done()
						}
						saved.Add(1)
						return nil
					})
				}
				a.tasks = append(a.tasks, func(ctx context.Context) error {
					if c.fails != nil {
						return c.fails
					}
					if <-ctx.Done(); c.returns > 0 {
						returning <- true
						select {
						case <-time.After(c.returns):
						case <-forever.Done():
						}
						returning <- false
					}
					return nil
				})
				if strings.Contains(c.hangs, "log") {
					log = slog.New(wall{end: forever.Done()})
				}
				began := time.Now()
				if c.fails == nil {
					signal()
				}
				err := a.run(ctx, log)
				fixture.If(t, !errors.Is(err, c.fails), "%v, want %v", err, c.fails)
				fixture.Equal(t, time.Since(began), c.took, "the end took")
				fixture.Equal(t, int(saved.Load()), 3-len(strings.Fields(strings.TrimSuffix(c.hangs, "log"))), "parts that saved")
				release()
				signal()
			})
		})
	}
}

// TestASignalDuringTheStart ends a program whose state is on a disk that hangs.
func TestASignalDuringTheStart(t *testing.T) {
	ctx, signal := context.WithCancel(t.Context())
	signal()
	hangs := make(chan struct{})
	defer close(hangs)
	_, err := assembled(ctx, func() (assembly, error) { <-hangs; return assembly{}, nil })
	fixture.Must(t, err)
}

// A process passes systemd's socket on though its threads open and close files all
// the time: each of them may have the descriptor at which systemd puts the socket.
func TestSocketsOutliveARenewal(t *testing.T) {
	const begins = "GPUSTEWARD_BEGINS"
	if n, err := strconv.Atoi(os.Getenv(begins)); err == nil { // the processes below, which are one
		if takeSockets(); n == 0 {
			listeners, err := activation.Listeners()
			fixture.Must(t, err)
			fixture.If(t, len(listeners) != 1 || listeners[0] == nil, "%d sockets: %v", len(listeners), listeners)
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
