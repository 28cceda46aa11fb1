package host

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"gpusteward/internal/fixture"
)

// count returns a table's failures by source.
func count(t *Table) map[string]uint64 {
	n := map[string]uint64{}
	t.Errors(func(source string, v uint64) { n[source] = v })
	return n
}

// in returns a process of user 1000 in a cgroup.
func in(cgroup string) *fakeProcess {
	return &fakeProcess{Facts: Facts{Start: 5, UID: 1000, Comm: "python3", Cgroup: "0::" + cgroup + "\n"}}
}

// keyOf returns the key of the process that has the PID, "" for none yet.
func keyOf(t *testing.T, table *Table, pid int) string {
	t.Helper()
	p := fixture.Value(table.Lookup(pid))(t)
	if p.Workload == nil {
		return ""
	}
	return p.Workload.Key
}

func TestLookup(t *testing.T) {
	root := t.TempDir()
	fixture.Rewrite(t, filepath.Join(root, "etc/passwd"),
		"root:x:0:0::/:/bin/sh\n+::::::\nada:x:1000:1::/:/bin/sh\neve:x:1000:1::/:/bin/sh\nx:y\n")
	proc := &fakeProc{}
	proc.set(1, in("/system.slice/a.service"))
	other := in("/system.slice/a.service")
	other.UID = 7
	proc.set(2, other)
	table := NewTable(Options{Proc: proc, Root: root})
	p, err := table.Lookup(1)
	fixture.If(t, err != nil || p.PID != 1 || p.Start != 5 || p.UID != 1000 || p.User != "ada" || p.Comm != "python3" ||
		p.Workload.Key != "unit:a.service" || p.Workload.UID != 1000, "%+v, %v", p, err)
	second, _ := table.Lookup(2)
	fixture.If(t, second.User != "7" || second.Workload != p.Workload, "%+v has another workload than %+v", second, p)
	if of, other := p.Owner(), second.Owner(); of != "user:1000" || other != "user:7" {
		t.Errorf("owners are %s and %s", of, other)
	}
	fixture.Equal(t, errors.Is(fixture.Error(table.Lookup(3)), ErrGone), true, "that it is gone")
	fixture.Equal(t, len(count(table)), 0, "failures")
}

func TestReusedPIDIsAnotherProcess(t *testing.T) {
	proc := &fakeProc{}
	proc.set(1, in("/a.slice/a.service"))
	table := NewTable(Options{Proc: proc})
	keyOf(t, table, 1)
	next := in("/a.slice/b.service")
	next.Start = 6
	proc.set(1, next)
	p, err := table.Lookup(1)
	fixture.If(t, err != nil || p.Start != 6 || p.Workload.Key != "unit:b.service", "%+v, %v", p, err)
	proc.set(1, nil)
	if _, err := table.Lookup(1); !errors.Is(err, ErrGone) || proc.handles() != 0 {
		t.Errorf("%v with %d open handles", err, proc.handles())
	}
}

func TestFactsAreReread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		process := in("/a.slice/a.service")
		proc.set(1, process)
		table := NewTable(Options{Proc: proc})
		keyOf(t, table, 1)
		time.Sleep(fresh) // the first reread may come sooner
		keyOf(t, table, 1)
		process.Cgroup, process.Comm = "0::/a.slice/b.service", "b\x00"
		time.Sleep(fresh - time.Second)
		fixture.Equal(t, keyOf(t, table, 1), "unit:a.service", "it is")
		time.Sleep(time.Second)
		p, _ := table.Lookup(1)
		fixture.If(t, p.Workload.Key != "unit:b.service" || p.Comm != field("b\x00"), "%+v", p)
		process.err = os.ErrPermission // the known facts stay
		time.Sleep(fresh)
		if k := keyOf(t, table, 1); k != "unit:b.service" || count(table)["proc"] != 1 {
			t.Errorf("%s, failures %v", k, count(table))
		}
	})
}

func TestUnreadableProcess(t *testing.T) {
	proc := &fakeProc{}
	process := in("/")
	process.err = os.ErrPermission
	proc.set(1, process)
	table := NewTable(Options{Proc: proc})
	_, err := table.Lookup(1)
	fixture.If(t, !errors.Is(err, os.ErrPermission) || errors.Is(err, ErrGone), "%v", err)
	fixture.Equal(t, fmt.Sprint(count(table)["proc"], proc.handles()), "1 0", "failures and handles are")
}

func TestInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		for pid := range 3 {
			proc.set(pid, in("/"))
		}
		table := NewTable(Options{Proc: proc})
		keyOf(t, table, 0)
		time.Sleep(2 * time.Second)
		keyOf(t, table, 1)
		keyOf(t, table, 2)
		fixture.Equal(t, len(table.InUse()), 3, "processes in use")
		proc.set(1, nil) // dies
		time.Sleep(2 * time.Second)
		used := table.InUse()
		fixture.If(t, len(used) != 1 || used[0].PID != 2, "%+v", used)
	})
}

func TestTableIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		for pid := range mostKnown + 10 {
			proc.set(pid, in(fmt.Sprintf("/docker/%064x", pid)))
		}
		table := NewTable(Options{Proc: proc, Names: []Names{&fakeNames{}}})
		for pid := range mostKnown + 10 {
			keyOf(t, table, pid)
			time.Sleep(time.Millisecond)
		}
		if len(table.entries) != mostKnown || proc.handles() != mostKnown || len(table.records) != mostKnown ||
			table.entries[9] != nil || table.entries[10] == nil {
			t.Errorf("%d processes, %d handles, %d workloads", len(table.entries), proc.handles(), len(table.records))
		}
		ctx, cancel := context.WithCancel(t.Context())
		go table.Run(ctx)
		proc.set(20, nil)
		time.Sleep(sweepEach)
		synctest.Wait()
		fixture.Equal(t, proc.handles(), mostKnown-1, "handles after a process died")
		time.Sleep(forget + sweepEach)
		synctest.Wait()
		if len(table.entries) != 0 || proc.handles() != 0 || len(table.records) != 0 {
			t.Errorf("%d processes, %d handles, %d workloads after a minute", len(table.entries), proc.handles(),
				len(table.records))
		}
		cancel()
	})
}

// fakeNames is a source of names. Its fields change only while it does not run.
type fakeNames struct {
	mu    sync.Mutex
	names map[string]ContainerName
	err   error
	hang  bool // until the context ends
	calls int
}

func (n *fakeNames) Source() string { return "fake" }

func (n *fakeNames) Containers(ctx context.Context) (map[string]ContainerName, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls++
	if n.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return maps.Clone(n.names), n.err
}

func (n *fakeNames) called() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.calls
}

// running runs a table over a source of names for the duration of a test.
func running(t *testing.T, proc Proc, names ...Names) *Table {
	return runningWith(t, Options{Proc: proc, Names: names})
}

func runningWith(t *testing.T, o Options) *Table {
	table := NewTable(o)
	fixture.Running(t, table.Run)
	return table
}

func TestNameArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		proc.set(1, in("/docker/"+id1))
		proc.set(2, in("/kubepods/pod"+uid+"/"+id2))
		docker := &fakeNames{names: map[string]ContainerName{id1: {Name: "trainer", Image: "torch:2"},
			id2: {Name: "k8s_x", Namespace: "ml", Pod: "train-0", Container: "main"}}}
		table := running(t, proc, docker, &fakeNames{hang: true}) // a source that hangs delays no other
		fixture.Equal(t, keyOf(t, table, 1), "", "before any source was asked")
		synctest.Wait()
		fixture.Equal(t, keyOf(t, table, 1), "container:trainer", "key of")
		p, _ := table.Lookup(2) // answered from the last answer
		if w := p.Workload; docker.called() != 1 || w.Key != "pod:ml/train-0/main" || w.Namespace != "ml" ||
			w.Pod != "train-0" || w.Container != "main" || w.ContainerID != id2 || w.PodUID != uid {
			t.Errorf("%+v", w)
		}
		fixture.Equal(t, p.Owner(), "namespace:ml", "the owner of a pod is")
	})
}

func TestContainersArriveInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		docker := &fakeNames{names: map[string]ContainerName{}}
		table := running(t, proc, docker)
		for i := range 100 {
			id := fmt.Sprintf("%064x", i)
			proc.set(i, in("/docker/"+id))
			docker.mu.Lock()
			docker.names[id] = ContainerName{Name: fmt.Sprint("c", i)}
			docker.mu.Unlock()
			keyOf(t, table, i)
			time.Sleep(70 * time.Millisecond)
		}
		time.Sleep(askEach)
		for i := range 100 {
			fixture.Equal(t, keyOf(t, table, i), fmt.Sprint("container:c", i), "container %d is", i)
		}
	})
}

func TestKeyIsFrozen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		proc.set(1, in("/docker/"+id1))
		docker := &fakeNames{hang: true}
		table := running(t, proc, docker)
		for range 4 {
			fixture.Equal(t, keyOf(t, table, 1), "", "before its time it is")
			time.Sleep(patience / 4)
		}
		fixture.Equal(t, keyOf(t, table, 1), "container:"+id1, "key of")
		synctest.Wait()
		docker.mu.Lock()
		docker.hang, docker.names = false, map[string]ContainerName{id1: {Name: "late", Image: "torch:2"}}
		docker.mu.Unlock()
		for range 40 {
			time.Sleep(time.Second)
			fixture.Equal(t, keyOf(t, table, 1), "container:"+id1, "the key became")
		}
		if p, _ := table.Lookup(1); p.Workload.Container != "late" || p.Workload.Image != "torch:2" ||
			count(table)["fake"] != 1 {
			t.Errorf("%+v, failures %v", p.Workload, count(table))
		}
	})
}

func TestNoWaitForANameUnknownToAllSources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		proc.set(1, in("/docker/"+id1))
		proc.set(2, in("/user.slice/user-1000.slice/user@1000.service/docker-"+id2+".scope"))
		docker := &fakeNames{names: map[string]ContainerName{id2: {Name: "admin"}}}
		table := running(t, proc, docker)
		keyOf(t, table, 1)
		synctest.Wait()
		fixture.Equal(t, keyOf(t, table, 1), "container:"+id1, "key of")
		p, _ := table.Lookup(2)
		fixture.If(t, p.Workload.Key != "container:1000/"+id2 || p.Workload.Container == "admin",
			"a user's container is %+v", p.Workload)
	})
}

func TestNameSourcesAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		docker := &fakeNames{}
		table := running(t, proc, docker)
		for i := range 40 { // a new container every 100 ms
			proc.set(i, in(fmt.Sprintf("/docker/%064x", i)))
			keyOf(t, table, i)
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if n := docker.called(); n != 3 { // at 0, 2 and 4 s
			t.Errorf("%d calls in 4 s", n)
		}
		time.Sleep(20 * time.Second)
		fixture.Equal(t, docker.called(), 3, "calls without a question")
		docker.mu.Lock()
		docker.err = errors.New("no")
		docker.mu.Unlock()
		proc.set(99, in("/docker/"+id1))
		for range 65 {
			keyOf(t, table, 99)
			time.Sleep(time.Second)
		}
		if n := docker.called(); n != 6 || count(table)["fake"] != 3 { // at 0, 30 and 60 s
			t.Errorf("%d calls, %v", n, count(table))
		}
	})
}

func TestNameEqualToID(t *testing.T) {
	r := &record{Workload: ParseCgroup("0::/docker/"+id1, 0)}
	r.learn(ContainerName{Name: id2})
	fixture.Equal(t, r.settled != nil || r.Key != "container:"+id1, false, "%+v", r)
}

func TestSlurmJobIsDescribed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		blocked := in("/system.slice/slurmstepd.scope/job_1/step_0/user/task_0")
		blocked.block, blocked.environ = make(chan struct{}),
			map[string]string{"SLURM_JOB_USER": "ada", "SLURM_JOB_ACCOUNT": "lab", "SLURM_JOB_PARTITION": "gpu",
				"SECRET": "x"}
		proc.set(1, blocked)
		proc.set(2, in("/system.slice/slurmstepd.scope/job_2/step_batch/user/task_0"))
		table := running(t, proc)
		fixture.Equal(t, keyOf(t, table, 1), "slurm:1.0", "the look-up must")
		synctest.Wait()
		time.Sleep(time.Hour)
		fixture.Equal(t, keyOf(t, table, 1), "slurm:1.0", "it is")
		close(blocked.block)
		synctest.Wait()
		p, _ := table.Lookup(1)
		if w := p.Workload; w.User != "ada" || w.Account != "lab" || w.Partition != "gpu" || w.Key != "slurm:1.0" {
			t.Errorf("%+v", w)
		}
		time.Sleep(askEach)
		keyOf(t, table, 2) // whose environment cannot be read
		synctest.Wait()
		fixture.Equal(t, count(table)["environ"], 1, "failures to read an environment")
	})
}

func TestTableInParallel(t *testing.T) {
	proc := &fakeProc{}
	table := running(t, proc, &fakeNames{names: map[string]ContainerName{id1: {Name: "x"}}})
	var users sync.WaitGroup
	for user := range 32 {
		users.Go(func() {
			for i := range 200 {
				pid := (user + i) % 16
				switch i % 5 {
				case 0:
					proc.set(pid, in([]string{"/docker/" + id1, "/a.slice/a.service", "/slurm/uid_1/job_7"}[i%3]))
				case 1:
					table.InUse()
				case 2:
					table.Errors(func(string, uint64) {})
				case 3:
					proc.set(pid, nil)
				}
				if p, err := table.Lookup(pid); err != nil && !errors.Is(err, ErrGone) || err == nil && p.PID != pid {
					t.Errorf("%+v, %v", p, err)
				}
			}
		})
	}
	users.Wait()
}

func TestRecall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		start := time.Now()
		first := in("/a.slice/a.service")
		first.Began = start
		proc.set(1, first)
		table := NewTable(Options{Proc: proc})
		recall := func(pid int, at time.Time) string {
			p, ok := table.Recall(pid, at)
			if !ok {
				return ""
			}
			return p.Workload.Key
		}
		fixture.Equal(t, recall(1, start.Add(-2*time.Second)), "", "… had the PID before it began")
		fixture.Equal(t, recall(1, start), "unit:a.service", "the living process is of")
		time.Sleep(time.Minute)
		proc.set(1, nil)
		ended := time.Now()
		fixture.Equal(t, recall(1, ended), "unit:a.service", "the process that just ended is of")
		fixture.Equal(t, recall(1, ended.Add(2*time.Second)), "", "… still has the PID after it ended")
		time.Sleep(time.Minute)
		next := in("/a.slice/b.service")
		next.Start, next.Began = 6, time.Now()
		proc.set(1, next) // reuse the PID
		a, b := recall(1, ended.Add(-time.Second)), recall(1, time.Now())
		fixture.If(t, a != "unit:a.service" || b != "unit:b.service", "the PID was of %q and is of %q", a, b)
		fixture.Equal(t, recall(1, ended.Add(30*time.Second)), "", "… had the PID while no process had it")
		time.Sleep(recalled - time.Minute + time.Second)
		fixture.Equal(t, recall(1, ended.Add(-time.Second)), "", "it is")
	})
}

func TestRecallOfAForgottenProcess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		proc := &fakeProc{}
		for pid := range mostKnown + 10 {
			p := in("/a.slice/a.service")
			p.Began = time.Now()
			proc.set(pid, p)
		}
		table := NewTable(Options{Proc: proc})
		for round := range 3 {
			for pid := range mostKnown {
				keyOf(t, table, pid)
			}
			time.Sleep(forget + sweepEach)
			keyOf(t, table, mostKnown+round) // sweeps
		}
		fixture.Equal(t, fmt.Sprint(len(table.past), proc.handles()), fmt.Sprint(mostKnown, 1), "past processes and handles are")
		proc.set(5, nil)
		if p, ok := table.Recall(5, time.Now().Add(-forget-sweepEach)); !ok || p.Workload.Key != "unit:a.service" {
			t.Errorf("%+v, %v", p, ok)
		}
	})
}

// set returns t as it would be if the wall clock had been set by that amount before it was read: the monotonic reading
// is the same. (Bits 30 to 62 of a Time's first word hold the seconds since 1885, as package time documents.)
func set(t time.Time, by time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&t)) += uint64(by/time.Second) << 30
	return t
}

const years = 365 * 24 * time.Hour

func TestRebased(t *testing.T) {
	then := time.Now()
	for _, by := range []time.Duration{0, 56 * years, -56 * years, time.Second} {
		now := set(then.Add(time.Minute), by)
		if wall := now.Round(0).Sub(then.Round(0)); wall != time.Minute+by || now.Sub(then) != time.Minute {
			t.Fatalf("the test set its clock by %v instead of %v", wall-time.Minute, by)
		}
		got := Rebased(then, now)
		if ago := now.Round(0).Sub(got.Round(0)); ago != time.Minute || !got.Equal(then) {
			t.Errorf("set by %v: a moment one minute ago became %v ago", by, ago)
		}
		if got := Rebased(then.Round(0), now); !got.Round(0).Equal(then.Round(0)) {
			t.Errorf("a time without a monotonic reading became %v", got)
		}
	}
	if got := Rebased(time.Time{}, then); !got.IsZero() {
		t.Errorf("the zero time became %v", got)
	}
}
