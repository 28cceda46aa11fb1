// gpusteward-otlp pushes the agent's metrics and spans to receivers of OpenTelemetry's
// protocol over HTTP. It is a program of its own, so that the agent needs no
// network and none of OpenTelemetry's packages, and so that a dead receiver
// cannot hold up the agent.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"golang.org/x/sync/errgroup"
)

func main() {
	url := flag.String("url", "http://127.0.0.1:9836/metrics", "the agent's metrics")
	dir := flag.String("runtime.dir", "/run/gpusteward", "the agent's runtime directory, which has its sockets")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: gpusteward-otlp [--url=URL] [--runtime.dir=DIR]\n\n",
			"Pushes the metrics of a gpusteward agent by OTLP over HTTP. The variables of OpenTelemetry\n",
			"configure it, such as OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318,\n",
			"OTEL_EXPORTER_OTLP_HEADERS and OTEL_METRIC_EXPORT_INTERVAL (in ms). The agent's spans go to\n",
			tracesEndpoint, "=http://collector:4318/v1/traces.\n\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := checked(flag.Args()); err != nil {
		log.Error("cannot start", "err", err)
		os.Exit(2)
	}
	if err := pushAll(ctx, *url, *dir, log); err != nil {
		log.Error("cannot push", "err", err)
		os.Exit(1)
	}
}

// tracesEndpoint is the variable with the receiver of spans. Without it none are pushed.
const tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"

// pushesMetrics reports whether there is a receiver of metrics.
func pushesMetrics() bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") != ""
}

// pushAll pushes what there are receivers for until ctx ends, or one of them cannot be set up.
func pushAll(ctx context.Context, url, dir string, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	if pushesMetrics() {
		group.Go(func() error { return run(ctx, url, log, otlpmetrichttp.RetryConfig{}) })
	}
	if os.Getenv(tracesEndpoint) != "" {
		group.Go(func() error { return pushSpans(ctx, dir, log) })
	}
	return group.Wait()
}

// checked returns an error unless the command line and the environment say
// where to push.
func checked(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unknown argument %q: the flags are --url and --runtime.dir", args[0])
	}
	if !pushesMetrics() && os.Getenv(tracesEndpoint) == "" {
		return errors.New("no receiver: set OTEL_EXPORTER_OTLP_ENDPOINT, as in http://collector:4318")
	}
	return nil
}
