// Package wire is the native protocol between the hook and the broker, and the
// statistics that the broker gives to the agent.
//
//	frames      requests and answers of at most 4096 bytes over a Unix
//	            SOCK_SEQPACKET socket (message.go, codec.go)
//	quota page  what a process may launch; the broker writes it, the process
//	            maps it read-only (page.go)
//	leases      memory that a process may take without asking; both sides
//	            change its words (lease.go)
//	trace       a ring of launches, waits and collectives that the process
//	            writes and the broker reads (trace.go), and behind it what
//	            explains a crash (crash.go)
//	STATS       the books, a JSON document in a memfd (stats.go)
//
// hook/src/base/wire.h is the same in C, and a test compares the two.
//
// Invariants:
//
//   - A peer with another major version is refused. A minor version only adds
//     what the other side may ignore.
//   - No function of frames allocates, or keeps its arguments.
//   - What the process can write is a hint: readers get bounded garbage at worst.
//
// Begin with the types of frames in this file, and Page in page.go.
package wire

import (
	"encoding/binary"
	"errors"
)

// The version of the protocol. A peer with another major version is refused. A
// minor version only adds what the other side may ignore.
const (
	Magic = 0x57535047 // "GPSW"
	Major = 3
	Minor = 13
)

// Sizes, in bytes unless stated otherwise.
const (
	FrameMax   = 4096 // of a frame, header and payload
	HeaderSize = 32
	GPUs       = 16 // maximum of one session
)

// A Type is the type of a frame.
type Type uint16

// The types of frames. Each comment names the sender and the payload.
const (
	TypeHello         Type = iota + 1 // process: Hello
	TypeWelcome                       // broker: Welcome, the page's descriptor, and perhaps the leases'
	TypeResume                        // process: Hello
	TypePing                          // process: none
	TypePong                          // broker: none
	TypeReserve                       // process: Memory
	TypeGrant                         // broker: Memory
	TypeDeny                          // broker: Memory
	TypeCommit                        // process: Memory
	TypeAbort                         // process: Memory
	TypeFree                          // process: Memory
	TypeAcquire                       // process: Acquire
	TypeYield                         // process: Usage
	TypeUsage                         // process: Usage
	TypeNotice                        // broker: Notice
	TypeLimitsChanged                 // broker: Memory
	TypeBye                           // either: none
	TypeErr                           // broker: Err
	TypeStats                         // agent: none
	TypeStatsReply                    // broker: none, and a descriptor of JSON
	typeEnd
)

var types = [typeEnd]struct {
	name string
	size int // of the payload
}{
	TypeHello:         {"hello", HelloSize},
	TypeWelcome:       {"welcome", WelcomeSize},
	TypeResume:        {"resume", HelloSize},
	TypePing:          {"ping", 0},
	TypePong:          {"pong", 0},
	TypeReserve:       {"reserve", MemorySize},
	TypeGrant:         {"grant", MemorySize},
	TypeDeny:          {"deny", MemorySize},
	TypeCommit:        {"commit", MemorySize},
	TypeAbort:         {"abort", MemorySize},
	TypeFree:          {"free", MemorySize},
	TypeAcquire:       {"acquire", AcquireSize},
	TypeYield:         {"yield", UsageSize},
	TypeUsage:         {"usage", UsageSize},
	TypeNotice:        {"notice", NoticeSize},
	TypeLimitsChanged: {"limits_changed", MemorySize},
	TypeBye:           {"bye", 0},
	TypeErr:           {"err", ErrSize},
	TypeStats:         {"stats", 0},
	TypeStatsReply:    {"stats_reply", 0},
}

// Types is the last type plus one, for arrays by type; index 0 is unused.
const Types = int(typeEnd)

// Known reports whether t is a type of this version.
func (t Type) Known() bool { return t > 0 && t < typeEnd }

// String returns the name of t in metrics and logs; "unknown" for an unknown
// type.
func (t Type) String() string {
	if !t.Known() {
		return "unknown"
	}
	return types[t].name
}

// Errors of a frame.
var (
	ErrFrame   = errors.New("frame cannot be read")
	ErrVersion = errors.New("protocol of another version")
	ErrType    = errors.New("unknown type of message")
)

// A Header begins every frame. It lacks magic, version and length, which follow
// from the type.
type Header struct {
	Type Type
	// Of a PING, since 3.1: the current value of Hello.Unknown. Of a Usage, since 3.8: the longest time
	// slice, in us, that the process gave its contexts on the GPU itself, if it is beyond the driver's
	// default. Otherwise 0.
	Flags   uint32
	Seq     uint64 // the sender's choice; an answer repeats that of its request
	Session uint64 // 0 until WELCOME
}

var le = binary.LittleEndian

// Append appends the header of a frame. The caller then appends the payload,
// which must have exactly the type's size.
func (h Header) Append(b []byte) []byte {
	b = le.AppendUint32(b, Magic)
	b = append(b, Major, Minor)
	b = le.AppendUint16(b, uint16(h.Type))
	b = le.AppendUint32(b, uint32(types[h.Type].size))
	b = le.AppendUint32(b, h.Flags)
	b = le.AppendUint64(b, h.Seq)
	return le.AppendUint64(b, h.Session)
}

// Decode takes a frame apart. The payload is a part of frame, has the size of
// its type, and is ready for the Decode method of the type's message. After
// ErrVersion and ErrType, the header says what was refused. After ErrFrame,
// nothing in the header is reliable.
func Decode(frame []byte) (h Header, payload []byte, err error) {
	if len(frame) < HeaderSize || len(frame) > FrameMax || le.Uint32(frame) != Magic {
		return h, nil, ErrFrame
	}
	h = Header{Type: Type(le.Uint16(frame[6:])), Flags: le.Uint32(frame[12:]), Seq: le.Uint64(frame[16:]),
		Session: le.Uint64(frame[24:])}
	payload = frame[HeaderSize:]
	switch {
	case frame[4] != Major:
		return h, nil, ErrVersion
	case int64(le.Uint32(frame[8:])) != int64(len(payload)):
		return h, nil, ErrFrame
	case !h.Type.Known():
		return h, nil, ErrType
	case len(payload) != types[h.Type].size:
		return h, nil, ErrFrame
	case (h.Type == TypeHello || h.Type == TypeResume) && le.Uint32(payload[4:]) > GPUs:
		return h, nil, ErrFrame
	}
	return h, payload, nil
}
