// Package enforcer enforces quotas and upholds guarantees. It combines the packages below it
// once a second.
//
//	driver's device processes -\                    /-> metrics, alerts
//	broker's books (sessions) --> audit, QoS -> escalation -> actions, journal
//	policy --------------------/                    \-> terms in force -> broker, backends
//
// The root has the wiring, and what has no other home:
//
//	enforcer.go   Options, the wiring of the parts, and the look
//	held.go       who is held back, and why: that excuses workloads
//	capacity.go   what tenants can have of each GPU's memory
//	observed.go   what traces tell, by the names of workloads: jobs, crashes, profiles
//	lock.go       one enforcer in a directory
//
// The parts each own their fields: package response the terms in force and the escalation, package
// swap the workloads whose memory is on the host, package policy the identities of processes without
// a session, package backend the demands. At each tick Enforcer.look asks the driver and the broker,
// has the audit compare the two, and gives each part its look, on one goroutine. What others call
// concurrently is behind an atomic pointer or a mutex, and the part's comment says so. The
// enforcer's part of STATS is published at the end of the look.
//
// Invariants:
//
//   - A fact that cannot be known is neither a violation nor clean.
//   - A fault of the hardware, or a GPU that does not answer, excuses the workloads on it. While
//     the broker starves or was away, no workload rises above warn.
//   - What is paused or suspended is recorded before it happens, and the next enforcer finds it.
//     When the enforcer ends, paused workloads continue.
//   - One enforcer runs in a directory.
//   - Nothing on the loop waits for the driver: its calls are in child processes.
//
// Begin with wire and look in enforcer.go.
package enforcer
