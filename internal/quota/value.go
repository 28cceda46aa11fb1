package quota

import (
	"encoding"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// A Value is the field of a term in a quota, in the unit in which the term is
// written.
type Value interface {
	encoding.TextUnmarshaler // does not check the range
	fmt.Stringer
	Number() float64 // in base units: bytes, seconds, a ratio
	Form() string    // the written form, by examples
	take(Value)      // copies a value of the same unit
}

// A Part is written as 0.3 or as 30 %.
type Part float64

// UnmarshalText reads a part. It does not check the range.
func (p *Part) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil {
		return fmt.Errorf("%q is not %s", text, p.Form())
	}
	if percent {
		v /= 100
	}
	*p = Part(v)
	return nil
}

func (p Part) String() string { return fmt.Sprintf("%.4g %%", 100*float64(p)) }

// Number returns the part; 1 is 100 %.
func (p Part) Number() float64 { return float64(p) }

// Form returns what is written.
func (Part) Form() string { return "a part such as 0.3 or 30 %" }

func (p *Part) take(v Value) { *p = *v.(*Part) }

// Meant asks about a part that is too large whether its sign was forgotten: it
// continues a sentence. 200 % may be meant as it is.
func Meant(part float64) string {
	if part > 2 && part <= 100 {
		return fmt.Sprintf("; did you mean %g %%?", part)
	}
	return ""
}

// A Size is written in bytes or as 4 GiB.
type Size uint64

var sizeUnits = map[string]float64{
	"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1e3, "MB": 1e6,
	"GB": 1e9, "TB": 1e12,
}

// UnmarshalText reads a size.
func (s *Size) UnmarshalText(text []byte) error {
	end := strings.LastIndexAny(string(text), "0123456789.") + 1
	v, err := strconv.ParseFloat(string(text[:end]), 64)
	unit, known := sizeUnits[strings.TrimSpace(string(text[end:]))]
	if v *= unit; err != nil || !known || !(v >= 0 && v < math.MaxInt64) {
		return fmt.Errorf("%q is not %s", text, s.Form())
	}
	// 0 has another meaning, and ParseFloat reads 1e-400 as 0.
	if v < 1 && strings.ContainsAny(string(text), "123456789") {
		return fmt.Errorf("%q is less than a byte: write a size such as 4 GiB, 500 MiB or a number of bytes", text)
	}
	*s = Size(v)
	return nil
}

// UnitForgotten returns an error for a small number of bytes, which an operator hardly meant.
func UnitForgotten(text string) error {
	const least = 1 << 20
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil || v == 0 || v >= least {
		return nil
	}
	return fmt.Errorf("%q is a number of bytes: write %s GiB, or %s B if you mean bytes", text, text, text)
}

func (s Size) String() string {
	for _, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := sizeUnits[unit]; float64(s) >= size {
			return fmt.Sprintf("%.4g %s", float64(s)/size, unit)
		}
	}
	return fmt.Sprintf("%d B", uint64(s))
}

// Number returns the size in bytes.
func (s Size) Number() float64 { return float64(s) }

// Form returns what is written.
func (Size) Form() string { return "a size such as 4 GiB, 500 MiB or a number of bytes" }

func (s *Size) take(v Value) { *s = *v.(*Size) }

// A capacity is a quota's cap of memory: a size, or a part of a GPU's memory,
// written as 30 %.
type capacity Quota

// UnmarshalText reads a size or a part. It does not check the part's range.
func (c *capacity) UnmarshalText(text []byte) error {
	c.Memory, c.MemoryPart = 0, 0
	if strings.HasSuffix(string(text), "%") {
		if err := (*Part)(&c.MemoryPart).UnmarshalText(text); err != nil || c.MemoryPart <= 0 {
			return fmt.Errorf("%q is not a part of a GPU's memory such as 30 %%", text)
		}
		return nil
	}
	if v, err := strconv.ParseFloat(string(text), 64); err == nil && v > 0 && v < 1 {
		return fmt.Errorf("%q is less than a byte: write %g %% for a part of the GPU's memory", text, 100*v)
	}
	return (*Size)(&c.Memory).UnmarshalText(text)
}

func (c *capacity) String() string {
	if c.MemoryPart > 0 {
		return Part(c.MemoryPart).String() + " of the GPU's"
	}
	return Size(c.Memory).String()
}

// Number returns the size in bytes, or the part if no size is known.
func (c *capacity) Number() float64 {
	if c.Memory == 0 {
		return c.MemoryPart
	}
	return float64(c.Memory)
}

// Form returns what is written.
func (*capacity) Form() string { return "a size such as 4 GiB, or a part such as 30 %" }

func (c *capacity) take(v Value) {
	from := v.(*capacity)
	c.Memory, c.MemoryPart = from.Memory, from.MemoryPart
}

// A Wait is written as 20ms.
type Wait time.Duration

// UnmarshalText reads a duration.
func (w *Wait) UnmarshalText(text []byte) error {
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf("%q is not %s", text, w.Form())
	}
	*w = Wait(d)
	return nil
}

func (w Wait) String() string { return time.Duration(w).String() }

// Number returns the wait in seconds.
func (w Wait) Number() float64 { return time.Duration(w).Seconds() }

// Form returns what is written.
func (Wait) Form() string { return "a duration such as 10s, 1m or 24h" }

func (w *Wait) take(v Value) { *w = *v.(*Wait) }

// MarshalJSON returns the wait in seconds.
func (w Wait) MarshalJSON() ([]byte, error) { return json.Marshal(w.Number()) }

// UnmarshalJSON reads seconds.
func (w *Wait) UnmarshalJSON(text []byte) error {
	var seconds float64
	err := json.Unmarshal(text, &seconds)
	*w = Wait(math.Round(seconds * float64(time.Second)))
	return err
}
