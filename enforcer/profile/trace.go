package profile

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"gpusteward/enforcer/symbol"
)

// An event is one of Chrome's trace format. Times are in µs.
type event struct {
	Phase    string         `json:"ph"` // M: a name, X: a span, i: an instant
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	PID      int            `json:"pid"`
	TID      int            `json:"tid"`
	At       float64        `json:"ts"`
	Duration float64        `json:"dur,omitempty"`
	Scope    string         `json:"s,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// Trace writes the spans as JSON for Chrome and Perfetto: a track for each thread, and for the kernels and the busy time
// of each GPU.
func (p *Profile) Trace(w io.Writer) error {
	head, err := json.Marshal(map[string]any{"pid": p.PID, "workload": p.Workload, "tenant": p.Tenant,
		"began": p.Began.Format(time.RFC3339Nano), "seconds": p.Seconds, "launches": p.Launches, "lost_events": p.Lost})
	if err != nil {
		return err
	}
	t := tracer{to: bufio.NewWriter(w), pid: p.PID, lanes: map[track][]*lane{}, busy: map[string]int64{}}
	fmt.Fprintf(t.to, "{\"displayTimeUnit\":\"ns\",\"otherData\":%s,\"traceEvents\":[\n", head)
	t.write(event{Phase: "M", Name: "process_name", Args: map[string]any{"name": cmp.Or(p.Comm, "unknown")}})
	spans := slices.Clone(p.Spans)
	// What contains another one comes before it.
	slices.SortStableFunc(spans, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(b.Seconds, a.Seconds))
	})
	for _, s := range spans {
		t.span(s)
	}
	fmt.Fprint(t.to, "\n]}\n")
	return cmp.Or(t.err, t.to.Flush())
}

// A tracer writes events.
type tracer struct {
	to    *bufio.Writer // keeps its first error until Flush
	pid   int
	began bool // an event was written
	err   error
	lanes map[track][]*lane
	more  int              // lanes beyond the first of a thread
	busy  map[string]int64 // ns, by GPU: the end of its last busy time
}

func (t *tracer) write(e event) {
	e.PID = t.pid
	text, err := json.Marshal(e)
	t.err = cmp.Or(t.err, err)
	if t.began {
		fmt.Fprint(t.to, ",\n")
	}
	t.began = true
	_, _ = t.to.Write(text)
}

// span writes a span. Spans come by their start.
func (t *tracer) span(s Span) {
	on := track{thread: s.Thread}
	if s.Kind == SpanKernel || s.Kind == SpanBusy {
		on = track{gpu: cmp.Or(s.GPU, "unknown GPU"), busy: s.Kind == SpanBusy}
	}
	start := max(0, nanoseconds(s.Start))
	end := max(start, nanoseconds(s.Start+s.Seconds))
	if on.busy { // it was added up over a time that is not exactly known
		start = max(start, t.busy[on.gpu])
		if end <= start {
			return
		}
		t.busy[on.gpu] = end
	}
	e := event{Phase: "X", Name: symbol.Long(cmp.Or(s.Name, s.Kind)), Category: s.Kind, At: micro(start),
		Duration: micro(end - start), Args: map[string]any{}}
	if e.Name != s.Name && s.Name != "" {
		e.Args["name"] = s.Name
	}
	if s.GPU != "" {
		e.Args["gpu"] = s.GPU
	}
	if end == start { // it has a place on the track whatever else is there
		e.Phase, e.Scope = "i", "t"
		if len(t.lanes[on]) > 0 {
			e.TID = t.lanes[on][0].tid
		} else {
			e.TID = t.lane(on).tid
		}
		t.write(e)
		return
	}
	i := slices.IndexFunc(t.lanes[on], func(l *lane) bool { return l.takes(start, end) })
	if i >= 0 {
		e.TID = t.lanes[on][i].tid
	} else {
		l := t.lane(on)
		l.takes(start, end)
		e.TID = l.tid
	}
	t.write(e)
}

// lane adds a lane to a track.
func (t *tracer) lane(on track) *lane {
	n := len(t.lanes[on])
	name, tid, place := fmt.Sprintf("thread %d", on.thread), int(on.thread)+1, firstThread+int(on.thread)
	if on.gpu != "" {
		name, place = on.gpu, 0
	}
	if on.busy {
		name += " busy"
	}
	if on.gpu != "" || n > 0 {
		t.more++
		tid = 1<<16 + t.more
	}
	if n > 0 {
		name += fmt.Sprintf(" (%d)", n+1)
	}
	l := &lane{tid: tid}
	t.lanes[on] = append(t.lanes[on], l)
	t.write(event{Phase: "M", Name: "thread_name", TID: tid, Args: map[string]any{"name": name}})
	t.write(event{Phase: "M", Name: "thread_sort_index", TID: tid, Args: map[string]any{"sort_index": place}})
	return l
}

// firstThread is the place of the first thread: GPUs stand above threads.
const firstThread = 1

// A track has the spans of a thread, or the kernels or the busy time of a GPU.
type track struct {
	thread uint16
	gpu    string // empty: of the thread
	busy   bool
}

// A lane is a row of a track. Its spans contain each other or do not touch, as the format requires.
type lane struct {
	tid  int
	ends []int64 // ns, of the spans that have not ended, the outermost first
}

// takes adds a span to the lane if it fits.
func (l *lane) takes(start, end int64) bool {
	for len(l.ends) > 0 && l.ends[len(l.ends)-1] <= start {
		l.ends = l.ends[:len(l.ends)-1]
	}
	if len(l.ends) > 0 && l.ends[len(l.ends)-1] < end {
		return false
	}
	l.ends = append(l.ends, end)
	return true
}

func micro(ns int64) float64 { return float64(ns) / 1e3 }
