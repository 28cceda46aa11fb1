package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
)

// TestSpansArePushed has a receiver that refuses them once, and an agent that answers what internal/span is tested to
// answer, or something else. A role that does not run, or has no spans, is nothing to complain about.
func TestSpansArePushed(t *testing.T) {
	dir, got := t.TempDir(), []*collector.ExportTraceServiceRequest{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		text, _ := io.ReadAll(q.Body)
		all := new(collector.ExportTraceServiceRequest)
		if err := proto.Unmarshal(text, all); err != nil || q.URL.Path != "/v1/traces" {
			t.Errorf("%s: %v", q.URL.Path, err)
		}
		if got = append(got, all); len(got) == 1 {
			http.Error(w, "not now", http.StatusForbidden)
		}
	}))
	defer s.Close()
	t.Setenv(tracesEndpoint, s.URL+"/v1/traces")
	good, _ := os.ReadFile("../../internal/span/testdata/answer.json")
	p, to := newProcess(dir+enforcerSocket), otlptracehttp.NewClient()
	os.Mkdir(filepath.Dir(p.socket), 0o755)
	for _, c := range []struct {
		status     int
		text, want string
	}{{0, "", ""}, {404, "", ""}, {403, "only root", "answered 403 Forbidden: only root"}, {200, "hello", "invalid character"},
		{200, string(good), "403"}, {200, strings.Replace(string(good), `"kind":`, `"none":`, 1), "a span is dropped"},
		{200, strings.Replace(string(good), `"next": 9`, `"next": 8`, 1), "dropped 4 before"}} { // the last one has new ones without end
		os.Remove(p.socket)
		l, _ := net.Listen("unix", p.socket)
		defer l.Close()
		if c.status == 0 {
			os.Remove(p.socket)
		}
		go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(c.status)
			io.WriteString(w, map[bool]string{false: c.text, true: `{"missed":4}`}[r.URL.RawQuery == "after=9"])
		}))
		if err := p.push(t.Context(), to, nil); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := pushAll(ended, "", dir, slog.New(slog.DiscardHandler)); err != nil || len(got) != 2+mostAnswers {
		t.Fatalf("%v, %d batches", err, len(got))
	}
	has := got[2].ResourceSpans[0].Resource.String()
	for _, s := range got[2].ResourceSpans[0].ScopeSpans[0].Spans {
		has += fmt.Sprintf("\n%s %x %x %x %d+%d %v %q", s.Name, s.TraceId, s.SpanId, s.ParentSpanId, s.StartTimeUnixNano,
			s.EndTimeUnixNano-s.StartTimeUnixNano, s.Status.Code, s.Status.Message)
		for _, a := range s.Attributes {
			has += fmt.Sprintf(" %s=%s%d", a.Key, a.Value.GetStringValue(), a.Value.GetIntValue())
		}
	}
	for _, want := range []string{`"gpusteward"`, "\nbroker.reserve 0af7651916cd43dd8448eb211c80319c 0100000000000002 b7ad6b7169203331 " +
		`1000000000000000005+1500 STATUS_CODE_ERROR "denied" bytes=1099511627776 component=broker0 operation=reserve0 pid=4711 tenant=a0`,
		"\nenforcer.step 00000000000000000000000000000009 0000000000000003  1000000000000000005+60000000000 STATUS_CODE_UNSET \"\" component"} {
		if !strings.Contains(has, want) {
			t.Errorf("%s\nis not in\n%s", want, has)
		}
	}
}
