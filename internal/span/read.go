package span

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// Path is the path of the spans at a control socket.
const Path = "/spans"

// mostRead bounds the spans of an answer: those who record wait until they are copied.
const mostRead = 256

// An Answer is what a reader gets.
type Answer struct {
	Spans  []Span `json:"spans"`
	Next   uint64 `json:"next"`   // place behind them: after of the next request
	Missed uint64 `json:"missed"` // spans behind the request's place that are no longer there
}

// Read returns the next spans after a place, which is Next of the last answer; 0: from the oldest.
func (r *Recorder) Read(after uint64) (a Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := r.next - min(kept, r.next-r.first)
	switch {
	case after == 0:
		after = oldest
	case after < r.first || after > r.next: // of another process
		after = r.first
	}
	a.Missed = oldest - min(oldest, after)
	a.Next = max(after, oldest)
	a.Spans = make([]Span, 0, min(r.next-a.Next, mostRead))
	for ; a.Next < r.next && len(a.Spans) < mostRead; a.Next++ {
		a.Spans = append(a.Spans, r.ring[a.Next%kept])
	}
	return a
}

// ServeHTTP answers GET /spans?after=N. The caller has made sure that the client may read them.
func (r *Recorder) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	after, _ := strconv.ParseUint(q.FormValue("after"), 10, 64) // what is no number is 0
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(r.Read(after)) // the client has left: nobody to tell
}

// MarshalJSON returns the span as OTLP has it, in the JSON of protobuf.
func (s Span) MarshalJSON() ([]byte, error) {
	type object = map[string]any
	status, parent, attributes := object{}, s.Parent.ID[:], []object{}
	if s.Failed != "" {
		status = object{"code": 2, "message": s.Failed}
	}
	if s.Parent.ID == [8]byte{} {
		parent = nil
	}
	component, operation, _ := strings.Cut(s.Name, ".")
	tags := object{"component": component, "operation": operation}
	maps.Copy(tags, s.Tags)
	for _, key := range slices.Sorted(maps.Keys(tags)) {
		kind := "intValue"
		if _, is := tags[key].(string); is {
			kind = "stringValue"
		}
		attributes = append(attributes, object{"key": key, "value": object{kind: tags[key]}})
	}
	return json.Marshal(object{"traceId": s.Trace[:], "spanId": s.ID[:], "parentSpanId": parent, "name": s.Name, "kind": 1,
		"startTimeUnixNano": s.Began.UnixNano(), "endTimeUnixNano": s.Began.Add(s.Took).UnixNano(), "status": status,
		"attributes": attributes})
}
