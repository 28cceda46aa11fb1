package journal

import (
	"container/list"
	"slices"

	"gpusteward/health/incident"
)

// maxRecent bounds the records that are kept in memory.
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

// add makes e the newest. One with the same ID gives way to it.
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

// matching returns what f lets through, the newest first.
func (r *recent) matching(f Filter) []incident.Event { return r.after(0, f) }

// since returns what f lets through of what may have come after the event id
// was last seen, the oldest first: an ID that was told of twice may have been
// seen the first time. All that there is, where the ID is not known.
func (r *recent) since(id string, f Filter) []incident.Event {
	var seen uint64
	if e, ok := r.byID[id]; ok {
		seen = e.Value.(record).first
	}
	events := r.after(seen, f)
	slices.Reverse(events)
	return events
}

// after returns what came after the record of that sequence, the newest first.
func (r *recent) after(sequence uint64, f Filter) []incident.Event {
	events := []incident.Event{} // in JSON a list, also when it is empty
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
