package gemini

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// frame returns the bytes of a golden frame: hexadecimal, then zeros.
func frame(t testing.TB, text string, size int) []byte {
	t.Helper()
	b := fixture.Value(hex.DecodeString(strings.ReplaceAll(text, " ", "")))(t)
	return append(b, make([]byte, size-len(b))...)
}

func TestGoldenRequests(t *testing.T) {
	name := []byte("client1")
	for text, want := range map[string]Request{
		"0700000000000000 636c69656e743100 0000000000000000 000000000000f83f 0000000000000440": {Name: name,
			Kind: Quota, Overuse: 1.5, Burst: 2.5},
		"0700000000000000 636c69656e743100 0100000001000000": {Name: name, ID: 1,
			Kind: MemoryLimit},
		"0700000000000000 636c69656e743100 0200000002000000 5544332211000000 01000000": {Name: name, ID: 2,
			Kind: MemoryUpdate, Bytes: 0x1122334455, Allocate: true},
	} {
		golden := frame(t, text, RequestSize)
		got, err := decode((*[RequestSize]byte)(golden))
		fixture.If(t, err != nil || !equal(got, want), "%s is %+v, %v; want %+v", text, got, err, want)
		if b, err := want.Append(nil); err != nil || !bytes.Equal(b, golden) {
			t.Errorf("%+v is\n%x, %v; want\n%x", want, b, err, golden)
		}
	}
}

func TestGoldenResponses(t *testing.T) {
	for text, want := range map[string]Response{
		"07000000 0000000000e05e40":                  {ID: 7, Kind: Quota, Quota: 123.5},
		"08000000 01000000":                          {ID: 8, Kind: MemoryUpdate, Granted: true},
		"09000000 0001000000000000 0002000000000000": {ID: 9, Kind: MemoryLimit, Used: 0x100, Limit: 0x200},
	} {
		golden := frame(t, text, ResponseSize)
		b := want.Append(nil)
		fixture.If(t, !bytes.Equal(b, golden), "%+v is\n%x; want\n%x", want, b, golden)
		fixture.Equal(t, DecodeResponse(want.Kind, (*[ResponseSize]byte)(golden)), want, "%s is", text)
	}
}

func equal(a, b Request) bool {
	x, y := a, b
	x.Name, y.Name, x.Overuse, y.Overuse, x.Burst, y.Burst = nil, nil, 0, 0, 0, 0
	return bytes.Equal(a.Name, b.Name) && x.ID == y.ID && x.Kind == y.Kind && x.Bytes == y.Bytes &&
		x.Allocate == y.Allocate &&
		math.Float64bits(a.Overuse) == math.Float64bits(b.Overuse) &&
		math.Float64bits(a.Burst) == math.Float64bits(b.Burst)
}

func TestLongestNames(t *testing.T) {
	for kind, length := range longest {
		r := Request{Name: bytes.Repeat([]byte("n"), length), ID: -1, Kind: Kind(kind), Overuse: 1, Burst: 2,
			Bytes: math.MaxUint64, Allocate: true}
		b, err := r.Append(nil)
		fixture.Stop(t, err != nil || len(b) != RequestSize, "kind %d: %d bytes, %v", kind, len(b), err)
		got, err := decode((*[RequestSize]byte)(b))
		fixture.If(t, err != nil || !bytes.Equal(got.Name, r.Name) || got.ID != -1, "kind %d: %+v, %v", kind, got, err)
		r.Name = append(r.Name, 'n')
		if b, err := r.Append(nil); !errors.Is(err, errFrame) || len(b) != 0 {
			t.Errorf("kind %d, a longer name: %v", kind, err)
		}
	}
}

func TestHostileFramesAreRefused(t *testing.T) {
	good, _ := Request{Name: []byte("client1"), Kind: MemoryUpdate}.Append(nil)
	put := func(change func(b []byte)) []byte {
		b := bytes.Clone(good)
		change(b)
		return b
	}
	name := func(length int, kind Kind) []byte {
		b := frame(t, "", RequestSize)
		binary.LittleEndian.PutUint64(b, uint64(length))
		copy(b[8:], bytes.Repeat([]byte("n"), length))
		binary.LittleEndian.PutUint32(b[13+length:], uint32(kind))
		return b
	}
	for what, b := range map[string][]byte{
		"nothing":             make([]byte, RequestSize),
		"only ones":           bytes.Repeat([]byte{0xff}, RequestSize),
		"no name":             put(func(b []byte) { b[0] = 0 }),
		"length of 64":        put(func(b []byte) { b[0] = 64 }),
		"length of 2^63":      put(func(b []byte) { b[7] = 0x80 }),
		"length of 2^64-1":    put(func(b []byte) { copy(b, bytes.Repeat([]byte{0xff}, 8)) }),
		"length of 2^32 + 7":  put(func(b []byte) { b[4] = 1 }),
		"name without an end": put(func(b []byte) { b[15] = 'x' }),
		"NUL within the name": put(func(b []byte) { b[10] = 0 }),
		"kind 3":              put(func(b []byte) { b[20] = 3 }),
		"kind 2^32-1":         put(func(b []byte) { copy(b[20:], bytes.Repeat([]byte{0xff}, 4)) }),
		"time, name of 48":    name(48, Quota),
		"memory, name of 52":  name(52, MemoryUpdate),
		"HTTP":                append([]byte("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"), make([]byte, 45)...)[:RequestSize],
		"length one too few":  put(func(b []byte) { b[0] = 6 }),
		"length one too many": put(func(b []byte) { b[0] = 8 }),
		"shifted by one byte": append([]byte{0}, good[:RequestSize-1]...),
		"big-endian length":   put(func(b []byte) { b[0], b[7] = 0, 7 }),
	} {
		r, err := decode((*[RequestSize]byte)(b))
		fixture.If(t, !errors.Is(err, errFrame), "%s: %+v, %v", what, r, err)
	}
}

func TestFramesDoNotAllocate(t *testing.T) {
	b, _ := Request{Name: []byte("client1"), Kind: Quota}.Append(nil)
	in, out := (*[RequestSize]byte)(b), make([]byte, 0, ResponseSize)
	n := testing.AllocsPerRun(100, func() {
		r, _ := decode(in)
		out = Response{ID: r.ID, Kind: r.Kind, Quota: 1}.Append(out[:0])
	})
	fixture.If(t, n != 0, "%v allocations", n)
}

func TestDuration(t *testing.T) {
	for ms, want := range map[float64]time.Duration{
		1.5: 1500 * time.Microsecond, 0: 0, -1: 0, math.Inf(-1): 0, math.Inf(1): time.Hour, 1e300: time.Hour,
		5e-324: 0, 3.6e6: time.Hour, math.MaxFloat64: time.Hour, -math.MaxFloat64: 0,
	} {
		fixture.Equal(t, duration(ms), want, "%v ms are", ms)
	}
	fixture.Equal(t, duration(math.NaN()), 0, "NaN ms are")
}

// FuzzDecode holds that a decoded request keeps its meaning when it is encoded again, and that only frames are decoded.
func FuzzDecode(f *testing.F) {
	for _, r := range []Request{
		{Name: []byte("client1"), Kind: Quota, Overuse: 1.5, Burst: math.NaN()},
		{Name: bytes.Repeat([]byte("n"), 63), ID: 1, Kind: MemoryLimit},
		{Name: []byte("ns/pod"), ID: -1, Kind: MemoryUpdate, Bytes: math.MaxUint64, Allocate: true},
	} {
		b, _ := r.Append(nil)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var in [RequestSize]byte
		copy(in[:], b)
		check(t, &in)
	})
}

// check decodes a frame and reports whether it is valid.
func check(t *testing.T, in *[RequestSize]byte) bool {
	r, err := decode(in)
	if err != nil {
		return false
	}
	for _, ms := range []float64{r.Overuse, r.Burst} {
		d := duration(ms)
		fixture.Stop(t, d < 0 || d > time.Hour, "%x: %v ms are %v", in, ms, d)
	}
	b, err := r.Append(make([]byte, 0, RequestSize))
	fixture.Stop(t, err != nil || len(b) != RequestSize, "%x: %+v has no frame: %v", in, r, err)
	again, err := decode((*[RequestSize]byte)(b))
	fixture.Stop(t, err != nil || !equal(again, r), "%x: %+v came back as %+v, %v", in, r, again, err)
	return true
}

// TestDecodeOfDamagedFrames runs the fuzz test without a search: 10^6 valid frames with some bytes changed.
func TestDecodeOfDamagedFrames(t *testing.T) {
	t.Parallel()
	const frames = 1_000_000
	var seeds [][RequestSize]byte
	for kind, length := range longest {
		for _, l := range []int{1, 7, length} {
			b, _ := Request{Name: bytes.Repeat([]byte("n"), l), Kind: Kind(kind)}.Append(nil)
			seeds = append(seeds, [RequestSize]byte(b))
		}
	}
	good, state := 0, uint64(1)
	random := func() uint64 {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		return state
	}
	for i := range frames {
		b := seeds[i%len(seeds)]
		for range random() % 4 {
			r := random()
			b[(r>>8)%RequestSize] = byte(r)
		}
		if check(t, &b) {
			good++
		}
	}
	fixture.If(t, good < frames/10 || good > frames*9/10, "%d of %d frames are good: that tries little", good, frames)
}
