// Package derived computes metrics from series of samples: the distance of a value from its
// last ones, from those of the GPU's siblings and from the GPU's own past, the forecast of a
// trend, and a score of a GPU's faults. A check then needs only thresholds, on the host and in
// Prometheus.
//
//	Snapshot -> inputs of each GPU -> windows, baselines, trends -> samples of derived metrics
//
// Every ten seconds Derive reads the inputs of each GPU (inputs.go): sums of series and rates
// of counters. Each file has one method:
//
//   - anomaly.go: the newest value against the GPU's own last ten minutes
//   - peers.go, partners.go: the GPU against others of its model and power limit with a similar
//     load, and against those with the same job
//   - drift.go: the means of minutes against an hour of similar load, and corrected errors
//     against their usual rate
//   - forecast.go: when a trend reaches its limit, if it is certain and goes on
//   - links.go: an NVLink against the GPU's others, and against those of GPUs of its model
//   - place.go: the temperature at a power against what it used to be, less what the air does to
//     all GPUs of the host
//   - tenancy.go: trends of tenants towards their caps or away from their guarantees
//   - wait.go: GPUs that are busy and get nothing done
//   - score.go: past faults, weighted and decaying
//
// Invariants:
//
//   - Derive is pure apart from its memory: the same calls make the same samples.
//   - The memory is bounded for each GPU, link and workload.
//   - Where there is nothing to compare with, a metric is absent.
//   - The history of a GPU goes with its UUID, and outlives a restart; the windows do not.
//
// Begin with Derive in metrics.go and inputs.go.
package derived
