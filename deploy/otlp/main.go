// gpusteward-otlp pushes the agent's metrics to a receiver of OpenTelemetry's
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
)

func main() {
	url := flag.String("url", "http://127.0.0.1:9836/metrics", "the agent's metrics")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: gpusteward-otlp [--url=URL]\n\n",
			"Pushes the metrics of a gpusteward agent by OTLP over HTTP. The variables of OpenTelemetry\n",
			"configure it, such as OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318,\n",
			"OTEL_EXPORTER_OTLP_HEADERS and OTEL_METRIC_EXPORT_INTERVAL (in ms).\n\n")
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
	if err := run(ctx, *url, log, otlpmetrichttp.RetryConfig{}); err != nil {
		log.Error("cannot push", "err", err)
		os.Exit(1)
	}
}

// checked returns an error unless the command line and the environment say
// where to push.
func checked(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unknown argument %q: the only flag is --url", args[0])
	}
	if os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && os.Getenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT") == "" {
		return errors.New("no receiver: set OTEL_EXPORTER_OTLP_ENDPOINT, as in http://collector:4318")
	}
	return nil
}
