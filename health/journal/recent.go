package journal

import (
	"container/list"
	"slices"

	"gpusteward/health/incident"
)

// maxRecent bounds the records in memory.
const maxRecent = 4096

// recent are the last records of a journal, in order of arrival, each ID
// once. Not safe for concurrent use.
type recent struct {
	records  *list.List // of record, the oldest first
	byID     map[string]*list.Element
	sequence uint64 // of the last record
}

// A record is an event with its place in the order of arrival.
type record struct {
	event           incident.Event
	sequence, first uint64 // of this record, and of the first one with its ID
}

func newRecent() *recent { return &recent{records: list.New(), byID: map[string]*list.Element{}} }

// add makes e the newest record, in place of one with the same ID.
func (r *recent) add(e incident.Event) {
	r.sequence++
	n := record{e, r.sequence, r.sequence}
	if before, ok := r.byID[e.ID]; ok {
		n.first = r.records.Remove(before).(record).first
	}
	r.byID[e.ID] = r.records.PushBack(n)
	if r.records.Len() > maxRecent {
		delete(r.byID, r.records.Remove(r.records.Front()).(record).event.ID)
	}
}

// matching returns the events that f matches, the newest first.
func (r *recent) matching(f Filter) []incident.Event { return r.after(0, f) }

// since returns the events that f matches and that may have come after the
// event with this id was last seen, the oldest first: a client may have seen
// only the first report of an ID. If the ID is unknown, since returns all.
func (r *recent) since(id string, f Filter) []incident.Event {
	var seen uint64
	if e, ok := r.byID[id]; ok {
		seen = e.Value.(record).first
	}
	events := r.after(seen, f)
	slices.Reverse(events)
	return events
}

// after returns the records after that sequence, the newest first.
func (r *recent) after(sequence uint64, f Filter) []incident.Event {
	events := []incident.Event{} // a list in JSON, even if it is empty
	for at := r.records.Back(); at != nil && len(events) < f.limit(); at = at.Prev() {
		n := at.Value.(record)
		if n.sequence <= sequence {
			break
		}
		if f.match(&n.event) {
			events = append(events, n.event)
		}
	}
	return events
}

// all returns the events, the oldest first.
func (r *recent) all() []incident.Event { return r.since("", Filter{Limit: maxRecent}) }
