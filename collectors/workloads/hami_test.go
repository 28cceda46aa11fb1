package workloads

import (
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// A claim is a region's entry for a GPU.
type claim struct {
	uuid              string
	memory, sm, holds uint64 // limits in bytes and percent, and bytes in use by each process
}

// claims lays out a region as HAMi-core 1.2 does; package host documents the layout.
func claims(pids []int, devices ...claim) []byte {
	b := make([]byte, 2008952)
	put := func(at int, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	put(0, 1<<32|19920718) // version and magic
	put(56, uint64(len(devices)))
	put(2008896, uint64(len(pids)))
	for i, d := range devices {
		copy(b[64+96*i:], d.uuid)
		put(1600+8*i, d.memory)
		put(1728+8*i, d.sm)
	}
	for n, pid := range pids {
		slot := 1856 + 1960*n
		put(slot, uint64(pid)<<32|7) // on the host, and in the container
		for i, d := range devices {
			put(slot+8+64*i+32, d.holds)
		}
	}
	return b
}

// The pod of the scenario workloads, and the processes of its containers on GPU
// 0.
const (
	hamiPod             = "1f0c2a7e-5b1d-4c39-9d64-0a4be3c1f7d2"
	vllmPID, embedPID   = 2201, 2202
	trainerPID          = 2101 // not in a pod
	vllmName, embedName = "pod:chat/llama-0/vllm", "pod:chat/llama-0/embed"
)

func TestHAMiRegionMustAgreeWithTheKernel(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	var uuids [2]string
	hosttest.In(t, "workloads", collectors.DefaultConfig(), func(_ *testing.T, h *collectors.Host) {
		for i := range uuids {
			uuids[i] = hosttest.Told(h, collectors.Up, "gpu", fmt.Sprint(i))["uuid"]
		}
	})
	first, second := uuids[0], uuids[1]
	link := filepath.Join(t.TempDir(), "elsewhere")
	fixture.Must(t, os.WriteFile(link, claims([]int{vllmPID}, claim{first, 4 * gib, 50, gib}), 0o600))
	const own, other, neighbours = hamiPod + "_vllm/a.cache", hamiPod + "_vllm/b.cache", hamiPod + "_embed/a.cache"
	type files = map[string][]byte // by directory and name; nil is a link to a valid one
	type found = map[string]string // memory in use, its limit and the limit of time, by GPU and workload
	of := func(pid int, all ...claim) []byte { return claims([]int{pid}, all...) }
	whole, little := claim{first, gib, 50, gib}, claim{first, gib, 50, 1}
	shown := found{"0 " + vllmName: "1 1073741824 0.5"}
	for name, c := range map[string]struct {
		files    files
		dirs     []string
		expected found
	}{
		"truth": {files: files{own: of(vllmPID, claim{first, 4 * gib, 50, gib}, claim{second, 0, 0, 0})},
			expected: found{"0 " + vllmName: "1073741824 4294967296 0.5", "1 " + vllmName: "0 - -"}},
		"a process that is gone":  {files: files{own: of(999999, whole)}},
		"another's process":       {files: files{own: of(trainerPID, whole)}},
		"another pod":             {files: files{"00000000-0000-0000-0000-000000000000_vllm/a.cache": of(vllmPID, whole)}},
		"its neighbour's process": {files: files{own: of(embedPID, whole)}},
		"a GPU that is not here":  {files: files{own: of(vllmPID, claim{"GPU-none", gib, 50, gib})}},
		"a GPU twice":             {files: files{own: of(vllmPID, little, claim{first, 1, 1, 1})}, expected: shown},
		"two regions of one":      {files: files{own: of(vllmPID, little), other: of(vllmPID, little)}, expected: shown},
		"one for each container": {files: files{own: of(vllmPID, little), neighbours: of(embedPID, claim{first, gib, 20, 2})},
			expected: found{"0 " + vllmName: "1 1073741824 0.5", "0 " + embedName: "2 1073741824 0.2"}},
		"four billion percent": {files: files{own: of(vllmPID, claim{first, gib, 4_000_000_000, 1})},
			expected: found{"0 " + vllmName: "1 1073741824 -"}},
		"more than all the time": {files: files{own: of(vllmPID, claim{first, gib, 101, 1})},
			expected: found{"0 " + vllmName: "1 1073741824 -"}},
		"more memory than exists": {files: files{own: of(vllmPID, claim{first, 1 << 63, 50, 1 << 63})},
			expected: found{"0 " + vllmName: "- - 0.5"}},
		"too short":                {files: files{own: of(vllmPID, little)[:100_000]}},
		"nonsense":                 {files: files{own: make([]byte, 3<<20), "nonsense": nil}},
		"a link":                   {files: files{own: nil}},
		"a directory":              {dirs: []string{own}},
		"beside what is no region": {files: files{own: of(vllmPID, little), other: []byte("x")}, expected: shown},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for _, dir := range c.dirs {
				fixture.Must(t, os.MkdirAll(filepath.Join(root, "containers", dir), 0o755))
			}
			for file, text := range c.files {
				path := filepath.Join(root, "containers", file)
				err := os.MkdirAll(filepath.Dir(path), 0o755)
				if text == nil {
					err = os.Symlink(link, path)
				} else if err == nil {
					err = os.WriteFile(path, text, 0o600)
				}
				fixture.Must(t, err)
			}
			config := collectors.DefaultConfig()
			config.HAMi = root
			hosttest.In(t, "workloads", config, func(t *testing.T, h *collectors.Host) {
				for range 3 {
					hosttest.Advance(12 * time.Second)
					if got := claimed(t, h); !maps.Equal(got, c.expected) {
						t.Errorf("claims %v, want %v", got, c.expected)
					}
					hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "hami")
				}
			})
		})
	}
}

// claimed returns the region series, in the format of the table above.
func claimed(t *testing.T, h *collectors.Host) map[string]string {
	t.Helper()
	all := map[string]*[3]string{}
	for _, s := range h.Samples() {
		for i, m := range []*collectors.Metric{HAMiMemoryUsed, HAMiMemoryLimit, HAMiSMLimit} {
			if s.Metric != m {
				continue
			}
			key := s.Labels[0] + " " + s.Labels[2]
			if all[key] == nil {
				all[key] = &[3]string{"-", "-", "-"}
			}
			fixture.Equal(t, all[key][i], "-", "duplicate series: %v of %s", m, key)
			all[key][i] = strconv.FormatFloat(s.Value, 'f', -1, 64)
		}
	}
	got := map[string]string{}
	for key, values := range all {
		got[key] = fmt.Sprintf("%s %s %s", values[0], values[1], values[2])
	}
	return got
}
