package stack

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end, offset uint64
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

func parseMaps(r io.Reader) (all []mapping, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		var m mapping
		var perms, device, inode string
		n, err := fmt.Sscanf(lines.Text(), "%x-%x %s %x %s %s", &m.start, &m.end, &perms, &m.offset, &device, &inode)
		if err != nil || n != 6 || m.end <= m.start {
			return nil, errors.New("read the process's mappings: a line has another form")
		}
		// The path is what follows the blanks behind the inode, and may have blanks.
		if f := strings.SplitN(lines.Text(), " ", 6); len(f) == 6 {
			m.path = strings.TrimLeft(f[5], " ")
		}
		all = append(all, m)
	}
	return all, lines.Err()
}
