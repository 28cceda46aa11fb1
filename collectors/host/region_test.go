package host

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// buildRegion lays out a region as HAMi-core 1.2 does.
func buildRegion(r Region) []byte {
	b := make([]byte, regionSize+1)
	put32 := func(at, v int) { binary.LittleEndian.PutUint32(b[at:], uint32(v)) }
	put64 := func(at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	put32(0, regionMagic)
	put32(4, regionMajor)
	put32(8, 2)
	put64(56, uint64(len(r.Devices)))
	for i, d := range r.Devices {
		copy(b[64+96*i:64+96*(i+1)-1], d.UUID)
		put64(1600+8*i, d.Memory)
		put64(1728+8*i, d.SM)
	}
	put32(2008896, len(r.Processes))
	put32(2008908, r.Priority)
	at := 1856
	for hostPID, p := range r.Processes {
		put32(at, p.PID)
		put32(at+4, hostPID)
		for i := range p.Memory {
			put64(at+8+64*i+32, p.Memory[i])
			put64(at+1160+48*i+16, p.SM[i])
		}
		put64(at+1936, 4)
		at += 1960
	}
	return b
}

var region = Region{
	Priority: 1,
	Devices:  []RegionDevice{{"GPU-1", 1 << 30, 50}, {"GPU-2", 0, 0}},
	Processes: map[int]RegionProcess{4711: {7, []uint64{1 << 20, 2}, []uint64{30, 0}},
		4712: {8, []uint64{5, 6}, []uint64{0, 1}}},
}

func writeRegion(t *testing.T, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.cache")
	fixture.Must(t, os.WriteFile(path, b, 0o600))
	return path
}

func TestReadRegion(t *testing.T) {
	got, err := ReadRegion(writeRegion(t, buildRegion(region)))
	fixture.Equal(t, err != nil || !reflect.DeepEqual(got, region), false, "%+v, %v; want %+v", got, err, region)
}

func TestReadRegionRefuses(t *testing.T) {
	put := func(at int, v uint32) []byte {
		b := buildRegion(region)
		binary.LittleEndian.PutUint32(b[at:], v)
		return b
	}
	for name, b := range map[string][]byte{"empty": nil, "short": buildRegion(region)[:regionSize-1],
		"magic": put(0, 1), "version": put(4, 2)} {
		r, err := ReadRegion(writeRegion(t, b))
		fixture.If(t, err == nil, "%s: no error, but %+v", name, r)
	}
	for name, c := range map[string]struct {
		b                  []byte
		devices, processes int
	}{
		"many devices":      {put(56, 1<<31), 16, 2},
		"many processes":    {put(regionTail, 1<<30), 2, 2},
		"minus a process":   {put(regionTail, 1<<32-1), 2, 0},
		"no PID":            {put(regionHeader, 0), 2, 1},
		"no PID outside":    {put(regionHeader+4, 0), 2, 1},
		"always written to": {put(regionHeader+slotSequence, 5), 2, 1},
	} {
		if r, err := ReadRegion(writeRegion(t, c.b)); err != nil || len(r.Devices) != c.devices ||
			len(r.Processes) != c.processes {
			t.Errorf("%s: %d devices, %d processes, %v", name, len(r.Devices), len(r.Processes), err)
		}
	}
	dir := t.TempDir()
	link, pipe := filepath.Join(dir, "link"), filepath.Join(dir, "pipe")
	os.Symlink(writeRegion(t, buildRegion(region)), link)
	unix.Mkfifo(pipe, 0o600)
	for _, path := range []string{link, pipe, dir, filepath.Join(dir, "none"), "/dev/zero"} {
		fixture.If(t, fixture.Error(ReadRegion(path)) == nil, "%s was read", path)
	}
}

func TestRegions(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{uid + "_main/a.cache", uid + "_main/vgpu.lock", "nothing/a.cache"} {
		path = filepath.Join(root, "containers", path)
		fixture.Rewrite(t, path, "")
	}
	want := []RegionFile{{filepath.Join(root, "containers", uid+"_main", "a.cache"), uid, "main"}}
	got := Regions(root)
	fixture.If(t, !reflect.DeepEqual(got, want), "%+v", got)
	got = Regions(filepath.Join(root, "none"))
	fixture.If(t, len(got) != 0, "%+v", got)
}

// sparse is a region with only its beginning and its end written.
type sparse struct{ head, tail []byte }

func (s sparse) ReadAt(p []byte, at int64) (int, error) {
	clear(p)
	copy(p, s.head[min(at, int64(len(s.head))):])
	if at >= regionTail {
		copy(p, s.tail[min(at-regionTail, int64(len(s.tail))):])
	}
	return len(p), nil
}

func FuzzRegion(f *testing.F) {
	whole := buildRegion(region)
	f.Add(whole[:regionHeader+2*slotSize], whole[regionTail:])
	f.Add([]byte{}, []byte{255, 255, 255, 127})
	f.Fuzz(func(t *testing.T, head, tail []byte) {
		r, err := readRegion(sparse{head, tail})
		if err != nil {
			return
		}
		fixture.If(t, len(r.Devices) > 16 || len(r.Processes) > 1024,
			"%d devices, %d processes", len(r.Devices), len(r.Processes))
		for _, d := range r.Devices {
			fixture.If(t, len(d.UUID) > longest || !utf8.ValidString(d.UUID) || strings.Contains(d.UUID, "\x00"),
				"%q", d.UUID)
		}
		for pid, p := range r.Processes {
			fixture.If(t, pid <= 0 || p.PID <= 0 || len(p.Memory) != len(r.Devices) || len(p.SM) != len(r.Devices),
				"%d: %+v", pid, p)
		}
	})
}
