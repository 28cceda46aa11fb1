package backend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/wire"
)

// A daemon is the fake control daemon of testdata/mps-control.sh, and an MPS that uses it. Users 1000 and 1003 are
// tenant a, and user 1001 is tenant b. Other users have no tenant.
type daemon struct {
	*MPS
	t   *testing.T
	dir string
	ps  *census
	log bytes.Buffer
}

func newDaemon(t *testing.T) *daemon {
	t.Helper()
	command := fixture.Value(filepath.Abs("testdata/mps-control.sh"))(t)
	d := &daemon{t: t, dir: t.TempDir(), ps: newCensus()}
	d.MPS = NewMPS(MPSOptions{Command: command, Pipes: d.dir, Proc: d.ps,
		Log: slog.New(slog.NewTextHandler(&d.log, nil)),
		Tenant: func(uid int) (string, bool) {
			return map[int]string{1000: "a", 1001: "b", 1003: "a"}[uid], uid == 1000 || uid == 1001 || uid == 1003
		}})
	d.set("control", "")
	return d
}

func (d *daemon) path(name string) string { return filepath.Join(d.dir, name) }

func (d *daemon) set(name, contents string) {
	d.t.Helper()
	fixture.Rewrite(d.t, d.path(name), contents)
}

func (d *daemon) content(name string) string {
	text, _ := os.ReadFile(d.path(name))
	return strings.TrimSpace(string(text))
}

func (d *daemon) server(pid, uid int, clients string) {
	d.t.Helper()
	d.ps.has(pid, host.Facts{UID: uid, Comm: "nvidia-cuda-mps"})
	d.set("server."+strconv.Itoa(pid)+"/threads", "100.0\n")
	d.set("server."+strconv.Itoa(pid)+"/clients", clients)
}

// sees runs one pass and returns the holds.
func (d *daemon) sees(demands ...Demand) []Hold {
	d.t.Helper()
	saw := fixture.Value(d.look(d.t.Context(), mpsWants(demands)))(d.t)
	return sorted(saw.holds)
}

// sets returns the commands since the last call.
func (d *daemon) sets() (all []string) {
	for line := range strings.Lines(d.content("log")) {
		if strings.HasPrefix(line, "set_") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	d.set("log", "")
	return all
}

func demand(tenant, gpu string, limit float64, memory uint64) Demand {
	return Demand{Tenant: tenant, GPU: gpu, Quota: policy.Quota{Limit: limit, Memory: memory}}
}

func TestMPSHoldsATenantsQuota(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "")
	want := []Hold{{"a", "GPU-a", Compute}, {"a", "GPU-a", Memory}}
	quota := demand("a", "GPU-a", .3, 1500<<20)
	fixture.EqualSlices(t, d.sees(quota), want, "holds")
	if got := d.sets(); !slices.Equal(got, []string{"set_active_thread_percentage 500 30",
		"set_device_pinned_mem_limit 500 GPU-a 1500M"}) {
		t.Errorf("set %q", got)
	}
	d.set("server.500/clients", "600\n") // now it falls under the limits
	quota.Processes = []host.Process{d.ps.has(600, host.Facts{UID: 1000}), {PID: 500, Start: 500}}
	if got := d.sees(quota); !slices.Equal(got, want) || len(d.sets()) != 0 {
		t.Errorf("with a client: holds %v, want %v and nothing set again", got, want)
	}
	for name, c := range map[string]struct {
		clients   string
		processes []host.Process
		why       string
	}{
		"a second client":  {"600\n601\n", nil, "several clients"},
		"one without MPS":  {"600\n", []host.Process{d.ps.has(700, host.Facts{UID: 1000})}, "not clients of MPS"},
		"one that is gone": {"600\n", []host.Process{{PID: 701, Start: 1}}, ""},
		"another's PID":    {"600\n", []host.Process{{PID: d.ps.has(702, host.Facts{}).PID, Start: 1}}, ""},
	} {
		d.set("server.500/clients", c.clients)
		quota.Processes = c.processes
		d.log.Reset()
		if got := d.sees(quota); (len(got) == 0) != (c.why != "") || !strings.Contains(d.log.String(), c.why) {
			t.Errorf("%s: holds %v, and says %s", name, got, d.log.String())
		}
		d.log.Reset()
		d.sees(quota)
		fixture.AtMost(t, d.log.Len(), 0, "%s: said again: %s", name, d.log.String())
	}
}

func TestMPSHoldsNothingForEarlierClients(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "600\n")
	quota := demand("a", "GPU-a", .334, 0)
	for range 2 {
		fixture.EqualSlices(t, d.sees(quota), nil, "holds … for a client that came first")
	}
	d.set("server.500/clients", "601\n")
	if got := d.sees(quota); len(got) != 1 || d.content("server.500/threads") != "33.4" {
		t.Errorf("holds %v at %s percent for one that came after it", got, d.content("server.500/threads"))
	}
	quota.Limit = .2
	if got := d.sees(quota); len(got) != 0 || d.content("server.500/threads") != "20.0" {
		t.Errorf("holds %v at %s percent after a change", got, d.content("server.500/threads"))
	}
}

func TestMPSLeavesAlone(t *testing.T) {
	for name, c := range map[string]struct {
		uid    int
		quota  Demand
		hooked bool
		why    string
	}{
		"a user of several tenants": {uid: 1002, quota: demand("a", "GPU-a", .3, 1<<30),
			why: "do not all belong to one tenant"},
		"a tenant without a quota": {uid: 1001, quota: demand("a", "GPU-a", .3, 1<<30),
			why: "do not all belong to one tenant"},
		"no limit":         {uid: 1000, quota: demand("a", "GPU-a", 1, 0)},
		"hooked processes": {uid: 1000, quota: demand("a", "GPU-a", .3, 0), hooked: true},
		"the default tenant": {uid: 1000, quota: demand(policy.DefaultTenant, "GPU-a", .3, 1<<30),
			why: "do not all belong to one tenant"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			d.server(500, c.uid, "")
			c.quota.Hooked = c.hooked
			if got, sets := d.sees(c.quota), d.sets(); len(got) != 0 || len(sets) != 0 ||
				!strings.Contains(d.log.String(), c.why) {
				t.Errorf("holds %v, set %q, says %s", got, sets, d.log.String())
			}
		})
	}
}

func TestMPSTakesBackWhatItSet(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "")
	d.sees(demand("a", "GPU-a", .3, 8<<30))
	d.sets()
	d.sees(demand("a", "GPU-a", 1, 0))
	got := d.sets()
	fixture.If(t, !slices.Equal(got, []string{"set_active_thread_percentage 500 100",
		"set_device_pinned_mem_limit 500 GPU-a 16777216M"}), "set %q", got)
	d.sees()
	fixture.EqualSlices(t, d.sets(), nil, "set again")
}

func TestMPSHasOnePercentageForAllGPUs(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "")
	d.server(501, 1001, "")
	got := d.sees(demand("a", "GPU-a", .3, 1<<30), demand("a", "GPU-b", .5, 0), demand("b", "GPU-none", .1, 1<<30))
	want := []Hold{{"a", "GPU-a", Memory}, {"a", "GPU-b", Compute},
		{"b", "GPU-none", Compute}}
	fixture.If(t, !slices.Equal(got, want), "holds %v, want %v", got, want)
	fixture.Equal(t, d.content("server.500/threads")+" "+d.content("server.501/threads"), "50.0 10.0", "percentages")
	log := d.log.String()
	fixture.If(t, !strings.Contains(log, "one percentage for all GPUs") ||
		!strings.Contains(log, "does it have that GPU"), "says %s", log)
}

func TestMPSServersOfOneTenantKnowNothingOfEachOther(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "")
	d.server(501, 1003, "")
	d.server(502, 1001, "")
	got := d.sees(demand("a", "GPU-a", .3, 1<<30), demand("b", "GPU-a", .3, 0))
	if want := []Hold{{"b", "GPU-a", Compute}}; !slices.Equal(got, want) ||
		!strings.Contains(d.log.String(), "several users") {
		t.Errorf("holds %v, want %v; says %s", got, want, d.log.String())
	}
	fixture.Equal(t, d.content("server.500/threads")+" "+d.content("server.501/threads"), "30.0 30.0", "percentages")
}

func TestMPSServersAreListed(t *testing.T) {
	d := newDaemon(t)
	d.server(500, 1000, "600\n")
	d.server(501, 1002, "601\n602\n")
	d.set("server.502/threads", "100.0\n") // no longer a process
	saw, err := d.look(t.Context(), mpsWants([]Demand{demand("a", "GPU-a", .3, 0)}))
	want := []wire.MPSStats{{PID: 500, UID: 1000, Tenant: "a", Threads: .3, Clients: 1},
		{PID: 501, UID: 1002, Threads: 1, Clients: 2}}
	fixture.If(t, err != nil || !slices.Equal(saw.servers, want), "%v, %v; want %v", saw.servers, err, want)
}

func TestAnMPSServerThatDiesWhileItIsSet(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "")
	d.set("dies", "")
	fixture.EqualSlices(t, d.sees(demand("a", "GPU-a", .3, 1<<30)), nil, "holds")
	fixture.Must(t, os.Remove(d.path("dies")))
	d.server(510, 1000, "")
	if got := d.sees(demand("a", "GPU-a", .3, 1<<30)); len(got) != 2 || len(d.servers) != 1 {
		t.Errorf("the next server holds %v; %d are known", got, len(d.servers))
	}
}

func TestWithoutAnMPSDaemonNoProgramIsStarted(t *testing.T) {
	d := newDaemon(t)
	fixture.Must(t, os.Remove(d.path("control")))
	d.control.command = "/nonexistent"
	got := d.sees(demand("a", "GPU-a", .3, 0))
	fixture.If(t, len(got) != 0 || d.log.Len() > 0, "holds %v, and says %s", got, d.log.String())
}

func TestMPSAnswersThatCannotBeBelieved(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(d *daemon)
		want string
	}{
		"rubbish":         {func(d *daemon) { d.set("rubbish", "") }, "is not a list of processes"},
		"no daemon":       {func(d *daemon) { d.set("down", "") }, "Cannot find MPS control daemon"},
		"no program":      {func(d *daemon) { d.control.command = "/nonexistent" }, "no such file"},
		"no end":          {func(d *daemon) { d.set("flood", "") }, "broken pipe"},
		"percentage":      {func(d *daemon) { d.set("server.500/threads", "many") }, "is not a percentage"},
		"another process": {func(d *daemon) { d.ps.has(500, host.Facts{Comm: "bash"}) }, "another PID namespace"},
		"another's socket": {func(d *daemon) {
			if os.Geteuid() != 0 || os.Lchown(d.path("control"), 4711, -1) != nil {
				d.t.Skip("only root can give files away")
			}
		}, "belongs to uid 4711"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon(t)
			d.server(500, 1000, "")
			c.do(d)
			saw, err := d.look(t.Context(), mpsWants([]Demand{demand("a", "GPU-a", .3, 0)}))
			fixture.If(t, err == nil || !strings.Contains(err.Error(), c.want), "%v, %v; want %q", saw, err, c.want)
		})
	}
}

func TestHungMPSDaemonDelaysNothing(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	d.server(500, 1000, "")
	d.sees(demand("a", "GPU-a", .3, 0))
	d.control.wait = time.Second
	d.report.Store(&report{at: time.Now().Add(time.Hour), holds: []Hold{{"a", "GPU-a", Compute}}})
	d.set("hang", "")
	end := fixture.Running(t, d.Run)
	begin := time.Now()
	for range 100 {
		d.Want([]Demand{demand("a", "GPU-a", .3, 0)})
		d.Holds()
	}
	took := time.Since(begin)
	fixture.If(t, took >= d.control.wait, "100 demands took %v: one waited for the daemon", took)
	fixture.Eventually(t, "the deadline passes, and the holds are unknown", func() bool { return d.Holds() == nil })
	end()
	fixture.Contains(t, d.log.String(), "no answer within 1s", "says")
	hung := fixture.Value(strconv.Atoi(strings.TrimSpace(d.content("hung"))))(t)
	fixture.Eventually(t, "it ends with all its children", func() bool {
		state := procs.State("/proc", hung)
		return state == 0 || state == 'Z'
	})
}

func TestMPSIsAskedSeldom(t *testing.T) {
	d := newDaemon(t)
	d.server(500, 1000, "")
	end := fixture.Running(t, d.Run)
	for _, limit := range []float64{.3, .3, .3, .4, .4, .4} {
		d.wants <- []Demand{demand("a", "GPU-a", limit, 0)} // blocks until the previous demands are taken
	}
	d.wants <- []Demand{demand("a", "GPU-a", .4, 0)}
	end()
	fixture.Equal(t, strings.Count(d.content("log"), "get_server_list"), 2, "asked … times for the servers")
	got := d.sets()
	fixture.If(t, !slices.Equal(got, []string{"set_active_thread_percentage 500 30",
		"set_active_thread_percentage 500 40"}), "set %q", got)
}

func TestMPSEndsWhileItIsAsked(t *testing.T) {
	d := newDaemon(t)
	d.set("hang", "")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := d.control.ask(ctx, "get_server_list")
	fixture.If(t, err == nil || errors.Is(err, errServerGone), "%v", err)
	d.Want(nil)
	fixture.Must(t, d.Run(ctx))
}
