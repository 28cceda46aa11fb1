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
	"testing"
	"time"

	"gpusteward/collectors"
	kernel "gpusteward/collectors/host"
	"gpusteward/enforcer"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/ladder"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/wire"
)

// A governed is a simulated GPU under an enforcer, whose tenants are told by
// the name of the program that runs.
type governed struct {
	*host
	t      *testing.T
	uuid   string
	proc   kernel.Proc
	cancel context.CancelFunc
	ended  chan error
	it     *enforcer.Enforcer
	dir    string
	copies map[string]string // paths of the load generator by tenant
	broker broker.Options    // what of it is not as in all tests

	mu       sync.Mutex
	steps    []ladder.Step
	hardware bool              // the GPU has a fault of its own
	pids     map[int]string    // workloads of processes that were started here
	groups   map[string]string // the same of those in cgroups, by path
}

func (g *governed) record(s ladder.Step) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.steps = append(g.steps, s)
}

// told returns what the ladder did about a tenant so far, as "warn done".
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

// Holdings is what the driver would say: it samples each second, and tells
// whoever is there with memory.
func (g *governed) Holdings() (all []collectors.Holding) {
	now := time.Now()
	g.truth.mu.Lock()
	held, busy := maps.Clone(g.truth.held), map[int]float64{}
	for pid, s := range g.truth.busy {
		if n := len(s.steps); n > 0 {
			busy[pid] = s.steps[n-1] / 1e9
		}
	}
	g.truth.mu.Unlock()
	for _, pid := range slices.Sorted(maps.Keys(held)) {
		p, err := g.Process(pid)
		if err != nil || p.Workload == nil {
			continue
		}
		all = append(all, collectors.Holding{UUID: g.uuid, Process: p, Kind: "compute", Memory: held[pid] + 400*mib, Known: true, SM: busy[pid], Sampled: now, At: now})
	}
	return all
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
func (g *governed) Room(string) (total, free, kept uint64, ok bool) {
	return 80 << 30, 60 << 30, 0, true
}
func (g *governed) Rates(string) (link, memory float64, ok bool) { return 0, 0, false }

// underEnforcer starts an enforcer with the policy on a simulated GPU.
func underEnforcer(t *testing.T, table policy.Table) *governed {
	t.Helper()
	g := prepared(t, table)
	g.run(table)
	return g
}

// prepared is a simulated GPU for which an enforcer can run.
func prepared(t *testing.T, table policy.Table) *governed {
	t.Helper()
	g := &governed{host: stub(t), t: t, pids: map[int]string{}, groups: map[string]string{}, copies: map[string]string{}}
	var err error
	if g.proc, err = kernel.ProcFS("/proc"); err != nil {
		t.Fatal(err)
	}
	if g.dir, err = os.MkdirTemp("", "enforce"); err != nil { // t.TempDir's names are too long for a socket
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(g.dir) })
	g.socket = filepath.Join(g.dir, "broker.sock")
	g.hook = []string{"LD_PRELOAD=" + path(t, "GS_HOOK", "hook/build/libgpusteward.so"), "GPUSTEWARD_SOCKET=" + g.socket}
	if err := table.Check(); err != nil {
		t.Fatal(err)
	}
	g.broker = broker.Options{Socket: g.socket, Doubt: time.Second, Known: func(uuid string) bool { g.uuid = uuid; return true }, Logger: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if g.cancel != nil {
			g.stop()
		}
	})
	return g
}

// run starts the enforcer, or another after the one before.
func (g *governed) run(table policy.Table) {
	g.t.Helper()
	var err error
	g.it, err = enforcer.New(enforcer.Options{
		Policy: policy.New(table, policy.HostView{Process: g.Process}, nil), Dir: g.dir, StateFile: filepath.Join(g.dir, "state", "enforcer.json"), Host: g,
		Record:   g.record,
		Hardware: func(string, time.Duration) bool { g.mu.Lock(); defer g.mu.Unlock(); return g.hardware },
		Broker:   g.broker,
	})
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel, g.ended = cancel, make(chan error, 1)
	go func() { g.ended <- g.it.Run(ctx) }()
}

func (g *governed) stop() {
	g.cancel()
	if err := <-g.ended; err != nil {
		g.t.Error(err)
	}
	g.ended <- nil
}

// job starts the load generator as a program that is of a tenant by its path,
// under the hook or not.
func (g *governed) job(tenant string, hooked bool, options ...string) *worker {
	g.t.Helper()
	if g.copies[tenant] == "" {
		program, err := os.ReadFile(path(g.t, "GS_LOAD", "hook/build/stub/load"))
		if err != nil {
			g.t.Fatal(err)
		}
		g.copies[tenant] = filepath.Join(g.t.TempDir(), tenant)
		if err := os.WriteFile(g.copies[tenant], program, 0o755); err != nil {
			g.t.Fatal(err)
		}
	}
	env := g.driver
	if hooked {
		env = append(slices.Clone(g.hook), env...)
	}
	w := startWorker(g.t, tenant, env, append([]string{g.copies[tenant], "--report-ms=5"}, options...)...)
	g.mu.Lock()
	g.pids[w.cmd.Process.Pid] = "unit:" + tenant + ".service"
	g.mu.Unlock()
	return w
}

// stats returns what the enforcer says.
func (g *governed) stats() wire.EnforcerStats { return *g.it.Stats().Enforcer }

// over reports whether a worker has ended.
func over(w *worker) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", w.cmd.Process.Pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

// byPath is a tenant that is told by the name of the program.
func byPath(name string, q policy.Quota, s policy.Steps) policy.Rule {
	return policy.Rule{Name: name, Select: []policy.Selector{{Executables: []string{"*/" + name}}}, Terms: policy.Terms{Priority: policy.PriorityNormal, Quota: q}, Steps: s}
}

// quick are steps that a test can wait for.
func quick(mode policy.Rung) policy.Steps {
	return policy.Steps{Mode: mode, Confirm: 2, Of: 3, Hold: 4 * time.Second, Throttle: .5, Pause: []string{"broker", "freezer", "signal"}, Grace: 2 * time.Second}
}

// moved reports whether a process has had the GPU since then.
func (g *governed) moved(w *worker, since int64) bool {
	return g.truth.of(w.cmd.Process.Pid).work(since, monotonic()) > 0
}

// moves reports whether it has within the last half second.
func (g *governed) moves(w *worker) bool { return g.moved(w, monotonic()-5e8) }

// TestEnforcer has a greedy tenant on a simulated GPU, beside one whose part is
// guaranteed and a program that no quota is for. A process of it goes around
// the hook: that is found, warned of, throttled, paused, and let go on, and
// nobody else is touched.
func TestEnforcer(t *testing.T) {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	with := func(edit func(*policy.Quota)) policy.Quota { q := none; edit(&q); return q }
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{
		byPath("guaranteed", with(func(q *policy.Quota) { q.Guarantee = .7 }), quick(policy.Warn)),
		byPath("greedy", with(func(q *policy.Quota) { q.Guarantee, q.Limit, q.Memory = .3, .3, 1<<30 }), quick(policy.Pause)),
	}}
	g := underEnforcer(t, table)
	guaranteed := g.job("guaranteed", true, "--kernel-us=200", "--seconds=180")
	greedy := g.job("greedy", true, "--kernel-us=200", "--seconds=180")
	third := g.job("third", false, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work", func() bool { return g.moves(guaranteed) && g.moves(greedy) && g.moves(third) })

	from := monotonic() + int64(settle)
	poll(t, time.Minute, "the books are not compared", func() bool {
		return slices.ContainsFunc(g.stats().Quotas, func(q wire.QuotaStats) bool { return q.Tenant == "greedy" && q.Charge != nil })
	})
	attempt(t, onStub(t, func() error {
		poll(t, 20*time.Second, "no 10 s pass", func() bool { return monotonic() > from+int64(10*time.Second) })
		both := []*series{g.truth.of(guaranteed.cmd.Process.Pid), g.truth.of(greedy.cmd.Process.Pid)}
		part := shares(both, from, from+int64(10*time.Second))
		from = monotonic()
		if len(part) != 2 || part[0] < .69 || part[1] > .31 {
			return fmt.Errorf("they have %.3f of the GPU's time, want 0.7 and 0.3", part)
		}
		return nil
	}))

	evader := g.job("greedy", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "the evader does not work", func() bool { return g.moves(evader) })
	found := poll(t, 10*time.Second, "the evader is not reported", func() bool {
		return slices.ContainsFunc(g.stats().Workloads, func(w wire.WorkloadStats) bool { return w.Tenant == "greedy" && w.Unhooked == 1 && w.Processes == 2 })
	})
	paused := poll(t, 30*time.Second, "the workload is not paused", func() bool { return slices.Contains(g.told("greedy"), "pause done") })
	still := poll(t, 5*time.Second, "its processes do not stand still", func() bool { return !g.moves(greedy) && !g.moves(evader) })
	if !g.moves(guaranteed) || !g.moves(third) {
		t.Error("the guaranteed tenant or the ungoverned program stands still too")
	}
	since := monotonic()
	on := poll(t, 20*time.Second, "it does not go on", func() bool { return g.moved(greedy, since) && g.moved(evader, since) })
	fmt.Printf("evader reported after %v, paused %v later, still after %v (half a second of it is the look), went on after %v\n", found, paused, still, on)
	evader.kill()
	poll(t, 40*time.Second, "it does not come down", func() bool {
		told := g.told("greedy")
		return told[len(told)-1] == "observe done"
	})
	want := []string{"warn done", "throttle done", "pause done", "throttle done"}
	if told := g.told("greedy"); !slices.Equal(told[:4], want) {
		t.Errorf("the ladder did %q, want %q to begin with", told, want)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, s := range g.steps {
		if s.Tenant != "greedy" {
			t.Errorf("the ladder moved for %+v", s)
		}
		if s.To > s.From && (len(s.Evidence) == 0 || !slices.Contains(s.Evidence[0].PIDs, evader.cmd.Process.Pid)) {
			t.Errorf("no evidence, or not of the evader: %+v", s)
		}
	}
}

// TestEnforcerTerminates ends a program that goes around the hook where the
// policy says so, and no other; not while the GPU itself is at fault.
func TestEnforcerTerminates(t *testing.T) {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{
		byPath("doomed", none, quick(policy.Terminate)), byPath("shadowed", none, func() policy.Steps { s := quick(policy.Terminate); s.Shadow = true; return s }()),
	}}
	g := underEnforcer(t, table)
	g.hardware = true
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180") // so that there is a broker's GPU
	doomed := g.job("doomed", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	shadowed := g.job("shadowed", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work", func() bool { return g.moves(doomed) && g.moves(shadowed) && g.moves(anchor) })
	poll(t, 20*time.Second, "they are not reported", func() bool {
		n := uint64(0)
		for _, w := range g.stats().Workloads {
			n += w.Violations["unhooked"]
		}
		return n >= 8
	})
	if told := g.told("doomed"); told != nil {
		t.Errorf("while the GPU was at fault: %q", told)
	}
	g.mu.Lock()
	g.hardware = false
	g.mu.Unlock()
	poll(t, 60*time.Second, "it is not terminated", func() bool { return slices.Contains(g.told("doomed"), "terminate done") })
	poll(t, 10*time.Second, "it runs on", func() bool { return over(doomed) })
	poll(t, 60*time.Second, "the other is not at the top in shadow", func() bool { return slices.Contains(g.told("shadowed"), "terminate shadow") })
	if !g.moves(shadowed) || !g.moves(anchor) {
		t.Error("a program in shadow or an ungoverned one was touched")
	}
}

// TestPausedOverRestart ends an enforcer while a workload is paused: it goes on
// until the next enforcer, which pauses it again. A second one beside the first
// is refused.
func TestPausedOverRestart(t *testing.T) {
	none := policy.Quota{Limit: 1, Bandwidth: 1}
	slow := quick(policy.Pause)
	slow.Hold = time.Minute
	table := policy.Table{Default: policy.Terms{Priority: policy.PriorityNormal, Quota: none}, Steps: quick(policy.Warn), Actions: 10, Rules: []policy.Rule{byPath("paused", none, slow)}}
	g := underEnforcer(t, table)
	anchor := g.job("third", true, "--burst-ms=0.2", "--sleep-ms=20", "--seconds=180")
	w := g.job("paused", false, "--burst-ms=0.2", "--sleep-ms=5", "--seconds=180")
	poll(t, 20*time.Second, "somebody does not work", func() bool { return g.moves(w) && g.moves(anchor) })
	poll(t, 60*time.Second, "it is not paused", func() bool { return slices.Contains(g.told("paused"), "pause done") && !g.moves(w) })
	_, err := enforcer.New(enforcer.Options{Policy: policy.New(table, policy.HostView{}, nil), Dir: g.dir, Host: g, Broker: broker.Options{Socket: g.socket + "2"}})
	if err == nil {
		t.Fatal("a second enforcer begins beside the first")
	}
	fmt.Println("a second enforcer is refused:", err)
	g.stop()
	poll(t, 5*time.Second, "it stands still without an enforcer", func() bool { return g.moves(w) })
	g.run(table)
	poll(t, 20*time.Second, "it is not paused again", func() bool { return !g.moves(w) })
}
