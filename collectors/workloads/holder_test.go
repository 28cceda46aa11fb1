package workloads

import (
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestHolders has GPUs with a job and strangers to any scheduler, with two containers of a pod, two pods of a
// namespace, a pod and a job, two namespaces, and instances; then schedulers report allocations.
func TestHolders(t *testing.T) {
	job := func(pid string) string {
		return "{pid: " + pid + ", memory: 100, cgroup: /system.slice/slurmstepd.scope/job_812/step_" + pid + "/user/task_0}"
	}
	in := func(pid, namespace, pod, container string) string {
		return "{pid: " + pid + ", memory: 100, cgroup: \"/kubepods.slice/kubepods-pod{pod}.slice/cri-containerd-{id}.scope\", " +
			"container: {namespace: " + namespace + ", pod: " + pod + ", container: " + container + "}}"
	}
	gpu := func(processes ...string) string {
		return "- {load: idle, processes: [" + strings.Join(processes, ", ") + "]}\n"
	}
	source := "gpus:\n" +
		gpu(job("1"), job("2"), "{pid: 3, memory: 100, cgroup: /system.slice/triton.service}") +
		gpu(in("4", "chat", "llama", "vllm"), in("5", "chat", "llama", "embed")) +
		gpu(in("6", "chat", "a", "c"), in("7", "chat", "b", "c")) +
		gpu(in("8", "chat", "a", "c"), job("9")) +
		gpu(in("10", "chat", "same", "c"), in("11", "search", "same", "c")) +
		"- {load: inference, mig: [1g.10gb, 2g.20gb]}\n" +
		gpu()
	var given atomic.Pointer[[]host.Allocation]
	given.Store(&[]host.Allocation{})
	hosttest.With(t, source, func(o *collectors.Options) {
		o.Allocations = func() host.Allocated { return host.Allocated{All: *given.Load()} }
	}, func(t *testing.T, h *collectors.Host) {
		// want has the labels after gi of each place with a holder: gpu, or gpu/gi.
		want := func(when string, want map[string]string) {
			t.Helper()
			got := map[string]string{}
			for _, s := range h.Samples() {
				if s.Metric == HolderInfo {
					got[strings.TrimSuffix(s.Labels[0]+"/"+s.Labels[2], "/")] = strings.Join(s.Labels[3:], " ")
				}
			}
			fixture.If(t, !maps.Equal(got, want), "%s the holders are\n%q, want\n%q", when, got, want)
		}
		hosttest.Advance(15 * time.Second)
		processes := map[string]string{"0": "   812", "1": "chat llama  ", "2": "chat   ", "5": "serving   ",
			"5/3": "serving small-5-1 model ", "5/7": "serving small-5-0 model "}
		want("by processes", processes)

		uuid := func(gpu string) string { return hosttest.Told(h, collectors.Up, "gpu", gpu)["uuid"] }
		mig := hosttest.Told(h, device.MIGInfo, "gpu", "5")
		given.Store(&[]host.Allocation{
			{Namespace: "n", Pod: "p", Container: "c", Devices: []string{uuid("3")}},
			{Namespace: "n", Pod: "p", Container: "d", Devices: []string{mig["mig_uuid"]}},
			{Job: "900", Devices: []string{"6"}},
		})
		hosttest.Advance(2 * time.Second)
		processes["3"] = "n p c "
		processes["6"] = "   900"
		delete(processes, "5") // two namespaces have it
		processes["5/"+mig["gi"]] = "n p d "
		want("with allocations", processes)
	})
}
