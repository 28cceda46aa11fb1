package stack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end, offset uint64
	device             string
	inode              uint64 // 0: it is anonymous
	path               string // empty without a file; [vdso] and the like have brackets
}

// mappings reads those of the process in dir.
func mappings(dir string) ([]mapping, error) {
	f, err := os.Open(filepath.Join(dir, "maps"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	bound := &io.LimitedReader{R: f, N: maxMaps}
	all, err := parseMaps(bound)
	if err == nil && bound.N == 0 {
		err = fmt.Errorf("the process has more than %d MiB of mappings: they are too many to search", maxMaps>>20)
	}
	return all, err
}

var errMaps = errors.New("read the process's mappings: a line has another form")

func parseMaps(r io.Reader) (all []mapping, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		// The path is what follows the blanks behind the inode, and may have blanks.
		f := strings.SplitN(lines.Text(), " ", 6)
		if len(f) < 5 {
			return nil, errMaps
		}
		start, end, _ := strings.Cut(f[0], "-")
		var m mapping
		var wrong [4]error
		m.start, wrong[0] = strconv.ParseUint(start, 16, 64)
		m.end, wrong[1] = strconv.ParseUint(end, 16, 64)
		m.offset, wrong[2] = strconv.ParseUint(f[2], 16, 64)
		m.inode, wrong[3] = strconv.ParseUint(f[4], 10, 64)
		if m.device = f[3]; errors.Join(wrong[:]...) != nil || m.end <= m.start {
			return nil, errMaps
		}
		if len(f) == 6 {
			m.path = strings.TrimLeft(f[5], " ")
		}
		all = append(all, m)
	}
	return all, lines.Err()
}

// find returns the mapping that an address lies in. They are in order.
func find(all []mapping, at uint64) (mapping, bool) {
	i, _ := slices.BinarySearchFunc(all, at, func(m mapping, at uint64) int {
		if m.end <= at {
			return -1
		}
		return 1
	})
	if i == len(all) || all[i].start > at {
		return mapping{}, false
	}
	return all[i], true
}
