// Package gemini implements the wire protocol of Gemini and KubeShare, so that programs under
// their hook share a GPU with the turns and the books of this one. It replaces the pod manager
// that hooks connect to, or the scheduler that pod managers connect to.
//
//	client -> conn -> tokens (schedule.Scheduler with Turns) -> an answer, withheld until its turn
//	               -> ledger.Ledger -> memory granted or refused
//
// There is one server for each GPU, with a schedule and a ledger of its own. A turn is an answer
// that is withheld until its time, so neither a quota page nor a session with the broker is
// needed. A client reports that it wants the GPU only when it comes back, often a little late.
// Turns therefore follow the weights among the clients of the last 100 ms, and a late client is
// owed its part meanwhile. A turn ends with its client's next request, with the end of its
// process, or by the clock, and not with a connection. The table of clients is a file in
// Gemini's format, which is read again when it changes (watch.go, table.go).
//
// The protocol has no authentication. For connections of this host the kernel knows the process
// and its cgroup: memory is accounted by process, and a name stays with one cgroup as long as
// that uses it. For those of other hosts and network namespaces there is only the name.
//
// Invariants: a turn that was given cannot be revoked, so the schedule waits for each; a client
// has at most 64 connections; a client that does not come back holds up the others only until
// its turn ends by the clock.
//
// Begin with New in server.go, and tokens.go.
package gemini
