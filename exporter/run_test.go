package exporter

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
)

// An announced is a slog handler that reports the server's address.
type announced struct {
	slog.Handler
	address chan string
}

func (a announced) Enabled(context.Context, slog.Level) bool { return true }

func (a announced) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(attr slog.Attr) bool {
		if attr.Key == "address" && strings.HasPrefix(r.Message, "Listening") {
			a.address <- attr.Value.String()
		}
		return true
	})
	return nil
}

func listenOn(address string) *web.FlagConfig {
	no, none := false, ""
	return &web.FlagConfig{WebListenAddresses: &[]string{address}, WebSystemdSocket: &no, WebConfigFile: &none}
}

func TestRunServesUntilStopped(t *testing.T) {
	t.Parallel()
	log := announced{slog.DiscardHandler, make(chan string, 1)}
	s := server(t, func(o *Options) { o.Log = slog.New(log) })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Listen(ctx, s, listenOn("127.0.0.1:0"), s.options.Log) }()
	var address string
	select {
	case address = <-log.address:
	case err := <-ended:
		t.Fatalf("ended before it listened: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("does not listen")
	}
	answer, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	answer.Body.Close()
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(body), "nvgpu_up") {
		t.Errorf("answer %s %q, error %v", answer.Status, body, err)
	}
	http.DefaultClient.CloseIdleConnections()
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("told to stop, it ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("told to stop, it did not")
	}
	if c, err := net.Dial("tcp", address); err == nil {
		c.Close()
		t.Error("it listens on after its end")
	}
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := server(t, nil)
	err = Listen(t.Context(), s, listenOn(l.Addr().String()), s.options.Log)
	if err == nil || !strings.Contains(err.Error(), "is another gpusteward running?") {
		t.Errorf("on an address in use: %v", err)
	}
}
