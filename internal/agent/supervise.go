package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
)

// supervise reports the agent's state to systemd. READY comes when every GPU
// has been read, or when it is certain that there is no driver or no GPU, so that a
// boot does not wait for one. The watchdog is served only while the readers make
// progress, which they do within 2*fast().
func supervise(ctx context.Context, host *collectors.Host, fast func() time.Duration, log *slog.Logger) error {
	notify := func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("tell systemd", "err", err)
		}
	}
	watchdog, err := daemon.SdWatchdogEnabled(false)
	if err != nil {
		log.Warn("systemd's watchdog is not served", "err", err)
	}
	interval := 50 * time.Millisecond // until ready
	ready, told := false, ""
	for {
		status := "reading GPUs"
		state := host.Ready()
		if state != nil {
			status = state.Error()
		}
		switch driver := host.Driver(); {
		case !ready && (state == nil || errors.Is(state, collectors.ErrNoGPUs) || driver != nil && !errors.Is(driver, collectors.ErrOpening)):
			ready = true
			interval = time.Second
			if watchdog > 0 {
				interval = min(interval, watchdog/3)
			}
			notify(daemon.SdNotifyReady + "\nSTATUS=" + status)
			if ret := gpu.ReturnOf(driver); ret == nvml.ERROR_LIBRARY_NOT_FOUND || ret == nvml.ERROR_DRIVER_NOT_LOADED {
				log.Warn("waiting for an NVIDIA driver; --demo serves a simulated host")
			}
		case ready && status != told:
			notify("STATUS=" + status)
		}
		told = status
		if ready && watchdog > 0 && time.Since(host.Progress()) < watchdog+2*fast() {
			notify(daemon.SdNotifyWatchdog)
		}
		select {
		case <-ctx.Done():
			notify(daemon.SdNotifyStopping)
			return nil
		case <-time.After(interval):
		}
	}
}

// brokerListener returns the socket that systemd listens at for the broker; nil
// if there is none. Clients wait there while the broker restarts, and
// containers that have the file mounted keep it.
func (f flags) brokerListener() (*net.UnixListener, error) {
	if f.role == roleAll && *f.web.WebSystemdSocket {
		return nil, nil // they are for HTTP
	}
	given, err := activation.Listeners()
	if err != nil || len(given) == 0 {
		return nil, err
	}
	if l, ok := given[0].(*net.UnixListener); ok && len(given) == 1 && l.Addr().Network() == "unixpacket" {
		return l, nil
	}
	var kinds []string
	for _, l := range given {
		kind := "none that listens"
		if l != nil {
			kind = l.Addr().Network() + " " + l.Addr().String()
			_ = l.Close()
		}
		kinds = append(kinds, kind)
	}
	return nil, misconfigured{fmt.Errorf("the broker requires exactly one socket from systemd, of "+
		"ListenSequentialPacket=, and received %s; sockets for HTTP require --web.systemd-socket",
		strings.Join(kinds, ", "))}
}
