package stack

import (
	"bytes"
	"testing"
)

func TestLines(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		form  lines
		table []byte
		at    map[int]int // line by place; -1 is a place that the table does not reach
	}{
		"3.9": {lnotab, []byte{4, 1, 255, 0, 1, 127, 0, 73, 2, 0xfb}, map[int]int{
			-1: 10, 0: 10, 3: 10, 4: 11, 258: 11, 259: 11, 260: 211, 261: 211, 262: 206, 900: 206}},
		"3.10": {linetable, []byte{4, 1, 2, 0x80, 0, 127, 2, 0xfb}, map[int]int{
			-2: 10, 0: 11, 3: 11, 4: 0, 6: 133, 7: 133, 8: -1}},
		"3.11": {locations, []byte{0x80, 0, 0x80 | 10<<3 | 1, 1, 2, 0x80 | 15<<3,
			0x80 | 14<<3, 0x40 | 32, 8, 1, 2, 3, 0x80 | 13<<3 | 7, 7},
			map[int]int{-2: 10, 0: 10, 2: 10, 4: 10, 6: 0, 8: 282, 10: 279, 25: 279, 26: -1}},
		"3.11, no head": {locations, []byte{0}, map[int]int{0: -1}},
		"3.11, cut":     {locations, []byte{0x80 | 14<<3}, map[int]int{0: 10, 2: -1}},
		"3.11, without end": {locations, append([]byte{0x80 | 13<<3}, bytes.Repeat([]byte{0x7f}, 9)...),
			map[int]int{0: -1}},
		"3.11, a line before": {locations, []byte{0x80 | 13<<3, 0x40 | 63, 1}, map[int]int{0: -1}},
		"3.10, a line before": {linetable, []byte{2, 0xf0}, map[int]int{0: -1}},
		"3.9, a line before":  {lnotab, []byte{0, 0xf0}, map[int]int{0: -1}},
	} {
		for at, want := range c.at {
			line, ok := c.form(c.table, 10, at)
			if !ok {
				line = -1
			}
			if line != want {
				t.Errorf("%s: line %d at %d, want %d", name, line, at, want)
			}
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte{4, 1, 255, 0, 1, 127, 0, 73, 2, 0xfb}, 10, 300)
	f.Add([]byte{0x80 | 14<<3, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f}, 1, 1<<40)
	f.Fuzz(func(t *testing.T, table []byte, first, at int) {
		first = int(int32(first))
		for _, form := range []lines{lnotab, linetable, locations} {
			if line, ok := form(table, first, at); ok && line < 0 && first > 0 {
				t.Errorf("line %d", line)
			}
		}
	})
}
