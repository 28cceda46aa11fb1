//go:build gpu

package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/fixture"
)

// wrong breaks a rule for kernels, which its first argument selects; steady works until it is killed.
const wrong = `
#include <cstring>
__global__ void misaligned(char *p) { *(int *)(p + 1) = 1; }
__global__ void illegal(int *p) { *p = 1; }
__global__ void trapped() { asm("trap;"); }
__global__ void add(int *p) { for (int i = 0; i < 100000; i++) atomicAdd(p, 1); }
int main(int argc, char **argv) {
	char *d;
	cudaMalloc(&d, 64);
	if (!strcmp(argv[1], "31")) illegal<<<1, 1>>>((int *)0x7000000000);
	if (!strcmp(argv[1], "13")) misaligned<<<1, 1>>>(d);
	if (!strcmp(argv[1], "43")) trapped<<<1, 1>>>();
	while (!strcmp(argv[1], "steady") && cudaDeviceSynchronize() == cudaSuccess) add<<<8, 32>>>((int *)d);
	return cudaDeviceSynchronize() == cudaSuccess;
}
`

// compiled returns the program wrong.
func compiled(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "wrong.cu"), filepath.Join(dir, "wrong")
	fixture.Must(t, os.WriteFile(source, []byte(wrong), 0o644))
	out, err := exec.Command("nvcc", "-o", program, source).CombinedOutput()
	fixture.Stop(t, err != nil, "nvcc: %v\n%s", err, out)
	return program
}

// incidents returns the incidents in the agent's journal.
func (m *measured) incidents() (all []incident.Event) {
	m.t.Helper()
	var answer struct{ Events []incident.Event }
	m.answers("/api/v1/events?kind=incident&limit=1000", &answer)
	return answer.Events
}

// TestGPUIncidents has programs fault on the GPU, each in a cgroup of its own, and expects exactly one
// incident for each, from both sources and with its owner. It needs root, cgroup v2, nvcc and /dev/kmsg.
func TestGPUIncidents(t *testing.T) {
	program := compiled(t)
	m := startMeasured(t, binary(t), "--config.file="+fixture.Config(t, tenth)) // the programs run for half a second
	const unit = "gpusteward-wrong.service"
	group := "/sys/fs/cgroup/system.slice/" + unit
	if err := os.MkdirAll(group, 0o755); err != nil {
		t.Fatalf("make a cgroup (it needs root and cgroup v2): %v", err)
	}
	t.Cleanup(func() { os.Remove(group) })
	time.Sleep(4 * time.Second) // the kernel's ring then has only older messages
	for _, code := range []int{31, 43, 13} {
		began := time.Now()
		cmd := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs"; exec "$1" "$2"`, group, program,
			strconv.Itoa(code))
		out, err := cmd.CombinedOutput()
		fixture.Stop(t, err != nil, "the wrong program ended well: %v\n%s", err, out)
		var found []incident.Event
		// while more may come
		for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			found = slices.DeleteFunc(m.incidents(), func(e incident.Event) bool {
				return e.First.Before(began) || e.Follows != ""
			})
		}
		if len(found) != 1 {
			t.Errorf("XID %d: %d incidents, want 1: %+v", code, len(found), found)
			continue
		}
		e := found[0]
		slices.Sort(e.Sources)
		fmt.Printf("XID %d: after %v, sources %s, %d observations, pid %d, comm %s, workload %s, severity %v: %s\n",
			e.Code, e.First.Sub(began).Round(time.Millisecond),
			strings.Join(e.Sources, " and "), e.Count, e.PID, e.Comm, e.Workload, e.Severity, e.Message)
		if e.Code != code || !slices.Equal(e.Sources, []string{"kmsg", "nvml"}) || e.PID != cmd.Process.Pid ||
			e.Comm != "wrong" || e.Workload != "unit:"+unit {
			t.Errorf("XID %d: %+v; want it from both sources, with pid %d, comm wrong and workload unit:%s", code, e,
				cmd.Process.Pid, unit)
		}
	}
	for _, code := range []int{31, 13} {
		n, _ := m.value("nvgpu_kernel_xid_messages_total", fmt.Sprintf("xid=%q", fmt.Sprint(code)))
		fixture.If(t, n < 1, "the kernel's log has %v of XID %d", n, code)
	}
	if n, _ := m.value("nvgpu_xids_total"); n < 2 {
		t.Errorf("%v XIDs", n)
	}
	for _, f := range m.verdict().Findings { // three in ten minutes are a finding about the tenant
		fixture.If(t, f.Severity > incident.Info && !f.Shadow && f.Entity.Workload == "",
			"tenants' faults made the GPU ill: %+v", f)
	}
}

// tenth makes the agent read the GPU ten times a second.
const tenth = "collectors: {fast: 100ms}\n"

var provoked = flag.Int("gpu.faults", 200, "faults that TestGPUFaultsNameTheirProcesses provokes, about 25 a minute")

// TestGPUFaultsNameTheirProcesses has one program after the other fault on the GPU while others work on, with an agent
// that reads ten times a second. No name may be wrong, and 95 % must be right. It needs what TestGPUIncidents needs.
func TestGPUFaultsNameTheirProcesses(t *testing.T) {
	program := compiled(t)
	for range 3 {
		steady := exec.Command(program, "steady")
		fixture.Must(t, steady.Start())
		t.Cleanup(func() { steady.Process.Kill(); steady.Wait() })
	}
	m := startMeasured(t, binary(t), "--config.file="+fixture.Config(t, tenth))
	fmt.Printf("PIDs are those of the kernel's log: %v\n", host.InitialPIDs())
	time.Sleep(4 * time.Second)   // the kernel's ring then has only older messages
	const apart = 7 * time.Second // with the same code: faults within 5 s are one incident
	codes, last := []int{31, 43, 13}, map[int]time.Time{}
	right, unknown, wrong := 0, 0, 0
	for n := range *provoked {
		code := codes[n%len(codes)]
		time.Sleep(time.Until(last[code].Add(apart)))
		began := time.Now()
		cmd := exec.Command(program, strconv.Itoa(code))
		out, err := cmd.CombinedOutput()
		fixture.Stop(t, err != nil, "the wrong program ended well: %v\n%s", err, out)
		last[code] = time.Now()
		var e *incident.Event
		for end := time.Now().Add(2 * time.Second); time.Now().Before(end) &&
			(e == nil || e.PID == 0); time.Sleep(50 * time.Millisecond) {
			all := m.incidents()
			if i := slices.IndexFunc(all, func(e incident.Event) bool {
				return e.Code == code && !e.First.Before(began)
			}); i >= 0 {
				e = &all[i]
			}
		}
		switch {
		case e == nil:
			t.Errorf("fault %d: no XID %d", n, code)
		case e.PID == cmd.Process.Pid && e.Comm == "wrong":
			right++
		case e.PID == 0:
			unknown++
			fmt.Printf("fault %d, of pid %d: %s\n", n, cmd.Process.Pid, e.Message)
		default:
			wrong++
			t.Errorf("fault %d, of pid %d, is told as %+v", n, cmd.Process.Pid, *e)
		}
	}
	fmt.Printf("of %d faults %d right, %d unknown, %d wrong\n", *provoked, right, unknown, wrong)
	if right*100 < *provoked*95 {
		t.Errorf("%d of %d names are right, want 95 %%", right, *provoked)
	}
}

func (m *measured) verdict() (v health.Verdict) {
	m.t.Helper()
	m.answers("/api/v1/health", &v)
	return v
}

// answers decodes the answer to a request for a path.
func (m *measured) answers(path string, to any) {
	m.t.Helper()
	status, text := m.get(path)
	fixture.Stop(m.t, json.Unmarshal([]byte(text), to) != nil, "%s: %d %s", path, status, text)
}

// TestGPUIsHealthy has the agent judge a GPU that is idle and then works hard: it stays healthy.
func TestGPUIsHealthy(t *testing.T) {
	m := startMeasured(t, binary(t))
	look := func(what string, length time.Duration) {
		for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(time.Second) {
			if v := m.verdict(); v.Status != incident.OK && v.Status != incident.Suspect {
				t.Fatalf("%s: %v, %s %+v", what, v.Status, v.Reason, v.Findings)
			}
		}
		fmt.Printf("%s: %+v\n", what, m.verdict().Findings)
	}
	time.Sleep(3 * time.Second)
	look("idle", 20*time.Second)
	load := exec.Command("python3", "-c", matmul)
	load.Stderr = os.Stderr
	fixture.Must(t, load.Start())
	t.Cleanup(func() { load.Process.Kill(); load.Wait() })
	fixture.Until(t, time.Minute, "the GPU is busy", func() bool {
		v, _ := m.value("nvgpu_utilization_ratio", `engine="gpu",gpu="0"`)
		return v == 1
	})
	look("loaded", 60*time.Second)
}
