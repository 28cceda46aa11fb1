package enforcer_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/collectors"
	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/quota"
	"gpusteward/internal/wire"
)

// tick is that of the enforcers under test, unless a test sets another.
const tick = audit.Tick(100 * time.Millisecond)

// ticks returns the time of some ticks.
func ticks(n int) time.Duration { return time.Duration(n) * time.Duration(tick) }

// A governed is a simulated GPU under an enforcer. The name of a program decides its tenant.
type governed struct {
	*host
	t       *testing.T
	uuid    string
	proc    kernel.Proc
	stop    func()
	it      *enforcer.Enforcer
	dir     string
	tick    audit.Tick
	copies  map[string]string                                // paths of the load generator by tenant
	broker  broker.Options                                   // changes to the usual options
	table   policy.Table                                     // of a test that starts successors
	call    suspend.Call                                     // of the driver; nil: none
	cgroups string                                           // directory of the cgroups; empty: the host's
	meminfo string                                           // what the kernel tells of the host's memory; empty: what is true
	log     func(context.Context, func(kernel.Record)) error // the kernel's; nil: none
	lost    atomic.Bool                                      // the driver no longer tells of the GPU's memory
	size    uint64                                           // bytes of the GPU's memory; 0: there is always room
	age     time.Duration                                    // that a reading of its use may have

	mu        sync.Mutex
	steps     []escalation.Step
	returning []bool // what was told at the end
	suspended []suspend.End
	hardware  bool                       // the GPU itself has a fault
	pids      map[int]string             // workloads of processes that the test started
	groups    map[string]string          // workloads of cgroups, by path
	listing   []collectors.DeviceProcess // what the driver goes on telling; nil: what is true
	read      time.Time                  // when the GPU's use was read
	usage     uint64                     // and what it was, in bytes
}

func (g *governed) record(s escalation.Step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps = append(g.steps, s)
}

// told returns the escalation's actions on a tenant so far, such as "warn done".
func (g *governed) told(tenant string) (all []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.steps {
		if s.Tenant == tenant {
			all = append(all, s.To.String()+" "+s.Result)
		}
	}
	return all
}

// known takes the UUID that the hook found on the simulated GPU.
func (g *governed) known(uuid string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.uuid = uuid
	return true
}

// DeviceProcesses simulates the driver: it samples each second, and lists the processes with memory.
func (g *governed) DeviceProcesses() (all []collectors.DeviceProcess) {
	g.mu.Lock()
	old := slices.Clone(g.listing)
	g.mu.Unlock()
	if old != nil {
		return old
	}
	now := time.Now()
	g.truth.mu.Lock()
	held, busy := maps.Clone(g.truth.held), map[int]float64{}
	for pid, s := range g.truth.busy {
		if n := len(s.Steps); n > 0 {
			busy[pid] = s.Steps[n-1] / 1e9
		}
	}
	g.truth.mu.Unlock()
	g.mu.Lock()
	uuid := g.uuid
	g.mu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(held)) {
		p, err := g.Process(pid)
		if err != nil || p.Workload == nil {
			continue
		}
		all = append(all, collectors.DeviceProcess{UUID: uuid, Process: p, Kind: "compute",
			Memory: held[pid] + 400*mib, Known: true, SM: busy[pid], Sampled: now, At: now})
	}
	return all
}

// sleeps has the driver tell what is true now, until the end is called.
func (g *governed) sleeps() (end func()) {
	now := g.DeviceProcesses()
	set := func(to []collectors.DeviceProcess) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.listing = to
	}
	set(now)
	return func() { set(nil) }
}

func (g *governed) Process(pid int) (kernel.Process, error) {
	h, err := g.proc.Open(pid)
	if err != nil {
		return kernel.Process{}, err
	}
	defer h.Close()
	f, err := h.Facts()
	g.mu.Lock()
	defer g.mu.Unlock()
	p := kernel.Process{PID: pid, Start: f.Start, Began: f.Began, UID: f.UID, Comm: f.Comm}
	key := g.pids[pid]
	if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)); err == nil && key == "" {
		_, path, _ := strings.Cut("\n"+string(text), "\n0::")
		path, _, _ = strings.Cut(path, "\n")
		key = g.groups[path]
	}
	if key != "" {
		p.Workload = &kernel.Workload{Key: key, Kind: kernel.KindUnit, UID: f.UID}
	}
	return p, err
}

func (g *governed) Silent() map[string]bool { return nil }
func (g *governed) Memory(string) (total, free, kept uint64, ok bool) {
	if g.lost.Load() {
		return 0, 0, 0, false
	}
	if g.size == 0 {
		return 80 << 30, 60 << 30, 0, true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); now.Sub(g.read) >= g.age {
		// On a busy machine the monitor is late, and no reading is older than its age.
		lately := fixture.Monotonic() - int64(20*time.Millisecond)
		poll(g.t, time.Minute, "the monitor does not look", func() bool { return g.truth.since(lately) })
		g.truth.mu.Lock()
		g.read, g.usage = now, g.truth.used
		g.truth.mu.Unlock()
	}
	return g.size, g.size - min(g.usage, g.size), 0, true
}
func (g *governed) Rates(string) (link, memory float64, ok bool) { return 0, 0, false }

// underEnforcer starts an enforcer with the policy on a simulated GPU.
func underEnforcer(t *testing.T, table policy.Table) *governed {
	t.Helper()
	g := prepared(t)
	g.run(table)
	return g
}

// prepared returns a simulated GPU on which an enforcer can run. Its terms may be shorter
// than a configuration can have them.
func prepared(t *testing.T) *governed {
	t.Helper()
	g := &governed{host: stub(t), t: t, tick: tick, pids: map[int]string{}, groups: map[string]string{},
		copies: map[string]string{}}
	g.proc = fixture.Value(kernel.ProcFS("/proc"))(t)
	g.dir = fixture.ShortDir(t)
	g.socket = filepath.Join(g.dir, "broker.sock")
	g.hook = []string{"LD_PRELOAD=" + fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
		"GPUSTEWARD_SOCKET=" + g.socket}
	g.broker = broker.Options{Socket: g.socket, Doubt: ticks(5),
		Known: g.known, Logger: slog.New(slog.DiscardHandler)}
	return g
}

// run starts the enforcer, or a successor of the last one.
func (g *governed) run(table policy.Table) {
	g.t.Helper()
	g.it = fixture.Value(enforcer.New(enforcer.Options{Tick: g.tick,
		Policy: policy.New(table, policy.HostView{Process: g.Process}, nil), Dir: g.dir,
		StateFile: filepath.Join(g.dir, "state", "enforcer.json"), Host: g,
		Record: g.record, CrashDir: filepath.Join(g.dir, "crashes"), KernelLog: g.log,
		Hardware: func(string, time.Duration) bool { g.mu.Lock(); defer g.mu.Unlock(); return g.hardware },
		Broker:   g.broker, Driver: g.call, CgroupFS: g.cgroups, MemInfo: g.meminfo,
		Tell:      func(end suspend.End) { g.mu.Lock(); defer g.mu.Unlock(); g.suspended = append(g.suspended, end) },
		Returning: func(is bool) { g.mu.Lock(); defer g.mu.Unlock(); g.returning = append(g.returning, is) },
	}))(g.t)
	g.stop = fixture.Running(g.t, g.it.Run)
}

// job starts the load generator as a tenant's program, with or without the
// hook. The tenant follows from the program's path.
func (g *governed) job(tenant string, hooked bool, options ...string) *worker {
	g.t.Helper()
	if g.copies[tenant] == "" {
		program := fixture.Value(os.ReadFile(fixture.Given(g.t, "GS_LOAD", "hook/build/stub/load")))(g.t)
		g.copies[tenant] = filepath.Join(g.t.TempDir(), tenant)
		fixture.Program(g.t, g.copies[tenant], program)
	}
	env := g.driver
	if hooked {
		env = append(slices.Clone(g.hook), env...)
	}
	w := startWorker(g.t, tenant, env, append([]string{g.copies[tenant], "--report-ms=5"}, options...)...)
	g.mu.Lock()
	g.pids[w.Cmd.Process.Pid] = "unit:" + tenant + ".service"
	g.mu.Unlock()
	return w
}

// stats returns the enforcer's statistics.
func (g *governed) stats() wire.EnforcerStats { return *g.it.Stats().Enforcer }

// audited waits for the end of an audit, and returns its statistics.
func (g *governed) audited() wire.EnforcerStats {
	g.t.Helper()
	was := g.it.Stats().Enforcer
	poll(g.t, time.Minute, "no audit ended", func() bool { return g.it.Stats().Enforcer != was })
	return g.stats()
}

// over reports whether a worker has ended.
func over(w *worker) bool {
	state := procs.State("/proc", w.Cmd.Process.Pid)
	return state == 0 || state == 'Z'
}

// none is a quota that holds nobody back.
var none = quota.Free()

// judging returns a table with these rules. Who has none is warned at most.
func judging(rules ...policy.Rule) policy.Table {
	return policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: quick(policy.Warn),
		Actions: 10, Rules: rules}
}

// byPath returns the rule of a tenant that is known by its program's name.
func byPath(name string, q policy.Quota, s policy.Steps) policy.Rule {
	return policy.Rule{Name: name, Select: []policy.Selector{{Executables: []string{"*/" + name}}},
		Terms: policy.Terms{Priority: policy.PriorityNormal, Quota: q}, Steps: s}
}

// quick returns steps that are short enough for a test.
func quick(mode policy.Level) policy.Steps {
	return policy.Steps{Mode: mode, Confirm: 2, Of: 3, Hold: ticks(4), Throttle: .5,
		Pause: []string{"broker", "freezer", "signal"}, Grace: ticks(2)}
}

// moved reports whether a process has had the GPU since a moment.
func (g *governed) moved(w *worker, since int64) bool {
	return g.truth.of(w.Cmd.Process.Pid).work(since, fixture.Monotonic()) > 0
}

// bothWays runs a test of programs with the hook, and of programs without it.
func bothWays(t *testing.T, test func(t *testing.T, hooked bool)) {
	t.Parallel()
	for name, hooked := range map[string]bool{"hooked": true, "unhooked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, hooked)
		})
	}
}

// waits has programs under the hook wait for the broker, which may be late on a busy machine.
func (g *governed) waits() { g.hook = append(g.hook, "GPUSTEWARD_FAIL=closed") }

// work waits until each of these has had the GPU from now on.
func (g *governed) work(all ...*worker) {
	g.t.Helper()
	since := fixture.Monotonic()
	for _, w := range all {
		poll(g.t, time.Minute, w.Name+" does not work", func() bool { return g.moved(w, since) })
	}
}

// moves reports whether a process has had the GPU within the last half second.
func (g *governed) moves(w *worker) bool { return g.moved(w, fixture.Monotonic()-5e8) }
