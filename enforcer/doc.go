// Package enforcer enforces quotas and upholds guarantees. It combines the packages below it
// once a second.
//
//	driver's device processes -\                    /-> metrics, alerts
//	broker's books (sessions) --> audit, QoS -> escalation -> actions, journal
//	policy --------------------/                    \-> terms in force -> broker, backends
//
// At each tick (look) the audit compares the broker's books with the driver's, the escalation
// decides about workloads that violate a quota, and the actor and the swapper carry that out.
// The terms in force are the policy's, less what the escalation and the pacer take (terms.go);
// the broker and the backends get them. The pacer takes time from tenants whose kernels exceed
// their part of the memory's bandwidth (pace.go): such kernels are known only from the driver's
// samples.
//
// The package also names the workloads of observed jobs (observed.go), publishes what it knows
// as the enforcer's part of STATS.
//
// Invariants:
//
//   - A fact that cannot be known is neither a violation nor clean.
//   - A fault of the hardware, or a GPU that does not answer, excuses the workloads on it. While
//     the broker starves or was away, no workload rises above warn.
//   - What is paused or suspended is recorded before it happens, and the next enforcer finds it.
//     When the enforcer ends, paused workloads continue.
//   - One enforcer runs in a directory (lock.go).
//   - Nothing on the loop waits for the driver: its calls are in child processes.
//
// TestDay (make day) lets 100 tenants with random quotas, loads and faults live
// for a day of simulated time, and compares the decisions with the truth.
//
// Begin with look in enforcer.go, and terms.go.
package enforcer
