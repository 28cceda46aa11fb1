package jobs

import "time"

// All numbers that this package measures against, with unit and meaning, and a test that fails if the number is far
// larger or far smaller.

// When a job hangs: see hang.go and blame.go.
const (
	patience    = 10 * time.Second // without a call of a rank that waits (TestCulprits)
	pauses      = 3                // times its usual longest pause, which that must exceed (TestAKernelIsJudgedByTheStep)
	settleFor   = time.Minute      // instead of patience, before steps are known: one may be long (TestHangsBeforeStepsAreKnown)
	kernelFor   = 30 * time.Second // without a call of a single process, whose kernels may be long (TestBoundaries)
	lookFrom    = 3 * time.Second  // without a call, from which on it is observed from outside (TestBoundaries)
	computesFor = 10 * time.Minute // in which a rank that computes may compile or save; another host's is not seen (TestWhoComputesHasTime)
	busyFor     = 2 * time.Second  // since its GPU was last seen with work, while the process counts as blocked (TestBoundaries)
	placeLooks  = 3                // looks until a hang is told without the place of its culprit: an alert is sent once (TestCulprits)
	flightLooks = 4                // processes of a party of which one look reads what is in flight (TestEndlessWork)
	placeTries  = 3                // readings of where a culprit stands, until all of it is read (no test)
	placeTime   = 30 * time.Second // for reading where a culprit stands, with the readings of others before it (no test)
)

// When work does not end in a program that waits for no other process: see endless.go.
const (
	knownWaits = 32               // waits of a thread, after which its longest one is known (TestEndlessWork)
	clockStops = time.Second      // after a launch that does not return, at the latest (TestEndlessWork)
	slowFor    = 30 * time.Second // instead of patience, while something slows the GPU down (TestEndlessWork)
	slowPauses = 10               // instead of pauses, likewise (TestEndlessWork)
	copyRate   = 100e6            // bytes a second of the slowest copy (TestEndlessWork)
)

// What a process does, as seen from outside between two looks a second apart: see watch.go.
const (
	someTicks   = 5       // hundredths of a second of processors that count as doing something (TestWorldSample)
	someBytes   = 1 << 20 // bytes read and written that do (TestBoundaries)
	idleLooks   = 5       // looks in a row without either, after which it does nothing (TestBoundaries)
	mostBlocked = 600     // looks in a row in which it waits for a disk, after which the file system hangs (TestBoundaries)
)

// When a process steps: see observer.go.
const (
	trustedSteps = 40               // steps of a pattern, which may be tokens or layers at first (TestBoundaries)
	trustedTime  = time.Minute      // in steps of a pattern, which is enough as well (TestBoundaries)
	standsAfter  = 10 * time.Second // without the end of a step, and (TestAProcessThatStandsIsOutside)
	standsSteps  = 3                // times the mean step, after which the process stands still (TestBoundaries)
)

// When steps are slow: see slow.go.
const (
	slowFactor = 1.2             // times the usual step, from which on a step is slow (TestBoundaries)
	slowLeast  = 2e-3            // seconds more than usual that it takes at least (TestBoundaries)
	spanLength = 5 * time.Second // of the spans that are compared (TestPace)
	slowSpan   = 0.1             // of the usual step, by which the mean of a slow span is longer, and (TestPace)
	slowSpread = 3.5             // times what spans differ by (TestPassingSlowness)
	spansKept  = 4               // last spans, of which all but one are slow when the process is (TestPace)
	spansFirst = 8               // spans, before any is judged (TestCheckpointsAreNotUsual)
	unusual    = 1.25            // times the median of the first spans: a longer one has a checkpoint (TestCheckpointsAreNotUsual)
	usualFrom  = 3               // spans that are usual, from which on the usual step is known, and (TestBoundaries)
	usualSteps = 16              // steps in them (TestBoundaries)
	usualMost  = 2880            // spans, four hours, of which the usual step is the mean (TestBoundaries)
	spreadMost = 64              // spans, of which the spread is the mean (TestPassingSlowness)
	passes     = 12              // slow spans without a cause that count as usual once they have passed (TestPassingSlowness)
	forgetSlow = 6 * time.Hour   // slow, after which that is usual (TestPace)
)

// What tells why steps are slow, compared with usual steps: see cause.go.
const (
	moreOften    = 0.3    // of the time more, for reasons of reduced clocks (TestBoundaries)
	moreUsed     = 0.05   // of the GPU more, by neighbours (TestBoundaries)
	moreCode     = 0.05   // of the time more in which the main thread computes (TestBoundaries)
	pressureFrom = 0.15   // of the time under pressure, and (TestBoundaries)
	pressureMore = 1.5    // times as much as usual (TestBoundaries)
	lowerClock   = 0.95   // of the usual clock, below which it is lower (TestCausesAreToldApart)
	slowerLink   = 0.9    // of the usual speed, below which a link is slower (TestBoundaries)
	moreWork     = 1.05   // times as many launches or bytes (TestPace)
	slowestCopy  = 0.25e9 // bytes a second: a copy that takes longer waits for the GPU (TestBoundaries)
)

// When a rank is a straggler: see straggler.go.
const (
	lapLeast     = 5 * time.Second        // of a lap (TestStragglers)
	lapsKept     = 6                      // last laps, of which (TestStragglers)
	lapsToName   = 5                      // findings name a rank, and (TestRankOfStraggler)
	lapsToStay   = 2                      // keep it named (TestStragglers)
	lapForgotten = time.Minute            // without a lap, and (TestBoundaries)
	lapsAway     = 3                      // times the last one, after which the race begins again (TestBoundaries)
	lostLeast    = 0.05                   // of the time: the part that the peers wait longer (TestStragglers)
	lostFactor   = 4                      // times the peers' own differences, which that exceeds, too (TestBoundaries)
	pauseLeast   = 100 * time.Millisecond // in a collective, before it can be a pause (TestBoundaries)
)

// When NCCL is asked about a job without the hook: see ras.go.
const (
	restFor    = 10 * time.Second // in which one process leaves its GPU idle, and another one's is busy (TestUnhookedWithin)
	settledFor = 30 * time.Second // in which no process of theirs opens or closes anything (TestUnhookedWithin)
	lookEvery  = 5 * time.Second  // from one look at what they have open to the next (no test)
	maxWait    = 10 * time.Minute // between questions: the first wait is ras.Patience, and each next one twice as long (TestUnhookedAsks)
	sampledFor = 8 * time.Second  // of GPU time, which tell whether a process uses its GPU (TestBoundaries)
	idleShare  = 0.5              // of a GPU: a culprit has used less in each of the last samples (TestBoundaries)
	waitShare  = 0.9              // of a GPU: NCCL's kernel spins while it waits for other ranks (TestUnhookedWithin)
	aloneFor   = 5 * time.Minute  // after one ended whose last collectives are not known: another may compute alone (TestUnhookedWithin)
)

// When a server is stuck: see serve.go.
const (
	serveEvery = 10 * time.Second // from one look at a server to the next (TestStuckServers)
	unreadFor  = 30 * time.Second // in which input waits and the server does nothing (TestStuckServers)
	mostUnread = 10 * time.Minute // with the longest time that it did so before it went on (TestWhatAServerStillDoes)
	someCPU    = 20               // hundredths of a second of processors in each second, which count as doing something (TestHealthyServers)
	muchCPU    = 80               // likewise, of an API with them (TestStuckServers)
	someMoved  = 1 << 20          // bytes read and written in each second, which do (TestWhatAServerStillDoes)
	someGPU    = 0.05             // seconds of a GPU between two looks, which do (TestWhatAServerStillDoes)
	answers    = 2000             // ms in which an API that needs no engine answers (no test)
)

// What is remembered and shown at most.
const (
	maxProcesses     = 1024             // processes that are observed (TestBoundaries)
	keepEnded        = 10 * time.Minute // for which one that has ended is known (TestBoundaries)
	maxCommunicators = 4                // that are shown of a process (TestBoundaries)
	maxRounds        = 64               // in which ranks are left out that are not deadlocked; then nobody is (no test)
	maxPlaces        = 4                // of the ranks of a deadlock that are told (TestDeadlocks)
	mostStacks       = 16               // that are read of a party's processes (TestStacksAreReadNowAndThen)
	readWithin       = time.Minute      // within so long (TestStacksAreReadNowAndThen)
	mostRanks        = 1024             // of a party that are judged at a look, each in each of its communicators (TestManyCommunicators)
	allFiles         = 32768            // that are read at a look, whosever they are (no test)
	mostFiles        = 8192             // that are read at a time to see whether the programs of a party compute (TestManyThreads)
	serverFiles      = 8 * mostFiles    // that are read of the servers of a party, each of which has as many; and of what processes have open, a quarter of a party (TestServersOfAllUsers)
	maxFamily        = 256              // processes of a family that are looked at, and threads of each (no test)
	maxOpen          = 4096             // files and threads of a process that NCCL may ask, and files of a server (no test)
	mostServers      = 64               // that are looked at (TestServersOfAllUsers)
	maxInputs        = 256              // sockets of a server at which clients wait (no test)
	maxAskers        = 5                // children that look at sockets, with those that the kernel holds (no test)
	maxName          = 64               // bytes of the path of a socket (no test)
	maxRefusals      = 64               // reasons not to ask that the log has: a process names its own version (TestBoundaries)
)
