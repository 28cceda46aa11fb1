package gemini

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"
)

// A Role is the program that the server replaces.
type Role int

// The roles.
const (
	PodManager Role = iota // of hooks: one request at a time, 127.0.0.1:50052
	// of pod managers: many at a time, which keep the books of memory themselves, 127.0.0.1:50051
	Scheduler
)

// UnmarshalText reads a role by its name in the configuration.
func (r *Role) UnmarshalText(text []byte) error {
	return named(r, text, "pod-manager", "scheduler")
}

// named sets v by which of two names a text is.
func named[T ~int](v *T, text []byte, first, second string) error {
	switch string(text) {
	case first:
		*v = 0
	case second:
		*v = 1
	default:
		return fmt.Errorf("%q is neither %s nor %s", text, first, second)
	}
	return nil
}

// Unknown is the treatment of a name that is not in the file, or is bound to a
// cgroup that the client is not known to be in.
type Unknown int

// Treatments of unknown names.
const (
	Silence Unknown = iota // no answer, as Gemini does: the client waits
	Deny                   // memory is refused at once; requests for time wait, because no answer says no
)

// UnmarshalText reads a treatment by its name in the configuration.
func (u *Unknown) UnmarshalText(text []byte) error {
	return named(u, text, "silence", "deny")
}

// Options configure the service of one GPU. The first five are an entry of
// enforcer.gemini in the configuration.
type Options struct {
	Listen  string // 127.0.0.1:50052 or :50051 by role; another address must be named, 0.0.0.0 too
	Role    Role
	File    string // an absolute path, see parse; read again when it changes
	Unknown Unknown
	// turn of one of two equal clients: 20 ms; others have theirs by weight, at
	// most 5 times as long
	Turn        time.Duration
	Connections int           // at most: 4096
	Deadline    time.Duration // for the first frame, and for the rest of one: 10 s
	ProcFS      string        // /proc
	CgroupFS    string        // /sys/fs/cgroup
	Logger      *slog.Logger

	// from one look for ended processes, for silent clients and for a missing directory
	// to the next: 1 s
	tick        time.Duration
	descriptors int // that are examined to find a process: mostDescriptors
}

// Bounds of a turn.
const (
	turnLeast = time.Millisecond
	turnMost  = time.Second
)

// Check sets the defaults and reports nonsensical values. Errors begin with the
// option's name in the configuration.
func (o *Options) Check() error {
	if o.Listen == "" {
		o.Listen = [...]string{PodManager: "127.0.0.1:50052", Scheduler: "127.0.0.1:50051"}[o.Role]
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	switch {
	case err != nil:
		return fmt.Errorf("listen: %w: write an address and a port, such as 127.0.0.1:50052", err)
	case host == "" || port == "":
		return fmt.Errorf("listen: %q lacks an address or a port: write 127.0.0.1 for this host or 0.0.0.0 for all, "+
			"and a port",
			o.Listen)
	case !filepath.IsAbs(o.File):
		return fmt.Errorf("file: %q is not an absolute path", o.File)
	}
	if o.Turn == 0 {
		o.Turn = 20 * time.Millisecond
	}
	if o.Turn < turnLeast || o.Turn > turnMost {
		return fmt.Errorf("turn: %v is not between %v and %v", o.Turn, turnLeast, turnMost)
	}
	if o.Connections == 0 {
		o.Connections = 4096
	}
	if o.Connections < 0 || o.Deadline < 0 {
		return errors.New("connections and deadline: they must not be negative")
	}
	if o.Deadline == 0 {
		o.Deadline = 10 * time.Second
	}
	if o.tick == 0 {
		o.tick = time.Second
	}
	if o.descriptors == 0 {
		o.descriptors = mostDescriptors
	}
	if o.ProcFS == "" {
		o.ProcFS = "/proc"
	}
	if o.CgroupFS == "" {
		o.CgroupFS = "/sys/fs/cgroup"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}
