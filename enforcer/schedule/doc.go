// Package schedule shares the time of a host's GPUs among tenants by one rule: everybody runs,
// and a tenant that is ahead is held back only while another one that wants the GPU is owed
// time.
//
// Service is measured in the time that a tenant would have needed alone, so a guarantee is a
// part of what the tenant does alone. While one tenant runs, service is the time that passes, at the
// pace of its turns: clocks and caches make a program up to a tenth slower or faster there than in a
// long run alone, if it had one. While several run, service is their launches times the duration of a
// launch when they ran alone.
// Lag is a tenant's part of the time less its service: a tenant with positive lag is owed, one
// with negative lag is ahead.
//
//   - Pace (pace.go): a tenant that never runs alone is measured alone for 30 ms, and again
//     when that is old or, while all are open, when its pace beside others becomes doubtful.
//     The more its launches differ, the longer they are remembered, and the error of the pace
//     counts for the neighbours. If a tenant was alone and always busy for more than a second,
//     what it did then is its lone pace for ten minutes, as long as a later measurement is
//     within a fifth of it. GPUs at their power limit have other clocks beside others than alone.
//   - Open (free.go): a tenant without an active neighbour for a second is Open: no launch is
//     counted or held back, and it reports once a second, or each 100 ms at first, while somebody
//     lacks some of its part, and for 2 s after somebody was curbed. Tenants that contend are tried
//     together for 40 ms, or for up to 400 ms if that tells too little. If each has its part, less
//     2 points, all are Open.
//     The first time after one came they are Open in doubt, too. A tenant that then lacks 100 ms
//     of its part ends it, and is owed that. The next attempt comes after 0.5 s, and after twice
//     as long each time that one was in vain, up to 2 min.
//   - Time slices (free.go): a tenant that comes back from a gap waits for the rest of its
//     neighbour's time slice. If a tenant lacks at most a quarter of its pace, a second trial
//     shortens the slices of those who are ahead, to 0.8 ms at first, unless turns are better.
//     They grow while everybody has more than its part, and shrink while somebody lacks some.
//   - Paces (free.go): programs that run at once, under MPS, have no slices. The launches of those
//     who are ahead may take a part of the time instead, their own part at first, by the same rule.
//     Paces aim at 5 % more than each part where somebody has more than that.
//   - Turns (decide.go): otherwise lag decides. If a tenant's lag exceeds 2 ms, the others are
//     paused until it has caught up. Tenants that do not clearly gain by running together take
//     turns of some 10 ms.
//   - Overruns (account.go): the others wait for 50 ms for a paused tenant to drain. After that
//     they go on, it has slices of 0.2 ms, and it is charged for what its neighbours' launches
//     leave. It owes that, up to 10 s, unless nobody else shared the GPU when its turn began.
//     Time that others do not want repays it, too.
//   - Precedence: a tenant that goes first, by class or by launch_wait, needs 85 % of its lone
//     pace. While it has that, all are Open and the others' slices are short. Otherwise the
//     others wait for it. A tenant whose limit would bind is not Open beside others.
//   - Gangs (gang.go): the ranks of a communicator on several GPUs, or a tenant that three times
//     does not drain on one GPU while it is held back on another. A gang is held back and
//     released on all its GPUs at once; ranks that have drained may launch until the others have.
//     The second kind ends when it has drained for 5 s without such help.
//
// Invariants: no tenant gains by its statements about others; a report is a hint, and the
// caller's clock bounds what is charged; the package is pure, and the caller passes the time.
//
// Begin with Decide in decide.go, and with free.go.
package schedule
