package span

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

func on(part float64) *Recorder {
	r := New()
	r.Set(part)
	return r
}

const traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestParseParent(t *testing.T) {
	good := ParseParent(traceparent)
	fixture.If(t, good.Trace[15] != 0x9c || good.ID != [8]byte{0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31}, "%x", good)
	for _, text := range []string{traceparent[:53] + "00", "cc" + traceparent[2:], "01" + traceparent[2:] + "-\xff\x00"} {
		fixture.Equal(t, ParseParent(text), good, "%q", text)
	}
	for _, text := range []string{"", "-", traceparent[:54], traceparent + "-", traceparent + "0", " " + traceparent, traceparent + "\n",
		"ff" + traceparent[2:], "0x" + traceparent[2:], strings.ToUpper(traceparent), "01" + traceparent[2:] + "x",
		"00-00000000000000000000000000000000-b7ad6b7169203331-01", "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333\x00-01", "00_0af7651916cd43dd8448eb211c80319c_b7ad6b7169203331_01",
		"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0g", "00-{a=\"up\"}6cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		strings.Repeat("é", 28), strings.Repeat("\x00", 64)} {
		fixture.Equal(t, ParseParent(text), Parent{}, "%q", text)
	}
}

// TestFrequentRequestsAreSampled, and rare ones are all recorded. While nothing is, nothing is allocated.
func TestFrequentRequestsAreSampled(t *testing.T) {
	for _, c := range []struct {
		part              float64
		least, most, rare int
	}{{0, 0, 0, 0}, {1e-9, 0, 1, 1001}, {0.25, 150, 350, 1001}, {1, 1001, 1001, 1001}} {
		r, n, rare := on(c.part), 0, 0
		allocated := testing.AllocsPerRun(1000, func() {
			if r.Begin("b", Parent{}) != nil {
				rare++
			}
			if r.Sample("a", Parent{}) != nil {
				n++
			}
		})
		fixture.If(t, n < c.least || n > c.most || rare != c.rare || c.part == 0 && allocated > 0,
			"part %v: %d frequent and %d rare ones are recorded, with %v allocations", c.part, n, rare, allocated)
	}
	(*Recorder)(nil).Begin("b", Parent{}).End("")
}

func TestASpanIsRecordedOnce(t *testing.T) {
	r := on(1)
	whole := r.Begin("whole", Parent{})
	part := r.Begin("part", whole.Child())
	part.End("busy", "tenant", strings.Repeat("é", 60), "none", "", "pid", 7, "bytes", uint64(1<<64-1))
	part.End("twice")
	whole.End("")
	p, w := r.Read(0).Spans[0], r.Read(0).Spans[1]
	fixture.If(t, p.Trace != w.Trace || w.Trace == [16]byte{} || p.Parent.ID != w.ID || w.Parent.ID != [8]byte{} || w.ID == p.ID, "%+v, %+v", p, w)
	fixture.If(t, p.Failed != "busy" || w.Failed != "" || len(p.Tags) != 3 || p.Tags["tenant"] != strings.Repeat("é", 32) || p.Tags["bytes"] != uint64(1<<63-1), "%+v", p)
}

// TestTheOldestSpansAreDropped reads more spans than are kept, and those of the next process.
func TestTheOldestSpansAreDropped(t *testing.T) {
	r := on(1)
	record := func(n int) {
		for i := range n {
			r.Begin("b", Parent{}).End("", "i", i)
		}
	}
	record(10)
	place, read := r.Read(0).Next, 0
	record(kept + 5)
	first := r.Read(place)
	fixture.If(t, first.Missed != 5 || first.Spans[0].Tags["i"] != 5, "missed %d, %v", first.Missed, first.Spans[0].Tags)
	for a := first; len(a.Spans) > 0; a = r.Read(a.Next) {
		read += len(a.Spans)
	}
	fixture.Equal(t, read, kept, "spans")
	fixture.Equal(t, r.Read(0).Missed, 0, "a reader that begins has missed …")
	r.first, r.next = r.next+1000, r.next+1000
	record(kept + 3)
	fixture.Equal(t, r.Read(place).Missed, 3, "of the next process, … are missed")
	fixture.Equal(t, len(r.Read(r.next+1).Spans), mostRead, "spans from a place in the future")
}

// TestAnswer holds what deploy/otlp, a module of its own, reads.
func TestAnswer(t *testing.T) {
	r := &Recorder{first: 7, next: 7}
	at := time.Unix(1e9, 5)
	r.keep(&Span{Name: "broker.reserve", Parent: ParseParent(traceparent), ID: [8]byte{1, 7: 2}, Began: at, Took: 1500, Failed: "denied",
		Tags: map[string]any{"tenant": "a", "pid": 4711, "bytes": uint64(1 << 40)}})
	r.keep(&Span{Name: "enforcer.step", Parent: Parent{Trace: [16]byte{15: 9}}, ID: [8]byte{7: 3}, Began: at, Took: time.Minute})
	w, text := httptest.NewRecorder(), bytes.Buffer{}
	r.ServeHTTP(w, httptest.NewRequest("GET", Path+"?after=7", nil))
	fixture.Must(t, json.Indent(&text, w.Body.Bytes(), "", "  "))
	fixture.Golden(t, "testdata/answer.json", text.String())
}

func BenchmarkOff(b *testing.B) {
	r := New()
	for range b.N { // b.Loop would keep the call from being inlined
		if s := r.Sample("b", Parent{}); s != nil {
			s.End("")
		}
	}
}
