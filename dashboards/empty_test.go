//go:build servers

package dashboards

// late lists panels that may have no data within the time of a test, with reasons.
var late = map[string]string{
	"gpusteward-workloads, Time until memory is full":  "a trend over a quarter of an hour",
	"gpusteward-health, Deviation from peers":          "finding peers under the same load takes minutes",
	"gpusteward-health, SM clock against peers":        "finding peers under the same load takes minutes",
	"gpusteward-health, Anomalies":                     "a baseline takes ten minutes",
	"gpusteward-health, Drift":                         "a baseline takes an hour",
	"gpusteward-health, Time until thermal slowdown":   "a trend over a quarter of an hour",
	"gpusteward-health, Time until spare rows run out": "a trend over two weeks",
	"gpusteward-quotas, Time until the memory cap":     "a trend over a quarter of an hour",

	"gpusteward-fleet, Error budget burn": "recorded every four minutes",
	"gpusteward-fleet, Error budget left": "recorded every four minutes",
}

// rightlyEmpty lists panels with a query that has no data on the simulated host, with reasons.
// The test fails if such a panel has data.
var rightlyEmpty = map[string]string{
	"gpusteward-agent, Series dropped": "no collector of this host has too many series",
	"gpusteward-workloads, Allocated and idle": "allocations come from the kubelet or Slurm's cgroups, " +
		"and the simulated host has neither",
	"gpusteward-agent, Attribution": "all sources of names answer",

	"gpusteward-jobs, Hangs":      "no job of the simulated host hangs",
	"gpusteward-jobs, Slow jobs":  "no job of the simulated host is slow",
	"gpusteward-jobs, Stragglers": "no rank of the simulated host is late",

	"gpusteward-quotas, Suspended workloads":          "no workload of the simulated host is suspended",
	"gpusteward-quotas, Time suspended":               "no workload of the simulated host is suspended",
	"gpusteward-quotas, Suspension time":              "no workload of the simulated host is suspended",
	"gpusteward-quotas, Waits for overcommitted GPUs": "no GPU of the simulated host is overcommitted",
	"gpusteward-quotas, Queue for overcommitted GPUs": "no GPU of the simulated host is overcommitted",
	"gpusteward-quotas, Suspensions":                  "no workload of the simulated host is suspended, hence none has failed",

	"gpusteward-quotas, Gemini": "the simulated host serves no programs under Gemini's hook",
	"gpusteward-quotas, MPS":    "the simulated host has no MPS daemon with clients",
}
