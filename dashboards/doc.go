// Package dashboards generates Grafana dashboards from rows: what a panel shows, from which
// metrics, and why an operator would look at it. Its golden test writes them with -update
// (make generate); no package imports it.
//
// A dashboard is a value of the types in dashboard.go, in a file of its own: fleet, host, gpu,
// workloads, jobs, quotas, events and agent. query.go writes PromQL from variables of metrics,
// panel.go gives each kind of panel its defaults, and grafana.go turns all into Grafana's JSON by
// its foundation SDK. dcgm.go lists dcgm-exporter's metrics of profiling, which stand in for ours
// on GPUs before Hopper.
//
// Invariants:
//
//   - A query names a metric by its variable: a renamed metric does not compile.
//   - Each panel has a description, a unit of Grafana's, and queries that return series on a
//     simulated host. make test-servers runs each query on Prometheus 2 and 3.
//   - A metric that no panel shows stands in unshown_test.go, with a reason.
//   - Links between dashboards pass on the labels of the entity.
//
// Begin with dashboard.go and host.go.
package dashboards
