// Package broker shares GPUs among processes that run under the hook. Each process has a
// session: a connection to the broker's Unix socket, over which it asks for time and memory,
// and a quota page, which says what it may launch.
//
//	process -> HELLO -> policy: tenant -> seats on GPUs -> page, leases, trace
//	ACQUIRE, YIELD, USAGE -> schedule.Scheduler -> pages
//	RESERVE, COMMIT, FREE -> ledger.Ledger -> GRANT or DENY
//
// The kernel identifies a process at its connection: credentials, a pidfd and the cgroup. A
// Policy of the caller maps these facts to a tenant. The name that a process asks for only
// chooses among the tenants that fit. Sessions of a tenant run and wait together, and share its
// memory. A reload judges all sessions again and drops none.
//
// An allocation is RESERVE, the driver's call, and COMMIT. For small ones the broker lends a
// process an eighth of what its tenant may still have, at most 256 MiB, in a word that both
// sides change. A process that needs idle memory of a lease gets it at once, even from a
// stopped process. The memory of a dead process stays charged until its pidfd has ended and
// the driver no longer lists it, for at most 2 s. One lock covers the time of all GPUs (gpu.go),
// because a gang is held back on all of its GPUs at the same moment.
//
// The parts of a Broker each own their fields, and lock them: the door accepts (door.go), the
// identifier asks the kernel who came (identity.go), the roll counts sessions and refuses them
// (roll.go), gpus has the governed GPUs (gpus.go), the timetable their time (gpu.go), traces shows what
// processes note (trace.go), and doubt knows when nobody may be blamed (doubt.go). common is what
// all of them read.
//
// STATS is the answer to the agent: the books, and what the enforcer adds. Every 100 ms the
// broker shows each trace to Options.Observe.
//
// Invariants:
//
//   - Only the broker writes a page; a process maps it read-only and sealed.
//   - Messages are hints. The broker's clock bounds what is charged, and the sum of committed
//     and reserved memory never exceeds a cap, unless it was adopted or the cap was lowered.
//   - A process that floods, lies or does not read harms only its own turns and memory. The
//     broker's parts are bounded for each process and user (roll.go).
//   - A process that says nothing for a turn and its drain gets no further turn until it does.
//   - A program that the broker could not serve for a reason of the broker's is excused.
//
// Begin with Options and Run in broker.go, loop.go, hello.go and gpu.go.
package broker
