package wire

import (
	"math"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a quota page's mapping, in bytes. Only a part of it
// is used.
const PageSize = 4096

// A Mode says what a process may launch on a GPU.
type Mode uint32

// The modes of a slot.
const (
	ModeOpen  Mode = iota // at will
	ModeRun               // with at most InFlight of queued work
	ModePause             // nothing
	ModeKill              // the session is revoked
)

// Flags of a slot that is RUN, or OPEN.
const (
	Beside uint32 = 1 << iota // others run at the same time: send USAGE every 10 ms, or every second if OPEN
	Haste                     // others wait: send YIELD as soon as there is no work; send USAGE every 100 ms if OPEN
)

// A Turn is the scheduler's part of a slot.
type Turn struct {
	Mode     Mode
	Flags    uint32
	Turn     uint64 // changes with each turn of the tenant
	End      uint64 // CLOCK_MONOTONIC, ns; 0: no end
	InFlight uint32 // work that may be queued, us
	Share    uint32 // of the GPU, 1/1000: in force if the broker dies
	Slice    uint32 // since 3.7: time slice of the process's contexts, us; 0: the driver's default
	Pace     uint32 // since 3.10: part of the time that launches may take, by their lone cost, 1/1000; 0: all
}

// A Page is the mapping of a quota page, PageSize bytes. Only one goroutine of
// the broker writes it at a time. Readers see each field whole, and a slot's
// mode after the rest of the slot.
type Page []byte

const (
	pageSession   = 8
	pageHeartbeat = 16
	pageBell      = 24
	pageGated     = 28
	pageSuspended = 32
	pageTimed     = 36
	pageSlots     = 128
	slotSize      = 128
	slotFlags     = 4
	slotTurn      = 8
	slotEnd       = 16
	slotUsed      = 24
	slotCap       = 32
	slotInFlight  = 40
	slotShare     = 44
	slotLink      = 48
	slotCopy      = 56
	slotProcesses = 64
	slotSlice     = 68
	slotPace      = 72
)

func (p Page) word(at int) *uint32   { return (*uint32)(unsafe.Pointer(&p[at : at+4][0])) }
func (p Page) double(at int) *uint64 { return (*uint64)(unsafe.Pointer(&p[at : at+8][0])) }
func slot(gpu int) int               { return pageSlots + gpu*slotSize }

// Init writes the constant fields. A page that is all zeros is OPEN.
func (p Page) Init(session uint64) {
	atomic.StoreUint64(p.double(pageSession), session)
	atomic.StoreUint32(p.word(4), 1)
	atomic.StoreUint32(p.word(0), Magic)
}

// Session returns the session of the page; 0 if the mapping is not a page of
// this version.
func (p Page) Session() uint64 {
	if atomic.LoadUint32(p.word(0)) != Magic || atomic.LoadUint32(p.word(4)) != 1 {
		return 0
	}
	return atomic.LoadUint64(p.double(pageSession))
}

// SetHeartbeat notes that the broker was alive at ns, CLOCK_MONOTONIC.
func (p Page) SetHeartbeat(ns uint64) { atomic.StoreUint64(p.double(pageHeartbeat), ns) }

// Heartbeat returns when the broker was last alive, CLOCK_MONOTONIC, ns.
func (p Page) Heartbeat() uint64 { return atomic.LoadUint64(p.double(pageHeartbeat)) }

// SetSuspended says whether the driver has the process's GPU state, or is about to take
// it. The process reads it after the next Ring at the latest.
func (p Page) SetSuspended(suspended bool) {
	value := uint32(0)
	if suspended {
		value = 1
	}
	atomic.StoreUint32(p.word(pageSuspended), value)
}

// Suspended returns what SetSuspended wrote.
func (p Page) Suspended() bool { return atomic.LoadUint32(p.word(pageSuspended)) != 0 }

// SetTimed says how often, about, the GPU time of a launch is noted in the trace; 0: never. The process reads it after
// the next Ring at the latest. Since 3.12.
func (p Page) SetTimed(every time.Duration) {
	atomic.StoreUint32(p.word(pageTimed), uint32(min(every.Microseconds(), math.MaxUint32)))
}

// SetTurn writes the scheduler's part of a slot, and whether the page is gated.
// The process reads it after the next Ring at the latest.
func (p Page) SetTurn(gpu int, t Turn) {
	at := slot(gpu)
	atomic.StoreUint32(p.word(at+slotFlags), t.Flags)
	atomic.StoreUint64(p.double(at+slotTurn), t.Turn)
	atomic.StoreUint64(p.double(at+slotEnd), t.End)
	atomic.StoreUint32(p.word(at+slotInFlight), t.InFlight)
	atomic.StoreUint32(p.word(at+slotShare), t.Share)
	atomic.StoreUint32(p.word(at+slotSlice), t.Slice)
	atomic.StoreUint32(p.word(at+slotPace), t.Pace)
	atomic.StoreUint32(p.word(at), uint32(t.Mode))
	gated := uint32(0)
	for i := range GPUs {
		gated |= *p.word(slot(i)) | *p.word(slot(i) + slotPace)
	}
	atomic.StoreUint32(p.word(pageGated), min(gated, 1))
}

// Turn returns the scheduler's part of a slot.
func (p Page) Turn(gpu int) Turn {
	at := slot(gpu)
	t := Turn{Mode: Mode(atomic.LoadUint32(p.word(at)))}
	t.Flags = atomic.LoadUint32(p.word(at + slotFlags))
	t.Turn, t.End = atomic.LoadUint64(p.double(at+slotTurn)), atomic.LoadUint64(p.double(at+slotEnd))
	t.InFlight, t.Share = atomic.LoadUint32(p.word(at+slotInFlight)), atomic.LoadUint32(p.word(at+slotShare))
	t.Slice, t.Pace = atomic.LoadUint32(p.word(at+slotSlice)), atomic.LoadUint32(p.word(at+slotPace))
	return t
}

// SetMemory writes the memory of the tenant's processes on a GPU in bytes, and
// its cap; 0 is no cap.
func (p Page) SetMemory(gpu int, used, limit uint64) {
	atomic.StoreUint64(p.double(slot(gpu)+slotUsed), used)
	atomic.StoreUint64(p.double(slot(gpu)+slotCap), limit)
}

// Memory returns the tenant's memory on a GPU in bytes, and its cap.
func (p Page) Memory(gpu int) (used, limit uint64) {
	return atomic.LoadUint64(p.double(slot(gpu) + slotUsed)), atomic.LoadUint64(p.double(slot(gpu) + slotCap))
}

// SetProcesses writes the number of the tenant's processes on a GPU. Without a
// broker, each may have an equal part of the free memory.
func (p Page) SetProcesses(gpu int, n uint32) { atomic.StoreUint32(p.word(slot(gpu)+slotProcesses), n) }

// Processes returns what SetProcesses wrote.
func (p Page) Processes(gpu int) uint32 { return atomic.LoadUint32(p.word(slot(gpu) + slotProcesses)) }

// SetRates writes how many bytes per second the process may copy over the GPU's
// link and within the GPU; 0 is no limit.
func (p Page) SetRates(gpu int, link, copies uint64) {
	atomic.StoreUint64(p.double(slot(gpu)+slotLink), link)
	atomic.StoreUint64(p.double(slot(gpu)+slotCopy), copies)
}

// Rates returns what SetRates wrote.
func (p Page) Rates(gpu int) (link, copies uint64) {
	return atomic.LoadUint64(p.double(slot(gpu) + slotLink)), atomic.LoadUint64(p.double(slot(gpu) + slotCopy))
}

// Gated reports whether a launch must look at its slot.
func (p Page) Gated() bool { return atomic.LoadUint32(p.word(pageGated)) != 0 }

// Bell returns a number that changes with each Ring.
func (p Page) Bell() uint32 { return atomic.LoadUint32(p.word(pageBell)) }

// Ring wakes all that wait for a change of the page.
func (p Page) Ring() {
	bell := p.word(pageBell)
	atomic.AddUint32(bell, 1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), 1 /* FUTEX_WAKE */, math.MaxInt32, 0,
		0, 0)
}

// Wait returns when the bell has changed, when ns have passed, or spuriously.
// It blocks its thread, as the hook's launches do.
func (p Page) Wait(bell uint32, ns int64) {
	limit := unix.NsecToTimespec(ns)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p.word(pageBell))),
		0 /* FUTEX_WAIT */, uintptr(bell),
		uintptr(unsafe.Pointer(&limit)), 0, 0)
}

// Monotonic returns CLOCK_MONOTONIC, ns: the clock of pages and traces, of all processes of a host.
func Monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // cannot fail on Linux
	return now.Nano()
}
