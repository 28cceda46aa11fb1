package policy

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/schedule"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
	"gpusteward/internal/quota"
)

// anyone and escalation are ordinary terms and steps.
var (
	anyone     = Terms{Priority: PriorityNormal, Quota: Quota{Limit: 1, Bandwidth: 1}}
	escalation = Steps{Mode: Warn, Shadow: true, Confirm: 3, Of: 5, Hold: time.Minute, Throttle: .5,
		Pause: []string{"broker", "freezer", "signal"}, Grace: time.Second}
)

func row(name string, selectors ...Selector) Rule {
	return Rule{Name: name, Select: selectors, Terms: anyone, Steps: escalation}
}

func with(r Rule, change func(*Rule)) Rule {
	change(&r)
	return r
}

// written returns the terms of alternating keys and texts.
func written(pairs ...string) (w quota.Written) {
	for i := 0; i < len(pairs); i += 2 {
		if err := w.Set(pairs[i], pairs[i+1]); err != nil {
			panic(err)
		}
	}
	return w
}

func guaranteed(name string, part float64) Rule {
	return with(row(name), func(r *Rule) { r.Guarantee = part })
}

func table(rules ...Rule) Table {
	return Table{Default: anyone, Steps: escalation, Actions: 10, Rules: rules}
}

// policy returns the policy of rules, which must be valid.
func policy(t *testing.T, h HostView, rules ...Rule) *Policy {
	t.Helper()
	fixture.Must(t, table(rules...).Check())
	return New(table(rules...), h, nil)
}

const (
	triton   = "0::/system.slice/triton-2.service\n"
	slurmJob = "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0\n"
	podUID   = "0b0c9a51-9fc1-4a36-9b2c-0123456789ab"
)

var (
	id    = strings.Repeat("ab", 32)
	inPod = "0::/kubepods/burstable/pod" + podUID + "/" + id + "\n"
	inOwn = "0::/user.slice/user-1001.slice/user@1001.service/app.slice/" + id + "\n"
	vllm  = named(inPod, func(w *host.Workload) {
		w.Key, w.Namespace, w.Pod, w.Container = "pod:inference/vllm-0/server", "inference", "vllm-0", "server"
	})
	research = named(slurmJob, func(w *host.Workload) { w.User, w.Account, w.Recorded = "alice", "research", true })
	docker   = host.Workload{Kind: host.KindContainer, Key: "container:server", Container: "server", ContainerID: id}
)

// named returns the workload of a cgroup after the host learnt its names.
func named(cgroup string, learn func(w *host.Workload)) host.Workload {
	w := host.ParseCgroup(cgroup, 5)
	learn(&w)
	return w
}

func TestTheMostSpecificTenantWins(t *testing.T) {
	p := policy(t, HostView{},
		row("units", Selector{Units: []string{"triton*.service"}}, Selector{Slices: []string{"gpu-*.slice"}}),
		row("unit-of-7", Selector{Units: []string{"triton-2.service"}, Users: []string{"7"}}),
		row("alice", Selector{Users: []string{"1001", "1003"}}),
		row("lab", Selector{Groups: []string{"500"}, Executables: []string{"/opt/lab/*/python?"}}),
		row("people", Selector{Groups: []string{"500"}}),
		row("students", Selector{Groups: []string{"400"}}),
		row("inference", Selector{Pods: []string{"inference/*"}}),
		row("sidecar", Selector{Pods: []string{"inference/*"}, Containers: []string{"side*"}}),
		row("server", Selector{Containers: []string{"server"}}),
		row("jobs-of-alice", Selector{SlurmUsers: []string{"alice"}}),
		row("account", Selector{SlurmAccounts: []string{"research", "ml*"}}),
		row("job", Selector{Workloads: []string{"slurm:99.*", "container:1*"}}),
	)
	with := func(w host.Workload, change func(*host.Workload)) *host.Workload {
		change(&w)
		return &w
	}
	cgroup := func(content string) *host.Workload {
		w := host.ParseCgroup(content, 1002)
		return &w
	}
	for name, c := range map[string]struct {
		facts broker.Facts
		of    *host.Workload
		want  string
	}{
		"by unit":                         {of: cgroup(triton), want: "units"},
		"by slice":                        {of: cgroup("0::/gpu.slice/gpu-a.slice/x.service\n"), want: "units"},
		"unit and user beat unit":         {facts: broker.Facts{UID: 7}, of: cgroup(triton), want: "unit-of-7"},
		"unit beats user":                 {facts: broker.Facts{UID: 1001}, of: cgroup(triton), want: "units"},
		"by user":                         {facts: broker.Facts{UID: 1003}, want: "alice"},
		"user beats group":                {facts: broker.Facts{UID: 1001, GID: 500}, want: "alice"},
		"executable beats user":           {facts: broker.Facts{UID: 1001, GID: 500, Exe: "/opt/lab/a/b/python3"}, want: "lab"},
		"executable and group":            {facts: broker.Facts{Groups: []uint32{4, 500}, Exe: "/opt/lab/a/python3"}, want: "lab"},
		"executable without the group":    {facts: broker.Facts{GID: 501, Exe: "/opt/lab/a/python3"}, want: "default"},
		"group":                           {facts: broker.Facts{GID: 500, Exe: "/usr/bin/python3"}, want: "people"},
		"its own group beats another":     {facts: broker.Facts{GID: 400, Groups: []uint32{500}}, want: "students"},
		"of other groups the first one's": {facts: broker.Facts{GID: 1, Groups: []uint32{400, 500}}, want: "people"},
		"by nothing":                      {facts: broker.Facts{UID: 1002}, want: "default"},
		"pod":                             {of: &vllm, want: "inference"},
		"pod and container":               {of: with(vllm, func(w *host.Workload) { w.Container = "sidekick" }), want: "sidecar"},
		"a pod without a name":            {of: cgroup(inPod), want: "default"},
		"a pod in another namespace":      {of: with(vllm, func(w *host.Workload) { w.Namespace = "inference2" }), want: "default"},
		"container":                       {of: &docker, want: "server"},
		"a user's container is no server": {of: with(docker,
			func(w *host.Workload) { w.Key = "container:1001/server" }), want: "job"},
		"slurm user beats account": {of: &research, want: "jobs-of-alice"},
		"slurm account":            {of: with(research, func(w *host.Workload) { w.User = "bob" }), want: "account"},
		"slurm account, by pattern": {of: with(research,
			func(w *host.Workload) { w.User, w.Account = "bob", "ml-1" }), want: "account"},
		"a job of which nothing is known": {of: cgroup(slurmJob), want: "default"},
		"slurm user of no record":         {of: with(research, func(w *host.Workload) { w.Recorded = false }), want: DefaultTenant},
		"key beats slurm user":            {of: with(research, func(w *host.Workload) { w.Key = "slurm:99.0" }), want: "job"},
		"a user's unit is not a unit": {of: cgroup("0::/user.slice/user-1002.slice/user@1002.service/" +
			"app.slice/triton-2.service\n"), want: "default"},
		"a user's slice is not a slice": {of: cgroup("0::/user.slice/user-1002.slice/user@1002.service/" +
			"gpu-a.slice/x.service\n"), want: "default"},
		"a user's cgroup is not a container": {of: cgroup(inOwn), want: "job"},
	} {
		if c.of == nil {
			c.of = cgroup("")
		}
		fixture.Equal(t, p.Whose(c.facts, c.of), c.want, "%s: it is of", name)
	}
}

func TestAWishChoosesAmongThoseThatFit(t *testing.T) {
	p := policy(t, HostView{}, row("serving", Selector{Units: []string{"triton*.service"}}),
		row("alice", Selector{Users: []string{"1001"}}),
		row("batch"),
	)
	for name, c := range map[string]struct {
		facts        broker.Facts
		wished, want string
		err          error
	}{
		"its own":                        {facts: broker.Facts{UID: 1001, Cgroup: triton}, want: "serving"},
		"its own, asked for":             {facts: broker.Facts{UID: 1001, Cgroup: triton}, wished: "serving", want: "serving"},
		"a less specific one that fits":  {facts: broker.Facts{UID: 1001, Cgroup: triton}, wished: "alice", want: "alice"},
		"without selectors":              {facts: broker.Facts{UID: 1001}, wished: "batch", want: "batch"},
		"without selectors, by a nobody": {facts: broker.Facts{UID: 1002}, wished: "batch", want: "batch"},
		"default, whose it is":           {facts: broker.Facts{UID: 1002}, wished: "default", want: "default"},
		"default, as a way out":          {facts: broker.Facts{UID: 1001}, wished: "default", err: errNotYours},
		"another's":                      {facts: broker.Facts{UID: 1002}, wished: "alice", err: errNotYours},
		"root is no exception":           {facts: broker.Facts{UID: 0}, wished: "alice", err: errNotYours},
		"nobody's":                       {facts: broker.Facts{UID: 1001}, wished: "bob", err: errUnknown},
	} {
		if got, err := p.Tenant(c.facts, c.wished); !errors.Is(err, c.err) || got != c.want {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, c.want, c.err)
		}
	}
}

// The names of a workload come from the host, and only for the process that asks. A process without terms may be held
// to none. It gains nothing by that wish if its own tenant has terms, on any GPU, and whatever others would take it.
func TestUnboundOnlyWithoutTerms(t *testing.T) {
	limited, elsewhere, first := row("limited", Selector{Users: []string{"1001"}}), row("elsewhere", Selector{
		Users: []string{"1002"}}), row("first", Selector{Users: []string{"1003"}})
	limited.Limit = 0.5
	elsewhere.GPUs = []Override{{GPUs: []string{"1"}}}
	first.Priority = PriorityHigh
	rows := []Rule{limited, elsewhere, first, row("free", Selector{Users: []string{"1004"}}), row("batch")}
	p := policy(t, HostView{}, rows...)
	for uid, want := range map[uint32]string{1001: "", 1002: "", 1003: "", 1004: "free", 1005: DefaultTenant} {
		got, err := p.Tenant(broker.Facts{UID: uid}, Unbound)
		fixture.If(t, got != want || (want == "") != errors.Is(err, errBound),
			"user %d is granted %q, %v; want %q", uid, got, err, want)
	}
	capped := p.table
	capped.Default.Memory = 1 << 30
	if got, err := New(capped, HostView{}, nil).Tenant(broker.Facts{UID: 1005}, Unbound); !errors.Is(err, errBound) {
		t.Errorf("a default with a memory cap grants %q, %v", got, err)
	}
	fixture.Equal(t, nameable(Unbound), false, "a tenant could have the name of the wish")
}

func TestNamesAreTheHostsWord(t *testing.T) {
	unit, other := host.ParseCgroup(triton, 5), named(strings.ReplaceAll(inPod, id, id[2:]+"cd"), func(w *host.Workload) {
		w.Namespace, w.Pod = "inference", "x"
	})
	for name, c := range map[string]struct {
		process host.Process
		err     error
		want    string
	}{
		"known":                 {process: host.Process{UID: 5, Workload: &vllm}, want: "inference"},
		"not known yet":         {process: host.Process{UID: 5}, want: "unnamed"},
		"of another user":       {process: host.Process{UID: 6, Workload: &vllm}, want: "unnamed"},
		"of another's cgroup":   {process: host.Process{UID: 5, Workload: &other}, want: "unnamed"},
		"of a unit before that": {process: host.Process{UID: 5, Workload: &unit}, want: "unnamed"},
		"gone":                  {err: host.ErrGone, want: "unnamed"},
	} {
		view := HostView{Process: func(pid int) (host.Process, error) {
			fixture.Equal(t, pid, 42, "%s: it asks for", name)
			return c.process, c.err
		}}
		p := policy(t, view, row("inference", Selector{Pods: []string{"inference/*"}}),
			row("unnamed", Selector{Pods: []string{"*"}}))
		if got, err := p.Tenant(broker.Facts{PID: 42, UID: 5, Cgroup: inPod}, ""); got != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
	for cgroup, want := range map[string]string{slurmJob: "account", // and no job whose number begins alike
		strings.ReplaceAll(slurmJob, "4711", "47110"): DefaultTenant} {
		p := policy(t, HostView{Process: func(int) (host.Process, error) {
			return host.Process{UID: 5, Workload: &research}, nil
		}}, row("account", Selector{SlurmAccounts: []string{"research"}}))
		got, _ := p.Tenant(broker.Facts{PID: 42, UID: 5, Cgroup: cgroup}, "")
		fixture.Equal(t, got, want, "the tenant of %s is", cgroup)
	}
}

func TestNamesOfUsersAndGroupsAreLookedUp(t *testing.T) {
	me := fixture.Value(user.Current())(t)
	group := fixture.Value(user.LookupGroupId(me.Gid))(t)
	var log bytes.Buffer
	rules := table(
		row("ghost", Selector{Users: []string{"no-such-user"}, Executables: []string{"/*"}}),
		row("mine", Selector{Users: []string{"no-such-user", me.Username}, Groups: []string{group.Name}}),
	)
	fixture.Must(t, rules.Check())
	p := New(rules, HostView{}, slog.New(slog.NewTextHandler(&log, nil)))
	uid, _ := strconv.ParseUint(me.Uid, 10, 32)
	gid, _ := strconv.ParseUint(me.Gid, 10, 32)
	fixture.Equal(t, fixture.Value(p.Tenant(broker.Facts{UID: uint32(uid), GID: uint32(gid)}, ""))(t), "mine",
		"%s of %s is of", me.Username, group.Name)
	_, err := p.Tenant(broker.Facts{UID: uint32(uid) + 1, GID: uint32(gid)}, "ghost")
	fixture.If(t, !errors.Is(err, errNotYours), "a tenant whose only user does not exist is given away: %v", err)
	fixture.If(t, !strings.Contains(log.String(), "no-such-user") || !strings.Contains(log.String(), "ghost"),
		"the log does not mention a user that does not exist: %q", log.String())
	if all := rules.Unknown(); len(all) != 2 ||
		!strings.HasPrefix(all[0], `tenants[0].select[0].users: "no-such-user" selects nothing: `) {
		t.Errorf("unknown are %q", all)
	}
	tied := table(row("a", Selector{Users: []string{me.Username}}), row("b", Selector{Users: []string{me.Uid}}))
	fixture.Fails(t, tied.Check(), "", "a tie of a user's name and number")
}

func TestTermsOfAGPU(t *testing.T) {
	serving := with(row("serving"), func(r *Rule) {
		r.Priority = PriorityHigh
		r.Quota = Quota{Guarantee: .6, Limit: .8, Memory: 40, Reserved: 20,
			LaunchWait: quota.Wait(20 * time.Millisecond), Bandwidth: .6}
		r.GPUs = []Override{
			{GPUs: []string{"0", "3"}, Written: written("guarantee", "0", "memory", "10")},
			{GPUs: []string{uuidOf(1)}, Written: written("limit", "50 %", "launch_wait", "1ms", "memory", "0")},
			{GPUs: []string{uuidOf(3)}, Written: written("bandwidth", ".5")},
		}
	})
	urgent := with(row("urgent"), func(r *Rule) { r.Priority, r.Limit = PriorityRealtime, .1 })
	names := func(gpu string) []string { return []string{gpu[len(gpu)-1:], gpu} }
	p := policy(t, HostView{Names: names}, serving, urgent)
	for name, c := range map[string]struct {
		tenant, gpu string
		want        Quota
	}{
		"where nothing else is said": {"serving", uuidOf(2), serving.Quota},
		"of no GPU":                  {"serving", "", serving.Quota},
		"by index":                   {"serving", uuidOf(0), Quota{Guarantee: 0, Limit: .8, Memory: 10, Reserved: 10, Bandwidth: .6}},
		"by UUID": {"serving", uuidOf(1),
			Quota{Guarantee: .5, Limit: .5, Reserved: 20, LaunchWait: quota.Wait(time.Millisecond), Bandwidth: .6}},
		"by both":                           {"serving", uuidOf(3), Quota{Guarantee: 0, Limit: .8, Memory: 10, Reserved: 10, Bandwidth: .5}},
		"realtime has its limit guaranteed": {"urgent", uuidOf(0), Quota{Guarantee: .1, Limit: .1, Bandwidth: 1}},
		"whom no tenant is for":             {DefaultTenant, uuidOf(0), Quota{Limit: 1, Bandwidth: 1}},
		"who was in the table before":       {"gone", uuidOf(0), Quota{Limit: 1, Bandwidth: 1}},
	} {
		fixture.Equal(t, p.Quota(c.tenant, c.gpu), c.want, "%s", name)
	}
	fixture.Equal(t, policy(t, HostView{}, serving).Quota("serving", uuidOf(0)), serving.Quota, "without indices")
}

func uuidOf(n int) string { return fmt.Sprintf("GPU-00000000-0000-4000-8000-%012d", n) }

func TestWeights(t *testing.T) {
	idle := with(row("idle"), func(r *Rule) { r.Priority = PriorityIdle })
	low := with(row("low"), func(r *Rule) { r.Priority = PriorityLow })
	high := with(row("high"), func(r *Rule) { r.Priority, r.Guarantee = PriorityHigh, .3 })
	realtime := with(row("realtime"), func(r *Rule) { r.Priority, r.Limit = PriorityRealtime, .2 })
	here := with(row("here"), func(r *Rule) {
		r.GPUs = []Override{{GPUs: []string{uuidOf(1)}, Written: written("guarantee", ".8")}}
	})
	for name, c := range map[string]struct {
		rules []Rule
		gpu   string
		want  map[string]float64
	}{
		"nobody but default": {nil, "", map[string]float64{"default": 1}},
		"by priority": {[]Rule{row("a"), low, idle}, "",
			map[string]float64{"a": .4, "default": .4, "low": .2, "idle": leastWeight}},
		"guarantees, then spare": {[]Rule{high, row("b")}, "",
			map[string]float64{"high": .3 + .7*4/8, "b": .7 * 2 / 8, "default": .7 * 2 / 8}},
		"realtime with its limit": {[]Rule{realtime, row("b")}, "",
			map[string]float64{"realtime": .2 + .8*4/8, "b": .2, "default": .2}},
		"nothing is left": {[]Rule{guaranteed("a", .75), guaranteed("b", .25), row("c")}, "",
			map[string]float64{"a": .75, "b": .25, "c": leastWeight, "default": leastWeight}},
		"on one GPU":        {[]Rule{here, row("b")}, uuidOf(1), map[string]float64{"here": .8 + .2/3, "b": .2 / 3}},
		"and on the others": {[]Rule{here, row("b")}, uuidOf(0), map[string]float64{"here": 1. / 3, "b": 1. / 3}},
	} {
		p := policy(t, HostView{}, c.rules...)
		for tenant, want := range c.want {
			got, class := p.Weight(tenant, c.gpu)
			fixture.Near(t, got, want, 1e-12, "%s: %s weighs", name, tenant)
			if want := map[string]schedule.Class{"idle": schedule.Idle,
				"realtime": schedule.Realtime}[tenant]; class != want {
				t.Errorf("%s: %s is of class %d, want %d", name, tenant, class, want)
			}
		}
	}
	fixture.If(t, !New(table(idle), HostView{}, nil).Governed("idle") ||
		New(table(idle), HostView{}, nil).Governed(DefaultTenant),
		"a tenant of the table is not governed, or the default one is")
}

// The terms of a MIG device override those of its GPU.
func TestMIG(t *testing.T) {
	mig := "MIG" + strings.TrimPrefix(uuidOf(7), "GPU")
	names := func(gpu string) []string {
		switch gpu {
		case mig:
			return []string{"0", uuidOf(0), "0:1", mig}
		case "MIG-other":
			return []string{"0", uuidOf(0), "0:2", gpu}
		}
		return []string{"1", gpu}
	}
	p := policy(t, HostView{Names: names}, with(row("a"), func(r *Rule) {
		r.GPUs = []Override{{GPUs: []string{mig}, Written: written("bandwidth", ".5")},
			{GPUs: []string{"0:1"}, Written: written("limit", ".4")},
			{GPUs: []string{"0"}, Written: written("limit", ".8", "guarantee", ".3")}}
	}),
		with(row("b"), func(r *Rule) {
			r.GPUs = []Override{{GPUs: []string{"0:1"}, Written: written("guarantee", ".7")}}
		}))
	for _, c := range []struct {
		gpu                         string
		guarantee, limit, bandwidth float64
	}{{mig, .3, .4, .5}, {"MIG-other", .3, .8, 1}, {uuidOf(1), 0, 1, 1}} {
		if q := p.Quota("a", c.gpu); q.Guarantee != c.guarantee || q.Limit != c.limit || q.Bandwidth != c.bandwidth {
			t.Errorf("on %s: %+v, want %+v", c.gpu, q, c)
		}
	}
	a, _ := p.Weight("a", mig)
	fixture.If(t, a != .3, "a weighs %v, want .3", a)
	over := table(with(row("a"), func(r *Rule) {
		r.GPUs = []Override{{GPUs: []string{"0"}, Written: written("guarantee", ".6")}}
	}), with(row("b"), func(r *Rule) {
		r.GPUs = []Override{{GPUs: []string{"0:1"}, Written: written("guarantee", ".5")}}
	}))
	fixture.Fails(t, over.Check(), "on GPU 0:1 the guarantees of a (60 %), b "+
		"(50 %)", "more than an instance is guaranteed")
	for _, name := range []string{"0:", ":1", "0:1:2", "01", "0:01", "MIG-1", "0:100", "100000"} {
		bad := table(with(row("a"), func(r *Rule) {
			r.GPUs = []Override{{GPUs: []string{name}, Written: written("limit", ".5")}}
		}))
		fixture.Fails(t, bad.Check(), "gpus[0].gpu", "%q is taken for a GPU", name)
	}
}

// An index and a UUID may name the same GPU, which only the host knows.
func TestExcessGuaranteesAreReported(t *testing.T) {
	var log bytes.Buffer
	p := New(table(
		with(row("a"), func(r *Rule) {
			r.GPUs = []Override{{GPUs: []string{"0"}, Written: written("guarantee", ".7")}}
		}),
		with(row("b"), func(r *Rule) {
			r.GPUs = []Override{{GPUs: []string{uuidOf(0)}, Written: written("guarantee", ".7")}}
		}),
	), HostView{Names: func(gpu string) []string { return []string{"0", gpu} }}, slog.New(slog.NewTextHandler(&log, nil)))
	for range 2 {
		a, _ := p.Weight("a", uuidOf(0))
		fixture.If(t, a != .7, "a weighs %v, want .7", a)
	}
	fixture.Equal(t, strings.Count(log.String(), "more than a whole gpu is guaranteed"), 1, "it is said … times: %s", &log)
}

// TestOwner holds that the cgroup of a process decides its owner, regardless of
// the groups that the owner made below it.
func TestOwner(t *testing.T) {
	procs.Etc = t.TempDir()
	t.Cleanup(func() { procs.Etc = "/etc" })
	fixture.Must(t, os.WriteFile(procs.Etc+"/subuid", []byte("7:100000:65536\n"), 0o600))
	id := strings.Repeat("ab", 32)
	pod := "/kubepods.slice/kubepods-pod01234567_89ab_cdef_0123_456789abcdef.slice/"
	for cgroup, want := range map[string]string{
		"/": "user:7",
		"/user.slice/user-9.slice/user@9.service/app.slice/a.service":      "user:9",
		"/user.slice/user-9.slice/user@9.service/docker-" + id + ".scope":  "user:9",
		"/system.slice/docker-" + id + ".scope":                            "container:" + id,
		"/system.slice/docker-" + id + ".scope/system.slice/other.service": "container:" + id,
		"/system.slice/hub.service":                                        "unit:hub.service:7",
		"/system.slice/slurmstepd.scope/job_12/step_3/user/task_0":         "slurm:12",
		"/system.slice/slurmstepd.scope/s7QANTV3WPV400/step_3/user/task_0": "slurm:s7QANTV3WPV400",
		"/pbs_jobs.service/jobs/12.pbs/x":                                  "job:pbs/12.pbs",
		pod + "cri-containerd-" + id + ".scope":                            "pod:01234567-89ab-cdef-0123-456789abcdef",
		pod + "cri-containerd-" + strings.Repeat("cd", 32) + ".scope/x":    "pod:01234567-89ab-cdef-0123-456789abcdef",
	} {
		for _, uid := range []uint32{7, 100000, 165535} {
			fixture.Equal(t, Owner(broker.Facts{UID: uid, Cgroup: "0::" + cgroup + "\n"}), want, "the owner of user %d in %s is", uid, cgroup)
		}
	}
}

// The owner of a process follows from this host's facts. On a simulated host it follows from the simulation alone. A
// process without a workload, or an ended one, has no owner.
func TestOwnerOfADeviceProcess(t *testing.T) {
	t.Parallel()
	exe := fixture.Value(os.Readlink("/proc/self/exe"))(t)
	all := Quota{Limit: 1, Bandwidth: 1}
	p := New(Table{Default: Terms{Quota: all}, Rules: []Rule{
		{Name: "program", Select: []Selector{{Executables: []string{exe}}}, Terms: Terms{Quota: all}},
		{Name: "unit", Select: []Selector{{Units: []string{"a.service"}}}, Terms: Terms{Quota: all}},
	}}, HostView{}, nil)
	zombie := exec.Command("true")
	fixture.Must(t, zombie.Start())
	defer func() { _ = zombie.Wait() }()
	fixture.Eventually(t, "its first thread ends", func() bool { return procs.State("/proc", zombie.Process.Pid) == 'Z' })
	headless := startHeadless(t)
	unit := &host.Workload{Key: "unit:a.service", Kind: host.KindUnit, Unit: "a.service"}
	user := &host.Workload{Key: "user:0", Kind: host.KindUser}
	for name, c := range map[string]struct {
		identities Identities
		pid        int
		workload   *host.Workload
		want       string
	}{
		"a program":   {Identities{ProcFS: "/proc"}, os.Getpid(), user, "program"},
		"a unit":      {Identities{ProcFS: "/proc"}, os.Getpid(), unit, "unit"},
		"no name yet": {Identities{ProcFS: "/proc"}, os.Getpid(), nil, ""},
		"gone":        {Identities{ProcFS: "/proc"}, 1 << 30, user, ""},
		"simulated":   {Identities{ProcFS: "/proc", Simulated: true}, 1 << 30, unit, "unit"},
		"simulated, not ours": {Identities{ProcFS: "/proc", Simulated: true}, os.Getpid(), user,
			DefaultTenant},
		"simulated, no name": {Identities{ProcFS: "/proc", Simulated: true}, 1 << 30, nil, ""},
		"ended":              {Identities{ProcFS: "/proc"}, zombie.Process.Pid, user, ""},
		"ended but a thread": {Identities{ProcFS: "/proc"}, headless, unit, "unit"},
	} {
		got := c.identities.Tenant(p, time.Now(),
			collectors.DeviceProcess{Process: host.Process{PID: c.pid, Workload: c.workload}})
		fixture.If(t, got != c.want, "%s: of %q, want %q", name, got, c.want)
	}
}

// startHeadless starts a program whose first thread ends while another continues. It lives until the test ends.
func startHeadless(t *testing.T) (pid int) {
	t.Helper()
	dir := t.TempDir()
	source := `#include <pthread.h>
#include <unistd.h>
static void *go_on(void *none) { for (;;) pause(); }
int main(void) { pthread_t other; pthread_create(&other, 0, go_on, 0); pthread_exit(0); }`
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "headless.c"), []byte(source), 0o600))
	program := filepath.Join(dir, "headless")
	out, err := exec.Command("gcc", "-pthread", "-o", program, program+".c").CombinedOutput()
	fixture.Stop(t, err != nil, "build it: %v %s", err, out)
	cmd := exec.Command(program)
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	fixture.Eventually(t, "its first thread ends", func() bool { return procs.State("/proc", cmd.Process.Pid) == 'Z' })
	return cmd.Process.Pid
}
