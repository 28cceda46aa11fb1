package broker

import (
	"bytes"
	"os"
	"strconv"
)

// groups returns the supplementary groups of a process, from its status in
// /proc; none if that cannot be read.
func groups(status string) (all []uint32) {
	text, err := os.ReadFile(status)
	if err != nil {
		return nil
	}
	for line := range bytes.Lines(text) {
		if list, ok := bytes.CutPrefix(line, []byte("Groups:")); ok {
			all = append(all, numbers(list)...)
		}
	}
	return all
}

// numbers returns the numbers of a list.
func numbers(list []byte) (all []uint32) {
	for field := range bytes.FieldsSeq(list) {
		if id, err := strconv.ParseUint(string(field), 10, 32); err == nil {
			all = append(all, uint32(id))
		}
	}
	return all
}
