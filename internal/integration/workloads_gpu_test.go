//go:build gpu

package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// The host of these tests is this machine.
func init() { machine = "/" }

// tenant holds argv[2] GiB and keeps the GPU busy for argv[1] of the time.
const tenant = `
import sys, time, torch
duty, gib = float(sys.argv[1]), int(sys.argv[2])
held = torch.empty(gib << 30, dtype=torch.uint8, device="cuda")
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
a @ a; torch.cuda.synchronize()
print("started", flush=True)
while True:
    began = time.time()
    while time.time() - began < 0.1 * duty:
        for _ in range(4): a @ a
        torch.cuda.synchronize()
    time.sleep(max(0, 0.1 * (1 - duty)))
`

// tenant starts a tenant in a cgroup such as systemd makes for a service. It
// returns the PID once the tenant holds its memory.
func (m *measured) tenant(unit, duty, gib string) int {
	m.t.Helper()
	j := m.job(unit, "python3", "-c", tenant, duty, gib)
	j.hear("started", time.Minute)
	return j.Cmd.Process.Pid
}

// value returns the one series that begins with family and contains all pieces.
func (m *measured) value(family string, pieces ...string) (v float64, ok bool) {
	for line := range strings.Lines(m.scrape()) {
		holds := strings.HasPrefix(line, family+"{")
		for _, p := range pieces {
			holds = holds && strings.Contains(line, p)
		}
		if holds {
			v, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(strings.TrimSpace(line), ' '):]),
				64)
			return v, true
		}
	}
	return 0, false
}

// pmon returns nvidia-smi's average SM column of each process over so many seconds, as a ratio.
func pmon(t *testing.T, seconds int) map[int]float64 {
	out, err := exec.Command("nvidia-smi", "pmon", "-i", "0", "-s", "u", "-c", strconv.Itoa(seconds)).Output()
	fixture.Stop(t, err != nil, "nvidia-smi pmon: %v", err)
	sums := map[int]float64{}
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[0] == "#" {
			continue
		}
		pid, err := strconv.Atoi(f[1])
		if err != nil {
			continue
		}
		sm, _ := strconv.ParseFloat(f[3], 64) // "-" means none
		sums[pid] += sm / 100 / float64(seconds)
	}
	return sums
}

// TestGPUWorkloads has two tenants with different loads on one GPU, in cgroups
// of their own, and compares the agent's metrics with nvidia-smi.
func TestGPUWorkloads(t *testing.T) {
	m := startMeasured(t, binary(t))
	pids := map[string]int{"unit:gpst-a.service": m.tenant("gpst-a.service", "1", "1"),
		"unit:gpst-b.service": m.tenant("gpst-b.service", "0.3", "3")}
	fixture.Until(t, 30*time.Second, "both tenants are seen using the GPU", func() bool {
		a, _ := m.value("nvgpu_workload_sm_seconds_total", "gpst-a")
		b, _ := m.value("nvgpu_workload_sm_seconds_total", "gpst-b")
		return a > 0 && b > 0
	})
	count := func() map[string]float64 {
		// The driver is read every few seconds: count from one reading to another.
		first, _ := m.value("nvgpu_workload_sm_seconds_total", "gpst-a")
		for v := first; v == first; time.Sleep(20 * time.Millisecond) {
			v, _ = m.value("nvgpu_workload_sm_seconds_total", "gpst-a")
		}
		all := map[string]float64{}
		for name := range pids {
			all[name], _ = m.value("nvgpu_workload_sm_seconds_total", name)
			all[name+" J"], _ = m.value("nvgpu_workload_energy_joules_total", name)
		}
		all["J"], _ = m.value("nvgpu_energy_joules_total", `gpu="0"`)
		return all
	}
	const seconds = 60
	before := count()
	began := time.Now()
	smi := pmon(t, seconds)
	after := count()
	took := time.Since(began).Seconds()
	for name, pid := range pids {
		ours := (after[name] - before[name]) / took
		fmt.Printf("%s: SM %.1f %%, nvidia-smi pmon %.1f %%, over %.0f s\n", name, ours*100, smi[pid]*100, took)
		fixture.Near(t, ours, smi[pid], .05, "%s: SM time differs from nvidia-smi's by more than 5 points", name)
	}
	a, b, all := after["unit:gpst-a.service J"]-before["unit:gpst-a.service J"],
		after["unit:gpst-b.service J"]-before["unit:gpst-b.service J"], after["J"]-before["J"]
	fmt.Printf("energy: %.0f J and %.0f J of the GPU's %.0f J\n", a, b, all)
	if sum := a + b; sum < .85*all || sum > 1.1*all {
		t.Errorf("the workloads' energy is %.2f of the GPU's", sum/all)
	}
	m.holdsMemory(pids)
	m.drains(pids)
}

// holdsMemory compares the workloads' memory with nvidia-smi's, which is in MiB.
func (m *measured) holdsMemory(pids map[string]int) {
	out, err := exec.Command("nvidia-smi", "-i", "0", "--query-compute-apps=pid,used_memory",
		"--format=csv,noheader,nounits").Output()
	fixture.Stop(m.t, err != nil, "nvidia-smi: %v", err)
	for name, pid := range pids {
		want := 0.0
		for line := range strings.Lines(string(out)) {
			var p int
			var mib float64
			if n, _ := fmt.Sscanf(line, "%d, %f", &p, &mib); n == 2 && p == pid {
				want = mib
			}
		}
		got, _ := m.value("nvgpu_workload_memory_used_bytes", name)
		fmt.Printf("%s: memory %.0f MiB, nvidia-smi %.0f MiB\n", name, got/(1<<20), want)
		fixture.If(m.t, got != want*(1<<20) || want == 0, "%s: %.0f bytes, nvidia-smi says %.0f MiB", name, got, want)
	}
}

// drains has the agent release the driver and take it again, and checks the open files meanwhile.
func (m *measured) drains(pids map[string]int) {
	control := func(command string) time.Duration {
		began := time.Now()
		out, err := exec.Command(m.path, command, "--runtime.dir="+m.runtime).CombinedOutput()
		fixture.Stop(m.t, err != nil, "%s: %v: %s", command, err, out)
		return time.Since(began)
	}
	held := func() (n int) {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", m.pid))
		if err != nil || len(fds) == 0 {
			m.t.Fatal("no descriptors to be seen", err)
		}
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); strings.HasPrefix(to, "/dev/nvidia") {
				n++
			}
		}
		return n
	}
	with, drained := held(), control("drain")
	without := held()
	fixture.Until(m.t, 10*time.Second, "nothing is said of GPUs", func() bool {
		_, shown := m.value("nvgpu_up", `gpu="0"`)
		return !shown
	})
	resumed := control("resume")
	back := fixture.Until(m.t, 10*time.Second, "the GPU is back", func() bool {
		up, _ := m.value("nvgpu_up", `gpu="0"`)
		return up == 1
	})
	fmt.Printf("drain took %v, of %d open device files %d were left; "+
		"resume took %v, a scrape showed the GPU %v later\n", drained, with, without, resumed, back)
	fixture.If(m.t, with == 0 || without != 0 || drained > 2*time.Second,
		"the drain did not let go of the driver in 2 s")
	for name, pid := range pids {
		p, err := os.FindProcess(pid)
		fixture.Stop(m.t, err != nil || p.Kill() != nil, "%s cannot be killed", name)
		gone := fixture.Until(m.t, 10*time.Second, name+" has left", func() bool {
			_, there := m.value("nvgpu_workload_memory_used_bytes", name)
			return !there
		})
		fmt.Printf("%s ended %v after it was killed\n", name, gone.Truncate(time.Millisecond))
	}
}
