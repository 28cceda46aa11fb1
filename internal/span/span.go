// Package span keeps requests as spans: what a part of the agent was asked for, for how
// long, with which result, and in which trace. gpusteward-otlp reads them at a control
// socket and exports them, so that the agent needs none of OpenTelemetry's packages. They
// are off until Set is called; a span costs a load and a comparison then.
package span

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds.
const (
	kept    = 4096 // spans, the latest
	longest = 64   // bytes of a tag's text; the rest is cut off
)

// A Parent is the span that another one belongs to. The zero value is none: the other one
// begins a trace.
type Parent struct {
	Trace [16]byte
	ID    [8]byte
}

// ParseParent parses a traceparent of the W3C's Trace Context. Anything malformed is
// none. The flags are ignored: whoever wrote the text does not decide what is sampled.
func ParseParent(text string) (p Parent) {
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(text) < size || strings.ContainsAny(text[:size], "ABCDEF") {
		return Parent{}
	}
	var version, flags [1]byte
	for to, from := 0, 0; to < 4; to++ {
		field := [][]byte{version[:], p.Trace[:], p.ID[:], flags[:]}[to]
		end := from + 2*len(field)
		_, err := hex.Decode(field, []byte(text[from:end]))
		if err != nil || end < size && text[end] != '-' {
			return Parent{}
		}
		from = end + 1
	}
	later := len(text) > size && version[0] != 0 && text[size] == '-' // it may be longer
	if version[0] == 0xff || len(text) > size && !later || p.Trace == [16]byte{} || p.ID == [8]byte{} {
		return Parent{}
	}
	return p
}

// A Span is what happened, or what has begun. Nil is one that is not recorded.
type Span struct {
	Name   string // component.operation
	Parent        // Trace is the span's own; may be changed until the end, as Began
	ID     [8]byte
	Began  time.Time
	Took   time.Duration
	Failed string // why, in a word; empty: it succeeded
	Tags   map[string]any
	to     *Recorder // nil: it has ended
}

// A Recorder records spans. Its methods are safe for concurrent use; nil records nothing.
type Recorder struct {
	odds atomic.Uint64 // of 1<<63 that a frequent request is recorded; 0: nothing is

	mu   sync.Mutex
	ring []Span // nil until there is one
	// Spans are numbered from the time of the start, so that a reader's place in those of an
	// earlier process is before the first.
	first, next uint64
}

// New returns a recorder that is off.
func New() *Recorder {
	start := uint64(time.Now().UnixMicro())
	return &Recorder{first: start, next: start}
}

// Set sets the part of frequent requests that are recorded, from 0 to 1. Others are always
// recorded, unless the part is 0.
func (r *Recorder) Set(part float64) { r.odds.Store(uint64(part * (1 << 63))) }

func (r *Recorder) on() bool { return r != nil && r.odds.Load() != 0 }

// Sample begins a span of a frequent request, perhaps.
func (r *Recorder) Sample(name string, of Parent) (s *Span) {
	if r.on() {
		s = r.sample(name, of)
	}
	return // so short that it is inlined
}

func (r *Recorder) sample(name string, of Parent) *Span {
	if rand.Uint64()>>1 >= r.odds.Load() {
		return nil
	}
	return r.begin(name, of)
}

// Begin begins a span of something rare.
func (r *Recorder) Begin(name string, of Parent) (s *Span) {
	if r.on() {
		s = r.begin(name, of)
	}
	return
}

func (r *Recorder) begin(name string, of Parent) *Span {
	s := &Span{Name: name, Parent: of, Began: time.Now(), to: r}
	binary.BigEndian.PutUint64(s.ID[:], rand.Uint64()|1) // 0 is no ID
	if s.Trace == [16]byte{} {
		binary.BigEndian.PutUint64(s.Trace[:], rand.Uint64()|1)
		binary.BigEndian.PutUint64(s.Trace[8:], rand.Uint64())
	}
	return s
}

// Child returns what a part of the span begins with.
func (s *Span) Child() Parent {
	if s == nil {
		return Parent{}
	}
	return Parent{s.Trace, s.ID}
}

// End records the span, once. Failed says in a word why it failed; empty: it did not. The tags
// are keys with a text or a whole number each; an empty text is left out.
func (s *Span) End(failed string, tags ...any) {
	if s == nil || s.to == nil {
		return
	}
	s.Failed, s.Took, s.Tags = failed, time.Since(s.Began), map[string]any{}
	for ; len(tags) > 1; tags = tags[2:] {
		value := tags[1]
		if n, is := value.(uint64); is { // what a program asked for, and OTLP has no larger number
			value = min(n, math.MaxInt64)
		}
		if text, is := value.(string); is && len(text) > longest {
			value = strings.ToValidUTF8(strings.Clone(text[:longest]), "")
		}
		if value != "" {
			s.Tags[tags[0].(string)] = value
		}
	}
	r := s.to
	s.to = nil
	r.keep(s)
}

func (r *Recorder) keep(s *Span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ring == nil {
		r.ring = make([]Span, kept)
	}
	r.ring[r.next%kept] = *s
	r.next++
}
