package wire

import "bytes"

// Sizes of payloads, bytes.
const (
	HelloSize   = 512
	WelcomeSize = 128
	MemorySize  = 32
	AcquireSize = 32
	UsageSize   = 112
	NoticeSize  = 256
	ErrSize     = 128
)

// A Hello opens a session, or a Resume a session's successor. The last three
// fields are a Resume's only.
type Hello struct {
	PID       uint32         // as the process sees itself: a hint for logs
	GPUs      uint32         // how many of UUID are meant
	CUDA      uint32         // cuDriverGetVersion
	Leases    uint16         // since 3.1: 1: it knows leases
	Unknown   uint16         // entries of the driver that the program was given so far and the hook does not know
	Hook      [16]byte       // version, NUL-padded
	Tenant    [64]byte       // wished for, NUL-padded; empty: whatever the policy says
	UUID      [GPUs][16]byte // the index is the session's number of the GPU
	Old       uint64         // the session that was
	Token     uint64         // its WELCOME's
	Committed [GPUs]uint64   // bytes held on each GPU
	_         [16]byte
}

// A Welcome answers a Hello; the page's descriptor comes with it.
type Welcome struct {
	Token      uint64 // for RESUME
	GPUs       uint32 // that are governed; the others' slots stay OPEN, or PAUSE with FailClosed
	Heartbeat  uint32 // how often to send PING, ms
	PageBytes  uint32
	FailClosed uint32 // 1: without a broker, and on GPUs that are not governed, launches wait instead of running
	Tenant     [64]byte
	_          [40]byte
}

// A Kind is what memory is for.
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
	Bytes       uint64 // wanted, reserved, really taken, returned; in DENY what could be had
	_           [8]byte
}

// An Acquire says that there is work for a GPU. The page is the answer.
type Acquire struct {
	GPU uint32
	_   [28]byte
}

// A Why says what a YIELD is for.
type Why uint32

// The reasons of a YIELD; 0 in USAGE.
const (
	WhyIdle      Why = iota + 1 // nothing in flight, nothing launched for a while, and no launch waits
	WhyDrained                  // paused, and the last kernel has ended
	WhyUndrained                // paused, but the deadline came first
)

// A Usage is what happened on a GPU since the last one. Its times are
// CLOCK_MONOTONIC, and the process's own word.
type Usage struct {
	GPU      uint32
	Why      Why
	Turn     uint64 // the page's, when it began
	Last     uint64 // when the last work ended or the last launch was made, ns
	Launched uint64 // kernels, graphs, copies and fills within the GPU that have ended; in OPEN, that were launched
	Busy     uint64 // in OPEN: for how long work was outstanding, ns
	Solo     uint64 // of them, those that tell the process's own pace: they ran while nobody else did,
	SoloTime uint64 // and took so long, one after the other, ns
	Longest  uint64 // one launch, at most, ns; 0 none was measured by itself
	Overhead uint64 // threads waited in the gate, ns
	Copied   uint64 // bytes that copies were asked to move
	Group    uint64 // a communicator that the process is a rank of with this GPU; 0 none is told of

	// Of the process, ever.
	Passed    uint64 // launches that the gate let pass because what they waited for did not come
	Errors    uint64 // launches that it let pass because it could not govern them
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

// Codes is one more than the last code, for arrays by code; index 0 is free.
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
