package crash

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/symbol"
	"gpusteward/internal/wire"
)

// Bounds of the recorder.
const (
	mostRecords  = 64
	mostRecord   = 1 << 20          // bytes of one
	mostSessions = 1024             // more are not followed; a party has no more than are free
	mostEnded    = 16               // sessions that ended, and may yet have an XID,
	keepEnded    = 10 * time.Second // for so long; and signs of one crash come within it
	mostTaken    = 32               // snapshots; an owner has no more than are free
	mostEarly    = 64               // XIDs of no known session, mostXIDs of one process
	mostWrites   = 4                // records written at one Look
	mostGraphs   = 16               // that are named in one snapshot
	mostInFlight = 3                // kernels and graphs that InFlight names,
	mostNames    = 640              // in so many bytes: a graph has several kernels
	mostTold     = 32               // crashes of a party that are told,
	toldWithin   = 10 * time.Minute // within so long; the rest is told as one
	few          = 2048             // events that are read for the last launches, unless there are too few of those
)

// A Recorder keeps the crashes. Its methods are safe for concurrent use, but Look for one
// goroutine. Observe and Kernel wait for nothing.
type Recorder struct {
	Dir string // of the records; empty: none is kept
	Log *slog.Logger
	Now func() int64 // CLOCK_MONOTONIC, ns; nil: the system's

	mu       sync.Mutex
	sessions map[uint64]*session
	of       map[string]int // how many of them, by party
	early    []host.Record  // XIDs that may be of a session that was not looked at so far
	kept     []Head         // by ID
	last     int            // the highest ID so far

	failing bool             // the last write failed, and that was logged; Look's own,
	told    map[string]*told // by party; likewise
}

// A told is what is told of the crashes of a party.
type told struct {
	since int64 // CLOCK_MONOTONIC, ns
	all   int   // crashes since then
	last  Head
}

// A session is one of the broker's that writes a trace.
type session struct {
	record   Record // of its Party: who has many hides nobody else's
	since    time.Time
	ended    int64     // CLOCK_MONOTONIC, ns; 0: it has not
	at       int64     // the first sign of the crash, likewise; 0: there is none
	time     time.Time // the same
	snapshot *snapshot
	changed  bool // since the record was written
	told     bool // all of it is, and nothing is added
}

// Open finds the records of earlier runs.
func (r *Recorder) Open() {
	if r.Dir == "" {
		return
	}
	files, err := os.ReadDir(r.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.Log.Error("earlier crashes are not shown", "err", host.Explain(err, host.Reads))
	}
	for _, f := range files {
		id, is := strings.CutSuffix(f.Name(), ".json")
		if n, err := strconv.Atoi(id); !is || err != nil || n < 1 {
			continue
		}
		var one Record
		text, err := host.ReadFile(filepath.Join(r.Dir, f.Name()), mostRecord)
		if err == nil {
			err = json.Unmarshal(text, &one)
		}
		if err == nil && r.path(one.ID) != filepath.Join(r.Dir, f.Name()) {
			err = errors.New("it has the number of another one")
		}
		if err != nil {
			r.Log.Error("the record of a crash is not shown", "file", filepath.Join(r.Dir, f.Name()), "err", err)
			continue
		}
		r.kept = append(r.kept, one.Head)
	}
	slices.SortFunc(r.kept, func(a, b Head) int { return cmp.Compare(a.ID, b.ID) })
	if n := len(r.kept); n > 0 {
		r.last = r.kept[n-1].ID
	}
}

func (r *Recorder) path(id int) string { return filepath.Join(r.Dir, strconv.Itoa(id)+".json") }

func (r *Recorder) now() int64 {
	if r.Now != nil {
		return r.Now()
	}
	return wire.Monotonic()
}

// Observe looks whether the process of a session has noted a fault, or has an XID.
func (r *Recorder) Observe(t broker.Traced) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.sessions[t.Session]
	if s == nil {
		if r.of[t.Party] >= mostSessions-len(r.sessions) {
			return
		}
		s = &session{since: t.Since, record: Record{Head: Head{PID: t.PID, UID: t.UID, Party: t.Party}}}
		if r.sessions == nil {
			r.sessions, r.of = map[uint64]*session{}, map[string]int{}
		}
		r.sessions[t.Session] = s
		r.of[t.Party]++
		r.again()
	}
	s.record.Tenant = t.Tenant
	failed, at := t.Trace.Failed()
	if failed != 0 && s.record.Error == 0 {
		now := r.now()
		s.record.Error = failed
		at = min(max(at, now-int64(time.Minute)), now) // it says so itself
		s.sign(at, time.Now().Add(-time.Duration(now-at)))
	}
	again := s.snapshot != nil && !s.snapshot.timed
	if !s.told && (s.at != 0 || t.Ends) && (again || s.snapshot == nil && r.room(s)) {
		if taken := take(t, cmp.Or(s.at, r.now()), s.at != 0); !again || taken.timed {
			s.snapshot, s.changed = taken, s.at != 0
		}
	}
	if t.Ends {
		s.ended = r.now()
		r.forget()
	}
}

// room reports whether another snapshot may be taken, of a session: a party has no more of them than are free. The
// oldest one of the party gives way whose crash was recorded, or whose process just ended.
func (r *Recorder) room(of *session) bool {
	all, own := 0, 0
	var oldest *session
	for _, s := range r.sessions {
		if s.snapshot == nil {
			continue
		}
		if all++; s.record.Party != of.record.Party {
			continue
		}
		own++
		if !s.changed && (oldest == nil || s.before(oldest)) {
			oldest = s
		}
	}
	if own < mostTaken-all {
		return true
	}
	if oldest != nil {
		oldest.snapshot, oldest.told = nil, oldest.at != 0
	}
	return oldest != nil
}

// before reports whether the snapshot of the session gives way before that of another one: recorded crashes go first.
func (s *session) before(other *session) bool {
	if recorded := s.at != 0; recorded != (other.at != 0) {
		return recorded
	}
	return cmp.Or(s.at, s.ended) < cmp.Or(other.at, other.ended)
}

// sign notes a sign of a crash: the first one tells when it was.
func (s *session) sign(at int64, now time.Time) {
	if s.at == 0 || at < s.at {
		s.at, s.time = at, now
	}
	s.changed = !s.told
}

// forget drops what nothing is added to any more: sessions that ended some time ago, or are too
// many, and the snapshots of others.
func (r *Recorder) forget() {
	var ended []uint64
	now := r.now()
	for id, s := range r.sessions {
		switch {
		case s.changed && s.snapshot != nil: // to be written
		case s.ended != 0 && (s.snapshot == nil || now-s.ended > int64(keepEnded)):
			r.drop(id)
		case s.ended != 0:
			ended = append(ended, id)
		case s.at != 0 && now-s.at > int64(keepEnded):
			s.snapshot, s.told, s.changed = nil, true, false
		}
	}
	slices.SortFunc(ended, func(a, b uint64) int { return cmp.Compare(r.sessions[b].ended, r.sessions[a].ended) })
	for i, id := range r.inTurn(ended) { // the oldest of who has most go
		if i >= mostEnded {
			r.drop(id)
		}
	}
}

// drop follows a session no more.
func (r *Recorder) drop(id uint64) {
	party := r.sessions[id].record.Party
	delete(r.sessions, id)
	if r.of[party]--; r.of[party] == 0 {
		delete(r.of, party)
	}
}

// inTurn returns sessions with the first of each party before the second of any.
func (r *Recorder) inTurn(ids []uint64) []uint64 {
	turn, seen := map[uint64]int{}, map[string]int{}
	for _, id := range ids {
		party := r.sessions[id].record.Party
		turn[id] = seen[party]
		seen[party]++
	}
	slices.SortStableFunc(ids, func(a, b uint64) int { return cmp.Compare(turn[a], turn[b]) })
	return ids
}

// take reads a trace for a crash at a time. Without a crash, it reads less.
func take(t broker.Traced, at int64, crashed bool) *snapshot {
	s := &snapshot{names: map[launched]string{}, gpus: t.GPUs, allocations: t.Crash.Allocations(),
		listed: t.Crash.There(), unlisted: t.Crash.Unlisted(), unnamed: t.Crash.Unnamed()}
	c, ok := t.Trace.LastClock()
	if s.timed = ok; !ok {
		return s
	}
	all := t.Trace.Last(c, few, at)
	if n := countLaunches(all); crashed && n < mostLaunches {
		all = t.Trace.Last(c, wire.EventsKept, at)
	}
	n, graphs := 0, 0
	for _, e := range slices.Backward(all) {
		if launches(e) {
			n++
		} else if e.Kind != wire.EventWait && e.Kind != wire.EventWaited && e.Kind != wire.EventCopied {
			continue
		}
		if n > mostLaunches || len(s.launches) >= few {
			break
		}
		s.launches = append(s.launches, e)
		of := launched{e.Kind, e.ID}
		if _, known := s.names[of]; known || !launches(e) || e.Kind == wire.EventGraph && graphs == mostGraphs {
			continue
		}
		if e.Kind == wire.EventGraph {
			graphs++
		}
		s.names[of] = symbol.Launched(t.Crash, e)
	}
	slices.Reverse(s.launches)
	return s
}

// InFlight names what the process of a trace launched and may not have ended by a time (CLOCK_MONOTONIC, ns). What was
// launched least often of late comes first: the rest has often ended. Among equals the first one comes first, since a
// stream runs them in this order. It is empty if nothing is known.
func InFlight(t broker.Traced, at int64) string {
	c, ok := t.Trace.LastClock()
	if !ok {
		return ""
	}
	all := t.Trace.Last(c, few, at)
	known, times := map[launched]bool{}, map[launched]int{}
	var first []wire.Event
	ended := endings(all, at)
	for _, e := range all {
		of := launched{e.Kind, e.ID}
		times[of]++
		if launches(e) && !known[of] && ended.mayRun(e) {
			known[of], first = true, append(first, e)
		}
	}
	slices.SortStableFunc(first, func(a, b wire.Event) int {
		return cmp.Compare(times[launched{a.Kind, a.ID}], times[launched{b.Kind, b.ID}])
	})
	var names []string
	left := mostNames // the process chose them
	for _, e := range first[:min(len(first), mostInFlight)] {
		name := symbol.Long(cmp.Or(symbol.Launched(t.Crash, e), wire.Unnamed(e.Kind, e.ID)))
		if len(name) > left && len(names) > 0 {
			break
		}
		name = name[:min(len(name), left)]
		names, left = append(names, name), left-len(name)
	}
	switch n := len(first) - len(names); {
	case n > 0:
		return "in flight: " + strings.Join(names, ", ") + orOthers(n)
	case len(names) > 0:
		return "in flight: " + strings.Join(names, " or ")
	}
	return ""
}

// launches reports whether the event is the launch of a kernel or a graph.
func launches(e wire.Event) bool { return e.Kind == wire.EventLaunch || e.Kind == wire.EventGraph }

func countLaunches(all []wire.Event) (n int) {
	for _, e := range all {
		if launches(e) {
			n++
		}
	}
	return n
}

// Kernel takes a record of the kernel's log: it may be an XID of a process that is followed, or
// was until a moment ago.
func (r *Recorder) Kernel(line host.Record) {
	if f, ok := host.ParseFault(line.Text); !ok || !f.Owned || f.Switch || !line.Kernel() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.xid(line)
}

// again gives the lines that were kept to their sessions.
func (r *Recorder) again() {
	early := r.early
	r.early = nil
	for _, line := range early {
		r.xid(line)
	}
}

// xid gives a line to its session, or keeps it for a moment: there may be a session that was not looked
// at so far, also after another one of the same process.
func (r *Recorder) xid(line host.Record) {
	f, _ := host.ParseFault(line.Text)
	age := max(time.Since(line.Time), 0) // before now: a delay between them makes the crash late, never earlier than its cause
	now := r.now()
	var last *session
	for _, s := range r.sessions {
		if s.record.PID == f.PID && (s.ended == 0 || now-s.ended <= int64(keepEnded)) &&
			!line.Time.Before(s.since.Add(-time.Second)) && (last == nil || s.since.After(last.since)) {
			last = s
		}
	}
	if last == nil && age < time.Second || last != nil && last.ended != 0 && now-last.ended < int64(time.Second) {
		own := 0
		for _, other := range r.early {
			if o, _ := host.ParseFault(other.Text); o.PID == f.PID {
				own++
			}
		}
		if own < mostXIDs {
			r.early = append(r.early[max(0, len(r.early)-mostEarly+1):], line)
		}
		return
	}
	if last == nil || last.told || len(last.record.XIDs) >= mostXIDs {
		return
	}
	last.record.XIDs = append(last.record.XIDs, XID{Time: line.Time, Code: f.Code, GPU: f.Address,
		Text: printable(f.Text, mostText)})
	last.record.Comm = cmp.Or(last.record.Comm, printable(f.Comm, 16))
	last.sign(now-int64(age), line.Time)
}

// printable returns the begin of a text of others, in ASCII.
func printable(s string, most int) string {
	clean := strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, s)
	return clean[:min(len(clean), most)]
}

// Look completes the records and writes them. name returns the name of a process and its
// workload; empty: it is not known. It returns the crashes that are new; of a party with too many, the last one stands
// for the rest.
func (r *Recorder) Look(name func(pid int) (comm, workload string)) (all []Head) {
	r.name(name)
	for _, one := range r.due() {
		known := slices.ContainsFunc(r.Heads(0), func(h Head) bool { return h.ID == one.ID })
		err := r.write(&one)
		if err != nil && !r.failing {
			r.Log.Error("a crash cannot be kept", "err", err)
		}
		if r.failing = err != nil; !r.failing {
			r.keep(one.Head)
		}
		if !known {
			all = append(all, one.Head)
		}
	}
	return r.tell(all)
}

// tell returns what is told of crashes, and of those that were not told earlier.
func (r *Recorder) tell(found []Head) (all []Head) {
	now := r.now()
	for party, t := range r.told {
		if now-t.since < int64(toldWithin) {
			continue
		}
		if more := t.all - mostTold; more > 0 {
			t.last.Says = fmt.Sprintf("%d more crashes of this user within %v; the last one: %s", more, toldWithin, t.last.Says)
			all = append(all, t.last)
		}
		delete(r.told, party)
	}
	for _, h := range found {
		t := r.told[h.Party]
		if t == nil {
			if r.told == nil {
				r.told = map[string]*told{}
			}
			t = &told{since: now}
			r.told[h.Party] = t
		}
		if t.all++; t.all <= mostTold {
			all = append(all, h)
		}
		t.last = h
	}
	return all
}

// name asks for the names of the processes that have none.
func (r *Recorder) name(name func(pid int) (comm, workload string)) {
	r.mu.Lock()
	nameless := map[int]*session{}
	for _, s := range r.sessions {
		if s.record.Workload == "" && s.ended == 0 {
			nameless[s.record.PID] = s
		}
	}
	r.mu.Unlock()
	for pid, s := range nameless {
		comm, workload := name(pid)
		r.mu.Lock()
		s.record.Comm, s.record.Workload = cmp.Or(printable(comm, 16), s.record.Comm), workload
		r.mu.Unlock()
	}
}

// due returns the records that are to be written.
func (r *Recorder) due() (all []Record) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again()
	r.forget()
	var ids []uint64
	for id, s := range r.sessions {
		if s.changed && s.snapshot != nil {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b uint64) int { // in the order of the crashes, whoever's session is older
		return cmp.Or(cmp.Compare(r.sessions[a].at, r.sessions[b].at), cmp.Compare(a, b))
	})
	ids = r.inTurn(ids)
	for _, id := range ids[:min(len(ids), mostWrites)] {
		s := r.sessions[id]
		s.changed = false
		if s.record.ID == 0 {
			r.last++
			s.record.ID = r.last
		}
		one := s.record
		one.Time, one.XIDs = s.time, slices.Clone(one.XIDs)
		one.fill(s.snapshot, s.at)
		all = append(all, one)
	}
	return all
}

// write writes a record.
func (r *Recorder) write(one *Record) error {
	if r.Dir == "" {
		return nil
	}
	text, err := json.Marshal(one)
	if err == nil && len(text) > mostRecord {
		err = fmt.Errorf("its record has %d bytes", len(text))
	}
	if err != nil {
		return err
	}
	const ownerReads = 0o600
	return host.ReplaceFile(r.path(one.ID), ownerReads, func(w io.Writer) error { _, err := w.Write(text); return err })
}

// keep adds a record that was written, and removes others if there are too many: of the party that
// has the most, the oldest one.
func (r *Recorder) keep(one Head) {
	if r.Dir == "" {
		return
	}
	r.mu.Lock()
	if i := slices.IndexFunc(r.kept, func(h Head) bool { return h.ID == one.ID }); i >= 0 {
		r.kept[i] = one
	} else {
		r.kept = append(r.kept, one)
	}
	gone := r.surplus()
	r.mu.Unlock()
	for _, id := range gone {
		if err := os.Remove(r.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			r.Log.Error("the record of an old crash stays", "err", host.Explain(err, host.Reads|host.Writes))
		}
	}
}

// surplus takes what are too many out of those that are kept.
func (r *Recorder) surplus() (gone []int) {
	for len(r.kept) > mostRecords {
		counts := map[string]int{}
		for _, h := range r.kept {
			counts[h.party()]++
		}
		most := slices.Max(slices.Collect(maps.Values(counts)))
		i := slices.IndexFunc(r.kept, func(h Head) bool { return counts[h.party()] == most })
		gone = append(gone, r.kept[i].ID)
		r.kept = slices.Delete(r.kept, i, i+1)
	}
	return gone
}

// party returns the party of the process; of a record that earlier versions wrote, the user stands for it.
func (h *Head) party() string { return cmp.Or(h.Party, strconv.FormatUint(uint64(h.UID), 10)) }

// Heads returns the crashes whose records a user may read, the oldest first.
func (r *Recorder) Heads(uid uint32) []Head {
	r.mu.Lock()
	defer r.mu.Unlock()
	mine := []Head{}
	for _, h := range r.kept {
		if uid == 0 || h.UID == uid {
			mine = append(mine, h)
		}
	}
	return mine
}

// Record returns the JSON of a record that a user may read, and whether there is one.
func (r *Recorder) Record(uid uint32, id int) ([]byte, bool, error) {
	if !slices.ContainsFunc(r.Heads(uid), func(h Head) bool { return h.ID == id }) {
		return nil, false, nil
	}
	text, err := host.ReadFile(r.path(id), mostRecord)
	return text, err == nil, err
}
