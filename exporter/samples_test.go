package exporter

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/links"
	"gpusteward/collectors/workloads"
)

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

// of returns a function that adds samples of a GPU, or of something on it.
func (s *samples) of(gpu string, name ...string) func(m *collectors.Metric, v float64, labels ...string) {
	return func(m *collectors.Metric, v float64, labels ...string) {
		s.put(m, v, slices.Concat([]string{gpu, "GPU-" + gpu}, name, labels)...)
	}
}

// host adds the samples of a host with so many GPUs.
func (s *samples) host(have, expected float64) {
	s.put(device.DriverInfo, 1, "580.95.05", "r580_93", "13.0", "13.580.95.05")
	s.put(collectors.DriverUp, 1)
	s.put(collectors.Drained, 0)
	s.put(collectors.Devices, have)
	s.put(collectors.DevicesExpected, expected)
}

// identity adds the identity of a GPU.
func (s *samples) identity(gpu, name string) {
	s.put(collectors.Up, 1, gpu, "GPU-"+gpu)
	s.put(device.Info, 1, gpu, "GPU-"+gpu, "NVIDIA "+name, "Nvidia", "Hopper", "9.0", "00000000:"+gpu+"B:00.0", gpu,
		"1654", "692-2G520", "96.00", "G520.0200", "580.95.05", "0", "1")
}

// load adds the samples of a file of testdata: each row has a metric, a value, and the labels after the GPU's.
func (s *samples) load(name, gpu string) {
	text, err := os.ReadFile("testdata/" + name)
	for line := range strings.Lines(string(text)) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		i := slices.IndexFunc(collectors.Metrics(), func(m *collectors.Metric) bool { return m.Name == row[0] })
		v, wrong := strconv.ParseFloat(row[1], 64)
		err = errors.Join(err, wrong)
		s.of(gpu)(collectors.Metrics()[i], v, row[2:]...)
	}
	if err != nil {
		panic(err)
	}
}

// h100 adds an H100 under full load.
func (s *samples) h100(gpu string) {
	s.identity(gpu, "H100 80GB HBM3")
	s.load("h100.tsv", gpu)
}

// added adds readings of a GPU that only some sites collect from DCGM.
func (s *samples) added(gpu string) {
	put := s.of(gpu)
	for i, kind := range []string{"crc_flit", "crc_data", "replay", "recovery"} {
		put(links.NVLinkErrors, float64(i), kind, "0")
		put(links.NVLinkErrors, 5, kind, "1")
	}
	put(device.FanSpeed, .5, "1")
	put(device.ClockEventActive, 0, "hw_slowdown")
	put(device.ClockEventActive, 1, "sw_thermal")
	for i, r := range slices.DeleteFunc(slices.Clone(dcgmRows), func(r dcgmRow) bool { return !r.added }) {
		sums := slices.ContainsFunc(r.match, func(value string) bool { return value == "+" || strings.Contains(value, "|") })
		fits := func(o collectors.Sample) bool {
			return o.Metric == r.metric && o.Labels[0] == gpu && (sums || slices.Equal(o.Labels[2:], r.match))
		}
		if !slices.ContainsFunc(*s, fits) { // a value for each row that has none yet
			put(r.metric, float64(i+2)/r.scale, r.match...)
		}
	}
}

// held adds the holder of a GPU or of its instance.
func (s *samples) held(gpu, gi, namespace, pod, container, job string) {
	s.put(workloads.HolderInfo, 1, gpu, "GPU-"+gpu, gi, namespace, pod, container, job)
}

// mig adds two instances of a GPU, one of them of two compute instances.
func (s *samples) mig(gpu string) { s.load("mig.tsv", gpu) }

// down adds a GPU that does not answer.
func (s *samples) down(gpu, why string) {
	s.put(collectors.Up, 0, gpu, "GPU-"+gpu)
	s.put(collectors.WorkerStuck, 1, gpu, "GPU-"+gpu, why)
}

// workload adds a workload on a GPU.
func (s *samples) workload(name, gpu string, gib, share float64) {
	put := s.of(gpu, name)
	put(workloads.WorkloadMemory, gib*(1<<30), "")
	put(workloads.WorkloadProcesses, 2, "compute")
	put(workloads.WorkloadUse, share, "sm")
	put(workloads.WorkloadUse, share/2, "memory")
	put(workloads.WorkloadSM, 3600*share)
	put(workloads.WorkloadEnergy, 1000)
}

// job adds what a workload does on a GPU.
func (s *samples) job(workload, gpu string, stepping, seconds float64) {
	s.put(workloads.JobStepping, stepping, gpu, "GPU-"+gpu, "default", workload)
	s.put(workloads.JobMedian, seconds, gpu, "GPU-"+gpu, "default", workload)
}

// tenant adds a tenant's terms and use on a GPU; a limit of 0 is none.
func (s *samples) tenant(gpu, name string, target, share, limit, gib float64) {
	put := s.of(gpu, name)
	put(workloads.QuotaSessions, 2)
	for window, wide := range map[string]float64{"1s": .1, "10s": 0} {
		put(workloads.QuotaTarget, target+wide, window)
		put(workloads.QuotaShare, share+wide, window)
	}
	put(workloads.QuotaMemoryUsed, gib*(1<<30))
	if limit > 0 {
		put(workloads.QuotaMemoryLimit, limit*(1<<30))
		put(workloads.QuotaLimit, .5)
	}
}

// quota adds a tenant's guarantee on a GPU, and its backends.
func (s *samples) quota(gpu, name string, guarantee float64, backends ...string) {
	s.put(workloads.QuotaGuarantee, guarantee, gpu, "GPU-"+gpu, name)
	for i, b := range backends {
		s.put(workloads.QuotaBackend, 1, gpu, "GPU-"+gpu, name, []string{"compute", "memory", "copies"}[i], b)
	}
}

// stands adds the level of a workload in the escalation, and its violations.
func (s *samples) stands(tenant, workload, level string, shadow bool, found map[string]float64) {
	for _, r := range workloads.Levels {
		s.put(workloads.QuotaLevel, collectors.Bool(r == level), tenant, workload, r)
	}
	s.put(workloads.QuotaShadow, collectors.Bool(shadow), tenant, workload)
	for objective, n := range found {
		s.put(workloads.QuotaViolations, n/2, "0", "GPU-0", tenant, workload, objective)
		s.put(workloads.QuotaViolations, n/2, "1", "GPU-1", tenant, workload, objective)
	}
}

// began adds the info of a workload, and its start.
func (s *samples) began(name, kind string, ago time.Duration) {
	user := map[string]string{"slurm": "carol"}[kind]
	s.put(workloads.WorkloadInfo, 1, name, kind, "", "", "", "", "", "", "", "1003", "", "", user, "", "")
	s.put(workloads.WorkloadStart, before(ago), name)
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
