package diag

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math"
	"math/big"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// exact is the number of bits of a whole number that a sum's type holds, without the sign.
var exact = map[string]int{"f32": 24, "f64": 53, "s32": 31}

// decode decodes a unit's input bit by bit, from the definition of its type.
func (u Unit) decode(b []byte) *big.Int {
	float := func(exponent, fraction int) *big.Int {
		var word [8]byte
		copy(word[:], b[:u.Size])
		bits := binary.LittleEndian.Uint64(word[:])
		e, f := bits>>fraction&(1<<exponent-1), bits&(1<<fraction-1)
		if e == 0 && f == 0 {
			return new(big.Int)
		}
		mantissa := new(big.Float).SetInt(new(big.Int).SetUint64(1<<fraction | f))
		v := new(big.Float).SetMantExp(mantissa, int(e)-(1<<(exponent-1)-1)-fraction)
		if bits>>(exponent+fraction)&1 == 1 {
			v.Neg(v)
		}
		whole, accuracy := v.Int(nil)
		if accuracy != big.Exact {
			return nil
		}
		return whole
	}
	switch {
	case u.kind == "s8":
		return big.NewInt(int64(int8(b[0])))
	case u.kind == "f16":
		return float(5, 10)
	case u.kind == "bf16":
		return float(8, 7)
	case u.Size == 8:
		return float(11, 52)
	}
	return float(8, 23)
}

// kernelSums repeats the kernel's computation in its order and with unbounded
// numbers. It returns x and y, and the largest intermediate sum.
func (u Unit) kernelSums(t *testing.T, input []byte) (sums []*big.Int, largest *big.Int) {
	t.Helper()
	matrix := map[string][]*big.Int{}
	for i, name := range []string{"p", "q", "np", "nq", "r", "s"} {
		for at := u.Offset(i); at < u.Offset(i+1); at += u.Size {
			v := u.decode(input[at:])
			if v == nil {
				t.Fatalf("%s: %s has %x, which is no whole number", u.Name, name, input[at:at+u.Size])
			}
			matrix[name] = append(matrix[name], v)
		}
	}
	largest = new(big.Int)
	add := func(sum *big.Int, a, b string, row, column int) {
		for k := range max(1, u.K) {
			i, j := row*u.K+k, column*u.K+k
			if u.M == 0 {
				i, j = row, row
			}
			sum.Add(sum, new(big.Int).Mul(matrix[a][i], matrix[b][j]))
			if sum.CmpAbs(largest) > 0 {
				largest.Abs(sum)
			}
		}
	}
	for _, order := range [2][2]string{{"r", "s"}, {"s", "r"}} { // x, y
		for row := range max(u.M, map[bool]int{true: warp}[u.M == 0]) {
			for column := range max(1, u.N) {
				sum := new(big.Int)
				for range 2 {
					add(sum, "p", order[0], row, column)
					add(sum, "q", order[1], row, column)
					add(sum, "np", order[0], row, column)
					add(sum, "nq", order[1], row, column)
				}
				fixture.Need(t, sum.Sign(), 0, "%s: a round leaves %v", u.Name, sum)
				add(sum, "p", order[0], row, column)
				add(sum, "q", order[1], row, column)
				sums = append(sums, sum)
			}
		}
	}
	return sums, largest
}

// bits returns the encoding of a sum in its type.
func (u Unit) bits(sum *big.Int) uint64 {
	f, _ := new(big.Float).SetInt(sum).Float64()
	switch u.Out {
	case "f64":
		return math.Float64bits(f)
	case "f32":
		return uint64(math.Float32bits(float32(f)))
	}
	return uint64(uint32(sum.Int64()))
}

// TestSumsAreKnown expects each sum that a kernel is given to be the result of
// its multiplications, and every intermediate sum to be exact.
func TestSumsAreKnown(t *testing.T) {
	t.Parallel()
	for _, u := range Units {
		bound := new(big.Int).Lsh(big.NewInt(1), uint(exact[u.Out]))
		worst := new(big.Int).Mul(big.NewInt(2*int64(max(1, u.K))),
			new(big.Int).Exp(big.NewInt(u.most), big.NewInt(2), nil))
		fixture.AtMost(t, worst.Cmp(bound), 0, "%s: sums can come to %v, exact is up to %v", u.Name, worst, bound)
		seen := new(big.Int)
		for seed := range uint64(5) {
			input, want := u.Numbers(seed)
			if len(input) != u.Offset(6) || len(want) != 2*u.Wanted() || len(input) > numbers || len(want) > numbers {
				t.Fatalf("%s: %d bytes of input, %d of sums", u.Name, len(input), len(want))
			}
			sums, largest := u.kernelSums(t, input)
			if largest.Cmp(seen) > 0 {
				seen = largest
			}
			for i, sum := range sums {
				var word [8]byte
				copy(word[:], want[i*u.width():(i+1)*u.width()])
				if got := binary.LittleEndian.Uint64(word[:]); got != u.bits(sum) {
					t.Fatalf("%s, seed %d: sum %d is expected to be %#x, it is %#x (%v)", u.Name, seed, i, got,
						u.bits(sum), sum)
				}
			}
		}
		fixture.AtLeast(t, seen.BitLen(), 16, "%s: no sum is above %v: the upper bits are never used", u.Name, seen)
	}
}

// TestSumsDistinguishNumbers expects a wrong input to change a sum, at any place.
func TestSumsDistinguishNumbers(t *testing.T) {
	t.Parallel()
	for _, u := range Units {
		input, _ := u.Numbers(7)
		right, _ := u.kernelSums(t, input)
		for _, from := range []int{0, 1, 4, 5} { // p, q, r and s
			for _, n := range []int{0, u.inputs() / 3, u.inputs() - 1} {
				at := u.Offset(from) + n*u.Size
				wrong := append([]byte(nil), input...)
				if u.decode(input[at:]).Sign() == 0 {
					continue
				}
				wrong[at+u.Size-1] ^= 0x80 // the sign
				if from < 2 {              // its negative changes with it
					wrong[at+u.Offset(2)+u.Size-1] ^= 0x80
				}
				sums, _ := u.kernelSums(t, wrong)
				same := true
				for i := range sums {
					same = same && sums[i].Cmp(right[i]) == 0
				}
				fixture.Equal(t, same, false, "%s: the sign of number %d is in no sum", u.Name, at/u.Size)
			}
		}
	}
}

// TestPatternsCoverMemory expects each cycle to have every bit of a word 0 and
// 1, and each word to differ from its neighbours. Cycles must differ.
func TestPatternsCoverMemory(t *testing.T) {
	const base = 0x7f0000000000
	for n := range uint64(3) {
		for i := range uint64(100) {
			var ones, zeros uint64
			for _, p := range cycle(n) {
				w := p.Word(i, base+8*i)
				ones, zeros = ones|w, zeros|^w
				fixture.If(t, p.Word(i+1, base+8*i+8) == w, "%+v: words %d and %d are alike", p, i, i+1)
			}
			fixture.Stop(t, ones != math.MaxUint64 || zeros != math.MaxUint64,
				"cycle %d, word %d: bits that are never 1: %x, never 0: %x", n, i, ^ones, ^zeros)
		}
	}
	// SplitMix64's own first numbers from state 0: its step is added first.
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		fixture.Equal(t, (Pattern{Kind: Random}).Word(uint64(i)+1, 0), want, "random word %d is", i+1)
	}
	for p, want := range map[Pattern]uint64{
		{Walking, 3, false}: 1 << 1, {Walking, 3, true}: ^uint64(1 << 1),
		{Random, 1<<64 - 61, false}: 0xe220a8397b1dcdaf,
	} {
		fixture.Equal(t, p.Word(62, 0), want, "%+v: word 62 is", p)
	}
	fixture.Equal(t, cycle(1)[4], Pattern{Random, 1 << 32, false}, "the second cycle has")
	a, b := cycle(0), cycle(1)
	fixture.If(t, a[2] == b[2] || a[4] == b[4], "cycles are alike")
}

// TestUnits compares the kernels, the numbers that they multiply, and their count
// of operations against those that were tried on GPUs. Run TestGPUDiagKernels before you accept others.
func TestUnits(t *testing.T) {
	var b strings.Builder
	fmt.Fprintf(&b, "// pattern: %x\n\n", sha256.Sum256([]byte(patternPTX)))
	for _, u := range Units {
		input, want := u.Numbers(1)
		fmt.Fprintf(&b, "// %s: %s; %.0f operations in 3 rounds; numbers %x, sums %x\n%s\n", u.Name, u.Words,
			u.operations(3), sha256.Sum256(input), sha256.Sum256(want), u.PTX())
	}
	fixture.Golden(t, "testdata/units.ptx", b.String())
}

func TestRates(t *testing.T) {
	for r, want := range map[Rate]float64{
		{5, 0}: 0, {5, -1}: 0, {5, 1}: 5e9, {5, 2 * time.Second}: 2.5, {5, time.Second / 2}: 10,
	} {
		fixture.Equal(t, r.PerSecond(), want, "%+v is … a second", r)
	}
}
