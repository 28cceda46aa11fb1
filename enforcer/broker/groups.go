package broker

import (
	"os"
	"strconv"

	"gpusteward/internal/procs"
)

// groups returns the supplementary groups of a process, from its status in
// /proc; none if that cannot be read.
func groups(status string) []uint32 {
	text, err := os.ReadFile(status)
	if err != nil {
		return nil
	}
	return numbers(procs.StatusLine(text, "Groups"))
}

// numbers returns the numbers of a list.
func numbers(list []string) (all []uint32) {
	for _, word := range list {
		if id, err := strconv.ParseUint(word, 10, 32); err == nil {
			all = append(all, uint32(id))
		}
	}
	return all
}
