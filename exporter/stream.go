package exporter

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/flate"
)

const (
	liveInterval = time.Second
	viewerBehind = 4 // messages that a viewer may be behind
)

// live streams the state to viewers, and keeps the history. An interval costs
// one rendering for any number of viewers, and none without viewers.
type live struct {
	state   func() State
	history history

	rendering sync.Mutex // one at a time; taken before mu
	mu        sync.Mutex // guards what follows
	ended     bool
	viewers   map[*viewer]struct{}
	latest    *frame // the first frame of a new viewer, if it is of this interval
}

// A frame is one message of the stream, and its compressed form, which can
// follow any other.
type frame struct {
	made          time.Time
	plain, packed []byte
}

// A viewer follows the stream.
type viewer struct{ frames chan *frame } // closed if the viewer is too slow or the server ends

// run adds to the history and sends to the viewers, shortly after each interval
// of the readers. When ctx ends, it ends the streams.
func (l *live) run(ctx context.Context) error {
	defer l.end()
	for {
		now := time.Now()
		t := time.NewTimer(now.Truncate(liveInterval).Add(liveInterval + lag(liveInterval)).Sub(now))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		l.tick()
	}
}

// tick adds to the history and sends a frame if one is due.
func (l *live) tick() {
	l.rendering.Lock()
	defer l.rendering.Unlock()
	l.mu.Lock()
	watched := len(l.viewers) > 0
	l.mu.Unlock()
	due := l.history.due(time.Now())
	if !watched && !due {
		return
	}
	state := l.state()
	if due {
		l.history.add(state.Time, state.GPUs, state.Workloads)
	}
	if watched {
		l.tell(newFrame(state))
	}
}

// tell hands f to the viewers. It drops a viewer that is too far behind; the
// viewer reconnects.
func (l *live) tell(f *frame) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = f
	for v := range l.viewers {
		select {
		case v.frames <- f:
		default:
			delete(l.viewers, v)
			close(v.frames)
		}
	}
}

// end ends all streams and admits no more.
func (l *live) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for v := range l.viewers {
		close(v.frames)
	}
	l.ended, l.viewers = true, nil
}

// join adds a viewer, whose first frame is ready. It returns nil if the server
// ends.
func (l *live) join() *viewer {
	l.rendering.Lock() // viewers that arrive at the same time share a frame
	defer l.rendering.Unlock()
	l.mu.Lock()
	f, ended := l.latest, l.ended
	l.mu.Unlock()
	if ended {
		return nil
	}
	if f == nil || time.Since(f.made) > liveInterval {
		f = newFrame(l.state())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended { // while it waited
		return nil
	}
	v := &viewer{make(chan *frame, viewerBehind)}
	v.frames <- f
	if l.viewers == nil {
		l.viewers = map[*viewer]struct{}{}
	}
	l.latest, l.viewers[v] = f, struct{}{}
	return v
}

func (l *live) leave(v *viewer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.viewers, v)
	if len(l.viewers) == 0 {
		l.latest = nil
	}
}

// ServeHTTP answers GET /api/v1/live with a State each second, as server-sent
// events, until the client leaves, is too slow, or the server ends.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", "text/event-stream")
		return
	}
	v := l.join()
	if v == nil {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "the agent is shutting down", http.StatusServiceUnavailable)
		return
	}
	defer l.leave(v)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Vary", "Accept-Encoding")
	w.Header().Set("X-Accel-Buffering", "no") // for nginx
	out := sender{to: w, control: http.NewResponseController(w)}
	if acceptsGzip(r) {
		w.Header().Set("Content-Encoding", "gzip")
		out.gzip = true
		out.start = gzipHeader
	}
	for {
		select {
		case f, ok := <-v.frames:
			if !ok {
				out.finish()
				return
			}
			if out.send(f) != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}

// newFrame returns the message of s.
func newFrame(s State) *frame {
	text, _ := json.Marshal(s) // it has only values that JSON has
	f := &frame{made: time.Now(), plain: fmt.Appendf(nil, "event: state\nretry: 1000\ndata: %s\n\n", text)}
	var packed bytes.Buffer
	w := packers.Get().(*flate.Writer)
	defer packers.Put(w)
	w.Reset(&packed)
	_, _ = w.Write(f.plain) // to memory
	_ = w.Flush()           // ends at a byte boundary, and refers to nothing before it
	f.packed = packed.Bytes()
	return f
}

// packers are idle compressors.
var packers = sync.Pool{New: func() any {
	w, _ := flate.NewWriter(nil, flate.BestSpeed) // the level exists
	return w
}}

// A gzip stream (RFC 1952) is a header, the frames as blocks of one DEFLATE
// stream, an empty last block, a checksum and a length.
var (
	gzipHeader    = []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255}
	gzipLastBlock = []byte{1, 0, 0, 0xff, 0xff}
)

// A sender writes frames to one client.
type sender struct {
	to       http.ResponseWriter
	control  *http.ResponseController
	gzip     bool
	start    []byte // written before the first frame
	checksum uint32
	length   uint32
}

func (s *sender) send(f *frame) error {
	text := f.plain
	if s.gzip {
		text = f.packed
		s.checksum, s.length = crc32.Update(s.checksum, crc32.IEEETable, f.plain), s.length+uint32(len(f.plain))
	}
	if s.start != nil {
		text, s.start = append(s.start[:len(s.start):len(s.start)], text...), nil
	}
	return s.write(text)
}

// finish ends the compressed stream.
func (s *sender) finish() {
	if s.gzip && s.start == nil {
		end := binary.LittleEndian.AppendUint32(bytes.Clone(gzipLastBlock), s.checksum)
		_ = s.write(binary.LittleEndian.AppendUint32(end, s.length)) // a client that left is told nothing
	}
}

func (s *sender) write(text []byte) error {
	if err := s.control.SetWriteDeadline(time.Now().Add(sendTimeout)); err != nil &&
		!errors.Is(err, http.ErrNotSupported) {
		return err
	}
	if _, err := s.to.Write(text); err != nil {
		return err
	}
	return s.control.Flush()
}

// acceptsGzip reports whether r's client accepts gzip, in the form that all
// browsers send.
func acceptsGzip(r *http.Request) bool {
	for part := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		name, q, _ := strings.Cut(strings.TrimSpace(part), ";")
		if name == "gzip" && strings.ReplaceAll(q, " ", "") != "q=0" {
			return true
		}
	}
	return false
}
