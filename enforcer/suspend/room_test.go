package suspend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// machine returns a host of 100 MiB of which 50 are available, with the given files; process 2 is in cgroup /a/b.
func machine(t *testing.T, files map[string]string) Host {
	t.Helper()
	h := Host{ProcFS: filepath.Join(t.TempDir(), "proc"), CgroupFS: filepath.Join(t.TempDir(), "cgroup")}
	all := map[string]string{
		filepath.Join(h.ProcFS, "meminfo"):  "MemTotal: 102400 kB\nMemFree: 1 kB\nMemAvailable:   51200 kB\n",
		filepath.Join(h.ProcFS, "2/cgroup"): "0::/a/b\n",
		filepath.Join(h.ProcFS, "6/cgroup"): "0::/a:b/c\n",
		filepath.Join(h.ProcFS, "3/cgroup"): "12:cpu,cpuacct:/other\n5:memory:/old\n",
	}
	for name, text := range files {
		all[filepath.Join(h.CgroupFS, name)] = text
	}
	for name, text := range all {
		fixture.Must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		fixture.Must(t, os.WriteFile(name, []byte(text), 0o644))
	}
	return h
}

func mib(n int) string { return fmt.Sprint(n << 20) }

func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		pid    int
		mib    uint64
		reason Reason
	}{
		"the host has it":     {nil, 2, 40, ""},
		"the reserve is kept": {nil, 2, 41, HostMemory},
		"the cgroup has it":   {map[string]string{"a/b/memory.max": mib(30), "a/b/memory.current": mib(10)}, 2, 20, ""},
		"the cgroup has too little": {map[string]string{"a/b/memory.max": mib(30), "a/b/memory.current": mib(11)}, 2, 20,
			CgroupMemory},
		"no limit": {map[string]string{"a/b/memory.max": "max\n", "a/b/memory.current": mib(90)}, 2, 20, ""},
		"a parent has too little": {map[string]string{"a/memory.max": mib(30), "a/memory.current": mib(11)}, 2, 20,
			CgroupMemory},
		"a limit without a usage": {map[string]string{"a/b/memory.max": mib(30)}, 2, 1, CgroupMemory},
		"version 1": {map[string]string{"memory/old/memory.limit_in_bytes": mib(30),
			"memory/old/memory.usage_in_bytes": mib(11)}, 3, 20, CgroupMemory},
		"a colon in the name": {map[string]string{"a:b/c/memory.max": mib(30), "a:b/c/memory.current": mib(11)}, 6, 20,
			CgroupMemory},
		"no process": {nil, 4, 1, CgroupMemory},
	} {
		err := machine(t, c.files).Room(map[int]uint64{c.pid: c.mib << 20}, nil)
		fixture.If(t, (err == nil) != (c.reason == "") || err != nil && ReasonOf(err) != c.reason,
			"%s: %v, want %q", name, err, c.reason)
	}
}

// TestRoomOfAll adds up what processes of one cgroup need.
func TestRoomOfAll(t *testing.T) {
	h := machine(t, map[string]string{"a/b/memory.max": mib(30), "a/b/memory.current": mib(10)})
	path := filepath.Join(h.ProcFS, "5/cgroup")
	fixture.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	fixture.Must(t, os.WriteFile(path, []byte("0::/a\n"), 0o644))
	fixture.Must(t, h.Room(map[int]uint64{2: 15 << 20, 5: 15 << 20}, nil)) // the other one is in the parent
	fixture.Equal(t, ReasonOf(h.Room(map[int]uint64{2: 30 << 20, 5: 15 << 20}, nil)), HostMemory, "what both lack")
	fixture.Must(t, os.Remove(filepath.Join(h.ProcFS, "meminfo")))
	if err := h.Room(map[int]uint64{2: 1}, nil); ReasonOf(err) != HostMemory || !strings.Contains(err.Error(), "unknown") {
		t.Errorf("without meminfo: %v", err)
	}
}

// TestRoomOfACgroup counts the cache of files as free, and heeds the limit from which on the
// kernel slows processes down.
func TestRoomOfACgroup(t *testing.T) {
	h := machine(t, map[string]string{"a/b/memory.max": mib(40), "a/b/memory.current": mib(30),
		"a/b/memory.stat":  "anon 1\ninactive_file " + mib(10) + "\nactive_file " + mib(9) + "\n",
		"a/b/memory.high":  mib(30),
		"a:b/memory.high":  mib(30),
		"a:b/c/memory.max": "max", "a:b/c/memory.current": mib(1), "a:b/memory.max": "max", "a:b/memory.current": mib(1),
		"memory/old/memory.limit_in_bytes": mib(30), "memory/old/memory.usage_in_bytes": mib(25),
		"memory/old/memory.stat": "inactive_file 1\ntotal_inactive_file " + mib(15) + "\n"})
	for pid, left := range map[int]uint64{2: 10, 6: 29, 3: 20} {
		fixture.Must(t, h.Room(map[int]uint64{pid: left << 20}, nil))
		fixture.Equal(t, ReasonOf(h.Room(map[int]uint64{pid: left<<20 + 1}, nil)), CgroupMemory, "what %d lacks", pid)
	}
}

// TestRoomBesideOthers adds what is on its way to the host, in the cgroups that it shares with the workload.
func TestRoomBesideOthers(t *testing.T) {
	h := machine(t, map[string]string{"a/memory.max": mib(30), "a/memory.current": mib(10),
		"memory/old/memory.limit_in_bytes": mib(1), "memory/old/memory.usage_in_bytes": mib(1)})
	all := map[int]uint64{2: 15 << 20}
	for name, c := range map[string]struct {
		others map[int]uint64
		want   string
	}{
		"there is room for both":  {map[int]uint64{3: 25 << 20}, ""},
		"the host has too little": {map[int]uint64{3: 26 << 20}, "reserved, and other workloads are about to take 26 MiB"},
		"who has ended counts":    {map[int]uint64{99: 26 << 20}, "about to take 26 MiB"},
		"it shares the cgroup": {map[int]uint64{2: 6 << 20},
			"the limit of cgroup /a leaves 20 MiB, and other workloads are about to take 6 MiB"},
	} {
		err := h.Room(all, c.others)
		fixture.If(t, (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want),
			"%s: %v", name, err)
	}
}
