package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	bridge "go.opentelemetry.io/contrib/bridges/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/sdk/resource"
)

// Limits on an answer of the agent, and on the last push.
const (
	patience  = 10 * time.Second
	mostBytes = 64 << 20
)

// run pushes at each interval until ctx ends. One batch is in memory at a time:
// what a receiver does not take within the SDK's timeout is dropped.
func run(ctx context.Context, url string, log *slog.Logger, retry otlpmetrichttp.RetryConfig) error {
	var options []otlpmetrichttp.Option
	if retry != (otlpmetrichttp.RetryConfig{}) {
		options = append(options, otlpmetrichttp.WithRetry(retry))
	}
	exporter, err := otlpmetrichttp.New(ctx, options...)
	if err != nil {
		return fmt.Errorf("set up the exporter: %w", err)
	}
	about, err := aboutHost(ctx)
	if err != nil {
		return err
	}
	otel.SetErrorHandler(&failures{log: log})
	reader := metric.NewPeriodicReader(exporter, metric.WithProducer(agent{url, http.Client{Timeout: patience}}))
	provider := metric.NewMeterProvider(metric.WithResource(about), metric.WithReader(reader))
	<-ctx.Done()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	if err := provider.Shutdown(last); err != nil {
		log.Warn("the last push failed", "err", err)
	}
	return nil
}

// aboutHost returns the resource that everything is about.
func aboutHost(ctx context.Context) (*resource.Resource, error) {
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "gpusteward")),
		resource.WithHost(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe this host: %w", err)
	}
	return about, nil
}

// failures logs one error a minute.
type failures struct {
	log *slog.Logger

	mu   sync.Mutex
	next time.Time
}

func (f *failures) Handle(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now := time.Now(); now.After(f.next) {
		f.log.Warn("push failed", "err", err)
		f.next = now.Add(time.Minute)
	}
}

// An agent produces the metrics at a URL.
type agent struct {
	url    string
	client http.Client
}

// Produce reads the metrics, and converts them.
func (a agent) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	families, err := a.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", a.url, err)
	}
	families, units := translate(families)
	all, err := bridge.NewMetricProducer(bridge.WithGatherer(
		prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return families, nil }))).Produce(ctx)
	finish(all, units)
	return all, err
}

// read returns the families of the agent, in protobuf: it has units, exemplars
// and native histograms.
func (a agent) read(ctx context.Context) (all []*dto.MetricFamily, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url, nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", string(expfmt.FmtProtoDelim))
	answer, err := a.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("answered %s", answer.Status)
	}
	format := expfmt.ResponseFormat(answer.Header)
	if format.FormatType() != expfmt.TypeProtoDelim {
		return nil, fmt.Errorf("answered %q, which is not Prometheus's protobuf: is this a gpusteward agent?",
			answer.Header.Get("Content-Type"))
	}
	for d := expfmt.NewDecoder(io.LimitReader(answer.Body, mostBytes), format); ; {
		f := new(dto.MetricFamily)
		switch err := d.Decode(f); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, f)
	}
}
