package policy

import (
	"strings"
	"testing"
	"time"

	"gpusteward/enforcer/broker"
	"gpusteward/internal/fixture"
	"gpusteward/internal/quota"
)

func TestExplain(t *testing.T) {
	serving := with(row("serving", Selector{Units: []string{"x.service"}},
		Selector{Pods: []string{"inference/*"}, Containers: []string{"server"}}), func(r *Rule) {
		r.Priority = PriorityHigh
		r.Quota = Quota{Guarantee: .5, Limit: .8, Memory: 40 << 30, Reserved: 20 << 30,
			LaunchWait: quota.Wait(20 * time.Millisecond), Bandwidth: .6}
		r.GPUs = []Override{{GPUs: []string{"0", uuidOf(1)}, Written: written("guarantee", "0")}}
		r.Steps.Mode, r.Steps.Shadow = Terminate, false
	})
	p := policy(t, HostView{}, serving, row("inference", Selector{Pods: []string{"inf*"}}),
		row("pods", Selector{Pods: []string{"inference/vllm*"}}),
		row("lab", Selector{Groups: []string{"4000000001"}}),
		row("people", Selector{Groups: []string{"4000000002"}}),
		row("batch"),
	)
	explained := func(f broker.Facts, cgroup bool) string {
		var text strings.Builder
		if cgroup {
			f.Cgroup = triton
			p.Explain(&text, f, nil)
		} else {
			p.Explain(&text, f, &vllm)
		}
		return text.String()
	}
	has := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			fixture.Contains(t, text, want, "it")
		}
	}
	f := broker.Facts{PID: 42, UID: 4000000000, GID: 4000000000, Groups: []uint32{4000000001, 4000000002}, Exe: "/usr/bin/python3"}
	text := explained(f, false)
	has(text, "process 42\n  user: 4000000000\n  groups: 4000000000, 4000000001, 4000000002\n  executable: "+
		"/usr/bin/python3\n",
		"  workload: pod:inference/vllm-0/server, a pod; namespace inference; pod vllm-0; container server\n",
		"\n  pods: select[0], by pods \"inference/vllm*\" (14 literal characters)\n  serving: select[1], by pods "+
			"\"inference/*\" (10 literal characters) and containers \"server\" (exactly)\n  inference: ",
		"  so it belongs to pods and not to serving: pods \"inference/vllm*\" (14 literal characters) is more "+
			"specific "+
			"than pods \"inference/*\" (10 literal characters)\n",
		"  on request (gpusteward exec --tenant): batch\n",
		"\nquota of pods, ", "\nladder: up to warn\n  up a level if 3 of the last 5 audits")
	has(explained(f, true), "by groups 4000000001, an additional group\n",
		"  so it belongs to lab and not to people: both select an additional group, and lab comes first\n",
		"workload: unit:triton-2.service, a unit; slice system.slice\n")
	f.Groups = nil
	has(explained(f, true), "  none, so it belongs to default: the enforcer does not act on it\n",
		"\nquota of default, ")

	p = policy(t, HostView{}, serving)
	has(explained(f, false), "  so it belongs to serving\n",
		"  on GPU 0, "+uuidOf(1)+": guarantee 0 %, limit 80 %, priority high (66.67 % of a GPU that every tenant "+
			"wants), memory 40 GiB, memory kept for it 20 GiB, bandwidth 60 %\n",
		"  on every other GPU: guarantee 50 %, limit 80 %, priority high (83.33 % of a GPU that every tenant wants), "+
			"memory 40 GiB, memory kept for it 20 GiB, 99 of 100 waits for a turn at most 20ms, bandwidth 60 %\n",
		"\nladder: up to terminate\n", "throttle: to 50 %", "pause: by broker, freezer, signal",
		"terminate: SIGTERM, and SIGKILL after 1s\n", "at most 10 such steps")
	p = policy(t, HostView{}, with(row("idle", Selector{Pods: []string{"*"}}),
		func(r *Rule) { r.Priority, r.Steps.Mode = PriorityIdle, Throttle }))
	has(explained(f, false), "  on every GPU: guarantee 0 %, limit 100 %, priority idle (only what nobody else "+
		"wants)\n", "ladder: up to throttle, shadow: steps beyond warn are only reported\n")
	p = policy(t, HostView{}, row("ids", Selector{Users: []string{"4000000000"}}),
		row("job", Selector{Units: []string{"triton-?.service"}}))
	has(explained(f, true), "  so it belongs to job and not to ids, which does not select by units\n", "by users 4000000000\n")
}
