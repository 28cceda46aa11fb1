package stack

import (
	"encoding/binary"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

// read returns the stacks of r's interpreter in m, and how many bytes it took.
func (r recording) read(t testing.TB, m memory) (all []pythonStack, bytes int, err error) {
	t.Helper()
	b := &bounded{memory: m, left: maxMemory}
	w, err := newInterpreter(b, r.Symbols)
	if err == nil {
		all, err = w.stacks(r.known())
	}
	return all, maxMemory - b.left, err
}

// FuzzHostile overwrites bytes and pointers of recordings: reading always ends within its bounds.
func FuzzHostile(f *testing.F) {
	all := recordings(f)
	versions := slices.Sorted(maps.Keys(all))
	for seed := range uint64(100) {
		f.Add(seed, uint8(seed), uint8(seed*7))
	}
	f.Fuzz(func(t *testing.T, seed uint64, which, changes uint8) {
		r := all[versions[int(which)%len(versions)]]
		m := r.image(t)
		at := slices.Sorted(maps.Keys(m))
		random := rand.New(rand.NewPCG(seed, 1))
		for range int(changes)/8 + 1 {
			i := at[random.IntN(len(at))]
			if random.IntN(2) == 0 {
				m.write(i, byte(random.Uint32()))
				continue
			}
			m.write(i&^7, binary.LittleEndian.AppendUint64(nil, at[random.IntN(len(at))]&^7)...)
		}
		stacks, _, err := r.read(t, m)
		fixture.AtMost(t, len(stacks), maxThreads, "threads")
		for _, s := range stacks {
			fixture.If(t, len(s.Frames) > maxFrames || len(s.Frames) == 0 && s.Problem == "",
				"%d frames, problem %q", len(s.Frames), s.Problem)
			for _, f := range s.Frames {
				fixture.If(t, f.Line < 0 || len(f.File) > maxString || len(f.Function) > maxString ||
					strings.ContainsAny(f.File+f.Function, "\x00\x1b\n"), "%+v", f)
			}
		}
		fixture.If(t, err != nil && (err.Error() == "" || strings.Contains(err.Error(), "\n")), "%q", err)
	})
}

// layoutOf returns r's layout and the addresses of its threads and of the links of each, as they are in m.
func (r recording) layoutOf(t *testing.T, m memory) (w *interpreter, threads []uint64, links map[uint64][]link) {
	t.Helper()
	w, err := newInterpreter(m, r.Symbols)
	fixture.Must(t, err)
	threads = fixture.Value(w.states())(t)
	links = map[uint64][]link{}
	for _, at := range threads {
		_, links[at], err = w.links(at, r.known())
		fixture.Stop(t, err != nil, "%v", err)
	}
	return w, threads, links
}

// changing is the memory of a running owner: it changes after each read of a place.
type changing struct {
	image
	place  uint64
	reads  *uint64
	change func(read uint64, m image)
}

func (c changing) read(addr uint64, p []byte) error {
	err := c.image.read(addr, p)
	if addr == c.place {
		*c.reads++
		c.change(*c.reads, c.image)
	}
	return err
}

func u64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }

func TestRunningThreads(t *testing.T) {
	t.Parallel()
	for v, r := range recordings(t) {
		w, threads, links := r.layoutOf(t, r.image(t))
		i := slices.IndexFunc(threads, func(at uint64) bool { return len(links[at]) > 15 })
		at := threads[i]
		chain := slices.DeleteFunc(slices.Clone(links[at]), func(l link) bool { return l.shim })
		quiet, _, err := r.read(t, r.image(t))
		fixture.Must(t, err)
		// A frame that stands, at the instruction of another that is like it.
		inner, outer := chain[0], chain[8]
		ranOn := "inconsistent, tried 3 times: the inner frames ran on and are left out"
		for name, c := range map[string]struct {
			of     link
			change func(read uint64, m image)
			frames []Frame
			want   string
		}{
			"the innermost runs on": {inner, func(n uint64, m image) {
				m.write(inner.at+w.instr, u64(inner.instr - n%2*2)[:4]...)
			}, quiet[i].Frames, ""},
			"an outer one runs on": {outer, func(n uint64, m image) {
				m.write(outer.at+w.instr, u64(outer.instr - n%2*2)[:4]...)
			}, quiet[i].Frames[9:], ranOn},
			"another is called": {outer, func(n uint64, m image) {
				m.write(outer.at+w.previous, u64(chain[9+n%2].at)...)
			}, quiet[i].Frames[10:], ranOn},
			"the innermost is another": {inner, func(n uint64, m image) {
				m.write(inner.at+w.code, u64(chain[n%2].code)...)
			}, quiet[i].Frames[1:], ranOn},
			"the memory is used otherwise": {inner, func(n uint64, m image) {
				m.write(inner.at+w.code, u64(n*0x1000)...)
			}, nil, "inconsistent, tried 3 times"},
			"its frames are a circle": {inner, func(_ uint64, m image) {
				m.write(inner.at+w.previous, u64(inner.at)...)
			}, nil, "inconsistent, tried 3 times"},
		} {
			m := changing{r.image(t), c.of.at, new(uint64), c.change}
			w, err := newInterpreter(m, r.Symbols)
			fixture.Must(t, err)
			c.change(0, m.image)
			s, err := w.stack(at, r.known())
			if err != nil || s.TID != quiet[i].TID || s.Problem != c.want || !slices.Equal(s.Frames, c.frames) {
				t.Errorf("Python %s, %s: TID %d, %v, %q\n got %v\nwant %v", v, name, s.TID, err, s.Problem, s.Frames, c.frames)
			}
		}
	}
}

func TestHostileMemory(t *testing.T) {
	t.Parallel()
	for v, r := range recordings(t) {
		w, threads, links := r.layoutOf(t, r.image(t))
		at := threads[0]
		first := links[at][0]
		code := first.code
		text := func(m image, field uint64) uint64 { p, _ := pointer(m, code+field); return p }
		inconsistent := func(s []pythonStack, err error) bool {
			return err == nil && len(s) == len(threads) && len(s[0].Frames) == 0 &&
				s[0].Problem == "inconsistent, tried 3 times"
		}
		nothing := func(s []pythonStack, err error) bool {
			return s == nil && err != nil && strings.Contains(err.Error(), "inconsistent, tried 3 times")
		}
		for name, c := range map[string]struct {
			harm func(m image)
			want func(s []pythonStack, err error) bool
		}{
			"a loop of frames":  {func(m image) { m.write(first.at+w.previous, u64(first.at)...) }, inconsistent},
			"a loop of threads": {func(m image) { m.write(at+w.nextThread, u64(at)...) }, nothing},
			"another's thread":  {func(m image) { m.write(at+w.interpreter, u64(at)...) }, nothing},
			"code of another type": {func(m image) {
				m.write(code+objectType, u64(text(m, w.function))...)
			}, inconsistent},
			"a name of the type of tables": {func(m image) {
				typ := fixture.Value(pointer(m, text(m, w.table)+objectType))(t)
				m.write(text(m, w.function)+objectType, u64(typ)...)
			}, inconsistent},
			"a name of another type": {func(m image) { m.write(code+w.function, u64(code)...) }, inconsistent},
			"a file that is nowhere": {func(m image) { m.write(code+w.filename, u64(8)...) }, inconsistent},
			"a table that is too short": {func(m image) { m.write(text(m, w.table)+bytesSize, u64(0)...) },
				func(s []pythonStack, err error) bool { return v[:3] == "3.9" || inconsistent(s, err) }},
			"a table that is too long": {func(m image) {
				m.write(text(m, w.table)+bytesSize, u64(1<<40)...)
			}, inconsistent},
			"a string of no kind": {func(m image) { m.write(text(m, w.function)+stringState, 0) }, inconsistent},
			"a name that a terminal obeys": {func(m image) {
				s := text(m, w.function)
				head := w.wide
				if m[s+stringState]&stateASCII != 0 {
					head = w.ascii
				}
				m.write(s+head, 27)
			}, func(s []pythonStack, err error) bool {
				return err == nil && strings.HasPrefix(s[0].Frames[0].Function, "\uFFFD")
			}},
		} {
			m := r.image(t)
			c.harm(m)
			if s, _, err := r.read(t, m); !c.want(s, err) {
				t.Errorf("Python %s, %s: %v\n%+v", v, name, err, s)
			}
		}
	}
}

// deep is a stack of n frames behind r's first frame, each a copy of it.
func (r recording) deep(t *testing.T, m image, n int) {
	w, threads, links := r.layoutOf(t, m)
	first := links[threads[0]][0]
	size := max(w.previous+8, w.code+8, w.instr+8, w.owner+1)
	frame := fixture.Value(structure(m, first.at, size))(t)
	at, outer := first.at, first.previous
	for i := range uint64(n) {
		next := 1<<40 + i*0x100 // where no program has anything
		m.write(at+w.previous, u64(next)...)
		m.write(next, frame...)
		at = next
	}
	m.write(at+w.previous, u64(outer)...)
}

// crowd puts n younger threads before those of r, each a copy of the first.
func (r recording) crowd(t *testing.T, m image, n uint64) {
	t.Helper()
	w, threads, _ := r.layoutOf(t, m)
	state, err := structure(m, threads[0], max(w.nextThread, w.interpreter, w.native, w.pthread, w.cframe, w.frame)+8)
	fixture.Must(t, err)
	head := state.u64(w.interpreter) + w.threads
	next := fixture.Value(pointer(m, head))(t)
	for i := range n {
		at := 1<<40 + i*0x1000 // where no program has anything
		m.write(at, state...)
		m.write(at+w.nextThread, u64(next)...)
		next = at
	}
	m.write(head, u64(next)...)
}

func TestManyPythonThreads(t *testing.T) {
	t.Parallel()
	for v, r := range recordings(t) {
		m := r.image(t)
		r.crowd(t, m, 1000)
		s, _, err := r.read(t, m)
		fixture.Stop(t, err != nil || len(s) != maxThreads, "Python %s: %d threads, %v", v, len(s), err)
		agrees(t, s[:len(r.Stacks)], r.Stacks) // the oldest
		r.crowd(t, m, maxList)
		s, _, err = r.read(t, m)
		fixture.If(t, err != nil || len(s) != maxThreads, "Python %s: %d threads, %v", v, len(s), err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	for v, r := range recordings(t) {
		m := r.image(t)
		r.deep(t, m, 1000)
		s, n, err := r.read(t, m)
		if err != nil || len(s[0].Frames) != maxFrames || s[0].Problem != "" || n > 1<<20 {
			t.Errorf("Python %s: %d frames, %q, %d bytes, %v", v, len(s[0].Frames), s[0].Problem, n, err)
		}
		w, err := newInterpreter(&bounded{memory: m, left: 5000}, r.Symbols)
		fixture.Must(t, err)
		fixture.Fails(t, fixture.Error(w.stacks(r.known())), "16 MiB", "Python %s: beyond its bytes", v)
	}
}

type denied struct{ error }

func (d denied) read(uint64, []byte) error { return d.error }

func TestPermission(t *testing.T) {
	for err, want := range map[error]string{
		syscall.EPERM:           "CAP_SYS_PTRACE",
		final{syscall.EPERM}:    "CAP_SYS_PTRACE",
		syscall.ESRCH:           "process 7 ended meanwhile",
		errors.New("something"): "something",
	} {
		got := permission(7, err)
		fixture.If(t, got == nil || !strings.Contains(got.Error(), want), "%v: %v, want %s", err, got, want)
	}
	b := &bounded{memory: denied{syscall.EPERM}, left: maxMemory}
	err := b.read(8, make([]byte, 8))
	fixture.If(t, again(err) || !errors.Is(err, syscall.EPERM), "a refusal is tried again: %v", err)
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"/home/a b/träin.py":           "/home/a b/träin.py",
		"a\x1b]0;x\a\nb":               "a\uFFFD]0;x\uFFFD\uFFFDb",
		strings.Repeat("x", maxString): strings.Repeat("x", maxString),
		strings.Repeat("€", maxString): strings.Repeat("€", 84) + "…",
	} {
		got := clean(in)
		fixture.If(t, got != want || len(got) > maxString, "%q: %q", in, got)
	}
}
