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

// A Kernel is where the kernel says what it knows of the host and of NVIDIA's
// devices: procfs and sysfs, or a simulated host's, and the directory of the
// device nodes. One that is nil or empty says nothing. It asks no driver
// library, so it answers when that is dead. It is safe for concurrent use.
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

// line returns a file's content without the space around it.
func line(f fs.FS, name string) (string, error) {
	text, err := fs.ReadFile(f, name)
	return string(bytes.TrimSpace(text)), err
}

// BootID returns what names the time since the host was booted: another at
// each boot. The error is one of reading it.
func (k Kernel) BootID() (string, error) {
	id, err := line(k.proc(), "sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return id, nil
}

// Booted returns when the host was booted, to the second. It moves when the
// clock is set.
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
