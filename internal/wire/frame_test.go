package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// of returns an empty message of the type; nil if it has none.
func of(t Type) message {
	switch t {
	case TypeHello, TypeResume:
		return &Hello{}
	case TypeWelcome:
		return &Welcome{}
	case TypeReserve, TypeGrant, TypeDeny, TypeCommit, TypeAbort, TypeFree, TypeLimitsChanged:
		return &Memory{}
	case TypeAcquire:
		return &Acquire{}
	case TypeYield, TypeUsage:
		return &Usage{}
	case TypeNotice:
		return &Notice{}
	case TypeErr:
		return &Err{}
	}
	return nil
}

// encode returns the frame of a header and its message.
func encode(h Header, m message) []byte {
	b := h.Append(nil)
	if m != nil {
		b = m.Append(b)
	}
	return b
}

// checkFrame decodes any bytes. If they decode, it encodes them to a frame that
// decodes to the same, apart from reserved bytes.
func checkFrame(t *testing.T, frame []byte, m message, scratch []byte) []byte {
	t.Helper()
	h, payload, err := Decode(frame)
	if err != nil {
		return scratch
	}
	scratch = h.Append(scratch[:0])
	if m != nil {
		m.Decode(payload)
		scratch = m.Append(scratch)
	}
	h2, payload2, err := Decode(scratch)
	fixture.Stop(t, err != nil || h2 != h || len(payload2) != len(payload),
		"%x was encoded again to %x: %v", frame, scratch, err)
	if m != nil {
		m.Decode(payload2)
		if again := m.Append(h2.Append(nil)); !bytes.Equal(again, scratch) {
			t.Fatalf("%x was encoded again to %x, then to %x", frame, scratch, again)
		}
	}
	return scratch
}

func TestGoldenFrames(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("00", n) }
	var e Err
	e.Code, e.Type = CodeLimit, uint32(TypeReserve)
	copy(e.Text[:], "full")
	for _, c := range []struct {
		name string
		h    Header
		m    message
		want string
	}{
		{"ping", Header{TypePing, 3, 7, 9}, nil,
			"47505357" + "030d" + "0400" + "00000000" + "03000000" + "0700000000000000" + "0900000000000000"},
		{"reserve", Header{TypeReserve, 0, 1, 2}, &Memory{GPU: 3, Kind: KindVMM, Bytes: 0x1122334455},
			"47505357" + "030d" + "0600" + "20000000" + "00000000" + "0100000000000000" + "0200000000000000" +
				"03000000" + "03000000" + zeros(8) + "5544332211000000" + zeros(8)},
		{"acquire", Header{TypeAcquire, 0, 0, 2}, &Acquire{GPU: 1},
			"47505357" + "030d" + "0c00" + "20000000" + "00000000" + zeros(8) + "0200000000000000" +
				"01000000" + zeros(28)},
		{"yield", Header{TypeYield, 0, 0, 2}, &Usage{GPU: 1, Slice: 2, Why: WhyDrained, Refused: 3, Turn: 4, Last: 6, Launched: 7, Busy: 8,
			Solo: 9, SoloTime: 10, Longest: 11, Overhead: 12, Copied: 13, Group: 14, Passed: 15,
			Errors: 16, Uncounted: 17},
			"47505357" + "030d" + "0d00" + "70000000" + "00000000" + zeros(8) + "0200000000000000" +
				"01000200" + "02000300" + "0400000000000000" + "0600000000000000" + "0700000000000000" +
				"0800000000000000" +
				"0900000000000000" + "0a00000000000000" + "0b00000000000000" + "0c00000000000000" + "0d00000000000000" +
				"0e00000000000000" + "0f00000000000000" + "1000000000000000" + "1100000000000000"},
		{"err", Header{TypeErr, 0, 1, 2}, &e,
			"47505357" + "030d" + "1200" + "80000000" + "00000000" + "0100000000000000" + "0200000000000000" +
				"05000000" + "06000000" + "66756c6c" + zeros(116)},
	} {
		frame := encode(c.h, c.m)
		fixture.Equal(t, hex.EncodeToString(frame), c.want, "%s", c.name)
		h, _, err := Decode(frame)
		fixture.If(t, err != nil || h != c.h, "%s: decoded to %+v, %v", c.name, h, err)
	}
}

func TestEveryTypeHasItsSizeAndName(t *testing.T) {
	for typ := Type(1); int(typ) < Types; typ++ {
		frame := encode(Header{Type: typ, Seq: 3, Session: 4}, of(typ))
		h, _, err := Decode(frame)
		fixture.If(t, err != nil || h.Type != typ, "%s: %+v, %v", typ, h, err)
		fixture.If(t, typ.String() == "", "type %d has no name", typ)
	}
	for c := Code(1); int(c) < Codes; c++ {
		fixture.If(t, c.String() == "", "code %d has no name", c)
	}
}

func TestDecodeRefuses(t *testing.T) {
	good := encode(Header{Type: TypeHello, Seq: 3}, &Hello{GPUs: GPUs})
	for _, c := range []struct {
		name   string
		change func([]byte) []byte
		want   error
	}{
		{"nothing", func(b []byte) []byte { return nil }, ErrFrame},
		{"half a header", func(b []byte) []byte { return b[:31] }, ErrFrame},
		{"another magic", func(b []byte) []byte { b[0]++; return b }, ErrFrame},
		{"another major", func(b []byte) []byte { b[4]++; return b }, ErrVersion},
		{"another minor", func(b []byte) []byte { b[5] = 200; return b }, nil},
		{"flags", func(b []byte) []byte { b[12] = 1; return b }, nil},
		{"type 0", func(b []byte) []byte { b[6] = 0; return b }, ErrType},
		{"a later type", func(b []byte) []byte { b[6] = byte(typeEnd); return b }, ErrType},
		{"a length that lies", func(b []byte) []byte { b[8]--; return b }, ErrFrame},
		{"a huge length", func(b []byte) []byte { b[11] = 0xff; return b }, ErrFrame},
		{"one byte more", func(b []byte) []byte { b[9] = 2; b[8] = 1; return append(b, 0) }, ErrFrame},
		{"another type's size", func(b []byte) []byte { b[6] = byte(TypePing); return b }, ErrFrame},
		{"too many GPUs", func(b []byte) []byte { b[HeaderSize+4] = GPUs + 1; return b }, ErrFrame},
		{"longer than a frame", func(b []byte) []byte { return append(b, make([]byte, FrameMax)...) }, ErrFrame},
	} {
		_, _, err := Decode(c.change(bytes.Clone(good)))
		fixture.If(t, !errors.Is(err, c.want), "%s: %v, want %v", c.name, err, c.want)
	}
}

// TestRandomFrames decodes random frames and mutated valid ones.
func TestRandomFrames(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 4))
	var seeds [Types][]byte
	var messages [Types]message
	for typ := Type(1); int(typ) < Types; typ++ {
		messages[typ] = of(typ)
		seeds[typ] = encode(Header{Type: typ, Seq: r.Uint64(), Session: r.Uint64()}, messages[typ])
	}
	frame, scratch := make([]byte, 0, FrameMax), make([]byte, 0, FrameMax)
	const frames = 500_000
	read := 0
	for range frames {
		frame = mutate(r, append(frame[:0], seeds[1+r.IntN(Types-1)]...))
		h, _, err := Decode(frame)
		if err != nil {
			continue
		}
		read++
		scratch = checkFrame(t, frame, messages[h.Type], scratch)
	}
	fixture.AtLeast(t, read, frames/10, "only … of %d frames could be read", frames)
}

// mutate changes a few bytes of the frame, or its length, or all of it.
func mutate(r *rand.Rand, frame []byte) []byte {
	switch r.IntN(8) {
	case 0:
		return frame[:r.IntN(len(frame)+1)]
	case 1:
		return append(frame, byte(r.Uint32()))
	case 2:
		for i := range frame {
			frame[i] = byte(r.Uint32())
		}
		return frame
	}
	for range 1 + r.IntN(4) {
		frame[r.IntN(len(frame))] = byte(r.Uint32())
	}
	return frame
}

func FuzzDecode(f *testing.F) {
	for typ := Type(1); int(typ) < Types; typ++ {
		f.Add(encode(Header{Type: typ, Seq: 1, Session: 2}, of(typ)))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		h, _, err := Decode(frame)
		if err == nil {
			checkFrame(t, frame, of(h.Type), nil)
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	b := make([]byte, 0, FrameMax)
	var m Memory
	n := testing.AllocsPerRun(100, func() {
		b = Header{Type: TypeReserve, Seq: 1}.Append(b[:0])
		b = m.Append(b)
		_, payload, err := Decode(b)
		fixture.Must(t, err)
		m.Decode(payload)
	})
	fixture.If(t, n != 0, "%v allocations", n)
}
