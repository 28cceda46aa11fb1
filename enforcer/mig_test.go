package enforcer_test

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// slice returns the UUID of a simulated MIG device, as CUDA and NVML report it.
func slice(i int) string { return fmt.Sprintf("MIG-67707573-7465-7761-7264-2d73747562%02x", i) }

// anchor lets a tenant's program work on a MIG device once the agent has read the list of devices, and waits until its
// quota holds.
func (a *agent) anchor(tenant string, gpu int) *worker {
	a.t.Helper()
	poll(a.t, 20*time.Second, "the agent has not read the MIG devices", func() bool {
		return strings.Contains(a.ask("/metrics"), slice(gpu))
	})
	w := a.job(tenant, gpu, "--kernel-us=500", "--seconds=600")
	goes(a.t, w)
	a.metric(`nvgpu_quota_sessions{gpu="",tenant="`+tenant+`",uuid="`+slice(gpu)+`"}`, 1)
	return w
}

// onMIG has tenants on a MIG device of this name, under the agent in a process for each role.
// Their parts of the time are measured where one process has all roles.
func onMIG(t *testing.T, name string, roles ...string) {
	const limit = 64*mib + 1
	a := startAgent(t, 2, 2, "open", `
    - {name: a, select: [{executables: ["*/a"]}], gpus: [{gpu: ["`+name+
		`"], guarantee: 30 %, memory: `+strconv.Itoa(limit)+`}]}
    - {name: b, select: [{executables: ["*/b"]}], gpus: [{gpu: ["`+name+`"], guarantee: 70 %}]}
    - {name: c, select: [{executables: ["*/c"]}]}
`, roles...)
	c := a.anchor("c", 1)

	first, most := a.hold("a", 0, "--alloc-mib=128", "--alloc-step-mib=1")
	second, last := a.hold("a", 0, "--alloc-mib=1", fmt.Sprintf("--alloc-step-mib=%.20f", 1./mib))
	fixture.If(t, most != limit-1 || last != 1, "the tenant takes %d and %d bytes of %d", most, last, limit)
	other, beyond := a.hold("a", 1, "--alloc-mib=128", "--alloc-step-mib=1")
	fixture.Equal(t, beyond, 128*mib, "it takes %d MiB of 128 on the other device, where it has no cap", beyond/mib)
	book := func(name string, gpu int) string {
		return `nvgpu_quota_` + name + `{gpu="",tenant="a",uuid="` + slice(gpu) + `"}`
	}
	a.metric(book("memory_used_bytes", 0), limit)
	a.metric(book("memory_limit_bytes", 0), limit)
	a.metric(book("memory_peak_bytes", 0), limit)
	a.metric(book("sessions", 0), 2)
	a.metric(book("memory_used_bytes", 1), 128*mib)
	a.absent(book("memory_limit_bytes", 1))
	a.metric(book("compute_guarantee_ratio", 0), .3)
	a.metric(book("compute_guarantee_ratio", 1), 0)
	a.metric(`nvgpu_broker_faults_total{kind="ungoverned"}`, 0)
	rows := []*regexp.Regexp{regexp.MustCompile(`(?m)^a +0:1 +2 .*30-100% +0\.1/0\.1 +hook`),
		regexp.MustCompile(`(?m)^c +0:2 +1 .* hook`)}
	poll(t, 20*time.Second, "the status does not name the devices", func() bool {
		out, err := exec.Command(a.path, "status", "--runtime.dir="+filepath.Join(a.dir, "run")).Output()
		return err == nil && rows[0].Match(out) && rows[1].Match(out)
	})
	want := fmt.Sprint("0 ", limit, 0, limit, " -")
	fixture.Equal(t, a.run("a", "smi", "dlsym", "v1", "mig").hear(t, time.Minute, "0 "), want,
		"NVML tells the tenant … of the device")
	for _, w := range []*worker{first, second, other} {
		w.Kill()
	}
	a.metric(book("memory_used_bytes", 0), 0)

	if len(roles) > 1 {
		return
	}
	const seconds = 4
	var parts []part
	for tenant, target := range map[string]float64{"a": .3, "b": .7} {
		parts = append(parts, part{a.job(tenant, 0, "--kernel-us=200", fmt.Sprintf("--seconds=%d", seconds)), "go",
			target, 200e-6})
	}
	ready(t, parts[0].worker, parts[1].worker)
	from := fixture.Monotonic()
	f := a.measure(t, "30-70 on a MIG device", seconds, parts...)
	to := fixture.Monotonic()
	f.show()
	alone := typical([]*series{a.truth.of(c.Cmd.Process.Pid)}, from, to)[0]
	if f.one.median > 2+100*f.excused() || alone < .95-f.excused() {
		t.Errorf("they have %.3f of the device, want %.1f of the first; the tenant of the other one has %.3f of a "+
			"typical second of that", f.share, parts[0].target, alone)
	}
}
