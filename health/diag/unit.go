package diag

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"text/template"
)

// A Unit is a kind of arithmetic that each SM does. Its row has all that its kernel and its known
// sums need.
type Unit struct {
	Name       string // of the kernel
	Words      string // for people
	Capability int    // the least compute capability, 70 is 7.0
	M, N, K    int    // of a tile of the tensor cores; 0: each thread multiplies numbers of its own
	Inputs     int    // registers of an input
	Outputs    int    // registers of a sum
	In, Out    string // types of those registers
	kind       string // of an input, as PTX has it
	shapes     string // of a product's types, behind its shape
	Size       int    // of an input, bytes
	most       int64  // of an input: all sums are exact
	encode     func(b []byte, v int64) []byte
}

// Units are the kinds of arithmetic that are tested. Inputs are whole numbers, so small that every
// sum is exact: the output's significand holds 2*K*most*most.
var Units = []Unit{
	{Name: "tensor_f16", Words: "tensor cores, f16", Capability: 70, M: 16, N: 16, K: 16, Inputs: 8, Outputs: 8,
		In: "b32", Out: "f32", kind: "f16", shapes: ".f32.f32", Size: 2, most: 511, encode: half},
	{Name: "tensor_bf16", Words: "tensor cores, bf16", Capability: 80, M: 16, N: 16, K: 16, Inputs: 4, Outputs: 8,
		In: "b32", Out: "f32", kind: "bf16", shapes: ".f32.bf16.bf16.f32", Size: 2, most: 255, encode: brain},
	{Name: "tensor_s8", Words: "tensor cores, int8", Capability: 75, M: 16, N: 16, K: 16, Inputs: 2, Outputs: 8,
		In: "b32", Out: "s32", kind: "s8", shapes: ".s32.s8.s8.s32", Size: 1, most: 127, encode: byte8},
	{Name: "tensor_f64", Words: "tensor cores, FP64", Capability: 80, M: 8, N: 8, K: 4, Inputs: 1, Outputs: 2,
		In: "f64", Out: "f64", kind: "f64", shapes: ".rn.f64.f64.f64.f64", Size: 8, most: 1<<24 - 1, encode: double},
	{Name: "fma_f64", Words: "FP64", Capability: 70, Inputs: 1, Outputs: 1,
		In: "f64", Out: "f64", Size: 8, most: 1<<25 - 1, encode: double},
	{Name: "fma_f32", Words: "FP32", Capability: 70, Inputs: 1, Outputs: 1,
		In: "f32", Out: "f32", Size: 4, most: 1<<11 - 1, encode: single},
}

// warp is the number of threads that work together. A unit without tiles has as many numbers of
// each kind.
const warp = 32

// maxSMs bounds the number of an SM, as %smid has it.
const maxSMs = 1024

//go:embed kernels/products.ptx
var products string

// code is the kernels' text, by Unit.
var code = template.Must(template.New("products").Funcs(template.FuncMap{
	"list":  func(s ...string) []string { return s },
	"until": func(n int) []struct{} { return make([]struct{}, n) },
}).Parse(products))

// PTX returns the unit's kernel for the driver to compile.
func (u Unit) PTX() string {
	var b strings.Builder
	if err := code.Execute(&b, u); err != nil {
		panic(err) // the template is ours
	}
	return b.String()
}

// The template calls the following methods.

// Version is that of the PTX language.
func (u Unit) Version() string {
	if u.Capability >= 80 {
		return "7.0"
	}
	return "6.3"
}

// Target is the architecture that the driver compiles for, at least.
func (u Unit) Target() string { return fmt.Sprint("sm_", u.Capability) }

// SMs is the most that a GPU may have.
func (u Unit) SMs() int { return maxSMs }

// Unroll is how many rounds of the loop are written out.
func (u Unit) Unroll() int { return 4 }

// Bits is the type of a sum's bits.
func (u Unit) Bits() string { return "b" + u.Out[1:] }

// Zero is 0 of a sum's type.
func (u Unit) Zero() string {
	return map[string]string{"f32": "0f00000000", "f64": "0d0000000000000000", "s32": "0"}[u.Out]
}

// Offset is where an input begins.
func (u Unit) Offset(i int) int { return i * u.inputs() * u.Size }

// Wanted is how many bytes a sum has.
func (u Unit) Wanted() int { return u.sums() * u.width() }

// inputs and sums are how many numbers one input and one sum have.
func (u Unit) inputs() int {
	if u.M == 0 {
		return warp
	}
	return u.M * u.K
}

func (u Unit) sums() int {
	if u.M == 0 {
		return warp
	}
	return u.M * u.N
}

// width is the size of a sum's number, bytes.
func (u Unit) width() int {
	if u.Out == "f64" {
		return 8
	}
	return 4
}

// Registers returns the registers of sums.
func (u Unit) Registers(names ...string) (all []string) {
	for _, name := range names {
		for i := range u.Outputs {
			all = append(all, fmt.Sprintf("%%%s%d", name, i))
		}
	}
	return all
}

// Compared are the registers that must be equal.
func (u Unit) Compared() (pairs [][2]string) {
	got, want := u.Registers("x", "y"), u.Registers("w", "v")
	for i := range got {
		pairs = append(pairs, [2]string{got[i], want[i]})
	}
	return pairs
}

// vector is a name's registers as an operand.
func vector(name string, n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%%%s%d", name, i)
	}
	return "{" + strings.Join(all, ", ") + "}"
}

func (u Unit) shape() string { return fmt.Sprintf("m%dn%dk%d", u.M, u.N, u.K) }

// Load reads an input from %at: p and q by rows, r and s by columns.
func (u Unit) Load(name string) string {
	if u.M == 0 {
		return fmt.Sprintf("ld.global.%s %%%s0, [%%at]", u.In, name)
	}
	matrix := "a.sync.aligned.row"
	if name == "r" || name == "s" {
		matrix = "b.sync.aligned.col"
	}
	return fmt.Sprintf("wmma.load.%s.%s.global.%s %s, [%%at], %d", matrix, u.shape(), u.kind, vector(name, u.Inputs),
		u.K)
}

// LoadWanted reads a sum from %at.
func (u Unit) LoadWanted(name string) string {
	if u.M == 0 {
		return fmt.Sprintf("ld.global.%s %%%s0, [%%at]", u.Out, name)
	}
	return fmt.Sprintf("wmma.load.c.sync.aligned.row.%s.global.%s %s, [%%at], %d",
		u.shape(), u.Out, vector(name, u.Outputs), u.N)
}

// Multiply adds a product to a sum.
func (u Unit) Multiply(sum, a, b string) string {
	if u.M == 0 {
		return fmt.Sprintf("fma.rn.%s %%%s0, %%%s0, %%%s0, %%%s0", u.Out, sum, a, b, sum)
	}
	return fmt.Sprintf("wmma.mma.sync.aligned.row.col.%s%s %s, %s, %s, %s", u.shape(), u.shapes,
		vector(sum, u.Outputs), vector(a, u.Inputs), vector(b, u.Inputs), vector(sum, u.Outputs))
}

// operations returns the number of additions and multiplications of a warp in some rounds.
func (u Unit) operations(rounds int) float64 {
	products := float64(8*rounds*u.Unroll() + 4)
	if u.M == 0 {
		return products * 2 * warp
	}
	return products * 2 * float64(u.M*u.N*u.K)
}

// Numbers draws inputs and returns them as the kernel reads them, with their sums. The sums are
// computed in integers, so that the kernel is not compared with floating-point arithmetic.
func (u Unit) Numbers(seed uint64) (input, want []byte) {
	r := rand.New(rand.NewPCG(seed, 1))
	draw := func() []int64 {
		all := make([]int64, u.inputs())
		for i := range all {
			all[i] = r.Int64N(2*u.most+1) - u.most
		}
		return all
	}
	p, q, first, second := draw(), draw(), draw(), draw()
	put := func(values []int64, sign int64) {
		for _, v := range values {
			input = u.encode(input, sign*v)
		}
	}
	put(p, 1)
	put(q, 1)
	put(p, -1)
	put(q, -1)
	put(first, 1)
	put(second, 1)
	for _, of := range [][2][]int64{{first, second}, {second, first}} {
		for i := range u.sums() {
			want = u.encodeSum(want, u.product(p, of[0], i)+u.product(q, of[1], i))
		}
	}
	return input, want
}

// product returns one number of a product. a is stored by rows, b by columns.
func (u Unit) product(a, b []int64, i int) (sum int64) {
	if u.M == 0 {
		return a[i] * b[i]
	}
	row, column := i/u.N, i%u.N
	for k := range u.K {
		sum += a[row*u.K+k] * b[column*u.K+k]
	}
	return sum
}

func (u Unit) encodeSum(b []byte, v int64) []byte {
	switch u.Out {
	case "f32":
		return single(b, v)
	case "f64":
		return double(b, v)
	}
	return binary.LittleEndian.AppendUint32(b, uint32(v))
}

// The encodings of whole numbers that their type holds exactly.

func byte8(b []byte, v int64) []byte { return append(b, byte(v)) }
func single(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
}
func double(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(v)))
}

// brain appends a bfloat16: the upper half of a float32.
func brain(b []byte, v int64) []byte {
	return binary.LittleEndian.AppendUint16(b, uint16(math.Float32bits(float32(v))>>16))
}

// half appends an IEEE half: like a float32, with 5 bits of exponent and 10 bits of fraction.
func half(b []byte, v int64) []byte {
	f := math.Float32bits(float32(v))
	if v == 0 {
		return binary.LittleEndian.AppendUint16(b, 0)
	}
	exponent := f >> 23 & 0xff
	return binary.LittleEndian.AppendUint16(b, uint16(f>>16&0x8000|(exponent-127+15)<<10|f>>13&0x3ff))
}
