package jobs

import "time"

// All numbers that this package measures against, with unit and meaning.

// When a job hangs: see hang.go and blame.go.
const (
	patience    = 10 * time.Second // without a call of a rank that waits
	pauses      = 3                // times its usual longest pause, which that must exceed
	settleFor   = time.Minute      // instead of patience, before steps are known: one may be long
	kernelFor   = 30 * time.Second // without a call of a single process, whose kernels may be long
	lookFrom    = 3 * time.Second  // without a call, from which on it is observed from outside
	computesFor = 10 * time.Minute // in which a rank that computes may compile or save; another host's is not seen
	busyFor     = 2 * time.Second  // since its GPU was last seen with work, while the process counts as blocked
	placeLooks  = 3                // looks until a hang is told without the place of its culprit: an alert is sent once
	placeTime   = 30 * time.Second // for reading where a culprit stands, with the readings of others before it
)

// When work does not end in a program that waits for no other process: see endless.go.
const (
	knownWaits = 32               // waits of a thread, after which its longest one is known
	slowFor    = 30 * time.Second // instead of patience, while something slows the GPU down
	slowPauses = 10               // instead of pauses, likewise
	copyRate   = 100e6            // bytes a second of the slowest copy
)

// What a process does, as seen from outside between two looks a second apart: see watch.go.
const (
	someTicks   = 5       // hundredths of a second of processors that count as doing something
	someBytes   = 1 << 20 // bytes read and written that do
	idleLooks   = 5       // looks in a row without either, after which it does nothing
	mostBlocked = 600     // looks in a row in which it waits for a disk, after which the file system hangs
)

// When a process steps: see observer.go.
const (
	trustedSteps = 40               // steps of a pattern, which may be tokens or layers at first
	trustedTime  = time.Minute      // in steps of a pattern, which is enough as well
	standsAfter  = 10 * time.Second // without the end of a step, and
	standsSteps  = 3                // times the mean step, after which the process stands still
)

// When steps are slow: see slow.go.
const (
	slowFactor = 1.2             // times the usual step, from which on a step is slow
	slowLeast  = 2e-3            // seconds more than usual that it takes at least
	spanLength = 5 * time.Second // of the spans that are compared
	slowSpan   = 0.1             // of the usual step, by which the mean of a slow span is longer, and
	slowSpread = 3.5             // times what spans differ by
	spansKept  = 4               // last spans, of which all but one are slow when the process is
	spansFirst = 8               // spans, before any is judged
	unusual    = 1.25            // times the median of the first spans: a longer one has a checkpoint
	usualFrom  = 3               // spans that are usual, from which on the usual step is known, and
	usualSteps = 16              // steps in them
	usualMost  = 2880            // spans, four hours, of which the usual step is the mean
	spreadMost = 64              // spans, of which the spread is the mean
	passes     = 12              // slow spans without a cause that count as usual once they have passed
	forgetSlow = 6 * time.Hour   // slow, after which that is usual
)

// What tells why steps are slow, compared with usual steps: see cause.go.
const (
	moreOften    = 0.3    // of the time more, for reasons of reduced clocks
	moreUsed     = 0.05   // of the GPU more, by neighbours
	moreCode     = 0.05   // of the time more in which the main thread computes
	pressureFrom = 0.15   // of the time under pressure, and
	pressureMore = 1.5    // times as much as usual
	lowerClock   = 0.95   // of the usual clock, below which it is lower
	slowerLink   = 0.9    // of the usual speed, below which a link is slower
	moreWork     = 1.05   // times as many launches or bytes
	slowestCopy  = 0.25e9 // bytes a second: a copy that takes longer waits for the GPU
)

// When a rank is a straggler: see straggler.go.
const (
	lapLeast     = 5 * time.Second        // of a lap
	lapsKept     = 6                      // last laps, of which
	lapsToName   = 5                      // findings name a rank, and
	lapsToStay   = 2                      // keep it named
	lapForgotten = time.Minute            // without a lap, and
	lapsAway     = 3                      // times the last one, after which the race begins again
	lostLeast    = 0.05                   // of the time: the part that the peers wait longer
	lostFactor   = 4                      // times the peers' own differences, which that exceeds, too
	pauseLeast   = 100 * time.Millisecond // in a collective, before it can be a pause
)

// When NCCL is asked about a job without the hook: see ras.go.
const (
	restFor    = 10 * time.Second // in which one process leaves its GPU idle, and another one's is busy
	settledFor = 30 * time.Second // in which no process of theirs opens or closes anything
	lookEvery  = 5 * time.Second  // from one look at what they have open to the next
	maxWait    = 10 * time.Minute // between questions: the first wait is ras.Patience, and each next one twice as long
	sampledFor = 8 * time.Second  // of GPU time, which tell whether a process uses its GPU
	idleShare  = 0.5              // of a GPU: a culprit has used less in each of the last samples
	waitShare  = 0.9              // of a GPU: NCCL's kernel spins while it waits for other ranks
	aloneFor   = 5 * time.Minute  // after one ended whose last collectives are not known: another may compute alone
)

// What is remembered and shown at most.
const (
	maxProcesses     = 1024             // processes that are observed
	keepEnded        = 10 * time.Minute // for which one that has ended is known
	maxCommunicators = 4                // that are shown of a process
	maxRounds        = 64               // in which ranks are left out that are not deadlocked; then nobody is
	maxPlaces        = 4                // of the ranks of a deadlock that are told
	maxFamily        = 256              // processes of a family that are looked at, and threads of each
	maxOpen          = 4096             // files and threads of a process that NCCL may ask
	maxRefusals      = 64               // reasons not to ask that the log has: a process names its own version
)
