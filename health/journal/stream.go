package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"gpusteward/health/incident"
)

const (
	maxBehind     = 256              // events that a stream's client may be behind
	heartbeat     = 15 * time.Second // shows proxies and clients that the stream is alive
	eventsTimeout = 10 * time.Second // for a client to take the data
)

// A stream is a client that follows the events.
type stream struct {
	filter Filter
	events chan incident.Event // closed when the client is too slow, or the journal ends
}

// ServeHTTP answers GET /api/v1/events: the events of the query as JSON, or a
// stream of server-sent events for a client that accepts text/event-stream or
// asks for follow=1. A stream begins with the next event; since, or the
// Last-Event-ID of a broken stream, makes it begin earlier. After a break an
// event may come twice. No event among the last 4096 is left out.
func (j *Journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f, follow, err := parseRequest(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	if follow {
		j.follow(w, r, f)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(eventsTimeout)) // not every writer supports it
	// a client that left gets nothing
	_ = json.NewEncoder(w).Encode(struct {
		Events []incident.Event `json:"events"`
		Lost   uint64           `json:"lost"`
	}{j.Events(f), j.Lost()})
}

// parseRequest parses a request, and reports whether it asks for a stream.
func parseRequest(r *http.Request) (f Filter, follow bool, err error) {
	query := r.URL.Query()
	follow = strings.Contains(r.Header.Get("Accept"), "text/event-stream")
	if asked, ok := query["follow"]; ok {
		if follow, err = strconv.ParseBool(asked[0]); err != nil || len(asked) > 1 {
			return f, false, fmt.Errorf("follow: %q is not 1 or 0", strings.Join(asked, ", "))
		}
		query.Del("follow")
	}
	if follow && query.Has("until") {
		return f, false, errors.New("until: a stream has no end")
	}
	f, err = parseFilter(query)
	return f, follow, err
}

// follow streams events until the client leaves, is too slow, or the journal ends.
func (j *Journal) follow(w http.ResponseWriter, r *http.Request, f Filter) {
	s, events := j.begin(f, r.Header.Get("Last-Event-ID"))
	if s == nil {
		w.Header().Set("Retry-After", "15")
		http.Error(w, "the agent is shutting down", http.StatusServiceUnavailable)
		return
	}
	defer j.end(s)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for nginx
	control := http.NewResponseController(w)
	send := func(text string) error {
		if err := control.SetWriteDeadline(time.Now().Add(eventsTimeout)); err != nil &&
			!errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := w.Write([]byte(text)); err != nil {
			return err
		}
		if err := control.Flush(); err != nil {
			return err
		}
		// HTTP/2 ends a stream at its deadline, even if there is nothing to
		// write.
		_ = control.SetWriteDeadline(time.Time{})
		return nil
	}
	err := send("retry: 3000\n\n")
	for i := 0; err == nil && i < len(events); i++ {
		err = send(message(events[i]))
	}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for err == nil {
		select {
		case e, ok := <-s.events:
			if !ok {
				return
			}
			err = send(message(e))
		case <-beat.C:
			err = send(": nothing new\n\n")
		case <-r.Context().Done():
			return
		}
	}
}

// message returns e as a server-sent event.
func message(e incident.Event) string {
	text, _ := json.Marshal(e) // Append encoded it, too
	oneLine := strings.NewReplacer("\n", " ", "\r", " ", "\x00", " ")
	return "id: " + oneLine.Replace(e.ID) + "\nevent: " + oneLine.Replace(string(e.Kind)) + "\ndata: " +
		string(text) + "\n\n"
}

// begin adds a stream, and returns its first events; nil if the journal ends. The
// server bounds the streams.
func (j *Journal) begin(f Filter, lastID string) (*stream, []incident.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.streams == nil {
		return nil, nil
	}
	s := &stream{f, make(chan incident.Event, maxBehind)}
	j.streams[s] = struct{}{}
	if f.Limit == 0 {
		f.Limit = maxRecent
	}
	if lastID == "" && f.Since.IsZero() {
		return s, nil
	}
	return s, j.recent.since(lastID, f)
}

// tell sends e to a stream. It drops a client that is too far behind: the
// client reconnects with the last ID that it saw. Callers hold mu.
func (j *Journal) tell(s *stream, e incident.Event) {
	if !s.filter.match(&e) {
		return
	}
	select {
	case s.events <- e:
	default:
		delete(j.streams, s)
		close(s.events)
	}
}

func (j *Journal) end(s *stream) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.streams, s)
}

// endStreams ends all streams, and refuses new ones.
func (j *Journal) endStreams() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for s := range j.streams {
		close(s.events)
	}
	j.streams = nil
}
