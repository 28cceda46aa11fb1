package exporter

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpusteward/collectors"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is\n%s\nwant\n%s", name, got, want)
	}
}

// noon is the time of every event in these tests.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// before returns the Unix time that was d before noon.
func before(d time.Duration) float64 { return float64(noon.Add(-d).UnixMilli()) / 1e3 }

// samples are built one after the other.
type samples []collectors.Sample

func (s *samples) put(m *collectors.Metric, v float64, labels ...string) {
	if len(labels) != len(m.Labels) {
		panic(m.Name)
	}
	*s = append(*s, collectors.Sample{Metric: m, Labels: labels, Value: v})
}

// host adds the samples of a host with so many GPUs.
func (s *samples) host(have, expected float64) {
	s.put(collectors.DriverInfo, 1, "580.95.05", "r580_93", "13.0", "13.580.95.05")
	s.put(collectors.DriverUp, 1)
	s.put(collectors.Drained, 0)
	s.put(collectors.Devices, have)
	s.put(collectors.DevicesExpected, expected)
}

// identity adds the identity of a GPU.
func (s *samples) identity(gpu, name string) {
	s.put(collectors.Up, 1, gpu, "GPU-"+gpu)
	s.put(collectors.Info, 1, gpu, "GPU-"+gpu, "NVIDIA "+name, "Nvidia", "Hopper", "9.0", "00000000:"+gpu+"B:00.0", gpu,
		"1654", "692-2G520", "96.00", "G520.0200", "580.95.05", "0", "1")
}

// h100 adds an H100 under full load.
func (s *samples) h100(gpu string) {
	uuid := "GPU-" + gpu
	put := func(m *collectors.Metric, v float64, labels ...string) {
		s.put(m, v, append([]string{gpu, uuid}, labels...)...)
	}
	put(collectors.GPMActivity, .9846, "graphics")
	put(collectors.GPMActivity, .9489, "sm")
	put(collectors.GPMActivity, .9216, "tensor")
	put(collectors.GPMActivity, .2557, "dram")
	put(collectors.GPMOccupancy, .1402)
	put(collectors.GPMPCIe, 6668245, "tx")
	put(collectors.GPMPCIe, 16844133, "rx")
	put(collectors.GPMNVLink, 3e9, "tx", "0")
	put(collectors.GPMNVLink, 4e9, "tx", "1")
	put(collectors.GPMNVLink, 5e9, "rx", "all")
	put(collectors.ClockEventActive, 0, "gpu_idle")
	put(collectors.ClockEventActive, 1, "sw_power_cap")
	put(collectors.Clock, 1.425e9, "sm")
	put(collectors.Clock, 2.619e9, "memory")
	put(collectors.ECCErrors, 0, "uncorrected", "volatile")
	put(collectors.ECCErrors, 7, "uncorrected", "aggregate")
	put(collectors.Energy, 1956983.752, "gpu")
	put(collectors.Events, 0, "ecc_sbe")
	put(collectors.Events, 3, "pstate")
	put(collectors.XIDErrors, 0, "79", "")
	s.identity(gpu, "H100 80GB HBM3")
	put(collectors.MemoryBytes, 70135906304, "used")
	put(collectors.MemoryBytes, 14880374784, "free")
	put(collectors.MemoryBytes, 503316480, "reserved")
	put(collectors.MemoryTotal, 85519597568)
	put(collectors.NVLinkBytes, 10240, "tx", "data", "0")
	put(collectors.NVLinkBytes, 20480, "rx", "data", "0")
	put(collectors.NVLinkBytes, 99999, "rx", "raw", "0")
	put(collectors.NVLinkBytes, 1024, "tx", "data", "1")
	put(collectors.PCIeReplays, 2)
	put(collectors.Power, 694.818, "average", "gpu")
	put(collectors.Power, 701.2, "instant", "gpu")
	put(collectors.Power, 88, "average", "memory")
	put(collectors.PowerLimit, 700, "enforced")
	put(collectors.PowerLimit, 500, "requested")
	put(collectors.Processes, 1, "compute")
	put(collectors.Processes, 0, "graphics")
	put(collectors.RecoveryAction, 0)
	put(collectors.RemappedRows, 1, "correctable", "active")
	put(collectors.RemappedRows, 2, "uncorrectable", "active")
	put(collectors.RemappedRows, 9, "uncorrectable", "inactive")
	put(collectors.RowRemapFailure, 0)
	put(collectors.RowRemapPending, 0)
	put(collectors.Temperature, 64, "gpu")
	put(collectors.Temperature, 56, "memory")
	put(collectors.TemperatureMargin, 23)
	put(collectors.Utilization, .99, "gpu")
	put(collectors.Utilization, .34, "memory")
	put(collectors.Utilization, 0, "encoder")
	put(collectors.Utilization, .07, "decoder")
}

// mig adds two instances of a GPU, one of them of two compute instances.
func (s *samples) mig(gpu string) {
	put := func(m *collectors.Metric, v float64, labels ...string) {
		s.put(m, v, append([]string{gpu, "GPU-" + gpu}, labels...)...)
	}
	put(collectors.MIGInfo, 1, "MIG-c", "9", "0", "1g.10gb", "16", "1", "0")
	for gi, gib := range map[string]float64{"9": 9, "10": 39} {
		put(collectors.MIGMemory, gib/2*(1<<30), gi, "used")
		put(collectors.MIGMemory, gib/2*(1<<30), gi, "free")
		put(collectors.MIGMemory, 0, gi, "reserved")
		put(collectors.MIGMemoryAll, gib*(1<<30), gi)
		put(collectors.MIGActivity, gib/100, gi, "sm")
		put(collectors.MIGActivity, gib/50, gi, "graphics")
		put(collectors.MIGOccupancy, .5, gi)
		put(collectors.MIGPCIe, 100*gib, gi, "tx")
	}
	put(collectors.MIGInfo, 1, "MIG-b", "10", "1", "1c.3g.40gb", "16", "3", "4")
	put(collectors.MIGInfo, 1, "MIG-a", "10", "0", "2c.3g.40gb", "32", "3", "4")
}

// down adds a GPU that does not answer.
func (s *samples) down(gpu, why string) {
	s.put(collectors.Up, 0, gpu, "GPU-"+gpu)
	s.put(collectors.WorkerStuck, 1, gpu, "GPU-"+gpu, why)
}

// workload adds a workload on a GPU.
func (s *samples) workload(name, gpu string, gib, share float64) {
	put := func(m *collectors.Metric, v float64, labels ...string) {
		s.put(m, v, append([]string{gpu, "GPU-" + gpu, name}, labels...)...)
	}
	put(collectors.WorkloadMemory, gib*(1<<30), "")
	put(collectors.WorkloadProcesses, 2, "compute")
	put(collectors.WorkloadUse, share, "sm")
	put(collectors.WorkloadUse, share/2, "memory")
	put(collectors.WorkloadSM, 3600*share)
	put(collectors.WorkloadEnergy, 1000)
}

// tenant adds a tenant's terms and use on a GPU; a limit of 0 is none.
func (s *samples) tenant(gpu, name string, target, share, limit, gib float64) {
	put := func(m *collectors.Metric, v float64, labels ...string) {
		s.put(m, v, append([]string{gpu, "GPU-" + gpu, name}, labels...)...)
	}
	put(collectors.QuotaSessions, 2)
	for window, wide := range map[string]float64{"1s": .1, "10s": 0} {
		put(collectors.QuotaTarget, target+wide, window)
		put(collectors.QuotaShare, share+wide, window)
	}
	put(collectors.QuotaMemoryUsed, gib*(1<<30))
	if limit > 0 {
		put(collectors.QuotaMemoryLimit, limit*(1<<30))
		put(collectors.QuotaLimit, .5)
	}
}

// quota adds a tenant's guarantee on a GPU, and its backends.
func (s *samples) quota(gpu, name string, guarantee float64, backends ...string) {
	s.put(collectors.QuotaGuarantee, guarantee, gpu, "GPU-"+gpu, name)
	for i, b := range backends {
		s.put(collectors.QuotaBackend, 1, gpu, "GPU-"+gpu, name, []string{"compute", "memory", "copies"}[i], b)
	}
}

// stands adds the level of a workload in the escalation, and its violations.
func (s *samples) stands(tenant, workload, level string, shadow bool, found map[string]float64) {
	for _, r := range collectors.Levels {
		s.put(collectors.QuotaLevel, collectors.Bool(r == level), tenant, workload, r)
	}
	s.put(collectors.QuotaShadow, collectors.Bool(shadow), tenant, workload)
	for objective, n := range found {
		s.put(collectors.QuotaViolations, n/2, "0", "GPU-0", tenant, workload, objective)
		s.put(collectors.QuotaViolations, n/2, "1", "GPU-1", tenant, workload, objective)
	}
}

// began adds the info of a workload, and its start.
func (s *samples) began(name, kind string, ago time.Duration) {
	user := map[string]string{"slurm": "carol"}[kind]
	s.put(collectors.WorkloadInfo, 1, name, kind, "", "", "", "", "", "", "", "1003", "", "", user, "", "")
	s.put(collectors.WorkloadStart, before(ago), name)
}

// state returns the state of the samples.
func (s samples) state(change func(*State)) State {
	state := State{Time: noon, Version: "1.0", Host: HostState{Name: "node17"}}
	state.fill(s)
	if change != nil {
		change(&state)
	}
	return state
}
