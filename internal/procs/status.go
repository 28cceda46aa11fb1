package procs

import (
	"bytes"
	"slices"
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

// Cgroup returns the path of a process's cgroup in the hierarchy of a controller, or in that of version 2 for "", from
// the content of its /proc/PID/cgroup.
func Cgroup(content, controller string) (path string, ok bool) {
	for line := range strings.Lines(content) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) == 3 && slices.Contains(strings.Split(parts[1], ","), controller) {
			return parts[2], true
		}
	}
	return "", false
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
