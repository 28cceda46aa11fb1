package procs

import (
	"bytes"
	"strconv"
	"strings"
)

// StatusLine returns the words of a line of the file status of a process, such as those of "Uid". There
// are none if the file has no such line.
func StatusLine(status []byte, name string) []string {
	for line := range bytes.Lines(status) {
		if words, is := bytes.CutPrefix(line, []byte(name+":")); is {
			return strings.Fields(string(words))
		}
	}
	return nil
}

// Inner returns the ID of a process or a thread in its own PID namespace, by which it knows itself, from
// its file status. It is id if the file does not tell.
func Inner(status []byte, id int) int {
	words := StatusLine(status, "NSpid")
	if len(words) == 0 {
		return id
	}
	inner, err := strconv.Atoi(words[len(words)-1])
	if err != nil {
		return id
	}
	return inner
}
