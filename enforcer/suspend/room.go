package suspend

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpusteward/internal/procs"
)

// reserve is the host memory that suspended workloads leave to all others, as a
// part of the total.
const reserve = 0.1

// A Host tells how much host memory processes may take. Set the roots: /proc and
// /sys/fs/cgroup.
type Host struct {
	ProcFS   string
	CgroupFS string
	MemInfo  string // path; empty: meminfo in ProcFS
}

// Room returns a Refusal if the host, or the cgroup of one of the processes, has
// no room for their GPU memory, in bytes by PID: the driver copies it into memory of
// the process itself. If a limit cannot be read, there is no room. The memory of
// others is on its way to the host, and counts.
func (h Host) Room(bytes, others map[int]uint64) error {
	total, available, err := h.Memory()
	if err != nil {
		return refuse(HostMemory, "the host's memory is unknown: %v", err)
	}
	sum, more := uint64(0), uint64(0)
	groups, beside := map[string]uint64{}, map[string]uint64{} // bytes for each cgroup and its parents
	for pid, n := range bytes {
		sum += n
		group, err := h.cgroup(pid)
		if err != nil {
			return refuse(CgroupMemory, "the cgroup of %d is unknown: %v", pid, err)
		}
		charge(groups, group, n)
	}
	for pid, n := range others {
		more += n
		if group, err := h.cgroup(pid); err == nil { // otherwise it has ended
			charge(beside, group, n)
		}
	}
	if left := available - min(available, uint64(reserve*float64(total))); sum+more > left {
		return refuse(HostMemory, "%d MiB of GPU memory need as much host memory: %d MiB are available, of which "+
			"%.0f %% of the total are reserved%s", sum>>20, available>>20, 100*reserve, taken(more))
	}
	for dir, n := range groups {
		if left := h.left(dir); n+beside[dir] > left {
			return refuse(CgroupMemory, "%d MiB of GPU memory need as much host memory, and the limit of cgroup %s leaves "+
				"%d MiB%s", n>>20, dir, left>>20, taken(beside[dir]))
		}
	}
	return nil
}

// taken describes how much others take.
func taken(bytes uint64) string {
	if bytes == 0 {
		return ""
	}
	return fmt.Sprintf(", and other workloads are about to take %d MiB", bytes>>20)
}

// charge adds bytes to a cgroup and its parents.
func charge(all map[string]uint64, group string, n uint64) {
	for dir := group; ; dir = filepath.Dir(dir) {
		all[dir] += n
		if dir == "/" || dir == "." {
			return
		}
	}
}

// Memory returns the host's memory in bytes.
func (h Host) Memory() (total, available uint64, err error) {
	text, err := os.ReadFile(cmp.Or(h.MemInfo, filepath.Join(h.ProcFS, "meminfo")))
	if err != nil {
		return 0, 0, err
	}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		key, rest, _ := strings.Cut(lines.Text(), ":")
		n, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		switch key {
		case "MemTotal":
			total = n << 10
		case "MemAvailable":
			available = n << 10
		}
	}
	if total == 0 {
		return 0, 0, errors.New("meminfo has no MemTotal")
	}
	return total, available, nil
}

// cgroup returns the cgroup of a process that has its memory's limit, as a path
// from the root of its hierarchy.
func (h Host) cgroup(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join(h.ProcFS, strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return "", err
	}
	path, ok := procs.Cgroup(string(text), "memory")
	if !ok {
		path, _ = procs.Cgroup(string(text), "")
	}
	return filepath.Join("/", path), nil
}

// versions are the files of a cgroup's memory, by the version of cgroups.
var versions = []struct{ dir, limit, throttled, used, cache string }{
	{"", "memory.max", "memory.high", "memory.current", "inactive_file"},
	{"memory", "memory.limit_in_bytes", "", "memory.usage_in_bytes", "total_inactive_file"},
}

// left returns how many bytes a cgroup may still take. The kernel can reclaim the
// cache of files that nobody reads. A cgroup without a limit, or outside of this
// namespace, may take any number.
func (h Host) left(group string) uint64 {
	for _, v := range versions {
		dir := filepath.Join(h.CgroupFS, v.dir, group)
		most, err := number(filepath.Join(dir, v.limit))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		used, err2 := number(filepath.Join(dir, v.used))
		if err != nil || err2 != nil {
			return 0
		}
		if high, err := number(filepath.Join(dir, v.throttled)); err == nil {
			most = min(most, high)
		}
		used -= min(used, stat(filepath.Join(dir, "memory.stat"), v.cache))
		return most - min(most, used)
	}
	return math.MaxUint64
}

// stat returns a row of a cgroup's statistics; 0: it has none.
func stat(path, key string) uint64 {
	text, _ := os.ReadFile(path)
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if name, value, _ := strings.Cut(lines.Text(), " "); name == key {
			n, _ := strconv.ParseUint(value, 10, 64)
			return n
		}
	}
	return 0
}

func number(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	word := strings.TrimSpace(string(text))
	if word == "max" {
		return math.MaxUint64, nil
	}
	return strconv.ParseUint(word, 10, 64)
}
