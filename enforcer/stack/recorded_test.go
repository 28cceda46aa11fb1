package stack

import (
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

// recording is what was read of a real interpreter that ran testdata/ranks.py,
// and where Python itself said that its threads stand.
type recording struct {
	Version string            `json:"version"`
	Symbols map[string]uint64 `json:"symbols"`
	Memory  []segment         `json:"memory"`
	Stacks  []said            `json:"stacks"`
}

// said is where Python says that a thread stands.
type said struct {
	TID    int     `json:"tid"`
	Python []Frame `json:"python"`
}

type segment struct {
	At   uint64 `json:"at"`
	Data string `json:"data"` // in hexadecimal
}

// image is memory by pages of one byte: small, and as full of holes as a recording.
type image map[uint64]byte

func (m image) read(addr uint64, p []byte) error {
	for i := range p {
		b, is := m[addr+uint64(i)]
		if !is {
			return syscall.EFAULT
		}
		p[i] = b
	}
	return nil
}

func (m image) write(addr uint64, data ...byte) {
	for i, b := range data {
		m[addr+uint64(i)] = b
	}
}

// recorder keeps what is read of a memory.
type recorder struct {
	memory
	image
}

func (r recorder) read(addr uint64, p []byte) error {
	err := r.memory.read(addr, p)
	if err == nil {
		r.write(addr, p...)
	}
	return err
}

// segments returns the memory in pieces without holes.
func (m image) segments() (all []segment) {
	var data []byte
	var start uint64
	flush := func() {
		if len(data) > 0 {
			all = append(all, segment{start, hex.EncodeToString(data)})
		}
		data = nil
	}
	for _, at := range slices.Sorted(maps.Keys(m)) {
		if at != start+uint64(len(data)) {
			flush()
			start = at
		}
		data = append(data, m[at])
	}
	flush()
	return all
}

func (r recording) image(t testing.TB) image {
	t.Helper()
	m := image{}
	for _, s := range r.Memory {
		data := fixture.Value(hex.DecodeString(s.Data))(t)
		m.write(s.At, data...)
	}
	return m
}

// known are the IDs of its threads.
func (r recording) known() map[int]bool {
	known := map[int]bool{}
	for _, s := range r.Stacks {
		known[s.TID] = true
	}
	return known
}

// recordings are those of testdata, by version.
func recordings(t testing.TB) map[string]recording {
	t.Helper()
	names, err := filepath.Glob("testdata/3.*.json")
	fixture.Stop(t, err != nil || len(names) < 5, "%d recordings, %v", len(names), err)
	all := map[string]recording{}
	for _, name := range names {
		text := fixture.Value(os.ReadFile(name))(t)
		var r recording
		fixture.Must(t, json.Unmarshal(text, &r))
		all[r.Version] = r
	}
	return all
}

// agrees wants the stacks that were read to be those that Python tells.
func agrees(t *testing.T, got []pythonStack, want []said) {
	t.Helper()
	fixture.Equal(t, len(got), len(want), "stacks")
	for _, w := range want {
		i := slices.IndexFunc(got, func(s pythonStack) bool { return s.TID == w.TID })
		if i < 0 {
			t.Errorf("thread %d is missing", w.TID)
			continue
		}
		if got[i].Problem != "" || !reflect.DeepEqual(got[i].Frames, w.Python) {
			t.Errorf("thread %d: %s\n got %v\nwant %v", w.TID, got[i].Problem, got[i].Frames, w.Python)
		}
	}
}

func TestRecordings(t *testing.T) {
	t.Parallel()
	for v, r := range recordings(t) {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			w := fixture.Value(newInterpreter(r.image(t), r.Symbols))(t)
			fixture.If(t, !strings.HasPrefix(v, w.version) || !w.verified,
				"taken for version %s, verified %v", w.version, w.verified)
			got, err := w.stacks(r.known())
			fixture.Must(t, err)
			agrees(t, got, r.Stacks)
			// A thread that the kernel does not list keeps its frames.
			got, err = w.stacks(nil)
			fixture.If(t, err != nil || len(got) != len(r.Stacks) || got[0].TID != 0, "%v %+v", err, got)
		})
	}
}
