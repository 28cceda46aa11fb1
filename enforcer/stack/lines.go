package stack

// lines decodes a table that leads from a place in the bytecode to a line; there is
// one for each form that tables have had. The place is in bytes; before the first
// instruction it is negative, and the line is the first. A table that does not reach
// the place is not ok.
type lines func(table []byte, first, at int) (line int, ok bool)

// lnotab is the form until Python 3.9: pairs of a step in the bytecode and a step
// in lines, of which the last but one before the place counts.
func lnotab(table []byte, line, at int) (int, bool) {
	addr := 0
	for ; len(table) >= 2; table = table[2:] {
		if addr += int(table[0]); addr > at {
			break
		}
		line += int(int8(table[1]))
	}
	return line, line > 0
}

// linetable is that of Python 3.10: pairs of the length of a range and the step in
// lines at its begin; a step of -128 is a range without a line.
func linetable(table []byte, line, at int) (int, bool) {
	if at < 0 {
		return line, true
	}
	end := 0
	for ; len(table) >= 2; table = table[2:] {
		step, none := int(int8(table[1])), table[1] == 0x80
		if !none {
			line += step
		}
		if end += int(table[0]); at < end {
			if none {
				return 0, true
			}
			return line, line > 0
		}
	}
	return 0, false
}

// locations is the form since Python 3.11: entries of a code, a length and what
// the code wants; only the first bytes of an entry have bit 7 set.
func locations(table []byte, line, at int) (int, bool) {
	if at < 0 {
		return line, true
	}
	end := 0
	for len(table) > 0 {
		head := table[0]
		if head&0x80 == 0 {
			return 0, false
		}
		code, none := head>>3&15, false
		switch {
		case code == 15:
			none = true
		case code == 14 || code == 13:
			line += signed(table[1:])
		case code >= 10:
			line += int(code) - 10
		}
		if end += (int(head&7) + 1) * 2; at < end {
			if none {
				return 0, true
			}
			return line, line > 0
		}
		for table = table[1:]; len(table) > 0 && table[0]&0x80 == 0; {
			table = table[1:]
		}
	}
	return 0, false
}

// signed reads a number in groups of six bits, the lowest first, whose lowest bit
// is the sign.
func signed(b []byte) int {
	var n uint64
	for i, c := range b {
		if n |= uint64(c&63) << (6 * i); c&64 == 0 || i == 6 {
			break
		}
	}
	if n&1 != 0 {
		return -int(n >> 1)
	}
	return int(n >> 1)
}
