package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	described "go.opentelemetry.io/proto/otlp/resource/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// enforcerSocket is where the enforcer tells its spans, if it is a process of its own.
const enforcerSocket = "/enforcer/crash.sock"

// pushSpans pushes the agent's spans until ctx ends.
func pushSpans(ctx context.Context, dir string, log *slog.Logger) error {
	each, err := time.ParseDuration(cmp.Or(os.Getenv("OTEL_BSP_SCHEDULE_DELAY"), "5000") + "ms")
	if err != nil || each <= 0 {
		return errors.New("OTEL_BSP_SCHEDULE_DELAY is not a number of milliseconds, such as 5000")
	}
	about, err := aboutHost(ctx)
	if err != nil {
		return err
	}
	to, end := otlptracehttp.NewClient(), context.WithoutCancel(ctx)
	if err := to.Start(end); err != nil {
		return fmt.Errorf("set up the exporter of spans: %w", err)
	}
	defer to.Stop(end)
	of := new(described.Resource)
	for _, a := range about.Attributes() {
		of.Attributes = append(of.Attributes, &common.KeyValue{Key: string(a.Key),
			Value: &common.AnyValue{Value: &common.AnyValue_StringValue{StringValue: a.Value.Emit()}}})
	}
	said, all := &failures{log: log}, []*process{newProcess(dir + "/agent/control.sock"), newProcess(dir + enforcerSocket)}
	push := func(ctx context.Context) {
		for _, p := range all {
			if err := p.push(ctx, to, of); err != nil && ctx.Err() == nil {
				said.Handle(fmt.Errorf("spans of %s: %w", p.socket, err))
			}
		}
	}
	for tick := time.Tick(each); ; {
		select {
		case <-tick:
			push(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(end, patience)
			defer cancel()
			push(last)
			return nil
		}
	}
}

// A process is one of the agent's, which has spans.
type process struct {
	socket string
	client http.Client
	after  uint64 // place in its spans
}

func newProcess(socket string) *process {
	return &process{socket: socket, client: http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (conn net.Conn, err error) {
			for end := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
				conn, err = new(net.Dialer).DialContext(ctx, "unix", socket)
				if !errors.Is(err, syscall.EAGAIN) || time.Now().After(end) { // else others fill the queue
					return conn, err
				}
			}
		}}}}
}

// mostAnswers bounds the answers of a process that are pushed at a time: who makes spans without end keeps those of the
// other process waiting no longer. The agent keeps as many as so many answers have.
const mostAnswers = 16

// push pushes what is new. What the receiver does not take stays with the agent, as long as that has room. A span that
// cannot be read is dropped, and keeps no other one back.
func (p *process) push(ctx context.Context, to otlptrace.Client, of *described.Resource) (wrong error) {
	missed := uint64(0)
	for range mostAnswers {
		var answer struct { // gpusteward's span.Answer
			Spans        []json.RawMessage
			Next, Missed uint64
		}
		text, err := p.read(ctx)
		if err == nil && text != nil {
			err = json.Unmarshal(text, &answer)
		}
		if err != nil {
			return err
		}
		if missed += answer.Missed; len(answer.Spans) == 0 {
			break
		}
		batch := &trace.ScopeSpans{Scope: &common.InstrumentationScope{Name: "gpusteward"}}
		for _, text := range answer.Spans {
			one := new(trace.Span)
			if err := protojson.Unmarshal(text, one); err != nil {
				wrong = fmt.Errorf("a span is dropped: %w", err)
				continue
			}
			batch.Spans = append(batch.Spans, one)
		}
		if err := to.UploadTraces(ctx, []*trace.ResourceSpans{{Resource: of, ScopeSpans: []*trace.ScopeSpans{batch}}}); err != nil {
			return err
		}
		p.after = answer.Next
	}
	if missed > 0 {
		return errors.Join(wrong, fmt.Errorf("the agent dropped %d before they were read: lower tracing.sample or "+
			"OTEL_BSP_SCHEDULE_DELAY", missed))
	}
	return wrong
}

// read returns the next spans; nil if there is no such process, or another one tells its spans.
func (p *process) read(ctx context.Context) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprint("http://agent/spans?after=", p.after), nil)
	if err != nil {
		return nil, err
	}
	answer, err := p.client.Do(r)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, nil
	case err != nil:
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, mostBytes))
	switch {
	case answer.StatusCode == http.StatusNotFound:
		return nil, nil
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("answered %s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	return text, err
}
