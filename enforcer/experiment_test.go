package enforcer_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gpusteward/internal/fixture"
	"gpusteward/internal/wire"
)

// settle is what passes before shares are measured: the first to launch has
// the GPU alone until the second one launches, and some work is queued then.
const settle = time.Second

// A host is a GPU with what its workers need in their environment: on the stub a simulated GPU of its own.
type host struct {
	driver []string // environment that chooses the driver; empty: the real one
	broker *worker
	hook   []string // environment that loads the hook and finds the broker
	socket string
	truth  *monitor // what the simulated GPU did; nil on a real one
}

// startBroker starts a broker in a process of its own, so that it can be killed and its processor time is its own. Who
// wishes to be one of the tenants is.
func startBroker(t *testing.T, socket string, tenants ...terms) *worker {
	t.Helper()
	return startBrokerIn(t, nil, socket, tenants...)
}

// startBrokerIn is startBroker with an environment, whose GS_TEST_FAIL=closed has it fail closed.
func startBrokerIn(t *testing.T, env []string, socket string, tenants ...terms) *worker {
	t.Helper()
	table := fixture.Value(json.Marshal(tenants))(t)
	exe := fixture.Value(os.Executable())(t)
	env = append(slices.Clone(env), "GS_TEST_SOCKET="+socket, "GS_TEST_TENANTS="+string(table))
	w := startWorker(t, "broker", env, exe, "-test.run=^TestBrokerProcess$", "-test.v=false")
	w.hear(t, time.Minute, "listening")
	return w
}

// govern starts the broker of a host.
func (h *host) govern(t *testing.T, tenants ...terms) {
	t.Helper()
	dir := fixture.ShortDir(t)
	h.socket = filepath.Join(dir, "broker.sock")
	h.broker = startBrokerIn(t, h.driver, h.socket, tenants...)
	h.hook = []string{"LD_PRELOAD=" + fixture.Given(t, "GS_HOOK", "hook/build/libgpusteward.so"),
		"GPUSTEWARD_SOCKET=" + h.socket}
}

// stats asks the broker for its statistics.
func stats(t *testing.T, b *worker) wire.Stats {
	t.Helper()
	b.Tell("stats")
	var s wire.Stats
	err := json.Unmarshal([]byte(strings.TrimPrefix(b.hear(t, time.Minute, "stats "), "stats ")), &s)
	fixture.Stop(t, err != nil, "read the broker's statistics: %v", err)
	return s
}

// start starts a worker as a tenant; as "" it is plain, without the hook.
func (h *host) start(t *testing.T, tenant string, argv ...string) *worker {
	t.Helper()
	env, name := h.driver, "plain"
	if tenant != "" {
		env, name = append(append([]string{"GPUSTEWARD_TENANT=" + tenant}, h.hook...), h.driver...), tenant
	}
	return startWorker(t, name, env, argv...)
}

// A part is one worker of an experiment.
type part struct {
	*worker
	command string  // begins its run
	target  float64 // of the GPU's time, 0 to 1
	cost    float64 // GPU seconds of a step, or 1 where all steps are the same
}

// A figure is what an experiment found.
type figure struct {
	simulated bool
	launch    float64 // seconds that one takes, at most; 0 much less than a second's part matters
	name      string
	share     []float64 // parts of the sum, over all
	typical   []float64 // seconds of work, in a typical second
	one, ten  errs      // points, over sliding windows of 1 s and 10 s
	rate      float64   // the GPU's busy part: all steps' cost a second
	steps     float64   // a second, all workers
	cpu       []float64 // percent of a core, each worker's
	broker    float64   // the same
	waited    float64   // a second, for a processor: the one that waited most
	bursts    [][]float64
}

// measure runs the parts at once and looks at what they did together, after settle and until the first of them ends.
func (h *host) measure(t *testing.T, name string, seconds float64, parts ...part) figure {
	t.Helper()
	before, waits := make([]time.Duration, len(parts)), fixture.WatchWaits(t)
	var brokerBefore time.Duration
	if h.broker != nil {
		brokerBefore = h.broker.cpu()
		waits.Add(h.broker.Cmd.Process.Pid)
	}
	for i, p := range parts {
		waits.Add(p.Cmd.Process.Pid)
		p.begin(p.cost)
		before[i] = p.cpu()
	}
	began := time.Now()
	for _, p := range parts {
		p.Tell(p.command)
	}
	f := figure{name: name, simulated: h.truth != nil}
	for i, p := range parts {
		p.hear(t, time.Duration(seconds*float64(time.Second))+30*time.Second, "total")
		f.cpu = append(f.cpu, 100*(p.cpu()-before[i]).Seconds()/time.Since(began).Seconds())
	}
	if h.broker != nil {
		f.broker = 100 * (h.broker.cpu() - brokerBefore).Seconds() / time.Since(began).Seconds()
	}
	f.waited = waits.Most(began, time.Now()).Seconds() / time.Since(began).Seconds()
	f.evaluate(t, h.truth, parts)
	return f
}

// evaluate compares what the parts got, by the truth where it is known, else by the steps that they completed.
func (f *figure) evaluate(t *testing.T, truth *monitor, parts []part) {
	t.Helper()
	var all, steps []*series
	var target []float64
	from, to := int64(0), int64(math.MaxInt64)
	for _, p := range parts {
		s, bursts := p.measured()
		fixture.Stop(t, len(s.At) < 2, "%s: %s completed nothing", f.name, p.Name)
		steps, target, f.bursts = append(steps, s), append(target, p.target), append(f.bursts, bursts)
		if truth != nil {
			all = append(all, truth.of(p.Cmd.Process.Pid))
		} else {
			all = append(all, s)
		}
		from, to = max(from, s.At[0]+int64(settle)), min(to, s.At[len(s.At)-1])
	}
	fixture.Stop(t, from >= to, "%s: the workers were not at work together for more than %v", f.name, settle)
	f.share = shares(all, from, to)
	f.typical = typical(all, from, to)
	f.one = deviation(all, target, from, to, time.Second)
	f.ten = deviation(all, target, from, to, 10*time.Second)
	for i, s := range steps {
		f.rate += all[i].work(from, to) / (float64(to-from) / 1e9)
		f.steps += (s.By(to) - s.By(from)) / (float64(to-from) / 1e9)
	}
}

var header sync.Once

// show prints the figure as a row of the table of BROKER.md.
func (f figure) show() {
	header.Do(func() {
		fmt.Printf("%-26s %-16s %-22s %-11s %9s %7s %-16s %8s %s\n", "run", "share %", "err 1 s max/median/p99",
			"err 10 s", "steps/s", "work", "client CPU %", "broker %", "burst ms p50/p95")
	})
	list := func(x []float64, scale float64, format string) string {
		var s []string
		for _, v := range x {
			s = append(s, fmt.Sprintf(format, v*scale))
		}
		return strings.Join(s, "/")
	}
	var latency []string
	for _, b := range f.bursts {
		if len(b) > 0 {
			latency = append(latency, fmt.Sprintf("%.1f/%.1f", percentile(b, 0.5), percentile(b, 0.95)))
		}
	}
	ten := "-" // shorter runs have no window of 10 s
	if !math.IsNaN(f.ten.max) {
		ten = fmt.Sprintf("%.2f", f.ten.max)
	}
	fmt.Printf("%-26s %-16s %-22s %-11s %9.1f %7.3f %-16s %8.1f %s\n", f.name, list(f.share, 100, "%.1f"),
		fmt.Sprintf("%.2f/%.2f/%.2f", f.one.max, f.one.median, f.one.p99), ten, f.steps, f.rate,
		list(f.cpu, 1, "%.0f"), f.broker, strings.Join(latency, " "))
}

// excused returns the part of the GPU that a share may err by because the
// machine was busy: a fifth of the time that a process waited for a processor.
func (f figure) excused() float64 { return f.waited / 5 }

// fair is an error if the shares miss the goals: 0.5 point over each 10 s, and 2 points over each second. The processes
// of a simulated GPU wake when the machine lets them, and a busy machine takes seconds from anybody. There the typical
// second counts, which must be within 1 point beyond what is excused.
func (f figure) fair() error {
	if f.simulated {
		if goal := max(1, 200*f.launch) + 100*f.excused(); f.one.median > goal { // two launches of a second
			return fmt.Errorf("%s: shares err by %.2f points in a typical second (goal %.2f)", f.name, f.one.median, goal)
		}
		return nil
	}
	one, ten := max(2, 500*f.launch), max(.5, 100*f.launch) // five launches of a second, ten of ten
	if f.one.max <= one && !(f.ten.max > ten) {             // over a shorter run there is no window of 10 s
		return nil
	}
	return fmt.Errorf("%s: shares err by %.2f points over 1 s (goal %g) and %.2f over 10 s (goal %g)", f.name,
		f.one.max, one, f.ten.max, ten)
}
