package host

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"gpusteward/internal/procs"
)

// Kinds of workloads.
const (
	KindPod       = "pod"
	KindContainer = "container"
	KindSlurm     = "slurm"
	KindJob       = "job" // of another batch system
	KindUnit      = "unit"
	KindUser      = "user"
	KindMPS       = "mps" // a user's MPS server with clients of several others
)

// A Workload is the owner of processes. It is immutable; every string in it is
// printable UTF-8 of at most 128 bytes.
//
// The location of a process, its cgroup, comes from the kernel. The name of the
// cgroup can come from a user: see ParseCgroup for the names that are trusted.
type Workload struct {
	// Key is stable: pod:<namespace>/<pod>/<container>, container:<name>,
	// unit:<unit>, slurm:<job>[.<step>], job:<system>/<job>, user:<uid>, mps:<uid>.
	Key  string
	Kind string

	Namespace, Pod, PodUID string
	Container, ContainerID string // the full id; 12 digits are enough for humans
	Image                  string

	Unit, Slice string // of systemd, for kinds unit and user

	// For Slurm. SLUID is Slurm's name for a run of the job, if the job's cgroup
	// has that name; Job is the same while the job's number is unknown.
	Job, Step, SLUID string
	// User, Account and Partition come from the job's record, and then Recorded
	// is true. Without a record they come from a process's environment, where
	// its user can change them: they are shown, and decide nothing.
	User, Account, Partition string
	Recorded                 bool

	UID int // of the process that was seen first

	own   bool   // below user.slice, where its user chooses all names
	group string // the key that its cgroup has without names
}

// In reports whether a process of the workload's user with this content of
// /proc/PID/cgroup belongs to the workload.
func (w *Workload) In(cgroup string) bool {
	return w.group != "" && ParseCgroup(cgroup, w.UID).group == w.group
}

// A Process is a process at one moment.
type Process struct {
	PID      int
	Start    uint64    // clock ticks from boot to its start; with PID, its identity
	Began    time.Time // the same as a time
	UID      int
	User     string // UID's name, or its number
	Comm     string
	Workload *Workload // nil while its name is being looked up, at most 2 s
}

// Owner returns the owner of p's workload, which the workload itself cannot
// choose: the namespace of a pod, otherwise the user of p, with his subordinate
// UIDs.
func (p Process) Owner() string {
	if w := p.Workload; w != nil && w.Namespace != "" {
		return "namespace:" + w.Namespace
	}
	return "user:" + strconv.Itoa(int(procs.Login(uint32(p.UID))))
}

const longest = 128 // bytes of a key or another field

// field returns raw in a printable form. If that changed it, the result ends in
// "~" and a hash of raw, so that two names never become one.
func field(raw string) string {
	return bound(strings.Map(visible, raw), raw, raw)
}

// key returns the key of a workload. Two lists of parts never have the same
// key.
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

// bound returns shown if it is short and all of raw, otherwise as much of it as
// fits before a hash of parts.
func bound(shown, raw string, parts ...string) string {
	if shown == raw && len(shown) <= longest {
		return shown
	}
	const hash = 8 // bytes
	n := min(len(shown), longest-len("~")-2*hash)
	for n < len(shown) && n > 0 && !utf8.RuneStart(shown[n]) {
		n--
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q", parts)) // quoted, so that the boundaries of parts count
	return fmt.Sprintf("%s~%x", shown[:n], sum[:hash])
}

// visible replaces invisible characters, and "~", which only precedes a hash.
func visible(r rune) rune {
	if r == '~' || r == utf8.RuneError || !unicode.IsPrint(r) {
		return '_'
	}
	return r
}
