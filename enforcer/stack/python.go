package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
)

// pythonStack is what Python tells of a thread.
type pythonStack struct {
	TID     int // in the process's own PID namespace; 0 is unknown
	Frames  []Frame
	Problem string
}

// errInconsistent is of memory that is not what it is taken for: it changes
// while it is read, or the process lies.
var errInconsistent = errors.New("inconsistent")

// threadID says where glibc's thread has its ID, on the architectures that are
// read: Python before 3.11 knows only glibc's.
var threadID = map[string]uint64{"amd64": 720, "arm64": 208}

// stacks reads those of all threads that Python has. known are the IDs that
// threads of the process can have.
func (w *interpreter) stacks(known map[int]bool) (all []pythonStack, err error) {
	var states []uint64
	for range tries {
		if states, err = w.states(); !again(err) {
			break
		}
	}
	if again(err) {
		return nil, fmt.Errorf("the list of Python's threads is inconsistent, tried %d times: try again", tries)
	}
	for _, at := range states {
		s, err := w.stack(at, known)
		if err != nil {
			return all, err
		}
		if len(s.Frames) > 0 || s.Problem != "" {
			all = append(all, s)
		}
	}
	return all, err
}

// again says whether another try is of use.
func again(err error) bool { return err != nil && !errors.As(err, new(final)) }

// states returns the addresses of the threads of all interpreters. Their lists begin
// with the youngest: of too many the oldest are returned, and the main thread first.
func (w *interpreter) states() (all []uint64, err error) {
	known := map[uint64]bool{}
	interpreter, err := pointer(w.mem, w.runtime+w.interpreters)
	for n := 0; err == nil && interpreter != 0 && n < 16; n++ {
		var at uint64
		at, err = pointer(w.mem, interpreter+w.threads)
		for err == nil && at != 0 && len(all) < maxList {
			var t words
			if t, err = structure(w.mem, at, max(w.nextThread, w.interpreter)+8); err != nil {
				break
			}
			if t.u64(w.interpreter) != interpreter || known[at] {
				return nil, errInconsistent
			}
			known[at] = true
			all = append(all, at)
			at = t.u64(w.nextThread)
		}
		if err == nil {
			interpreter, err = pointer(w.mem, interpreter+w.nextInterpreter)
		}
	}
	slices.Reverse(all)
	return all[:min(len(all), maxThreads)], err
}

// link is a frame in memory.
type link struct {
	at, previous, code, instr uint64
	shim                      bool
}

// stack reads the stack of the thread whose state is at an address: the links
// between its frames, then what they mean, then the links again. Where the links
// are not the same, the frames that stood still are all that is right.
func (w *interpreter) stack(at uint64, known map[int]bool) (s pythonStack, err error) {
	var still []Frame
	for range tries {
		var before, after []link
		var tid int
		var frames []Frame
		if s.TID, before, err = w.links(at, known); err == nil {
			if frames, err = w.frames(before); err == nil {
				if tid, after, err = w.links(at, known); err == nil && tid != s.TID {
					err = errInconsistent
				}
			}
		}
		if err != nil && !again(err) {
			return s, err
		}
		if err != nil {
			continue
		}
		same := stood(before, after)
		if same == len(before) && same == len(after) {
			s.Frames = slices.DeleteFunc(frames, func(f Frame) bool { return f == Frame{} })
			return s, nil
		}
		still = slices.DeleteFunc(frames[len(frames)-same:], func(f Frame) bool { return f == Frame{} })
	}
	s.Frames, s.Problem = still, fmt.Sprintf("inconsistent, tried %d times", tries)
	if len(still) > 0 {
		s.Problem += ": the inner frames ran on and are left out"
	}
	return s, nil
}

// stood counts the frames, from the outermost on, that are the same in both. The
// innermost may be at another instruction: it was at the first one when it was read.
func stood(before, after []link) (n int) {
	for n < len(before) && n < len(after) {
		b, a := before[len(before)-1-n], after[len(after)-1-n]
		if n == len(before)-1 && n == len(after)-1 {
			b.instr = a.instr
		}
		if a != b {
			break
		}
		n++
	}
	return n
}

// links reads the frames of a thread without what they mean, the innermost first.
// The TID is right even if the frames are inconsistent.
func (w *interpreter) links(state uint64, known map[int]bool) (tid int, all []link, err error) {
	t, err := structure(w.mem, state, max(w.interpreter, w.native, w.pthread, w.cframe, w.frame)+8)
	if err != nil {
		return 0, nil, err
	}
	if w.native != 0 {
		tid = int(t.u64(w.native))
	} else if b, err := structure(w.mem, t.u64(w.pthread)+threadID[runtime.GOARCH], 4); err == nil {
		tid = int(b.u32(0))
	} else if !again(err) {
		return 0, nil, err
	}
	if !known[tid] {
		tid = 0
	}
	at := t.u64(w.frame)
	if w.cframe != 0 {
		if at, err = pointer(w.mem, t.u64(w.cframe)+w.frame); err != nil {
			return tid, nil, err
		}
	}
	size := max(w.previous+8, w.code+8, w.instr+8, w.owner+1)
	for at != 0 && len(all) < maxFrames {
		f, err := structure(w.mem, at, size)
		if err != nil {
			return tid, nil, err
		}
		l := link{at: at, previous: f.u64(w.previous), code: f.u64(w.code) &^ stackRefBits, instr: f.u64(w.instr),
			shim: w.owner != 0 && f[w.owner] >= shimOwner}
		if slices.ContainsFunc(all, func(o link) bool { return o.at == at }) {
			return tid, nil, errInconsistent
		}
		all = append(all, l)
		at = l.previous
	}
	return tid, all, nil
}

// frames reads what frames mean. One of the interpreter's own is empty.
func (w *interpreter) frames(all []link) ([]Frame, error) {
	frames := make([]Frame, len(all))
	for i, l := range all {
		if l.shim {
			continue
		}
		code, err := w.object(l.code, "code", max(w.filename, w.function, w.firstLine, w.table)+8)
		if err != nil {
			return nil, err
		}
		f := &frames[i]
		if f.Function, err = w.text(code.u64(w.function)); err != nil {
			return nil, err
		}
		if f.File, err = w.text(code.u64(w.filename)); err != nil {
			return nil, err
		}
		table, err := w.bytes(code.u64(w.table))
		if err != nil {
			return nil, err
		}
		place := int(int64(l.instr - l.code - w.bytecode))
		if w.unit != 0 {
			place = int(int32(l.instr)) * w.unit
		}
		var ok bool
		if f.Line, ok = w.lines(table, int(int32(code.u32(w.firstLine))), place); !ok {
			return nil, errInconsistent
		}
	}
	return frames, nil
}

// object reads an object that must be of a type.
func (w *interpreter) object(at uint64, typ string, size uint64) (words, error) {
	o, err := structure(w.mem, at, size)
	if err != nil {
		return nil, err
	}
	t := o.u64(objectType)
	if w.types[t] == "" {
		name, err := pointer(w.mem, t+typeName)
		if err != nil {
			return nil, err
		}
		text, err := structure(w.mem, name, 6) // the longest, bytes, and its end
		if err != nil {
			return nil, err
		}
		text, _, _ = bytes.Cut(text, []byte{0})
		w.types[t] = string(text)
	}
	if w.types[t] != typ {
		return nil, errInconsistent
	}
	return o, nil
}

// text reads a string, as much of it as is shown.
func (w *interpreter) text(at uint64) (string, error) {
	o, err := w.object(at, "str", stringState+4)
	if err != nil {
		return "", err
	}
	state, head := o.u32(stringState), w.wide
	kind := uint64(state & stateKind >> 2)
	if state&stateASCII != 0 {
		head = w.ascii
	}
	if state&stateCompact == 0 || kind != 1 && kind != 2 && kind != 4 {
		return "", errInconsistent
	}
	raw, err := structure(w.mem, at+head, kind*min(o.u64(stringLength), maxString+1))
	if err != nil {
		return "", err
	}
	runes := make([]rune, 0, maxString+1)
	for ; len(raw) > 0; raw = raw[kind:] {
		switch kind {
		case 1:
			runes = append(runes, rune(raw[0]))
		case 2:
			runes = append(runes, rune(binary.LittleEndian.Uint16(raw)))
		case 4:
			runes = append(runes, rune(raw.u32(0)))
		}
	}
	return clean(string(runes)), nil
}

const maxTable = 1 << 20 // bytes of a code object's line table

// bytes reads a bytes object whole.
func (w *interpreter) bytes(at uint64) ([]byte, error) {
	o, err := w.object(at, "bytes", bytesSize+8)
	if err != nil {
		return nil, err
	}
	size := o.u64(bytesSize)
	if size > maxTable {
		return nil, errInconsistent
	}
	return structure(w.mem, at+bytesData, size)
}
