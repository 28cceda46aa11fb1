package wire

import (
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageSize is the size of a quota page's mapping, bytes. What is used of it is
// less.
const PageSize = 4096

// A Mode says what a process may launch on a GPU.
type Mode uint32

// The modes of a slot.
const (
	ModeOpen  Mode = iota // at will
	ModeRun               // with at most InFlight of work queued
	ModePause             // nothing
	ModeKill              // the session is revoked
)

// Flags of a slot that is RUN.
const (
	Beside uint32 = 1 << iota // others run as well: send USAGE every 10 ms
	Haste                     // others wait: send YIELD as soon as there is nothing to do
)

// A Turn is the part of a slot that the schedule decides.
type Turn struct {
	Mode     Mode
	Flags    uint32
	Turn     uint64 // changes with each turn of the tenant
	End      uint64 // CLOCK_MONOTONIC, ns; 0 open end
	InFlight uint32 // us of work that may be queued
	Share    uint32 // of the GPU, 1/1000: to go on with when the broker dies
}

// A Page is the mapping of a quota page, PageSize bytes. The broker writes
// it, one goroutine at a time; readers see each field whole, and a slot's mode
// after the rest of it.
type Page []byte

const (
	pageSession   = 8
	pageHeartbeat = 16
	pageBell      = 24
	pageGated     = 28
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
)

func (p Page) word(at int) *uint32   { return (*uint32)(unsafe.Pointer(&p[at : at+4][0])) }
func (p Page) double(at int) *uint64 { return (*uint64)(unsafe.Pointer(&p[at : at+8][0])) }
func slot(gpu int) int               { return pageSlots + gpu*slotSize }

// Init writes what never changes. A page that is all zeros is OPEN.
func (p Page) Init(session uint64) {
	atomic.StoreUint64(p.double(pageSession), session)
	atomic.StoreUint32(p.word(4), 1)
	atomic.StoreUint32(p.word(0), Magic)
}

// Session returns the session that the page is of, 0 where the mapping is not
// a page of this version.
func (p Page) Session() uint64 {
	if atomic.LoadUint32(p.word(0)) != Magic || atomic.LoadUint32(p.word(4)) != 1 {
		return 0
	}
	return atomic.LoadUint64(p.double(pageSession))
}

// SetHeartbeat says that the broker was alive at ns, CLOCK_MONOTONIC.
func (p Page) SetHeartbeat(ns uint64) { atomic.StoreUint64(p.double(pageHeartbeat), ns) }

// Heartbeat returns when the broker last was alive, CLOCK_MONOTONIC, ns.
func (p Page) Heartbeat() uint64 { return atomic.LoadUint64(p.double(pageHeartbeat)) }

// SetTurn writes the schedule's part of a slot, and whether the page is gated.
// The process looks at it after the next Ring at the latest.
func (p Page) SetTurn(gpu int, t Turn) {
	at := slot(gpu)
	atomic.StoreUint32(p.word(at+slotFlags), t.Flags)
	atomic.StoreUint64(p.double(at+slotTurn), t.Turn)
	atomic.StoreUint64(p.double(at+slotEnd), t.End)
	atomic.StoreUint32(p.word(at+slotInFlight), t.InFlight)
	atomic.StoreUint32(p.word(at+slotShare), t.Share)
	atomic.StoreUint32(p.word(at), uint32(t.Mode))
	gated := uint32(0)
	for i := range GPUs {
		gated |= *p.word(slot(i))
	}
	atomic.StoreUint32(p.word(pageGated), min(gated, 1))
}

// Turn returns the schedule's part of a slot.
func (p Page) Turn(gpu int) Turn {
	at := slot(gpu)
	t := Turn{Mode: Mode(atomic.LoadUint32(p.word(at)))}
	t.Flags = atomic.LoadUint32(p.word(at + slotFlags))
	t.Turn, t.End = atomic.LoadUint64(p.double(at+slotTurn)), atomic.LoadUint64(p.double(at+slotEnd))
	t.InFlight, t.Share = atomic.LoadUint32(p.word(at+slotInFlight)), atomic.LoadUint32(p.word(at+slotShare))
	return t
}

// SetMemory writes the bytes that the tenant's processes have on a GPU, and
// its cap: 0 none.
func (p Page) SetMemory(gpu int, used, limit uint64) {
	atomic.StoreUint64(p.double(slot(gpu)+slotUsed), used)
	atomic.StoreUint64(p.double(slot(gpu)+slotCap), limit)
}

// Memory returns the tenant's bytes on a GPU, and its cap.
func (p Page) Memory(gpu int) (used, limit uint64) {
	return atomic.LoadUint64(p.double(slot(gpu) + slotUsed)), atomic.LoadUint64(p.double(slot(gpu) + slotCap))
}

// SetProcesses writes how many processes of the tenant there are on a GPU: who is
// left without a broker may have an equal part of what is free.
func (p Page) SetProcesses(gpu int, n uint32) { atomic.StoreUint32(p.word(slot(gpu)+slotProcesses), n) }

// Processes returns what SetProcesses wrote.
func (p Page) Processes(gpu int) uint32 { return atomic.LoadUint32(p.word(slot(gpu) + slotProcesses)) }

// SetRates writes how many bytes a second the process may copy over the GPU's
// link, and within it: 0 at will.
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

// Ring wakes all who wait for a change of the page.
func (p Page) Ring() {
	bell := p.word(pageBell)
	atomic.AddUint32(bell, 1)
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(bell)), 1 /* FUTEX_WAKE */, math.MaxInt32, 0, 0, 0)
}

// Wait returns when the bell no longer is what it was, when ns have passed, or
// by chance. It blocks its thread, as the hook's launches do.
func (p Page) Wait(bell uint32, ns int64) {
	limit := unix.NsecToTimespec(ns)
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p.word(pageBell))), 0 /* FUTEX_WAIT */, uintptr(bell),
		uintptr(unsafe.Pointer(&limit)), 0, 0)
}
