package stack

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

// layout says where the fields are that lead to a line, in bytes from the start
// of their structures. 0 is a field that the version lacks, but for the first
// fields of structures.
type layout struct {
	interpreters uint64 // in _PyRuntime: the first interpreter

	nextInterpreter, threads uint64 // in an interpreter

	nextThread, interpreter, pthread, native uint64 // in a thread
	cframe                                   uint64 // in a thread, where what leads to the frame is apart
	frame                                    uint64 // in that, or in the thread

	previous, code, instr, owner uint64 // in a frame
	unit                         int    // bytes of bytecode in a step of instr; 0 where instr is a pointer

	filename, function, firstLine, table, bytecode uint64 // in a code object

	ascii, wide uint64 // sizes of the heads of strings: of ASCII, and of others

	lines lines
}

// Fields that all versions have in the same place.
const (
	objectType     = 8
	typeName       = 24
	bytesSize      = 16
	bytesData      = 32
	stringLength   = 16
	stringState    = 32
	debugCookie    = "xdebugpy"
	finalRelease   = 0xf0 // in the lowest byte of a version: neither alpha, beta nor candidate
	stateKind      = 0x1c
	stateCompact   = 0x20
	stateASCII     = 0x40
	shimOwner      = 3 // owners from here on belong to the interpreter's own frames
	stackRefBits   = 3 // tags in a reference, since 3.14
	maxStructure   = 1 << 10
	maxInterpreter = 1 << 20 // it is a large structure
)

// layouts are those of versions that do not tell their own, by the minor version,
// from CPython's headers (Include/cpython, Include/internal).
var layouts = map[int]layout{
	9: {interpreters: 32, threads: 8,
		nextThread: 8, interpreter: 16, pthread: 176, frame: 24,
		previous: 24, code: 32, instr: 104, unit: 1,
		filename: 104, function: 112, firstLine: 40, table: 120,
		ascii: 48, wide: 72, lines: lnotab},
	10: {interpreters: 32, threads: 8,
		nextThread: 8, interpreter: 16, pthread: 176, frame: 24,
		previous: 24, code: 32, instr: 96, unit: 2,
		filename: 104, function: 112, firstLine: 40, table: 120,
		ascii: 48, wide: 72, lines: linetable},
	11: {interpreters: 40, threads: 16,
		nextThread: 8, interpreter: 16, native: 160, cframe: 56, frame: 8,
		previous: 48, code: 32, instr: 56, owner: 69,
		filename: 112, function: 128, firstLine: 72, table: 136, bytecode: 184,
		ascii: 48, wide: 72, lines: locations},
	12: {interpreters: 40, threads: 72,
		nextThread: 8, interpreter: 16, native: 144, cframe: 56, frame: 0,
		previous: 8, code: 0, instr: 56, owner: 70,
		filename: 112, function: 128, firstLine: 68, table: 136, bytecode: 192,
		ascii: 40, wide: 56, lines: locations},
}

// offsets says where the groups of _Py_DebugOffsets begin, in words of 8 bytes,
// by the minor version. The fields that are read have kept their order in them.
var offsets = map[int]struct{ interpreter, thread, frame, code, object, typ, bytes, str uint64 }{
	13: {6, 19, 28, 34, 44, 46, 64, 67},
	14: {6, 22, 31, 39, 50, 52, 74, 77},
}

const offsetsSize = 81 * 8 // up to the last field that is read

// verified are the minor versions that were held against real interpreters.
var verified = map[int]bool{9: true, 10: true, 11: true, 12: true, 13: true}

// version is PY_VERSION_HEX: a byte each for major, minor and micro, and one for
// the kind of release.
type version uint64

func (v version) minor() int { return int(v >> 16 & 0xff) }

func (v version) String() string { return fmt.Sprintf("%d.%d.%d", v>>24&0xff, v.minor(), v>>8&0xff) }

// known returns an error unless v is a release that is read.
func (v version) known(told bool) error {
	_, is := layouts[v.minor()]
	if told {
		_, is = offsets[v.minor()]
	}
	switch {
	case v>>24 == 3 && is && v&0xff == finalRelease:
		return nil
	case v>>24 == 3 && is:
		return fmt.Errorf("Python %v is a release candidate: run the release", v)
	}
	return fmt.Errorf("Python %v is not known: gpusteward reads 3.9 to 3.14", v)
}

// tell makes a layout of the offsets that an interpreter publishes in its memory.
func tell(w words) (version, layout, error) {
	v := version(w.u64(8))
	if err := v.known(true); err != nil {
		return v, layout{}, err
	}
	if w.u64(16) != 0 {
		return v, layout{}, fmt.Errorf("this Python %v has no global lock, and is not read: "+
			"run one that has it (python3.%d, not python3.%[2]dt)", v, v.minor())
	}
	at := offsets[v.minor()]
	// No table of another form has all of these where they are wanted.
	for word, want := range map[uint64]uint64{at.object + 1: objectType, at.typ + 1: typeName,
		at.bytes + 1: bytesSize, at.bytes + 2: bytesData, at.str + 1: stringState, at.str + 2: stringLength} {
		if w.u64(word*8) != want {
			return v, layout{}, fmt.Errorf("this Python %v reports offsets in another format: run an official release",
				v)
		}
	}
	var failed error
	field := func(group, i, most uint64) uint64 {
		f := w.u64((group + i) * 8)
		if f > most {
			failed = fmt.Errorf("this Python %v reports an impossible offset: run an official release", v)
			return 0
		}
		return f
	}
	l := layout{
		interpreters:    field(5, 0, maxInterpreter),
		nextInterpreter: field(at.interpreter, 2, maxInterpreter), threads: field(at.interpreter, 3, maxInterpreter),
		nextThread: field(at.thread, 2, maxStructure), interpreter: field(at.thread, 3, maxStructure),
		frame: field(at.thread, 4, maxStructure), native: field(at.thread, 6, maxStructure),
		previous: field(at.frame, 1, maxStructure), code: field(at.frame, 2, maxStructure),
		instr: field(at.frame, 3, maxStructure), owner: field(at.frame, 5, maxStructure),
		filename: field(at.code, 1, maxStructure), function: field(at.code, 3, maxStructure),
		table: field(at.code, 4, maxStructure), firstLine: field(at.code, 5, maxStructure),
		bytecode: field(at.code, 9, maxStructure),
		ascii:    field(at.str, 3, maxStructure), lines: locations,
	}
	l.wide = l.ascii + 16
	return v, l, failed
}

// interpreter is a Python that was found in memory.
type interpreter struct {
	layout
	mem      memory
	runtime  uint64
	version  string
	file     string
	verified bool
	types    map[uint64]string
}

// symbols tell where an interpreter is, and since which version it has been: in
// turn since 3.7, 3.11, 3.10 and 3.9.
var symbols = []string{"_PyRuntime", "Py_Version", "Py_NewRef", "PyFrame_GetCode"}

// findPython looks for Python in the libraries and the program of a process; it
// returns neither it nor an error where there is none.
func findPython(mem memory, files *binaries, program string) (*interpreter, error) {
	var candidates []string
	for _, m := range files.maps {
		if m.offset == 0 && strings.HasPrefix(filepath.Base(m.path), "libpython") {
			candidates = append(candidates, m.path)
		}
	}
	var failed error
	for _, path := range append(candidates, program) {
		o, err := files.object(path)
		var found map[string]uint64
		if err == nil {
			found, err = o.find(symbols...)
		}
		if err != nil {
			err = fmt.Errorf("%s cannot be searched for Python: %w", clean(path), err)
		} else if s := o.Section(".PyRuntime"); found["_PyRuntime"] == 0 && s != nil {
			found["_PyRuntime"] = o.bias + s.Addr
		}
		switch base := filepath.Base(path); {
		case found["_PyRuntime"] != 0:
			w, err := newInterpreter(mem, found)
			if w != nil {
				w.file = path
			}
			return w, err
		case !strings.Contains(base, "python"), failed != nil:
		case err != nil:
			failed = err
		default:
			failed = fmt.Errorf("%s: %w", clean(path), errNoRuntime)
		}
	}
	return nil, failed
}

var errNoRuntime = errors.New("it has neither the symbol _PyRuntime nor the section .PyRuntime, " +
	"because it is older than Python 3.7 or stripped: run Python 3.9 to 3.14 with its symbols")

// newInterpreter finds out which version is in memory, by what the version tells
// of itself or by the symbols that it has.
func newInterpreter(mem memory, found map[string]uint64) (*interpreter, error) {
	w := &interpreter{mem: mem, runtime: found["_PyRuntime"], types: map[uint64]string{}}
	head, err := structure(mem, w.runtime, offsetsSize)
	if err != nil {
		return nil, err
	}
	var v version
	if string(head[:8]) == debugCookie {
		if v, w.layout, err = tell(head); err != nil {
			return nil, err
		}
		w.version, w.verified = v.String(), verified[v.minor()]
		return w, nil
	}
	switch {
	case found["Py_Version"] != 0:
		hex, err := pointer(mem, found["Py_Version"])
		if err != nil {
			return nil, err
		}
		v = version(hex)
		if err := v.known(false); err != nil {
			return nil, err
		}
		w.version = v.String()
	case found["Py_NewRef"] != 0:
		v, w.version = 10<<16, "3.10"
	case found["PyFrame_GetCode"] != 0:
		v, w.version = 9<<16, "3.9"
	default:
		return nil, errors.New("this Python is older than 3.9, or hides its symbols: run 3.9 to 3.14 with its symbols")
	}
	w.layout, w.verified = layouts[v.minor()], verified[v.minor()]
	return w, nil
}
