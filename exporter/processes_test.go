package exporter

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/internal/fixture"
)

// TestProcesses lists those of a GPU with its MIG devices, or of a workload, and none if the configuration says so.
func TestProcesses(t *testing.T) {
	may := true
	in := func(pid int, uuid, workload string, memory uint64) collectors.DeviceProcess {
		p := collectors.DeviceProcess{UUID: uuid, Kind: "compute", Memory: memory, Known: memory > 0, SM: 2, Sampled: noon,
			Process: host.Process{PID: pid, Comm: "<b>", User: "ann", Began: noon}}
		if workload != "" {
			p.Process.Workload = &host.Workload{Key: workload}
		}
		return p
	}
	all := []collectors.DeviceProcess{in(1, "GPU-0", "unit:a", 5), in(2, "MIG-0", "unit:b", 9), in(3, "GPU-1", "unit:a", 7),
		{UUID: "GPU-0", Kind: "compute", Unknown: true, Process: host.Process{PID: 4}}}
	s := server(t, func(o *Options) {
		o.Samples = func() (all []collectors.Sample) {
			for _, index := range []string{"0", "1", "2"} {
				all = append(all, collectors.Sample{Metric: collectors.Up, Labels: []string{index, "GPU-" + index}})
			}
			return all
		}
		o.Processes = func() ([]collectors.DeviceProcess, bool) { return all, may }
		o.Parent = func(uuid string) string { return strings.Replace(uuid, "MIG", "GPU", 1) }
	})
	type answer struct {
		Listed    bool
		All       int
		Processes []Process
	}
	ask := func(query string) (a answer) {
		t.Helper()
		w := request(s, http.MethodGet, "/api/v1/processes"+query)
		fixture.Stop(t, w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &a) != nil || a.Processes == nil,
			"%s: %d, %s", query, w.Code, w.Body)
		return a
	}
	pids := func(a answer) (all []int) {
		for _, p := range a.Processes {
			all = append(all, p.PID)
		}
		return all
	}
	for query, want := range map[string][]int{"?gpu=GPU-0": {2, 1, 4}, "?gpu=0": {2, 1, 4}, "?workload=unit:a": {3, 1}, "?workload=unit:c": {}} {
		a := ask(query)
		if got := pids(a); !a.Listed || a.All != len(want) || len(got) != len(want) {
			t.Errorf("%s has", query)
		} else {
			for i := range want {
				fixture.Equal(t, got[i], want[i], "%s has", query)
			}
		}
	}
	a := ask("?gpu=GPU-0")
	if p := a.Processes[1]; p.Name != "<b>" || p.User != "ann" || p.Workload != "unit:a" || *p.Memory != 5 || *p.SM != 2 ||
		!p.Since.Equal(noon) {
		t.Errorf("a process is %+v", p)
	}
	if p := a.Processes[2]; p.Name != "" || p.User != "" || p.Memory != nil || p.SM != nil || p.Since != nil {
		t.Errorf("an unknown process is %+v", p)
	}
	for i := range 2 * maxProcesses {
		all = append(all, in(100+i, "GPU-2", "", 1))
	}
	if a := ask("?gpu=GPU-2"); a.All != 2*maxProcesses || len(a.Processes) != maxProcesses {
		t.Errorf("%d of %d processes are listed", len(a.Processes), a.All)
	}
	// A job waits for its only process on a GPU, not for one of several.
	stuck := func(uuid, workload string) Workload {
		return Workload{Name: workload, GPUs: []WorkloadGPU{{UUID: uuid, Job: &Job{Hang: &Hang{}}}, {UUID: uuid, Job: &Job{}}}}
	}
	jobs := []Workload{stuck("GPU-1", "unit:a"), stuck("GPU-0", "unit:b"), stuck("GPU-2", "")}
	s.culprits(jobs)
	for i, want := range []int{3, 2, 0} {
		fixture.Equal(t, [2]int{jobs[i].GPUs[0].Job.PID, jobs[i].GPUs[1].Job.PID}, [2]int{want}, "job %d waits for", i)
	}
	var b strings.Builder
	style{width: 120}.job(&b, jobs[0])
	fixture.Contains(t, b.String(), "; its stack: sudo gpusteward stack 3\n", "the status")
	may = false
	if a := ask("?gpu=GPU-0"); a.Listed || len(a.Processes) > 0 {
		t.Errorf("although they may not be, processes are listed: %+v", a)
	}
	fixture.Equal(t, request(s, http.MethodGet, "/api/v1/processes").Code, http.StatusBadRequest,
		"all processes at once are answered with")
}

// TestBoardsStay keeps the names of GPUs while the driver is away.
func TestBoardsStay(t *testing.T) {
	var here, away samples
	here.identity("0", "H100")
	away.put(collectors.Up, 0, "0", "GPU-0")
	now := &here
	s := server(t, func(o *Options) { o.Samples = func() []collectors.Sample { return *now } })
	s.now()
	now = &away
	if g := s.now().GPUs[0]; g.Up || g.Name != "NVIDIA H100" || g.PCI != "00000000:0B:00.0" {
		t.Errorf("without a driver, the GPU is %+v", g)
	}
	var b boards
	for i := range 2 * historyGPUs {
		g := using(i, 1)
		g.Name = "H100"
		b.remind([]GPU{g})
	}
	fixture.Equal(t, len(b.known), historyGPUs, "boards remembered")
}
