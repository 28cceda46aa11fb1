// Package alerts generates Prometheus alerting rules, their tests and the runbook from the rows
// of health.Checks and from the table of fleet rules. Its golden test writes them with -update
// (make generate); no package imports it.
//
// Each level of a check becomes a rule (rule.go), each rule a test from series that the check's
// signals make (ruletest.go, leveltest.go), and each alert an entry of the runbook
// (runbook.go). Tables of this package add what no single host can see: fleet.go and rack.go
// compare hosts, straggler.go compares ranks across hosts, slo.go and recording.go have service
// levels and recording rules. scene.go is the scene of several hosts in which they are tested.
//
// minimal.go derives from all rules which series a host must show for them: the profile minimal
// of /metrics.
//
// Invariants: a rule and the host's check have the same thresholds, because they have the same
// row; promtool runs the test of each rule; an alert has one runbook entry.
//
// Begin with rule.go, and with fleet.go for rules over hosts.
package alerts
