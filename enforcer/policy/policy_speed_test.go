package policy_test

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	hosts "gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// A crowd is 1,000 processes of as many workloads, and a table of 200 tenants.
type crowd struct {
	policy    *policy.Policy
	facts     []broker.Facts
	processes map[int]hosts.Process
}

// newCrowd returns a crowd in which every tenth process has no tenant.
func newCrowd(t testing.TB) *crowd {
	t.Helper()
	steps := policy.Steps{Mode: policy.Warn, Confirm: 3, Of: 5, Hold: time.Minute, Throttle: .5, Pause: []string{"broker"}}
	terms := policy.Terms{Priority: policy.PriorityNormal, Quota: policy.Quota{Limit: 1, Bandwidth: 1}}
	table := policy.Table{Default: terms, Steps: steps}
	for i := range 200 {
		s := policy.Selector{}
		switch name := fmt.Sprintf("team-%03d", i); i % 8 {
		case 0:
			s.Units = []string{name + "-*.service"}
		case 1:
			s.Pods = []string{name + "/*"}
		case 2:
			s.Pods, s.Containers = []string{"*/" + name + "-0-*"}, []string{"main"}
		case 3:
			s.SlurmAccounts = []string{name}
		case 4:
			s.Containers = []string{name + "*"}
		case 5:
			s.Users = []string{fmt.Sprint(10000 + i)}
		case 6:
			s.Groups, s.Executables = []string{fmt.Sprint(20000 + i)}, []string{"/opt/" + name + "/*/python*"}
		case 7:
			s.Workloads = []string{"unit:*-" + name + ".service"}
		}
		table.Rules = append(table.Rules, policy.Rule{Name: fmt.Sprint("t", i), Select: []policy.Selector{s},
			Terms: terms, Steps: steps})
	}
	fixture.Must(t, table.Check())
	c := &crowd{processes: map[int]hosts.Process{}}
	for pid := 1; pid <= 1000; pid++ {
		i := pid % 200
		name, n := fmt.Sprintf("team-%03d", i), fmt.Sprint(pid)
		if pid%10 == 9 {
			name = "nobody"
		}
		id := fmt.Sprintf("%064x", pid)
		podUID := fmt.Sprintf("%08x-0000-4000-8000-000000000000", pid)
		f := broker.Facts{PID: pid, UID: 1000, GID: 1000, Groups: []uint32{4, 27}, Exe: "/usr/bin/python3.12"}
		var w hosts.Workload
		switch i % 8 {
		case 0, 7:
			unit := name + "-" + n + ".service"
			if i%8 == 7 {
				unit = n + "-" + name + ".service"
			}
			f.Cgroup = "0::/system.slice/" + unit + "\n"
			w = hosts.ParseCgroup(f.Cgroup, 1000)
		case 1, 2:
			f.Cgroup = "0::/kubepods.slice/kubepods-pod" + podUID + ".slice/cri-containerd-" + id + ".scope\n"
			w = hosts.ParseCgroup(f.Cgroup, 1000)
			w.Namespace, w.Pod, w.Container = name, "train-"+n, "main"
			if i%8 == 2 {
				w.Namespace, w.Pod = "research", name+"-0-"+n
			}
			w.Key = "pod:" + w.Namespace + "/" + w.Pod + "/main"
		case 3:
			f.Cgroup = "0::/system.slice/slurmstepd.scope/job_" + n + "/step_0/user/task_0\n"
			w = hosts.ParseCgroup(f.Cgroup, 1000)
			w.User, w.Account = "alice", name
		case 4:
			f.Cgroup = "0::/system.slice/docker-" + id + ".scope\n"
			w = hosts.ParseCgroup(f.Cgroup, 1000)
			w.Container = name + "-" + n
			w.Key = "container:" + w.Container
		default:
			f.UID, f.Groups = uint32(10000+i), []uint32{4, 27, uint32(20000 + i)}
			f.Exe = "/opt/" + name + "/" + n + "/python3"
			if pid%10 == 9 {
				f.UID = 1000
			}
			f.Cgroup = fmt.Sprintf("0::/user.slice/user-%d.slice/session-%d.scope\n", f.UID, pid)
			w = hosts.ParseCgroup(f.Cgroup, int(f.UID))
		}
		c.facts = append(c.facts, f)
		c.processes[pid] = hosts.Process{PID: pid, UID: int(f.UID), Workload: &w}
	}
	lookup := func(pid int) (hosts.Process, error) { return c.processes[pid], nil }
	c.policy = policy.New(table, policy.HostView{Process: lookup}, slog.New(slog.DiscardHandler))
	return c
}

// judge finds the tenants of all processes, and returns how many have one.
func (c *crowd) judge(t testing.TB) (governed int) {
	for i := range c.facts {
		name := fixture.Value(c.policy.Tenant(c.facts[i], ""))(t)
		if c.policy.Governed(name) {
			governed++
		}
	}
	return governed
}

// BenchmarkPolicy finds the tenants of 1,000 processes of as many workloads among 200 tenants;
// the goal is 2 ms. The host knows the workloads' names. Nothing is cached.
func BenchmarkPolicy(b *testing.B) {
	c := newCrowd(b)
	for b.Loop() {
		fixture.Need(b, c.judge(b), 900, "… of 1,000 processes have a tenant")
	}
}
