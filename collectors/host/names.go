package host

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"
)

// A ContainerName is a runtime's name for a container. Unknown fields are
// empty.
type ContainerName struct {
	Name  string // within the runtime
	Image string

	Namespace, Pod, Container string // in Kubernetes

	Job string // the number of a Slurm job with this SLUID
}

// Names is a source of container names, such as a runtime.
type Names interface {
	// Source names the source in logs and metrics.
	Source() string
	// Containers returns the names of running containers by id, or by the
	// beginning of it that is known, or of Slurm's jobs by SLUID, and nothing if the host has no such source. Calls do not
	// overlap.
	Containers(ctx context.Context) (map[string]ContainerName, error)
}

// Intervals of the requests to sources, which are sent only for containers that
// the source was not asked about.
const (
	patience = 2 * time.Second  // with a source, and with a process without a name
	askEach  = 2 * time.Second  // at most
	askAgain = 30 * time.Second // after a failure
)

// A record is a workload whose name may still be unknown. Its key is settled
// once a source knows the name, no source knows it, or the time is up; then it
// never changes, whatever is learnt later. The table's lock guards it.
type record struct {
	Workload
	settled     *Workload // nil until there is a key
	since, used time.Time
	answered    []bool // by source
	described   bool   // from the job's record, or from a process's environment
}

func (r *record) last() time.Time { return r.used }

// record returns the record of a workload that a cgroup names.
func (t *Table) record(w Workload, now time.Time) *record {
	r := t.records[w.Key]
	if r != nil {
		return r
	}
	if len(t.records) >= mostKnown {
		delete(t.records, oldest(t.records))
	}
	r = &record{Workload: w, since: now, used: now}
	t.records[w.Key] = r
	t.recorded(r)
	if w.own || w.ContainerID == "" && !r.unnamed() { // names chosen by users are not trusted, and not looked up
		r.settle()
		return r
	}
	r.answered = make([]bool, len(t.Names))
	for i, heard := range t.heard {
		_, ofJobs := t.Names[i].(stepds)
		if n, ok := t.find(heard.names, r); ok {
			t.learn(r, n)
			r.answered[i] = true
		} else if r.answered[i] = ofJobs != (r.Kind == KindSlurm); !r.answered[i] {
			signal(t.wake[i])
		}
	}
	return r
}

// id returns the id by which sources know the workload.
func (r *record) id() string { return cmp.Or(r.ContainerID, r.SLUID) }

// shortestID is the shortest beginning of a container's id that tells whose it
// is.
const shortestID = 8 // hexadecimal digits

// find returns a source's name for the workload. A name by the beginning of an
// id is the workload's if no other known container's id begins so.
func (t *Table) find(names map[string]ContainerName, r *record) (n ContainerName, ok bool) {
	id := r.id()
	if n, ok = names[id]; ok || !isID(id) {
		return n, ok
	}
	begins := ""
	for i := shortestID; i < len(id); i++ {
		if cut, there := names[id[:i]]; there && ok {
			return ContainerName{}, false
		} else if there {
			n, ok, begins = cut, true, id[:i]
		}
	}
	if !ok {
		return n, false
	}
	for other := range names {
		ok = ok && (other == begins || !strings.HasPrefix(other, begins))
	}
	for _, other := range t.records {
		ok = ok && (other.ContainerID == id || !strings.HasPrefix(other.ContainerID, begins))
	}
	return n, ok
}

// learn adopts a source's name for the workload.
func (t *Table) learn(r *record, n ContainerName) {
	if r.Kind == KindSlurm && n.Job != "" {
		r.number(n.Job)
		t.recorded(r)
		r.settle()
		return
	}
	r.learn(n)
}

func (r *record) settle() {
	w := r.Workload
	r.settled = &w
}

// known returns the workload, or nil if its name may yet arrive.
func (r *record) known(now time.Time) *Workload {
	if r.settled == nil && (now.Sub(r.since) >= patience || !slices.Contains(r.answered, false)) {
		r.settle()
	}
	return r.settled
}

// learn adopts a source's name for the container.
func (r *record) learn(n ContainerName) {
	r.Image = cmp.Or(r.Image, field(n.Image))
	name := ""
	switch {
	case r.Kind == KindPod && n.Namespace != "" && n.Pod != "":
		if r.Pod == "" {
			r.Namespace, r.Pod, r.Container = field(n.Namespace), field(n.Pod), field(n.Container)
		}
		name = key(KindPod, n.Namespace, n.Pod, n.Container)
	case r.Kind == KindContainer && n.Name != "" && !isID(n.Name): // it might be the id of another container
		if r.Container == r.ContainerID {
			r.Container = field(n.Name)
		}
		name = key(KindContainer, n.Name)
	}
	if r.settled != nil {
		r.Key = r.settled.Key
	} else if name != "" {
		r.Key = name
	}
	if r.settled != nil || name != "" {
		r.settle()
	}
}

// An answer is the last answer of a source. It is kept for containers that
// appear shortly afterwards, because the source is not asked again at once.
type answer struct {
	names map[string]ContainerName
	at    time.Time
}

// ask asks a source for names, if there is a container that it was not asked
// about yet.
func (t *Table) ask(ctx context.Context, source int) error {
	t.mu.Lock()
	asked := map[*record]bool{}
	for _, r := range t.records {
		if r.answered != nil && !r.answered[source] {
			asked[r] = true
		}
	}
	t.mu.Unlock()
	if len(asked) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	names, err := t.Names[source].Containers(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, r := range t.records {
		if r.answered == nil || r.answered[source] {
			continue
		}
		n, ok := t.find(names, r)
		if ok {
			t.learn(r, n)
		}
		r.answered[source] = ok || asked[r]
	}
	if len(names) > mostKnown {
		names = nil
	}
	t.heard[source] = answer{names, time.Now()}
	return nil
}

// serve calls ask whenever it is woken, at a limited rate.
func (t *Table) serve(ctx context.Context, source string, wake chan struct{}, ask func() error) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-wake:
		}
		next := time.After(askEach)
		if err := ask(); err != nil && ctx.Err() == nil {
			t.failures.add(source, err)
			next = time.After(askAgain)
			signal(wake)
		}
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
	}
}

// signal wakes the receiver of c, now or at its next receive.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
