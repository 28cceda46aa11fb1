package host

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Bounds of a Table. A process costs a descriptor while it is known.
const (
	mostKnown = 4096             // processes, and workloads
	forget    = time.Minute      // after the last look-up
	fresh     = 10 * time.Second // for which a process's facts are believed
	recent    = 3 * time.Second  // for which a process that was looked up is in use
	sweepEach = 10 * time.Second
)

// Options are what a Table needs.
type Options struct {
	Proc   Proc
	Root   string        // of the host's file system, for /etc/passwd; "/" if empty
	Names  []Names       // who may know the names of containers
	Jobs   string        // directory of the records of Slurm's jobs; empty: there are none
	Recent time.Duration // for which a process that was looked up is in use; 3 s if 0
	Log    *slog.Logger  // for a source's first failure; none if nil
}

// A Table knows processes by their PIDs. It remembers those that were looked
// up, and looks whether they are still there each time.
//
// It is safe for concurrent use.
type Table struct {
	Options
	users    atomic.Pointer[map[int]string]
	failures failures
	environ  chan struct{}   // wakes who reads environments
	wake     []chan struct{} // by source of names

	mu      sync.Mutex // guards what follows
	entries map[int]*entry
	records map[string]*record // by the key that the cgroup gives
	heard   []answer           // by source of names
	past    []*entry           // no longer known, at most mostKnown; in the order in which they were forgotten
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
	environ    bool // was asked for
}

func (e *entry) last() time.Time { return e.used }

// NewTable returns a table that knows no process. Names, but for the users',
// are learnt while it runs.
func NewTable(o Options) *Table {
	o.Root, o.Recent = cmp.Or(o.Root, "/"), cmp.Or(o.Recent, recent)
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	t := &Table{Options: o, environ: make(chan struct{}, 1), entries: map[int]*entry{}, records: map[string]*record{}, heard: make([]answer, len(o.Names)), swept: time.Now()}
	t.failures.log = o.Log
	for range o.Names {
		t.wake = append(t.wake, make(chan struct{}, 1))
	}
	t.readUsers()
	return t
}

// Lookup returns the process that has the PID now, or ErrGone if none has. It
// waits for nothing but files of /proc that never block.
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
	return e.process(now), nil
}

// Whole reports whether PIDs are those of the whole host: in a PID namespace of
// its own a process sees no threads of the kernel.
func (t *Table) Whole() bool {
	p, err := t.Lookup(2)
	return err == nil && p.Comm == "kthreadd"
}

// open begins to know a process.
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
	e.read = now.Add(-rand.N(fresh)) // not all that came at once are read again at once
	return e, nil
}

// refresh reads a known process's facts again: it may be in another cgroup. If
// that fails the old ones are as good as before.
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

// take makes facts the entry's.
func (t *Table) take(e *entry, f Facts, now time.Time) {
	if e.record == nil || e.cgroup != f.Cgroup || e.UID != f.UID {
		e.record = t.record(ParseCgroup(f.Cgroup, f.UID), now)
		e.cgroup = f.Cgroup
	}
	if e.record.Kind == KindSlurm && !e.record.described && !e.environ {
		signal(t.environ)
	}
	user, ok := (*t.users.Load())[f.UID]
	if !ok {
		user = strconv.Itoa(f.UID)
	}
	e.Start, e.Began, e.UID, e.User, e.Comm, e.read = f.Start, f.Began, f.UID, user, field(f.Comm), now
}

// process is the entry as it may be handed out.
func (e *entry) process(now time.Time) Process {
	p := e.Process
	p.Workload = e.record.known(now)
	return p
}

// InUse returns the processes that were looked up of late and are alive, in no
// order.
func (t *Table) InUse() []Process {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Process
	for _, e := range t.entries {
		if now.Sub(e.used) <= t.Recent && e.handle.Alive() {
			all = append(all, e.process(now))
		}
	}
	return all
}

// sweep forgets the dead, who was not looked up for long, and old answers.
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

// oldest returns the key of what was used least recently.
func oldest[K comparable, V interface{ last() time.Time }](m map[K]V) (key K) {
	var at time.Time
	for k, v := range m {
		if last := v.last(); at.IsZero() || last.Before(at) {
			key, at = k, last
		}
	}
	return key
}

// Run asks for the names that cannot be read at once, each source on its own,
// and keeps the table small. It returns nil when ctx ends, and waits for no
// source: one may hang.
func (t *Table) Run(ctx context.Context) error {
	for i, names := range t.Names {
		go t.serve(ctx, names.Source(), t.wake[i], func() error { return t.ask(ctx, i) })
	}
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

// failed counts a failure to read a process that is there.
func (t *Table) failed(err error) error {
	if !errors.Is(err, ErrGone) {
		t.failures.add("proc", err)
	}
	return err
}

// Errors calls f with the number of failures of each source that had any:
// proc, environ, passwd, slurm (records), and those of names.
func (t *Table) Errors(f func(source string, n uint64)) { t.failures.each(f) }
