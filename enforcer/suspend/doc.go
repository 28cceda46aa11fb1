// Package suspend takes the GPU memory of workloads and gives it back. The driver copies the
// GPU state of a process into host memory, and stops the process at its next call of the driver
// until the state is back on the GPU. The process notices nothing but the time.
//
// Orders come from the enforcer's control socket, the escalation, and residency. All processes
// of a workload are locked before the first one is checkpointed, and restored before the first
// one is unlocked. A process that starts in a suspended workload is marked as new in the record
// while it joins: only new processes are undone if that fails. Guards (guard.go) trace the
// suspended processes, because the driver's library faults in threads that ask about the GPU.
//
// Every call of the driver is made in a child process, and is given up at a deadline; it ends by
// itself.
//
// Invariants:
//
//   - What is about to be done is recorded before it is done: the next enforcer finds every
//     process that this one suspended, and resumes what was not finished.
//   - All processes of a workload are suspended, or none.
//   - The driver is not asked to restore a process for which the GPU has no room.
//
// Begin with Suspender in suspend.go, which owns the records (record.go), and with Mover in mover.go,
// which asks the driver.
package suspend
