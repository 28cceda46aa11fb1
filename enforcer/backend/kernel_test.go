package backend

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// A limiter is a running KernelMemory on a fake driver and fake cgroups.
type limiter struct {
	*KernelMemory
	t       *testing.T
	cgroups string
	ps      *census
	log     bytes.Buffer
	stop    func()

	mu    sync.Mutex
	calls []string
	hang  map[string]chan struct{} // by GPU
	fails map[string]error         // by GPU
}

// newLimiter starts a limiter inside a synctest bubble.
func newLimiter(t *testing.T, groups ...string) *limiter {
	t.Helper()
	l := &limiter{t: t, cgroups: t.TempDir(), ps: newCensus(), hang: map[string]chan struct{}{},
		fails: map[string]error{}}
	for _, g := range groups {
		fixture.Must(t, os.MkdirAll(filepath.Join(l.cgroups, g), 0o755))
	}
	l.KernelMemory = NewKernelMemory(KernelMemoryOptions{Limit: l.limit, Proc: l.ps, Cgroups: l.cgroups,
		Log: slog.New(slog.NewTextHandler(&l.log, nil))})
	l.stop = fixture.Running(t, l.Run)
	return l
}

func (l *limiter) limit(uuid, cgroup string, soft, hard uint64) error {
	l.mu.Lock()
	text := fmt.Sprintf("%s %s %d %d", uuid, strings.TrimPrefix(cgroup, l.cgroups), soft, hard)
	if hard == gpu.NoLimit {
		text = fmt.Sprintf("%s %s %d none", uuid, strings.TrimPrefix(cgroup, l.cgroups), soft)
	}
	l.calls = append(l.calls, text)
	hang, err := l.hang[uuid], l.fails[uuid]
	l.mu.Unlock()
	if hang != nil {
		<-hang
	}
	return err
}

// in moves a process into a cgroup.
func (l *limiter) in(pid int, group string) host.Process {
	return l.ps.has(pid, host.Facts{Cgroup: "1:name=systemd:/old\n0::" + group + "\n"})
}

// seconds passes the demands once a second, n times. It returns the calls and the final holds.
func (l *limiter) seconds(n int, demands ...Demand) (calls []string, holds []Hold) {
	for range n {
		l.Want(demands)
		synctest.Wait()
		time.Sleep(time.Second)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	calls, l.calls = l.calls, nil
	slices.Sort(calls)
	return calls, sorted(l.Holds())
}

// owns returns a demand with a cap of 8000 bytes, 1000 of them reserved.
func owns(tenant, uuid string, ps ...host.Process) Demand {
	return Demand{Tenant: tenant, GPU: uuid, Quota: policy.Quota{Limit: 1, Memory: 8000, Reserved: 1000}, Processes: ps}
}

func TestTheKernelHoldsATenantsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a", "/jobs/b")
		a, b := l.in(10, "/jobs/a"), l.in(20, "/jobs/b")
		uncapped := owns("b", "GPU-a", b)
		uncapped.Memory = 0
		demands := []Demand{owns("a", "GPU-a", a), owns("a", "GPU-b"), uncapped, owns(policy.DefaultTenant, "GPU-a")}
		calls, holds := l.seconds(4, demands...)
		if want := []string{"GPU-a /jobs/a 1000 8000", "GPU-a /jobs/b 1000 none",
			"GPU-b /jobs/a 1000 8000"}; !slices.Equal(calls, want) {
			t.Errorf("asked for %q, want %q", calls, want)
		}
		want := []Hold{{"a", "GPU-a", Memory}, {"a", "GPU-b", Memory}}
		fixture.If(t, !slices.Equal(holds, want) || l.log.Len() > 0,
			"holds %v, want %v; says %s", holds, want, l.log.String())
		if calls, _ := l.seconds(50, demands...); len(calls) != 0 {
			t.Errorf("asked again for %q", calls)
		}
		if calls, _ := l.seconds(10, demands...); len(calls) != 3 {
			t.Errorf("after a minute asked for %q, want all three once", calls)
		}
	})
}

func TestALimitFollowsTheTenant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/1/below", "/jobs/2", "/jobs/3")
		held := []Hold{{"a", "GPU-a", Memory}}
		for _, step := range []struct {
			name   string
			groups []string
			d      Demand
			calls  []string
			holds  []Hold
			why    string
		}{
			{"nobody yet", nil, owns("a", "GPU-a"), nil, nil, ""},
			{"it comes", []string{"/jobs/1"}, owns("a", "GPU-a"), []string{"GPU-a /jobs/1 1000 8000"}, held, ""},
			{"below its own", []string{"/jobs/1/below"}, owns("a", "GPU-a"), nil, held, ""},
			{"it pauses", nil, owns("a", "GPU-a"), []string{"GPU-a /jobs/1 0 8000"}, held, ""},
			{"its cap falls", []string{"/jobs/1"}, Demand{Tenant: "a", GPU: "GPU-a", Quota: policy.Quota{Memory: 4000}},
				[]string{"GPU-a /jobs/1 0 4000"}, held, ""},
			{"elsewhere", []string{"/jobs/2"}, owns("a", "GPU-a"),
				[]string{"GPU-a /jobs/1 0 none", "GPU-a /jobs/2 1000 8000"}, held, ""},
			{"in two", []string{"/jobs/2", "/jobs/3"}, owns("a", "GPU-a"), []string{"GPU-a /jobs/2 0 none"}, nil,
				"in several cgroups"},
			{"in the root", []string{"/"}, owns("a", "GPU-a"), nil, nil, "no cgroup of their own"},
			{"outside, which was said", []string{"/../x"}, owns("a", "GPU-a"), nil, nil, ""},
			{"in one again", []string{"/jobs/3"}, owns("a", "GPU-a"), []string{"GPU-a /jobs/3 1000 8000"}, held, ""},
			{"no quota", []string{"/jobs/3"}, Demand{Tenant: "a", GPU: "GPU-a"}, []string{"GPU-a /jobs/3 0 none"},
				nil, ""},
		} {
			l.log.Reset()
			for i, g := range step.groups {
				step.d.Processes = append(step.d.Processes, l.in(100+i, g))
			}
			calls, holds := l.seconds(4, step.d)
			fixture.If(t, !slices.Equal(calls, step.calls) || !slices.Equal(holds, step.holds),
				"%s: asked for %q and holds %v, want %q and %v", step.name, calls, holds, step.calls, step.holds)
			log := l.log.String()
			fixture.If(t, !strings.Contains(log, step.why) || (step.why == "") != (log == "") ||
				strings.Count(log, "\n") > 1, "%s: says %s", step.name, log)
		}
		if calls, _ := l.seconds(200); len(calls) != 0 || len(l.limits) != 0 {
			t.Errorf("for nobody asked for %q and knows %v", calls, l.limits)
		}
	})
}

func TestACgroupOfTwoTenantsHasNoLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a")
		for _, other := range []string{"b", policy.DefaultTenant} {
			calls, holds := l.seconds(2, owns("a", "GPU-a", l.in(10, "/jobs/a")),
				Demand{Tenant: other, GPU: "GPU-b", Processes: []host.Process{l.in(20, "/jobs/a/below")}})
			fixture.If(t, len(calls) != 0 || len(holds) != 0 ||
				!strings.Contains(l.log.String(), "tenant "+other+" has processes in its cgroup"),
				"with %s: asked for %q, holds %v, says %s", other, calls, holds, l.log.String())
		}
	})
}

func TestALimitGoesWithItsCgroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a", "/jobs/b")
		l.seconds(2, owns("a", "GPU-a", l.in(10, "/jobs/a")))
		l.ps.has(10, host.Facts{Start: 11, Cgroup: "0::/jobs/b\n"}) // another process with the same PID
		fixture.Must(t, os.RemoveAll(filepath.Join(l.cgroups, "/jobs/a")))
		if calls, holds := l.seconds(2, owns("a", "GPU-a", host.Process{PID: 10, Start: 10})); len(calls) != 0 ||
			len(holds) != 0 || len(l.limits)+len(l.homes) != 0 {
			t.Errorf("asked for %q, holds %v, knows %v and %v", calls, holds, l.limits, l.homes)
		}
	})
}

func TestADriverThatRefusesIsAskedAgainLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a")
		l.fails["GPU-a"] = errors.New("no_permission")
		d := []Demand{owns("a", "GPU-a", l.in(10, "/jobs/a")), owns("a", "GPU-b")}
		calls, holds := l.seconds(25, d...)
		fixture.If(t, len(calls) != 2 || !slices.Equal(holds, []Hold{{"a", "GPU-b", Memory}}) ||
			strings.Count(l.log.String(), "no_permission") != 1,
			"asked for %q, holds %v, says %s", calls, holds, l.log.String())
		l.mu.Lock()
		delete(l.fails, "GPU-a")
		l.mu.Unlock()
		if calls, holds := l.seconds(10, d...); len(calls) != 1 || len(holds) != 2 {
			t.Errorf("later asked for %q, holds %v", calls, holds)
		}
	})
}

func TestADriverWithoutLimitsIsAskedSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a")
		l.fails["GPU-a"] = gpu.ErrNoMemoryLimits
		d := owns("a", "GPU-a", l.in(10, "/jobs/a"))
		if calls, holds := l.seconds(599, d); len(calls) != 1 || len(holds) != 0 ||
			strings.Count(l.log.String(), "\n") != 1 || !strings.Contains(l.log.String(), "CUDA 13.4") {
			t.Errorf("asked for %q, holds %v, says %s", calls, holds, l.log.String())
		}
		l.mu.Lock()
		delete(l.fails, "GPU-a") // a new driver
		l.mu.Unlock()
		calls, holds := l.seconds(5, d)
		fixture.If(t, len(calls) != 1 || len(holds) != 1, "later asked for %q, holds %v", calls, holds)
	})
}

func TestADriverThatHangsDelaysNoOtherGPU(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a")
		hang := make(chan struct{})
		d := []Demand{owns("a", "GPU-a", l.in(10, "/jobs/a")), owns("a", "GPU-b")}
		if _, holds := l.seconds(3, d...); len(holds) != 2 {
			t.Fatalf("holds %v, want both", holds)
		}
		l.mu.Lock()
		l.hang["GPU-a"] = hang
		l.mu.Unlock()
		for i := range d {
			d[i].Memory = 4000
		}
		calls, holds := l.seconds(60, d...)
		want := []string{"GPU-a /jobs/a 1000 4000", "GPU-b /jobs/a 1000 4000"}
		fixture.If(t, !slices.Equal(calls, want), "asked for %q, want %q: one thread for a GPU", calls, want)
		fixture.If(t, !slices.Equal(holds, []Hold{{"a", "GPU-b", Memory}}) ||
			strings.Count(l.log.String(), "has not answered") != 1,
			"holds %v, says %s", holds, l.log.String())
		l.mu.Lock()
		delete(l.hang, "GPU-a")
		l.mu.Unlock()
		close(hang)
		synctest.Wait()
		if _, holds := l.seconds(2, d...); len(holds) != 2 {
			t.Errorf("holds %v after it answered", holds)
		}
		l.mu.Lock()
		hang = make(chan struct{})
		l.hang["GPU-b"] = hang
		l.mu.Unlock()
		d[1].Memory = 2000
		l.seconds(1, d...)
		l.stop() // returns although a call hangs
		close(hang)
	})
}

func TestNoDemandsNoDriverCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, "/jobs/a")
		l.seconds(3, owns("a", "GPU-a", l.in(10, "/jobs/a")))
		time.Sleep(time.Hour)
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.calls) != 0 || len(l.Holds()) != 0 {
			t.Errorf("asked for %q, holds %v", l.calls, l.Holds())
		}
	})
}
