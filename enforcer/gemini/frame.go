package gemini

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
)

// Sizes of frames, in bytes. All numbers in frames are little endian, nothing
// is aligned, and unused bytes are zero.
const (
	RequestSize  = 80
	ResponseSize = 40
)

// A Kind is what a request asks for; the numbers are the protocol's.
type Kind uint32

// Kinds of requests.
const (
	Quota        Kind = iota // may it launch, and for how long
	MemoryLimit              // what is used, and what may be used at most
	MemoryUpdate             // it takes memory, or gave it back
	kinds        int  = iota
)

// longest is the longest name that fits beside each kind's payload.
var longest = [kinds]int{Quota: 47, MemoryLimit: 63, MemoryUpdate: 51}

// errFrame means that a frame makes no sense.
var errFrame = errors.New("malformed frame")

// A Request is what a client sends.
type Request struct {
	Name     []byte // of the client; part of the decoded frame
	ID       int32  // the answer's too
	Kind     Kind
	Overuse  float64 // Quota: ms that its kernels ran past the last quota
	Burst    float64 // Quota: ms that it expects its next kernels to take
	Bytes    uint64  // MemoryUpdate
	Allocate bool    // MemoryUpdate: it takes them
}

// decode reads a request. It ignores everything after the payload: older
// clients have a third number for Quota there, and some have junk. It does not
// allocate.
func decode(frame *[RequestSize]byte) (Request, error) {
	length := binary.LittleEndian.Uint64(frame[:])
	if length == 0 || length > uint64(longest[MemoryLimit]) {
		return Request{}, errFrame
	}
	at := 8 + int(length)
	r := Request{Name: frame[8:at:at]}
	r.ID = int32(binary.LittleEndian.Uint32(frame[at+1:]))
	r.Kind = Kind(binary.LittleEndian.Uint32(frame[at+5:]))
	if int(r.Kind) >= kinds || int(length) > longest[r.Kind] || frame[at] != 0 || bytes.IndexByte(r.Name, 0) >= 0 {
		return Request{}, errFrame
	}
	payload := frame[at+9:]
	switch r.Kind {
	case Quota:
		r.Overuse = math.Float64frombits(binary.LittleEndian.Uint64(payload))
		r.Burst = math.Float64frombits(binary.LittleEndian.Uint64(payload[8:]))
	case MemoryUpdate:
		r.Bytes = binary.LittleEndian.Uint64(payload)
		r.Allocate = binary.LittleEndian.Uint32(payload[8:]) != 0
	}
	return r, nil
}

// Append appends the request's frame to b. The error is errFrame if the request
// fits no frame.
func (r Request) Append(b []byte) ([]byte, error) {
	if int(r.Kind) >= kinds || len(r.Name) == 0 || len(r.Name) > longest[r.Kind] || bytes.IndexByte(r.Name, 0) >= 0 {
		return b, fmt.Errorf("%w: request %d of a name of %d bytes", errFrame, r.Kind, len(r.Name))
	}
	end := len(b) + RequestSize
	b = binary.LittleEndian.AppendUint64(b, uint64(len(r.Name)))
	b = append(append(b, r.Name...), 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(r.ID))
	b = binary.LittleEndian.AppendUint32(b, uint32(r.Kind))
	switch r.Kind {
	case Quota:
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.Overuse))
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.Burst))
	case MemoryUpdate:
		b = binary.LittleEndian.AppendUint64(b, r.Bytes)
		b = appendBool(b, r.Allocate)
	}
	return zeros(b, end), nil
}

// A Response is the answer to the request with the same ID. It does not name
// its kind.
type Response struct {
	ID      int32
	Kind    Kind
	Quota   float64 // ms
	Granted bool    // MemoryUpdate
	Used    uint64  // MemoryLimit, bytes
	Limit   uint64  // MemoryLimit, bytes
}

// Append appends the response's frame to b; it allocates only if b is full.
func (r Response) Append(b []byte) []byte {
	end := len(b) + ResponseSize
	b = binary.LittleEndian.AppendUint32(b, uint32(r.ID))
	switch r.Kind {
	case Quota:
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(r.Quota))
	case MemoryLimit:
		b = binary.LittleEndian.AppendUint64(b, r.Used)
		b = binary.LittleEndian.AppendUint64(b, r.Limit)
	case MemoryUpdate:
		b = appendBool(b, r.Granted)
	}
	return zeros(b, end)
}

// DecodeResponse reads the answer to a request of the given kind.
func DecodeResponse(kind Kind, frame *[ResponseSize]byte) Response {
	r := Response{ID: int32(binary.LittleEndian.Uint32(frame[:])), Kind: kind}
	switch kind {
	case Quota:
		r.Quota = math.Float64frombits(binary.LittleEndian.Uint64(frame[4:]))
	case MemoryLimit:
		r.Used = binary.LittleEndian.Uint64(frame[4:])
		r.Limit = binary.LittleEndian.Uint64(frame[12:])
	case MemoryUpdate:
		r.Granted = binary.LittleEndian.Uint32(frame[4:]) == 1
	}
	return r
}

func appendBool(b []byte, v bool) []byte {
	if v {
		return append(b, 1, 0, 0, 0)
	}
	return append(b, 0, 0, 0, 0)
}

func zeros(b []byte, end int) []byte {
	var none [RequestSize]byte
	return append(b, none[:end-len(b)]...)
}

// longestTime is longer than any sensible number of ms.
const longestTime = time.Hour

// duration interprets a client's number of ms. Some clients send uninitialised
// memory: nonsense is 0.
func duration(ms float64) time.Duration {
	switch {
	case !(ms > 0):
		return 0
	case ms >= float64(longestTime/time.Millisecond):
		return longestTime
	}
	return time.Duration(ms * float64(time.Millisecond))
}
