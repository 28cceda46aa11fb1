package suspend

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
)

// A Phase is what is happening to a workload.
type Phase string

// The phases. A workload that is found in another phase than Suspended after a
// restart is resumed.
const (
	Suspending Phase = "suspending"
	Suspended  Phase = "suspended"
	Resuming   Phase = "resuming"
)

// A Process is one of a workload's processes, with the GPU memory that the
// driver listed for it before it was suspended, in bytes by UUID.
type Process struct {
	action.Target
	Memory map[string]uint64 `json:"memory,omitempty"`
	// Of a workload that is being suspended: nothing was done to the process before.
	// Others may be suspended already.
	New bool `json:"new,omitempty"`
}

// A Record is a workload that is suspended, or about to be, or to be resumed.
type Record struct {
	Tenant    string    `json:"tenant"`
	Workload  string    `json:"workload"`
	Phase     Phase     `json:"phase"`
	Why       string    `json:"why"`   // of what was done last, for people
	Since     time.Time `json:"since"` // when the phase began
	Began     time.Time `json:"began"` // when its suspension did
	Processes []Process `json:"processes"`
	// It gave way, and comes back when it uses the GPU again; others come back by
	// order.
	Yields bool `json:"yields,omitempty"`
}

// Subject returns whose record it is.
func (r Record) Subject() audit.Subject { return audit.Subject{Tenant: r.Tenant, Workload: r.Workload} }

// Bytes returns the GPU memory that its processes had, by UUID.
func (r Record) Bytes() map[string]uint64 {
	all := map[string]uint64{}
	for _, p := range r.Processes {
		for uuid, n := range p.Memory {
			all[uuid] += n
		}
	}
	return all
}

// fresh returns the processes to which nothing was done before.
func (r Record) fresh() (all []Process) {
	for _, p := range r.Processes {
		if p.New {
			all = append(all, p)
		}
	}
	return all
}

// settled returns the processes without the mark that they are new.
func (r Record) settled() []Process {
	all := slices.Clone(r.Processes)
	for i := range all {
		all[i].New = false
	}
	return all
}

// Joining returns those of a workload's processes that the record does not have.
func (r Record) Joining(processes []Process) (all []Process) {
	for _, p := range processes {
		if !slices.ContainsFunc(r.Processes, func(q Process) bool { return q.Target == p.Target }) {
			all = append(all, p)
		}
	}
	return all
}

// work is a record, and what is being done about it.
type work struct {
	Record
	ends  chan End // nil: nothing
	wait  time.Duration
	again time.Time // when a resumption is tried again
	wake  string    // why it is to be resumed as soon as it is suspended; empty: it is not
	stays bool      // it is to be suspended again as soon as the resumption has ended
	undo  bool      // its new processes go on, because they could not be suspended
	full  bool      // its last resumption found no room, and asked the driver for nothing
}

// back returns the record with the processes that are to go on.
func (w *work) back() Record {
	r := w.Record
	if w.undo {
		r.Processes = w.fresh()
	}
	return r
}

// records are those of all workloads.
type records map[audit.Subject]*work

// arriving returns the GPU memory that others than w are about to take to the host, by PID.
func (all records) arriving(w *work) map[int]uint64 {
	bytes := map[int]uint64{}
	for _, o := range all {
		if o != w && o.Phase == Suspending {
			maps.Copy(bytes, byPID(o.fresh()))
		}
	}
	return bytes
}

// returning returns the GPU memory that others are being given back now, by UUID. The
// driver may still list it as free.
func (all records) returning() map[string]uint64 {
	bytes := map[string]uint64{}
	for _, w := range all {
		if w.Phase != Resuming && !w.undo || w.ends == nil {
			continue
		}
		for uuid, n := range w.back().Bytes() {
			bytes[uuid] += n
		}
	}
	return bytes
}

// pids returns the processes of all records.
func (all records) pids() map[int]bool {
	pids := map[int]bool{}
	for _, w := range all {
		for _, p := range w.Processes {
			pids[p.PID] = true
		}
	}
	return pids
}

func (all records) order() []*work {
	return slices.SortedFunc(maps.Values(all), func(x, y *work) int {
		return cmp.Or(x.Since.Compare(y.Since), audit.Compare(x.Subject(), y.Subject()))
	})
}

// leave forgets the new processes of a workload, and the workload if it has no others.
func (all records) leave(now time.Time, w *work) {
	w.Phase, w.Since = Suspended, now
	w.Processes = slices.DeleteFunc(slices.Clone(w.Processes), func(p Process) bool { return p.New })
	if len(w.Processes) == 0 {
		delete(all, w.Subject())
	}
}

// later has a resumption tried again.
func (w *work) later(now time.Time, tick audit.Tick, err error) {
	var before *untouched
	w.full = errors.As(err, &before)
	w.wait = min(max(2*w.wait, tick.Of(retryFirst)), tick.Of(retryLast))
	w.again = now.Add(w.wait)
}
