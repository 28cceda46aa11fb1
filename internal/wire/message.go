package wire

import "bytes"

// Sizes of payloads, in bytes.
const (
	HelloSize   = 512
	WelcomeSize = 128
	MemorySize  = 32
	AcquireSize = 32
	UsageSize   = 112
	NoticeSize  = 256
	ErrSize     = 128
)

// A Hello opens a session; as a Resume it opens the successor of a session. Old,
// Token and Committed belong to a Resume only.
type Hello struct {
	PID       uint32         // in the process's own namespace: a hint for logs
	GPUs      uint32         // number of entries of UUID in use
	CUDA      uint32         // cuDriverGetVersion
	Leases    uint16         // since 3.1: 1: the process supports leases
	Unknown   uint16         // driver entries that the program has obtained and the hook does not know
	Hook      [16]byte       // version, NUL-padded
	Tenant    [64]byte       // requested, NUL-padded; empty: the policy decides
	UUID      [GPUs][16]byte // the index is the session's number of the GPU; see Caller for the last ones
	Old       uint64         // the old session
	Token     uint64         // token of its WELCOME
	Committed [GPUs]uint64   // bytes held on each GPU
	Trace     uint8          // since 3.2: 1: the process writes a trace if it gets room for one
	Crash     uint8          // since 3.11: 1: likewise what explains a crash, behind the trace
	_         [14]byte
}

// CallerAt is the first entry of Hello.UUID that may hold a part of a traceparent.
const CallerAt = 12

// Caller returns the traceparent in the program's environment, as the program says it; empty:
// there is none. Since 3.13 it is in the last 64 bytes of UUID, if that has so many to spare.
func (m *Hello) Caller() string {
	var text [16 * (GPUs - CallerAt)]byte
	if m.GPUs <= CallerAt {
		for i, part := range m.UUID[CallerAt:] {
			copy(text[16*i:], part[:])
		}
	}
	return Text(text[:])
}

// A Welcome answers a Hello, and carries the page's descriptor.
type Welcome struct {
	Token      uint64 // for RESUME
	GPUs       uint32 // governed GPUs; the others' slots stay OPEN, or PAUSE with FailClosed
	Heartbeat  uint32 // interval of PING, ms
	PageBytes  uint32
	FailClosed uint32 // 1: without a broker, and on GPUs that are not governed, launches wait instead of running
	Tenant     [64]byte
	// Since 3.9: the tenant's present quota on the first of the GPUs, or on a GPU
	// without terms of its own.
	Guarantee  uint32 // 1/1000
	Limit      uint32 // 1/1000; 0: the broker does not tell
	Memory     uint64 // bytes; 0: no cap, or MemoryPart is the cap
	MemoryPart uint32 // of the GPU's, 1/1000
	Elsewhere  uint32 // 1: some GPUs have other terms
	_          [16]byte
}

// A Kind is the use of memory.
type Kind uint32

// The kinds of memory.
const (
	KindDevice Kind = iota
	KindManaged
	KindArray
	KindVMM
	KindPool
	KindGraph
)

// A Memory asks for, grants, denies, takes or returns memory of a GPU.
type Memory struct {
	GPU         uint32 // the session's number
	Kind        Kind
	Reservation uint64 // in GRANT, COMMIT and ABORT; since 3.1 in ABORT 0: of the lease
	Bytes       uint64 // requested, reserved, actually taken, or returned; in DENY the available bytes
	// Since 3.4, in DENY: ms until it should be asked for again; 0: it is final.
	// Since 3.8, in RESERVE: ms since it was first asked for.
	Wait uint32
	_    [4]byte
}

// An Acquire says that there is work for a GPU. The answer is in the page.
type Acquire struct {
	GPU uint32
	_   [28]byte
}

// A Why is the reason of a YIELD.
type Why uint16

// The reasons of a YIELD. In USAGE it is 0.
const (
	WhyIdle      Why = iota + 1 // nothing in flight, nothing launched for a while, and no launch waits
	WhyDrained                  // paused, and the last kernel has ended
	WhyUndrained                // paused, but the deadline came first
)

// A Usage is the activity on a GPU since the last one. Its times are
// CLOCK_MONOTONIC and reported by the process, unverified.
type Usage struct {
	GPU      uint16
	Slice    uint16 // since 3.7: the page's, us, if it is in force; 0: the driver's default, as far as is known
	Why      Why
	Refused  uint16 // since 3.7: times that the driver refused a time slice there, since the process's start
	Turn     uint64 // the page's turn when the activity began
	Last     uint64 // time of the last launch or of the end of the last work, ns
	Launched uint64 // kernels, graphs, copies and fills within the GPU that have ended; in OPEN, that were launched
	Busy     uint64 // in OPEN: time with outstanding work, ns
	Solo     uint64 // those of Launched that ran while nobody else did, which show the process's own pace,
	SoloTime uint64 // and their total time, ns
	Longest  uint64 // longest single launch, ns; 0: none was measured by itself
	Overhead uint64 // time that threads waited in the gate, ns
	Copied   uint64 // bytes of requested copies
	Group    uint64 // a communicator that has the process as a rank with this GPU; 0: none is known

	// Totals of the process.
	Passed    uint64 // launches that the gate let pass because what they waited for did not come
	Errors    uint64 // what the driver refused the gate, mostly events: it could not measure launches then
	Uncounted uint64 // allocations that could not be booked
}

// A Notice is a line for the program's log.
type Notice struct {
	Level uint32 // 0 info, 1 warning
	_     uint32
	Text  [248]byte
}

// A Code says why a message was refused.
type Code uint32

// The codes of Err.
const (
	CodeVersion Code = iota + 1 // another major
	CodeFrame                   // cannot be read
	CodeState                   // not now, e.g. RESERVE before HELLO
	CodeTenant                  // unknown, or not this process's
	CodeLimit                   // too many sessions, reservations, messages
	CodeGPU                     // no such GPU in this session
	CodeDenied                  // not allowed
	codeEnd
)

// Codes is the last code plus one, for arrays by code; index 0 is unused.
const Codes = int(codeEnd)

var codes = [codeEnd]string{"", "version", "frame", "state", "tenant", "limit", "gpu", "denied"}

// String returns the name of c in metrics and logs.
func (c Code) String() string {
	if c == 0 || c >= codeEnd {
		return "unknown"
	}
	return codes[c]
}

// An Err refuses a message.
type Err struct {
	Code Code
	Type uint32 // of the refused message
	Text [120]byte
}

// Text returns the text of a NUL-padded field.
func Text(field []byte) string {
	if end := bytes.IndexByte(field, 0); end >= 0 {
		field = field[:end]
	}
	return string(field)
}
