package host

import (
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"syscall"
)

// A Driver is the kernel's half of the driver, and the GPUs bound to it.
// Unreadable fields are empty.
type Driver struct {
	Version string // of the module, from sysfs
	GPUs    string // PCI addresses; rebinding a GPU changes its entry
}

// Driver reads the state of the driver. It never waits for a GPU.
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

// Differs describes what has changed since before; "" if nothing has.
func (d Driver) Differs(before Driver) string {
	switch {
	case d.Version != before.Version:
		return fmt.Sprintf("the kernel module's version is %q instead of %q", d.Version, before.Version)
	case d.GPUs != before.GPUs:
		return fmt.Sprintf("the kernel drives %d GPUs, some of them rebound, instead of %d",
			d.Count(), before.Count())
	}
	return ""
}

// Count returns the number of GPUs that are bound to the driver; 0 if it is unknown.
func (d Driver) Count() int { return len(strings.Fields(d.GPUs)) }

// library matches the driver's library among the files mapped by a process.
var library = regexp.MustCompile(`/libnvidia-ml\.so\.(\d+(?:\.\d+)+)\b`)

// Library returns the version of the driver library that this process has
// loaded, from its file name; empty if unknown.
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
