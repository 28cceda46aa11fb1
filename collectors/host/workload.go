package host

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Kinds of workloads.
const (
	KindPod       = "pod"
	KindContainer = "container"
	KindSlurm     = "slurm"
	KindUnit      = "unit"
	KindUser      = "user"
)

// A Workload is who processes work for. It is immutable; every string in it is
// printable UTF-8 of at most 128 bytes.
//
// Where a process runs is the kernel's word, its cgroup. What the cgroup is
// called may be a user's: see ParseCgroup for whom it is believed.
type Workload struct {
	Key  string // stable: pod:<namespace>/<pod>/<container>, container:<name>, unit:<unit>, slurm:<job>[.<step>], user:<uid>
	Kind string

	Namespace, Pod, PodUID string
	Container, ContainerID string // the id in full; for humans 12 digits are enough
	Image                  string

	Unit, Slice string // systemd's, of kinds unit and user

	Job, Step                string // Slurm's
	User, Account, Partition string // of the job, by its record; without one as a process of it has them in its environment, where its user can change them

	UID int // of the process that was seen first

	own bool // below user.slice, where all names are its user's
}

// A Process is a process at one moment.
type Process struct {
	PID      int
	Start    uint64    // clock ticks from boot to its start; with PID, its identity
	Began    time.Time // the same as a time
	UID      int
	User     string // UID's name in /etc/passwd, or its number
	Comm     string
	Workload *Workload // nil while its name is asked for, at most 2 s
}

// Owner returns whose p's workload is, by what whoever runs it cannot choose:
// the namespace of a pod, else the user of p.
func (p Process) Owner() string {
	if w := p.Workload; w != nil && w.Namespace != "" {
		return "namespace:" + w.Namespace
	}
	return "user:" + strconv.Itoa(p.UID)
}

const longest = 128 // bytes of a key or another field

// field returns raw as it may be shown. If that changed it, it ends in "~" and
// a hash of what it was, so that two names never become one.
func field(raw string) string {
	return bound(strings.Map(visible, raw), raw, raw)
}

// key returns the key of a workload. No two lists of parts have the same.
func key(kind string, parts ...string) string {
	raw := kind + ":" + strings.Join(parts, "/")
	shown := kind + ":"
	for i, p := range parts {
		if i > 0 {
			shown += "/"
		}
		shown += strings.ReplaceAll(strings.Map(visible, p), "/", "_")
	}
	return bound(shown, raw, parts...)
}

// bound returns shown where it is short and all of raw, else as much of it as
// fits before a hash of what it stands for.
func bound(shown, raw string, parts ...string) string {
	if shown == raw && len(shown) <= longest {
		return shown
	}
	const hash = 8 // bytes
	n := min(len(shown), longest-len("~")-2*hash)
	for n < len(shown) && n > 0 && !utf8.RuneStart(shown[n]) {
		n--
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts)) // quoted: where a part ends counts
	return fmt.Sprintf("%s~%x", shown[:n], sum[:hash])
}

// visible replaces what a reader could not see, and "~", which only a hash
// may follow.
func visible(r rune) rune {
	if r == '~' || r == utf8.RuneError || !unicode.IsPrint(r) {
		return '_'
	}
	return r
}
