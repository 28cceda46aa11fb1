package host

import (
	"bytes"
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"
)

// A Kernel is the kernel's view of the host and of NVIDIA's devices: procfs,
// sysfs and the directory of device nodes, or those of a simulated host. A nil
// or empty part has no information. It calls no driver library, so it answers
// even if that hangs. It is safe for concurrent use.
type Kernel struct {
	Proc, Sys fs.FS
	Dev       string // "/dev"
}

func (k Kernel) proc() fs.FS { return orEmpty(k.Proc) }
func (k Kernel) sys() fs.FS  { return orEmpty(k.Sys) }

func orEmpty(f fs.FS) fs.FS {
	if f == nil {
		return embed.FS{}
	}
	return f
}

// line returns a file's content without surrounding space.
func line(f fs.FS, name string) (string, error) {
	text, err := fs.ReadFile(f, name)
	return string(bytes.TrimSpace(text)), err
}

// BootID returns the id of the current boot, which is new at each boot.
func (k Kernel) BootID() (string, error) {
	id, err := line(k.proc(), "sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return id, nil
}

// Booted returns the time of the host's boot, to the second. It changes when
// the clock is set.
func (k Kernel) Booted() (time.Time, error) {
	text, err := fs.ReadFile(k.proc(), "stat")
	if err != nil {
		return time.Time{}, fmt.Errorf("read the time of boot: %w", err)
	}
	for l := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(l, "btime "); ok {
			seconds, err := strconv.ParseInt(strings.TrimSpace(value), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("parse the time of boot: %w", err)
			}
			return time.Unix(seconds, 0), nil
		}
	}
	return time.Time{}, fmt.Errorf("read the time of boot: no btime")
}
