// Package journal keeps events: a bounded number in memory and in files of JSON
// lines. It serves them over HTTP. Recording an event never blocks: records wait
// for the disk in a bounded queue.
package journal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/health/incident"
)

// Metrics of the journal.
var (
	EventsTotal = collectors.HostCounter("gpusteward_journal_events_total",
		"Records that the journal received.")
	LostTotal = collectors.HostCounter("gpusteward_journal_lost_total",
		"Records that will never be in the journal's files, by reason; the last 4096 are in memory nevertheless.",
		"reason")
	LateTotal = collectors.HostCounter("gpusteward_journal_late_total",
		"Records that could not be written at once, by reason: they wait until the disk works again, up to 4 MiB of "+
			"them.", "reason")
	QueueLength = collectors.HostGauge("gpusteward_journal_queue_length", "Records that wait to be written.")
	Bytes       = collectors.HostGauge("gpusteward_journal_bytes", "Size of the journal's files.")
	Streams     = collectors.HostGauge("gpusteward_event_streams", "Clients that follow the stream of events, /api/v1/events, now.")
)

// Options are the settings of a Journal.
type Options struct {
	Dir        string // of the files, created if it is missing; empty: memory only
	MaxBytes   int64  // of a file; 0: 8 MiB
	Files      int    // at most, with the present one; 0: 4
	Node, Boot string // of records without their own
	Log        *slog.Logger
}

// A Journal keeps events: the last 4096 in memory, more in files of JSON lines.
// Records that cannot be written wait for the next attempt; those that do not
// fit in the queue are counted. Safe for concurrent use.
type Journal struct {
	options Options
	file    *journalFile // the writer's; nil: memory only
	wake    chan struct{}

	mu      sync.Mutex
	recent  *recent
	streams map[*stream]struct{}
	queue   []line
	queued  int               // bytes of queue
	events  uint64            // received events
	lost    map[string]uint64 // by reason
	late    map[string]uint64 // by reason
	failing string            // the reason that nothing can be written now; empty: none
	told    uint64            // lost records that a record has reported
	ended   bool
}

// maxQueue bounds the records that wait to be written, in bytes: some 8,000
// records.
const maxQueue = 4 << 20

// retryAfter is the pause after a failure of the disk.
const retryAfter = 5 * time.Second

// The default size of a file, and the number of files.
const (
	fileBytes = 8 << 20
	files     = 4
)

// flushTime bounds the wait for the disk at the end, because the disk may hang.
const flushTime = time.Second

// The reasons of LateTotal and LostTotal. Their series exist from the start,
// because increase() misses a counter that begins at 1.
var (
	lateReasons = []string{"no_space", "not_writable", "locked", "io"}
	lossReasons = append(lateReasons[:4:4], "queue", "encoding", "ended")
)

// Open opens the journal, repairs its files and loads their last records. It
// records the repairs, and returns them. If there can be no files, Open logs
// that and continues without them. An error means that another agent uses the
// directory.
func Open(o Options) (*Journal, []incident.Event, error) {
	o.MaxBytes, o.Files = cmp.Or(o.MaxBytes, fileBytes), cmp.Or(o.Files, files)
	j := &Journal{options: o, wake: make(chan struct{}, 1), recent: newRecent(), streams: map[*stream]struct{}{},
		lost: map[string]uint64{}, late: map[string]uint64{}}
	if o.Dir == "" {
		return j, nil, nil
	}
	j.file = &journalFile{dir: o.Dir, most: o.MaxBytes, keep: o.Files}
	if err := j.file.take(); isLocked(err) {
		return nil, nil, err
	} else if err != nil {
		j.settle(0, err)
		return j, nil, nil
	}
	j.file.prune()
	repairs, err := j.file.load(j.recent)
	if err != nil {
		o.Log.Error("journal not read: earlier events are not shown", "err", err)
	}
	for i, e := range repairs {
		o.Log.Warn("journal repaired", "what", e.What, "event", e.Message)
		repairs[i] = j.append(e)
	}
	return j, repairs, nil
}

// Append takes one record, and fills in the version, ID, time, node and boot
// that it lacks. It never waits for the disk.
func (j *Journal) Append(e incident.Event) { j.append(e) }

func (j *Journal) append(e incident.Event) incident.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.events++
	e.Version = incident.EventVersion
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	e.ID = cmp.Or(e.ID, strconv.FormatInt(e.Time.UnixNano(), 36)+"-"+strconv.FormatUint(j.events, 36))
	e.Node, e.Boot = cmp.Or(e.Node, j.options.Node), cmp.Or(e.Boot, j.options.Boot)
	e.Value, e.Threshold = finite(e.Value), finite(e.Threshold)
	text, err := json.Marshal(e)
	if err == nil && len(text) >= maxLine {
		err = fmt.Errorf("it is longer than %d bytes", maxLine)
	}
	if err != nil { // it could not be served either
		j.lost["encoding"]++
		j.options.Log.Error("event lost: it cannot be encoded", "id", e.ID, "err", err)
		return e
	}
	j.recent.add(e)
	for s := range j.streams {
		j.tell(s, e)
	}
	j.enqueue(line{text: append(text, '\n'), sync: e.Severity >= incident.Critical || e.Latched ||
		e.Kind == incident.KindAck || e.Kind == incident.KindEnforcement})
	return e
}

// finite returns v, or 0 if JSON cannot express it.
func finite(v float64) float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	return v
}

// enqueue passes a line to the writer.
func (j *Journal) enqueue(l line) {
	switch {
	case j.file == nil:
	case j.ended:
		j.lost["ended"]++
	case j.queued+len(l.text) > maxQueue:
		j.lost[cmp.Or(j.failing, "queue")]++
	default:
		j.queue = append(j.queue, l)
		j.queued += len(l.text)
		select {
		case j.wake <- struct{}{}:
		default: // the writer will wake already
		}
	}
}

// Run writes records until ctx ends, and then those that are left. It also ends
// the streams.
func (j *Journal) Run(ctx context.Context) error {
	written := make(chan struct{})
	go func() {
		defer close(written)
		if j.file != nil {
			j.write(ctx)
		}
	}()
	<-ctx.Done()
	j.endStreams()
	select {
	case <-written:
	case <-time.After(flushTime):
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.ended = true
	if left := len(j.queue); left > 0 {
		j.lost[cmp.Or(j.failing, "ended")] += uint64(left)
		j.options.Log.Error("journal ends with records that are not written", "records", left,
			"reason", cmp.Or(j.failing, "slow"))
	}
	return nil
}

// write is the writer, the only user of the file, until ctx ends.
func (j *Journal) write(ctx context.Context) {
	defer j.file.close()
	for {
		wake, retry := j.wake, (<-chan time.Time)(nil)
		if j.flush() != nil {
			wake, retry = nil, time.After(retryAfter)
		}
		select {
		case <-wake:
		case <-retry:
		case <-ctx.Done():
			_ = j.flush() // Run counts the records that are left
			return
		}
	}
}

// flush writes the waiting records.
func (j *Journal) flush() error {
	for {
		j.mu.Lock()
		batch := j.queue
		j.mu.Unlock()
		if len(batch) == 0 {
			return nil
		}
		n, err := j.file.append(batch)
		j.settle(n, err)
		if err != nil {
			return err
		}
	}
}

// settle removes written records from the queue, and logs when the disk begins
// to fail and when it works again.
func (j *Journal) settle(n int, err error) {
	j.mu.Lock()
	for _, l := range j.queue[:n] {
		j.queued -= len(l.text)
	}
	if j.queue = j.queue[n:]; len(j.queue) == 0 {
		j.queue = nil // releases the written records
	}
	before, lost := j.failing, sum(j.lost)
	var gap uint64
	if j.failing = ""; err != nil {
		j.failing = reason(err)
		for i := range j.queue {
			if l := &j.queue[i]; !l.late {
				l.late = true
				j.late[j.failing]++
			}
		}
	} else {
		gap, j.told = lost-j.told, lost
	}
	j.mu.Unlock()
	switch {
	case err != nil && before == "":
		j.options.Log.Error("cannot write the journal, retrying: events stay in memory", "err",
			host.Explain(err, host.Reads|host.Writes))
	case err == nil && before != "":
		j.options.Log.Info("journal written again", "lost", lost)
	}
	if gap > 0 {
		j.Append(incident.Event{Kind: incident.KindAgent, What: "journal_lost", Severity: incident.Warning,
			Entity: incident.Entity{Device: "journal"}, Count: int(gap),
			Message: fmt.Sprintf("%d records before this one could not be written", gap)})
	}
}

// Events returns the last 4096 events that f matches, the newest first.
func (j *Journal) Events(f Filter) []incident.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.recent.matching(f)
}

// Lost returns the number of records that will never be in the files.
func (j *Journal) Lost() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return sum(j.lost)
}

// Late returns the number of records that could not be written at once,
// whatever became of them: it rises as soon as a disk is full.
func (j *Journal) Late() uint64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return sum(j.late)
}

func sum(counts map[string]uint64) (n uint64) {
	for _, c := range counts {
		n += c
	}
	return n
}

// Samples returns the journal's own metrics.
func (j *Journal) Samples() []collectors.Sample {
	j.mu.Lock()
	defer j.mu.Unlock()
	samples := []collectors.Sample{
		{Metric: EventsTotal, Value: float64(j.events)},
		{Metric: QueueLength, Value: float64(len(j.queue))},
		{Metric: Streams, Value: float64(len(j.streams))},
	}
	if j.file != nil {
		samples = append(samples, collectors.Sample{Metric: Bytes, Value: float64(j.file.bytes.Load())})
	}
	for _, r := range lateReasons {
		samples = append(samples, collectors.Sample{Metric: LateTotal, Labels: []string{r}, Value: float64(j.late[r])})
	}
	for _, r := range lossReasons {
		samples = append(samples, collectors.Sample{Metric: LostTotal, Labels: []string{r}, Value: float64(j.lost[r])})
	}
	return samples
}
