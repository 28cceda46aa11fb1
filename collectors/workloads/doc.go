// Package workloads reads who uses the GPUs, and what the broker and the enforcer report of
// tenants and jobs.
//
// The collector processes lists the processes of a GPU each second (0.1 ms) and integrates the
// driver's samples of them every 5 s (2 ms), or each second while a process is younger than
// 10 s. The driver returns one average for a process over the time since the last call, at
// most 12 s, and forgets a process that ended: a process loses at most its last 5 s. Clients
// of MPS have memory but no samples: all SM time is the MPS server's, which belongs to the
// workload of its clients, or to mps:UID if there are several.
//
// The collector broker asks the broker's socket for STATS, as a client does: broker and agent
// may be one process or two. The answer has the books of the broker, and what the enforcer
// finds in the traces of programs: steps, ranks, stragglers and hangs. The collector adds up
// the processes of a workload on a GPU. tally.go keeps what ended processes did.
//
// Invariants:
//
//   - Counters of a workload never fall. They continue if it returns within ten minutes.
//   - The workloads, jobs, ranks, hangs and stragglers that are shown are bounded; what is
//     beyond the bound is counted.
//   - A collector that cannot reach the broker shows nothing of it, and gpusteward_broker_up 0.
//
// Begin with processes.go for the driver's view, and with broker.go and jobs.go for the
// broker's.
package workloads
