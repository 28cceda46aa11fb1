// Package enforcer enforces quotas and upholds guarantees. It combines the packages below it
// once a second.
//
//	driver's device processes -\                    /-> metrics, alerts
//	broker's books (sessions) --> audit, QoS -> escalation -> actions, journal
//	policy --------------------/                    \-> terms in force -> broker, backends
//
// The root has the wiring, and parts that each own their fields:
//
//	part        owns                                                  begin with
//	inForce     the terms in force: the policy's, less what the
//	            escalation and the pacer take; the broker's policy    terms.go
//	capacity    what tenants can have of each GPU's memory            capacity.go
//	response    the escalation, the actor, the state file, the
//	            groups of processes that they act on                  response.go
//	swapper     workloads whose memory is on the host                 package swap
//	observers   what traces tell: jobs, crashes, profiles             observed.go
//	demands     what the backends hold                                demands.go
//
// At each tick Enforcer.look asks the driver and the broker, has the audit compare the two, and
// gives each part its look, on one goroutine. held.go collects who is held back, and why: that
// excuses workloads. What others call concurrently is behind an atomic pointer or a mutex, and the
// part's comment says so. The enforcer's part of STATS is published at the end of the look.
//
// The pacer takes time from tenants whose kernels exceed their part of the memory's bandwidth
// (pace.go): such kernels are known only from the driver's samples.
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
// Begin with wire and look in enforcer.go.
package enforcer
