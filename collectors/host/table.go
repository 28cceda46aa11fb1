package host

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits of a Table. A known process costs a descriptor.
const (
	mostKnown = 4096             // of processes, and of workloads
	forget    = time.Minute      // after the last look-up
	fresh     = 10 * time.Second // for which a process's facts count as current
	recent    = 3 * time.Second  // for which a process that was looked up counts as in use
	sweepEach = 10 * time.Second
)

// Options configure a Table.
type Options struct {
	Proc Proc
	Root string // root of the host's file system, for /etc/passwd; "/" if empty
	// Users names the users that /etc/passwd does not have, "" for none. It may block; nil: they have no names.
	Users  func(uid int) (string, error)
	Names  []Names       // sources of container names
	Jobs   string        // directory of the records of Slurm's jobs; empty: there are none
	Cgroup string        // root of the cgroups, to ask the daemons of Slurm's steps; empty: they are not asked
	Recent time.Duration // time for which a process that was looked up is in use; 3 s if 0
	Log    *slog.Logger  // for the first failure of each source; none if nil
}

// A Table knows processes by PID. It remembers those that were looked up, and
// checks at each look-up whether they still exist.
//
// It is safe for concurrent use.
type Table struct {
	Options
	users     atomic.Pointer[map[int]string] // of /etc/passwd
	directory directory
	failures  failures
	environ   chan struct{}   // wakes the reader of environments
	wake      []chan struct{} // by source of names

	mu      sync.Mutex // guards the fields below
	entries map[int]*entry
	records map[string]*record // by the key from the cgroup
	heard   []answer           // by source of names
	past    []*entry           // no longer known, at most mostKnown, in the order of forgetting
	swept   time.Time
}

// An entry is a known process.
type entry struct {
	Process
	handle     Handle
	cgroup     string
	record     *record
	read, used time.Time
	forgotten  time.Time
	environ    bool // its environment was requested
}

func (e *entry) last() time.Time { return e.used }

// NewTable returns an empty table. Run fetches the names, except those in
// /etc/passwd.
func NewTable(o Options) *Table {
	o.Root, o.Recent = cmp.Or(o.Root, "/"), cmp.Or(o.Recent, recent)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Cgroup != "" {
		o.Names = append(slices.Clip(o.Names), stepds{o.Cgroup, o.Proc})
	}
	t := &Table{Options: o, environ: make(chan struct{}, 1), entries: map[int]*entry{}, records: map[string]*record{},
		heard: make([]answer, len(o.Names)), swept: time.Now()}
	t.failures.log = o.Log
	t.directory = directory{lookup: o.Users, wake: make(chan struct{}, 1), users: map[int]named{}}
	for range o.Names {
		t.wake = append(t.wake, make(chan struct{}, 1))
	}
	t.readUsers()
	return t
}

// Lookup returns the process that has the PID now, or ErrGone. It reads only
// files of /proc that never block.
func (t *Table) Lookup(pid int) (Process, error) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entries[pid]
	if e != nil && !e.handle.Alive() {
		t.drop(e)
		e = nil
	}
	var err error
	switch {
	case e == nil:
		e, err = t.open(pid, now)
	case now.Sub(e.read) >= fresh:
		err = t.refresh(e, now)
	}
	if err != nil {
		return Process{}, err
	}
	e.used, e.record.used = now, now
	return t.process(e, now), nil
}

// Whole reports whether PIDs are those of the whole host: in a PID namespace of
// its own, a process sees no kernel threads.
func (t *Table) Whole() bool {
	handle, err := t.Proc.Open(2) // not by Lookup: it is no process of a GPU
	if err != nil {
		return false
	}
	defer handle.Close()
	facts, err := handle.Facts()
	return err == nil && facts.Comm == "kthreadd"
}

// open adds a process to the table.
func (t *Table) open(pid int, now time.Time) (*entry, error) {
	if now.Sub(t.swept) >= sweepEach {
		t.sweep(now)
	}
	if len(t.entries) >= mostKnown {
		t.drop(t.entries[oldest(t.entries)])
	}
	handle, err := t.Proc.Open(pid)
	if err != nil {
		return nil, t.failed(err)
	}
	e := &entry{handle: handle, Process: Process{PID: pid}}
	facts, err := handle.Facts()
	if err != nil {
		handle.Close()
		return nil, t.failed(err)
	}
	t.entries[pid] = e
	t.take(e, facts, now)
	e.read = now.Add(-rand.N(fresh)) // spreads the next reads of processes that arrived together
	return e, nil
}

// refresh rereads a known process's facts, because its cgroup may have changed.
// After a failure the old facts stay.
func (t *Table) refresh(e *entry, now time.Time) error {
	facts, err := e.handle.Facts()
	switch {
	case err == nil:
		t.take(e, facts, now)
	case errors.Is(err, ErrGone):
		t.drop(e)
		return err
	default:
		e.read = now
		_ = t.failed(err)
	}
	return nil
}

// take stores facts in the entry.
func (t *Table) take(e *entry, f Facts, now time.Time) {
	if e.record == nil || e.cgroup != f.Cgroup || e.UID != f.UID {
		e.record = t.record(ParseCgroup(f.Cgroup, f.UID), now)
		e.cgroup = f.Cgroup
	}
	if e.record.Kind == KindSlurm && !e.record.described && !e.environ {
		signal(t.environ)
	}
	e.Start, e.Began, e.UID, e.Comm, e.read = f.Start, f.Began, f.UID, field(f.Comm), now
}

// process returns the entry as a Process.
func (t *Table) process(e *entry, now time.Time) Process {
	p := e.Process
	p.User = t.userName(p.UID, now)
	p.Workload = e.record.known(now)
	return p
}

// InUse returns the living processes that were looked up recently, in no order.
func (t *Table) InUse() []Process {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Process
	for _, e := range t.entries {
		if now.Sub(e.used) <= t.Recent && e.handle.Alive() {
			all = append(all, t.process(e, now))
		}
	}
	return all
}

// sweep forgets processes that are dead or unused, and old answers.
func (t *Table) sweep(now time.Time) {
	t.swept = now
	t.forgetPast(now)
	for _, e := range t.entries {
		if now.Sub(e.used) >= forget || !e.handle.Alive() {
			t.drop(e)
		}
	}
	maps.DeleteFunc(t.records, func(_ string, r *record) bool { return now.Sub(r.used) >= forget })
	for i := range t.heard {
		if now.Sub(t.heard[i].at) >= forget {
			t.heard[i] = answer{}
		}
	}
}

func (t *Table) drop(e *entry) {
	e.handle.Close()
	delete(t.entries, e.PID)
	t.remember(e)
}

// oldest returns the key of the least recently used value.
func oldest[K comparable, V interface{ last() time.Time }](m map[K]V) (key K) {
	var at time.Time
	for k, v := range m {
		if last := v.last(); at.IsZero() || last.Before(at) {
			key, at = k, last
		}
	}
	return key
}

// Run fetches the names that cannot be read at once, each source on its own,
// and keeps the table small. It returns nil when ctx ends, without waiting for
// a source, because one may hang.
func (t *Table) Run(ctx context.Context) error {
	for i, names := range t.Names {
		go t.serve(ctx, names.Source(), t.wake[i], func() error { return t.ask(ctx, i) })
	}
	go t.serve(ctx, "users", t.directory.wake, func() error { return t.directory.learn(ctx) })
	go t.serve(ctx, "environ", t.environ, func() error { return t.describe(ctx) })
	go func() {
		for tick := time.Tick(sweepEach); ; {
			select {
			case <-ctx.Done():
				return
			case now := <-tick:
				t.mu.Lock()
				t.sweep(now)
				t.mu.Unlock()
				t.readUsers()
			}
		}
	}()
	<-ctx.Done()
	return nil
}

// failed counts a failure to read an existing process.
func (t *Table) failed(err error) error {
	if !errors.Is(err, ErrGone) {
		t.failures.add("proc", err)
	}
	return err
}

// Errors calls f with the number of failures of each source that had any: proc,
// environ, passwd, users (other directories of users), slurm (records),
// slurmstepd, and the sources of names.
func (t *Table) Errors(f func(source string, n uint64)) { t.failures.each(f) }
