package host

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"syscall"
)

// A Driver is the kernel's half of the driver, and the GPUs bound to it. What
// cannot be read is empty.
type Driver struct {
	Version string // of the module, from sysfs
	GPUs    string // PCI addresses; a GPU that was bound again counts as another
}

// Driver reads it. It never waits for a GPU.
func (k Kernel) Driver() Driver {
	var d Driver
	if version, err := line(k.sys(), "module/nvidia/version"); err == nil {
		d.Version = version
	}
	entries, err := fs.ReadDir(k.proc(), "driver/nvidia/gpus") // sorted
	if err != nil {
		return d
	}
	var gpus []string
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			if stat, ok := info.Sys().(*syscall.Stat_t); ok {
				gpus = append(gpus, fmt.Sprintf("%s:%d", e.Name(), stat.Ino))
			}
		}
	}
	d.GPUs = strings.Join(gpus, " ")
	return d
}

// Differs says what is another than before; "" if nothing is.
func (d Driver) Differs(before Driver) string {
	switch {
	case d.Version != before.Version:
		return fmt.Sprintf("the kernel module's version is %q instead of %q", d.Version, before.Version)
	case d.GPUs != before.GPUs:
		return fmt.Sprintf("the kernel drives %d GPUs, some of them newly bound, instead of %d", len(strings.Fields(d.GPUs)), len(strings.Fields(before.GPUs)))
	}
	return ""
}

// library is the driver's library among the files that a process has mapped.
var library = regexp.MustCompile(`/libnvidia-ml\.so\.(\d+(?:\.\d+)+)\b`)

// Library returns the version of the driver's library that this process has
// loaded, by the name of its file; empty if that is not known.
func (k Kernel) Library() string {
	maps, err := fs.ReadFile(k.proc(), "self/maps")
	if err != nil {
		return ""
	}
	if m := library.FindSubmatch(maps); m != nil {
		return string(m[1])
	}
	return ""
}
