package stack

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// told is memory with an interpreter of the form of Python 3.14, from the public
// headers (Include/internal/pycore_debug_offsets.h, pycore_interpframe_structs.h
// and cpython/unicodeobject.h): no such interpreter has been read yet.
func told() (m image, known map[int]bool) {
	const (
		runtime, interpreter, thread     = 0x1000, 0x2000, 0x3000
		frames, code                     = 0x4000, 0x5000
		codeType, strType, bytesType     = 0x6000, 0x6100, 0x6200
		filename, qualname, table, names = 0x7000, 0x7100, 0x7200, 0x7300
	)
	m = image{}
	group := func(at uint64, fields ...uint64) uint64 {
		for i, f := range fields {
			m.write(runtime+(at+uint64(i))*8, u64(f)...)
		}
		return at + uint64(len(fields))
	}
	m.write(runtime, []byte(debugCookie)...)
	at := group(1, 0x030e02f0, 0) // version, free_threaded
	at = group(at, 400000, 0, 800)
	at = group(at, 200000, 16, 8, 64, 72, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // interpreter
	at = group(at, 800, 0, 8, 16, 72, 152, 160, 0, 0)                      // thread
	at = group(at, 88, 8, 0, 56, 80, 74, 64, 0)                            // frame
	at = group(at, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0)       // code
	at = group(at, 16, 8)                                                  // object
	at = group(at, 400, 24, 88, 168)                                       // type
	at = group(at, 32, 24, 16, 40, 24, 16)                                 // tuple, list
	at = group(at, 200, 24, 40, 32, 64, 32, 40, 24, 16, 32, 16, 24)        // set, dict, float, long
	at = group(at, 40, 16, 32)                                             // bytes
	at = group(at, 64, 32, 16, 40)                                         // str
	for at < 95 {
		at = group(at, 0) // gc, generators, lists, debugger
	}
	m.write(runtime+800, u64(interpreter)...)
	m.write(interpreter+8, u64(0)...)
	m.write(interpreter+64, u64(thread)...)
	m.write(thread, make([]byte, 200)...)
	m.write(thread+16, u64(interpreter)...)
	m.write(thread+160, u64(77)...)
	m.write(thread+72, u64(frames)...)
	for i, f := range []struct {
		instr uint64
		owner byte
	}{{8, 0}, {0, 3}, {2, 1}, {0, 4}} { // a function, a shim, a generator, and the base in C
		at := frames + uint64(i)*0x100
		m.write(at, make([]byte, 80)...)
		m.write(at, u64(code|1)...) // a tagged reference
		m.write(at+8, u64(at+0x100)...)
		m.write(at+56, u64(code+208+f.instr)...)
		m.write(at+74, f.owner)
	}
	m.write(frames+3*0x100+8, u64(0)...)
	m.write(code, make([]byte, 216)...)
	m.write(code+8, u64(codeType)...)
	m.write(code+112, u64(filename)...)
	m.write(code+128, u64(qualname)...)
	m.write(code+136, u64(table)...)
	m.write(code+68, binary.LittleEndian.AppendUint32(nil, 40)...)
	for i, name := range []string{"code", "str", "bytes"} {
		m.write(codeType+uint64(i)*0x100+24, u64(names+uint64(i)*8)...)
		m.write(names+uint64(i)*8, make([]byte, 8)...)
		m.write(names+uint64(i)*8, []byte(name)...)
	}
	text := func(at uint64, s string) {
		m.write(at, make([]byte, 40)...)
		m.write(at+8, u64(strType)...)
		m.write(at+16, u64(uint64(len(s)))...)
		m.write(at+32, 3|1<<2|stateCompact|stateASCII|0x80)
		m.write(at+40, []byte(s)...)
	}
	text(filename, "train.py")
	text(qualname, "Trainer.step")
	// Two units on line 40 + 1, two without a line, two on line 41 + 70.
	lines := []byte{0x80 | 11<<3 | 1, 0, 0, 0x80 | 15<<3 | 1, 0x80 | 13<<3 | 1, 0x40 | 12, 2}
	m.write(table, make([]byte, 32)...)
	m.write(table+8, u64(bytesType)...)
	m.write(table+16, u64(uint64(len(lines)))...)
	m.write(table+32, lines...)
	return m, map[int]bool{77: true}
}

func TestReportedOffsets(t *testing.T) {
	m, known := told()
	w := fixture.Value(newInterpreter(m, map[string]uint64{"_PyRuntime": 0x1000}))(t)
	fixture.If(t, w.version != "3.14.2" || w.verified,
		"version %s, verified %v: no 3.14 has been read", w.version, w.verified)
	s, err := w.stacks(known)
	want := []Frame{{"Trainer.step", "train.py", 111}, {"Trainer.step", "train.py", 41}}
	if err != nil || len(s) != 1 || s[0].TID != 77 || s[0].Problem != "" || !slices.Equal(s[0].Frames, want) {
		t.Errorf("%v, got %+v, want %v", err, s, want)
	}
}

// TestForgedOffsets has a process tell other offsets than it has, and any pointers between its structures.
func TestForgedOffsets(t *testing.T) {
	t.Parallel()
	read := 0
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		m, known := told()
		at := slices.Sorted(maps.Keys(m))
		for range 1 + r.IntN(6) {
			offset, values := uint64(0x1000+8*(3+r.IntN(92))), []uint64{8 * r.Uint64N(129), r.Uint64N(1 << 20), 1 << 63, r.Uint64()}
			if r.IntN(3) == 0 {
				offset, values = at[r.IntN(len(at))]&^7, []uint64{at[r.IntN(len(at))]}
			}
			m.write(offset, u64(values[r.IntN(len(values))])...)
		}
		b := &bounded{memory: m, left: maxMemory}
		w, err := newInterpreter(b, map[string]uint64{"_PyRuntime": 0x1000})
		if err != nil {
			continue
		}
		read++
		all, _ := w.stacks(known)
		for _, s := range all {
			fixture.AtMost(t, len(s.Frames), maxFrames, "seed %d: frames", seed)
		}
		fixture.AtMost(t, len(all), maxThreads, "seed %d: threads", seed)
		fixture.AtMost(t, maxMemory-b.left, 1<<20, "seed %d: bytes", seed)
	}
	fixture.AtMost(t, 100, read, "too few could be read at all")
}

func TestRefusedVersions(t *testing.T) {
	put := func(at, value uint64) func(image) { return func(m image) { m.write(at, u64(value)...) } }
	before := func(version uint64) func(image) { // offsets were told
		return func(m image) { m.write(0x1000, 'y'); m.write(0x9000, u64(version)...) }
	}
	for name, c := range map[string]struct {
		harm func(m image)
		with string
		want string
	}{
		"a future one":       {put(0x1008, 0x030f00f0), "", "Python 3.15.0 is not known: gpusteward reads 3.9 to 3.14"},
		"a candidate":        {put(0x1008, 0x030e00c1), "", "Python 3.14.0 is a release candidate"},
		"one without a lock": {put(0x1010, 1), "", "has no global lock"},
		"another table":      {put(0x1000+53*8, 32), "", "in another format"},
		"a wild offset":      {put(0x1000+33*8, 1<<40), "", "an impossible offset"},
		"an older future":    {before(0x030f00f0), "Py_Version", "Python 3.15.0 is not known"},
		"an older candidate": {before(0x030c00b1), "Py_Version", "Python 3.12.0 is a release candidate"},
		"no table":           {before(0x030d00f0), "Py_Version", "Python 3.13.0 is not known"},
		"an old one":         {before(0), "", "older than 3.9"},
		"a hole":             {func(m image) { delete(m, 0x1100) }, "", "bad address"},
	} {
		m, _ := told()
		c.harm(m)
		found := map[string]uint64{"_PyRuntime": 0x1000}
		if c.with != "" {
			found[c.with] = 0x9000
		}
		fixture.Fails(t, fixture.Error(newInterpreter(m, found)), c.want, "%s", name)
	}
}

// TestFindPython looks for the interpreter of told in the file of library.
func TestFindPython(t *testing.T) {
	m, _ := told()
	for at := uint64(0); at < offsetsSize; at++ {
		m[0x703000+at] = m[0x1000+at]
	}
	without := func(names ...string) []byte {
		l := library()
		for _, n := range names {
			l = bytes.Replace(l, []byte("\x00"+n+"\x00"), []byte("\x00x"+n[1:]+"\x00"), 1)
		}
		return l
	}
	symbol, section, both := without(".PyRuntime"), without("_PyRuntime"), library()
	none := without("_PyRuntime", ".PyRuntime")
	type paths = map[string][]byte
	for name, c := range map[string]struct {
		files paths
		run   string // the program among them
		file  string // where Python is
		want  string // the error
	}{
		"a library":    {paths{"/app": none, "/l/libpython3.so": symbol}, "/app", "/l/libpython3.so", ""},
		"the program":  {paths{"/bin/python3": both}, "/bin/python3", "/bin/python3", ""},
		"a section":    {paths{"/bin/python3": section}, "/bin/python3", "/bin/python3", ""},
		"another name": {paths{"/bin/uwsgi": symbol}, "/bin/uwsgi", "/bin/uwsgi", ""},
		"a program, linked": {paths{"/bin/python3": none, "/l/libpython3.so": symbol}, "/bin/python3",
			"/l/libpython3.so", ""},
		"stripped":          {paths{"/bin/python3": none}, "/bin/python3", "", "/bin/python3: it has neither"},
		"no Python":         {paths{"/bin/rank": none}, "/bin/rank", "", ""},
		"no Python, no ELF": {paths{"/bin/rank": nil}, "/bin/rank", "", ""},
		"no ELF":            {paths{"/bin/python3": nil}, "/bin/python3", "", "/bin/python3 cannot be searched"},
	} {
		files := newBinaries(t.TempDir(), nil, &mounts{}, m)
		for path, content := range c.files {
			files.maps = append(files.maps, mapping{start: 0x701000, end: 0x704000, path: path})
			if o, err := loaded(content, content, maxFiles); err == nil {
				files.open[path] = o
			}
		}
		w, err := findPython(m, files, c.run)
		fixture.If(t, (w != nil) != (c.file != "") || w != nil && w.file != c.file,
			"%s: found in %+v, want %s", name, w, c.file)
		fixture.If(t, (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want),
			"%s: %v, want %q", name, err, c.want)
	}
}
