package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A part is written as 0.3 or as 30 %.
type part float64

// UnmarshalText reads a part; its range is not looked at.
func (p *part) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil {
		return fmt.Errorf("%q is not a part such as 0.3 or 30 %%", text)
	}
	if percent {
		v /= 100
	}
	*p = part(v)
	return nil
}

// A size is written in bytes or as 4 GiB.
type size uint64

var sizeUnits = map[string]float64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}

// UnmarshalText reads a size.
func (s *size) UnmarshalText(text []byte) error {
	end := strings.LastIndexAny(string(text), "0123456789.") + 1
	v, err := strconv.ParseFloat(string(text[:end]), 64)
	unit, known := sizeUnits[strings.TrimSpace(string(text[end:]))]
	if v *= unit; err != nil || !known || !(v >= 0 && v < math.MaxInt64) {
		return fmt.Errorf("%q is not a size such as 4 GiB, 500 MiB or a number of bytes", text)
	}
	if v < 1 && strings.ContainsAny(string(text), "123456789") { // 0 is another thing, and 1e-400 is 0 to ParseFloat
		return fmt.Errorf("%q is less than a byte: a size is such as 4 GiB, 500 MiB or a number of bytes", text)
	}
	*s = size(v)
	return nil
}

// A memory is a size, or a part of a GPU's memory, written as 30 %.
type memory struct {
	size size
	part part
}

// UnmarshalYAML reads a size or a part, where a mapping would leave out both.
func (m *memory) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: cannot unmarshal %s into memory", n.Line, n.ShortTag())}}
	}
	return m.UnmarshalText([]byte(n.Value))
}

// UnmarshalText reads a size or a part; the part's range is not looked at.
func (m *memory) UnmarshalText(text []byte) error {
	if strings.HasSuffix(string(text), "%") {
		if err := m.part.UnmarshalText(text); err != nil || m.part <= 0 {
			return fmt.Errorf("%q is not a part of a GPU's memory such as 30 %%", text)
		}
		return nil
	}
	if v, err := strconv.ParseFloat(string(text), 64); err == nil && v > 0 && v < 1 {
		return fmt.Errorf("%q is less than a byte: write %g %% for a part of the GPU's memory", text, 100*v)
	}
	return m.size.UnmarshalText(text)
}
