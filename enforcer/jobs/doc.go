// Package jobs watches what programs do, as their traces tell it: how long their steps take,
// why one took longer, which rank comes last, and for which process a job waits that hangs.
//
//	trace -> events -> steps.Finder -> sums of the process (JobStats), slow steps and causes
//	      -> communicators, waits -----> laps (StragglerStats), hangs (HangStats)
//	NCCL's RAS service -> ras.Hang ----> hangs of jobs without the hook
//	sockets, /proc ----> views ---------> servers that are stuck, with the hook or without
//
// The broker shows each trace every 100 ms (Observe). Steps of a pattern count after 40 of
// them, or after a minute in them.
//
// Slow steps (slow.go, cause.go). Spans of 5 s are compared with the usual step, the mean of
// the process's own steps over four hours in which it was not slow. Three of the last four
// spans must be longer by a tenth, and by more than spans usually differ. A cause is the part
// of the step that has at least half of the additional time, with evidence that is unlike
// usual; two judgements must agree. Steps that launch or copy more are other work.
//
// Hangs (hang.go, exchange.go). A job hangs if a rank waits in the driver, or its GPU in a
// collective, for 10 s and for three times its usual longest pause. The culprit must be still
// for as long. Reasons are tried from the surest on: ranks that wait for each other (deadlock.go),
// one that has ended, that is stopped, that has called fewer collectives, whose GPU has not come to
// the collective, that has called another one. A rank that computes or moves bytes may be saving or
// compiling, and is not blamed for ten minutes (watch.go). In a program without other ranks, any
// thread may wait for work that does not end (endless.go). A server without steps hangs if the input of its clients
// waits while it does nothing (serve.go, sockets.go). Package stack reads where they stand.
//
// Stragglers (straggler.go). The ranks of a communicator on the host run laps of 5 s or a step.
// The rank that spends the least time in collectives came last. Five of six laps name it, with
// the part of its steps that is longer than its peers'. Rules in package alerts compare ranks
// across hosts.
//
// Jobs without the hook (ras.go). A question can crash the job that is asked, so NCCL is asked
// only on suspicion, while nothing changes, and only in releases that an operator names.
//
// Invariants:
//
//   - A program writes its own trace: one that lies spoils its own statistics, and at worst
//     those of its owner (a pod, container, job or user).
//   - Ranks are of one job only if tenant and owner are the same.
//   - In doubt nobody is blamed, and the cause or the reason is unknown.
//
// Begin with Observe and Look in observer.go, then judge in hang.go. The table grounds in blame.go says
// why a rank is named, and limits.go has all numbers with their tests.
package jobs
