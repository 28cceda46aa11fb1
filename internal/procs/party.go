package procs

import (
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Whose returns the party to which a process belongs. An unprivileged user is one party, whatever
// processes, cgroups and namespaces he creates: a party is a user's slice of systemd, a pod, a container
// that root started, a user with his subordinate UIDs, or a cgroup of root.
func Whose(procfs string, pid int) string { return party(filepath.Join(procfs, strconv.Itoa(pid))) }

// parties matches the names of cgroups that only root creates, and in which processes may have any UID.
var parties = regexp.MustCompile(`^user-\d+\.slice$|pod[\da-f_-]{32,36}(\.slice)?$|[\da-f]{64}(\.scope)?$|` +
	`^lxc\.payload\.|^machine-.*\.scope$|^systemd-nspawn@`)

// Peer is Whose for a process that had this user when the kernel recorded its PID. If it has ended, only the user counts:
// its PID may be that of another user's process by now.
func Peer(procfs string, pid int, uid uint32) string {
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	status, _ := os.ReadFile(filepath.Join(dir, "status"))
	cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	if ids := StatusLine(status, "Uid"); len(ids) < 2 || ids[1] != strconv.FormatUint(uint64(uid), 10) { // the effective one
		cgroup = nil
	}
	return Party(string(cgroup), uid)
}

func party(dir string) string {
	status, _ := os.ReadFile(filepath.Join(dir, "status")) // none: it has ended
	ids := StatusLine(status, "Uid")
	if len(ids) == 0 {
		return ""
	}
	uid, err := strconv.ParseUint(ids[0], 10, 32)
	if err != nil {
		return ""
	}
	cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	return Party(string(cgroup), uint32(uid))
}

// Party is Whose for a user's process with this content of /proc/PID/cgroup.
func Party(cgroup string, uid uint32) string {
	for line := range strings.Lines(cgroup) {
		path := line[strings.LastIndex(line, ":/")+1:]
		at := ""
		for part := range strings.SplitSeq(strings.Trim(path, "/\n"), "/") {
			if at += "/" + part; parties.MatchString(part) {
				return at
			}
			if strings.HasSuffix(part, ".service") || strings.HasSuffix(part, ".scope") {
				break // its user may choose the names below it
			}
		}
	}
	if uid == 0 {
		return "0 " + cgroup
	}
	return fmt.Sprint(Login(uid))
}

// Etc is the directory with subuid and passwd, which assign subordinate UIDs to users.
var Etc = "/etc"

// Login returns the user to whom /etc/subuid assigns a UID, or else the UID itself. The first subordinate
// UID stands for a user who is not in /etc/passwd.
func Login(uid uint32) uint32 {
	subordinates.Lock()
	defer subordinates.Unlock()
	for _, r := range spans(filepath.Join(Etc, "subuid")) {
		if uid-r.first < r.count {
			return r.of
		}
	}
	return uid
}

// A span is a range of a user's subordinate UIDs.
type span struct{ first, count, of uint32 }

// subordinates are the spans of a file.
var subordinates struct {
	sync.Mutex
	path    string
	changed time.Time
	ranges  []span
}

// spans returns what a file says; none if it is not there. The caller has locked subordinates.
func spans(path string) []span {
	s := &subordinates
	is, err := os.Stat(path)
	if err != nil {
		return nil
	}
	if path == s.path && is.ModTime().Equal(s.changed) {
		return s.ranges
	}
	s.path, s.changed, s.ranges = path, is.ModTime(), nil
	numbers := map[string]uint32{} // of users
	for f := range table(filepath.Join(filepath.Dir(path), "passwd")) {
		if uid, err := strconv.ParseUint(f[2], 10, 32); err == nil {
			numbers[f[0]] = uint32(uid)
		}
	}
	for f := range table(path) {
		first, err1 := strconv.ParseUint(f[1], 10, 32)
		count, err2 := strconv.ParseUint(f[2], 10, 32)
		if err1 != nil || err2 != nil {
			continue
		}
		of, known := numbers[f[0]]
		if uid, err := strconv.ParseUint(f[0], 10, 32); err == nil {
			of, known = uint32(uid), true
		}
		if !known {
			of = uint32(first)
			numbers[f[0]] = of
		}
		s.ranges = append(s.ranges, span{uint32(first), uint32(count), of})
	}
	return s.ranges
}

// table has the lines of a file with three fields or more.
func table(path string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		text, _ := os.ReadFile(path)
		for line := range strings.Lines(string(text)) {
			if f := strings.Split(strings.TrimSpace(line), ":"); len(f) > 2 && !yield(f) {
				return
			}
		}
	}
}
