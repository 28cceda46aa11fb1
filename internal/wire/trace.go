package wire

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"io"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unsafe"
)

// The place of a trace: behind the leases, in the same file.
const (
	TraceAt       = LeaseSize // bytes from the beginning of the file
	TraceSize     = traceEvents + eventSize*EventsKept
	EventsKept    = 1 << 16 // events in the ring
	Communicators = 16      // maximum of one process
	Peers         = 3       // maximum of one communicator

	eventSize         = 16
	eventsOfBlock     = 16 // numbers that a thread takes at a time
	communicatorSize  = 128
	traceClock        = 64
	traceCommunicator = 128
	traceEvents       = traceCommunicator + Communicators*communicatorSize

	TraceHead = traceEvents // bytes of a trace that are mapped
)

// An EventKind is the kind of an event.
type EventKind uint8

// The kinds of events. Each comment names the event's ID.
const (
	EventLaunch     EventKind = iota + 1 // a kernel; hash of the function
	EventGraph                           // a graph launch; hash of the executable graph
	EventWait                            // the thread begins to wait for the GPU; a Waited
	EventWaited                          // ... and goes on
	EventCopy                            // asynchronous copy or fill; bytes in units of 64, rounded up
	EventCopying                         // a copy that the thread waits for; the same
	EventCopied                          // ... and it goes on
	EventAlloc                           // bytes in units of 4096, rounded up
	EventFree                            // 0
	EventCollective                      // a call of NCCL; hash of operation and bytes
	EventHeld                            // the gate holds the thread back; 0
	EventReleased                        // ... and lets it go
	EventBusy                            // by sampling: µs with work on the GPU since the last such event
	EventCollected                       // a collective ended on the GPU; µs that it took there
	EventTimed                           // since 3.12: a launch ended on the GPU that was timed; hash as of EventLaunch or EventGraph
	EventTook                            // since 3.12: how long it took there, noted next by the same thread; units of 10 ns
	eventEnd
)

// A Waited is the object of a wait: the lowest 8 bits of the ID of EventWait and EventWaited. Those above
// are bits 4 to 27 of the handle of the stream that is waited for; 0: a default stream, or another object.
type Waited uint32

// The objects of waits.
const (
	WaitStream Waited = iota
	WaitEvent
	WaitContext
	WaitQueue // a launch waits for room
)

// A Collective is an operation of NCCL.
type Collective uint32

// The operations. The last two are between two ranks and are not numbered.
const (
	AllReduce Collective = iota + 1
	Broadcast
	Reduce
	AllGather
	ReduceScatter
	AllToAll
	Gather
	Scatter
	Send
	Recv
	collectives
)

var collectiveNames = [collectives]string{AllReduce: "all_reduce", Broadcast: "broadcast", Reduce: "reduce",
	AllGather: "all_gather", ReduceScatter: "reduce_scatter", AllToAll: "all_to_all", Gather: "gather",
	Scatter: "scatter", Send: "send", Recv: "recv"}

// String returns the operation's name in metrics and logs; "unknown" for an
// unknown one.
func (c Collective) String() string {
	if c == 0 || c >= collectives {
		return "unknown"
	}
	return collectiveNames[c]
}

// An Event is an entry of a trace.
type Event struct {
	At     int64 // CLOCK_MONOTONIC, ns
	ID     uint32
	Kind   EventKind
	GPU    uint8  // the session's number; of a collective: the index of its communicator
	Thread uint16 // place of the thread in the process; NoThread: it has none
}

// NoThread is the place of threads without one of their own.
const NoThread = 4095

// A Communicator is one of a process's communicators, as the process says.
type Communicator struct {
	ID          uint64 // the same for all ranks
	Rank, Ranks uint32
	Entered     uint64     // called collectives
	At          int64      // time of the last call, CLOCK_MONOTONIC, ns
	Begun       uint64     // number of the last one known to have begun on the GPU; 0: unknown
	Unbegun     uint64     // number of the first one known not to have begun there; 0: unknown
	Ended       uint64     // likewise ended
	Bytes       uint64     // of the program's buffers in all calls
	Measured    uint64     // collectives whose time on the GPU was measured
	MeasuredNS  uint64     // that time, with the wait for other ranks
	Op          Collective // of the last call
	GPU         uint32     // the session's number
	Peers       [Peers]Peer
	Reached     uint64 // number of the last one for which another stream is known to wait; 0: unknown
	Unreached   uint64 // number of the first one for which another stream is known not to wait yet; 0: unknown
}

// A Peer is a rank with which a process exchanges data: sends and receives.
type Peer struct {
	There          bool
	Rank           uint32
	Sent, Received uint16 // calls, modulo 65536
	Inside         bool   // the GPU is known to be in an exchange with it
	Before         bool   // the GPU is known not to have come to one that was called
}

// A Trace is a session's trace, TraceSize bytes. The process writes it at any time and as it likes. A reader gets
// bounded garbage at worst. The zero Trace is none. The events are copied by a call of the kernel: who reads a hole of a
// mapping has a page filled, at his own expense, and the process makes as many holes as it likes.
type Trace struct {
	head []byte // mapped
	all  io.ReaderAt
}

// NewTrace returns the trace whose first TraceHead bytes are mapped, and which all reads.
func NewTrace(head []byte, all io.ReaderAt) Trace { return Trace{head, all} }

// TraceIn returns the trace in memory that no process can punch holes into.
func TraceIn(m []byte) Trace { return Trace{m, bytes.NewReader(m)} }

// There reports whether there is a trace.
func (t Trace) There() bool { return t.all != nil }

func (t Trace) load64(at int) uint64 {
	return atomic.LoadUint64((*uint64)(unsafe.Pointer(&t.head[at])))
}
func (t Trace) load32(at int) uint32 {
	return atomic.LoadUint32((*uint32)(unsafe.Pointer(&t.head[at])))
}

// Head returns how many numbers of events were ever taken.
func (t Trace) Head() uint64 { return t.load64(0) }

// Lost returns the number of collectives of communicators that found no room.
func (t Trace) Lost() uint64 { return t.load64(traceClock + 40) }

// Shared are the kinds of memory for which the driver cannot checkpoint a
// process.
type Shared uint32

// The kinds.
const (
	SharedManaged   Shared = 1 << iota // unified memory (UVM)
	SharedProcesses                    // with other processes (IPC)
	SharedMulticast                    // of several GPUs, for NVLink SHARP (NVLS)
)

// String returns the kinds for people; empty: none.
func (s Shared) String() string {
	var all []string
	for i, name := range []string{"unified memory", "memory that it shares with other processes", "multicast memory"} {
		if s>>i&1 != 0 {
			all = append(all, name)
		}
	}
	return strings.Join(all, " and ")
}

// Shared returns all kinds of such memory that the process ever had, as it says.
func (t Trace) Shared() Shared { return Shared(t.load32(traceClock + 48)) }

// A Clock converts a trace's ticks to CLOCK_MONOTONIC.
type Clock struct {
	ticks uint64
	ns    int64
	rate  float64 // ns a tick
}

// minClock is the shortest time over which a clock's rate is exact enough: two
// readings are some 100 ns apart from each other's truth.
const minClock = 10 * time.Millisecond

// Clock returns the trace's clock. It fails as long as its rate is unknown, or
// makes no sense.
func (t Trace) Clock() (Clock, bool) { return t.clock(minClock) }

// LastClock returns the clock of a trace that is soon at its end: a program may fail in its first milliseconds. Times of
// events between the clock's readings are exact to some 100 ns, and later ones are rough.
func (t Trace) LastClock() (Clock, bool) { return t.clock(100 * time.Microsecond) }

func (t Trace) clock(least time.Duration) (c Clock, ok bool) {
	for range 4 {
		seq := t.load32(traceClock + 4)
		first, firstNS := t.load64(traceClock+8), t.load64(traceClock+16)
		last, lastNS := t.load64(traceClock+24), t.load64(traceClock+32)
		if seq%2 != 0 || t.load32(traceClock+4) != seq {
			continue
		}
		ticks, ns := last-first, lastNS-firstNS
		version := t.load32(traceClock)
		if version < 1 || version > 2 || ns < uint64(least) || ns > 1<<62 || lastNS > 1<<62 || ticks == 0 || ticks > 1<<62 {
			return c, false
		}
		c = Clock{ticks: last, ns: int64(lastNS), rate: float64(ns) / float64(ticks)}
		return c, c.rate > 1e-3 && c.rate < 1e3
	}
	return c, false
}

// Written returns when the process last wrote the clock, CLOCK_MONOTONIC, ns. The hook's own thread does so four times a
// second, unless the driver holds it, and so does who is told of a fault.
func (c Clock) Written() int64 { return c.ns }

// At returns the time at these ticks; 0 if it is not within a day of the clock.
func (c Clock) At(ticks uint64) int64 {
	ns := float64(int64(ticks-c.ticks)) * c.rate
	if math.Abs(ns) > 86400e9 {
		return 0
	}
	return c.ns + int64(ns)
}

// A TraceReader reads the events of one trace, each once. It belongs to one
// goroutine. Its memory is bounded by the ring's blocks.
type TraceReader struct {
	next uint64  // first number of the first block that no thread had taken
	open []block // taken, and not known to be full, in order
}

// A block is a part of the ring. A thread fills it in its own time, or never: it may have
// ended. Threads that took single numbers, before version 2, share one.
type block struct {
	first uint64
	read  uint16 // events, by bits
}

// Read appends the events up to now (CLOCK_MONOTONIC, ns) since the last reading, in the
// order of their times. Threads note later ones while it reads, of which it would see some
// and not others. It returns how many were lost because the process overwrote them, at
// most: a number may never have had an event.
func (r *TraceReader) Read(t Trace, c Clock, now int64, events []Event) (_ []Event, lost uint64) {
	taken := t.Head()
	head := (taken + eventsOfBlock - 1) / eventsOfBlock * eventsOfBlock
	if head < r.next { // the process meddled
		r.next, r.open = head, nil
		return events, 0
	}
	if head-r.next > EventsKept {
		lost = head - r.next - EventsKept
		r.next = head - EventsKept
	}
	for ; r.next < head; r.next += eventsOfBlock {
		r.open = append(r.open, block{first: r.next})
	}
	began := len(events)
	open := r.open[:0]
	copies := new(copies)
	for _, b := range r.open {
		known := len(events)
		events = t.fill(&b, copies, taken, c, now, events)
		if over := t.Head(); over > b.first && over-b.first > EventsKept { // what was read may be of two events
			lost += uint64(len(events) - known)
			events = events[:known]
		} else if b.read != 1<<eventsOfBlock-1 {
			open = append(open, b)
		}
	}
	r.open = open
	byTime := func(a, b Event) int { return cmp.Compare(a.At, b.At) }
	if !slices.IsSortedFunc(events[began:], byTime) {
		slices.SortStableFunc(events[began:], byTime)
	}
	return events, lost
}

// copies are two of a block, one after the other: what has its number in the first is whole in the second.
type copies [2][eventsOfBlock * eventSize]byte

// fill appends the events of a block up to now that were not read yet, of the numbers that
// were taken.
func (t Trace) fill(b *block, copies *copies, taken uint64, c Clock, now int64, events []Event) []Event {
	for i := range copies {
		if _, err := t.all.ReadAt(copies[i][:], int64(traceEvents+b.first%EventsKept*eventSize)); err != nil {
			return events
		}
	}
	word := binary.NativeEndian.Uint32
	for i := range min(eventsOfBlock, taken-b.first) {
		one := copies[1][i*eventSize:]
		what := word(copies[0][i*eventSize+12:])
		if what != word(one[12:]) || b.read>>i&1 != 0 || uint8(what>>8) != uint8(b.first/EventsKept) || EventKind(what) == 0 {
			continue
		}
		e := Event{At: c.At(binary.NativeEndian.Uint64(one)), ID: word(one[8:]), Kind: EventKind(what), GPU: uint8(what >> 16 & 15),
			Thread: uint16(what >> 20)}
		if e.At > now {
			continue
		}
		b.read |= 1 << i
		events = append(events, e)
	}
	return events
}

// whole returns the number up to last with these low bits; 0: there is none.
func whole(last uint64, low uint32) uint64 {
	since := uint64(uint32(last) - low)
	if low == 0 || since > last {
		return 0
	}
	return last - since
}

// Communicator returns a communicator; false if there is none at the index.
func (t Trace) Communicator(c Clock, index int) (Communicator, bool) {
	at := traceCommunicator + index*communicatorSize
	g := Communicator{Entered: t.load64(at + 16), ID: t.load64(at), Rank: t.load32(at + 8), Ranks: t.load32(at + 12),
		At: c.At(t.load64(at + 24)), Ended: t.load64(at + 32), Bytes: t.load64(at + 40), Measured: t.load64(at + 48),
		MeasuredNS: t.load64(at + 56), Op: Collective(t.load32(at + 64)), GPU: t.load32(at + 68), Begun: t.load64(at + 72),
		Unbegun: t.load64(at + 80)}
	g.Reached, g.Unreached = whole(g.Entered, t.load32(at+120)), whole(g.Entered, t.load32(at+124))
	inside, before := t.load32(at+112), t.load32(at+116)
	for i := range g.Peers {
		rank, calls := t.load32(at+88+8*i), t.load32(at+92+8*i)
		g.Peers[i] = Peer{There: rank > 0, Rank: rank - 1, Sent: uint16(calls), Received: uint16(calls >> 16),
			Inside: inside>>i&1 > 0, Before: before>>i&1 > 0}
	}
	return g, g.ID != 0 && g.Rank < g.Ranks
}

// Last returns the events of the last numbers taken, at most n, that were noted by a time
// (CLOCK_MONOTONIC, ns), in the order of their times.
func (t Trace) Last(c Clock, n uint64, until int64) []Event {
	head := t.Head()
	r := TraceReader{next: (head - min(n, head)) / eventsOfBlock * eventsOfBlock}
	events, _ := r.Read(t, c, until, nil)
	return events
}
