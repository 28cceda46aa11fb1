package ras

import (
	_ "embed"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A version is a release of NCCL, as 2.28.9.
type version [3]int

// parseVersion understands a whole version.
func parseVersion(text string) (v version, ok bool) {
	parts := strings.Split(text, ".")
	if len(parts) != len(v) {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil {
			return v, false
		}
		v[i] = int(n)
	}
	return v, true
}

func (v version) before(w version) bool { return slices.Compare(v[:], w[:]) < 0 }

// A fault is a defect of NCCL by which a question can crash the process that is asked.
type fault struct {
	first    version
	repaired version // zero: no release without it is known
	issues   string  // of NVIDIA/nccl
	what     string
}

//go:embed faults.tsv
var faultTable string

var faults = readFaults(faultTable)

func readFaults(table string) (all []fault) {
	lines := strings.Split(strings.TrimSpace(table), "\n")
	for _, line := range lines[1:] {
		if f := strings.Split(line, "\t"); len(f) == 4 && !strings.HasPrefix(line, "#") {
			first, _ := parseVersion(f[0])
			repaired, _ := parseVersion(f[1])
			all = append(all, fault{first, repaired, f[2], f[3]})
		}
	}
	return all
}

// Refuse returns why a process with that version of NCCL must not be asked; nil:
// it may be. trusted are versions that the operator allows, as 2.28.9, or 2.28
// for all of its releases.
func Refuse(text string, trusted []string) error {
	v, known := parseVersion(text)
	if !known {
		return fmt.Errorf("its version of NCCL is not known")
	}
	if slices.ContainsFunc(trusted, func(t string) bool { return text == t || strings.HasPrefix(text, t+".") }) {
		return nil
	}
	for _, f := range slices.Backward(faults) {
		if !v.before(f.first) && (f.repaired == version{} || v.before(f.repaired)) {
			return fmt.Errorf("asking NCCL %s %s can crash it (NVIDIA/nccl %s)", text, f.what, f.issues)
		}
	}
	if v.before(faults[0].first) {
		return fmt.Errorf("NCCL %s has no RAS service", text)
	}
	return nil
}

// IsLibrary reports whether a file may be NCCL by its name. Wheels put a hash in it.
func IsLibrary(base string) bool {
	return strings.HasPrefix(base, "libnccl") && strings.Contains(base, ".so")
}

// versionText is in the read-only data of each NCCL: it is the line that NCCL_DEBUG=VERSION prints.
var versionText = regexp.MustCompile(`NCCL version (\d+\.\d+\.\d+)`)

// VersionIn returns the version that the read-only data of a library tells; empty:
// none, or more than one.
func VersionIn(data io.Reader) (found string) {
	const overlap = 64 // more than the text takes
	buffer := make([]byte, 1<<20)
	kept := 0
	for {
		n, err := io.ReadFull(data, buffer[kept:])
		piece := buffer[:kept+n]
		for _, m := range versionText.FindAllSubmatchIndex(piece, -1) {
			// A number at the end of the piece may go on: the next piece has all of it.
			switch text := string(piece[m[2]:m[3]]); {
			case err == nil && m[1] > len(piece)-overlap/2:
			case found == "":
				found = text
			case found != text:
				return ""
			}
		}
		switch err {
		case nil:
		case io.EOF, io.ErrUnexpectedEOF:
			return found
		default:
			return ""
		}
		kept = copy(buffer, piece[len(piece)-overlap:])
	}
}
