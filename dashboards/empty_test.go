//go:build servers

package dashboards

// late are the panels whose answer may take longer than a test should, and why.
var late = map[string]string{
	"gpusteward-workloads, Time until memory is full":      "a trend of a quarter of an hour",
	"gpusteward-health, Unlike the siblings":               "it takes minutes to know who is loaded alike",
	"gpusteward-health, SM clock against siblings":         "it takes minutes to know who is loaded alike",
	"gpusteward-health, Anomalies":                         "it takes ten minutes to know what is usual",
	"gpusteward-health, Drift":                             "it takes an hour to know what is usual",
	"gpusteward-health, Time until it is too hot":          "a trend of a quarter of an hour",
	"gpusteward-health, Time until no spare rows are left": "a trend of two weeks",
	"gpusteward-quotas, Time until the cap":                "a trend of a quarter of an hour",
}

// rightlyEmpty are the panels of which a query has no answer on the simulated
// host, by dashboard and panel, and why. One that answers all the same is an
// error.
var rightlyEmpty = map[string]string{
	"gpusteward-agent, Series left out":        "no collector of this host has too many series",
	"gpusteward-workloads, Allocated and idle": "allocations are the kubelet's or those of Slurm's cgroups, and the simulated host has neither",
	"gpusteward-agent, Attribution":            "whoever is asked for names answers",

	"gpusteward-quotas, Gemini": "the simulated host serves no programs under Gemini's hook",
	"gpusteward-quotas, MPS":    "the simulated host has no daemon of MPS that serves clients",
}
