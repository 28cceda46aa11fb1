package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Nodes returns an error if this process cannot use some of the driver's device
// nodes, with the reason and the remedy: /dev/nvidiactl, and one for each GPU
// that the kernel drives. The driver's library is silent about them: without
// the first it does not open, with UNKNOWN or OPERATING_SYSTEM, and it does not
// list a GPU whose node is missing or inaccessible (580.159.04). The error is
// nil if all nodes are usable or the driver is not loaded. Nodes opens no GPU.
func (k Kernel) Nodes() error {
	driver := k.Driver()
	if k.Dev == "" || driver == (Driver{}) {
		return nil
	}
	control := filepath.Join(k.Dev, "nvidiactl")
	file, err := os.OpenFile(control, os.O_RDWR, 0)
	if err == nil {
		_ = file.Close()
	}
	lost, minors := []string{}, ""
	if errors.Is(err, fs.ErrNotExist) {
		lost, minors = append(lost, control), " -c 255"
	} else if err != nil {
		return Explain(err, Reads|Writes)
	}
	for at := range strings.FieldsSeq(driver.GPUs) {
		minor, excluded, _ := k.information(at[:strings.LastIndexByte(at, ':')]) // it may have gone
		if minor == "" || excluded {
			continue
		}
		node := filepath.Join(k.Dev, "nvidia"+minor)
		switch err := unix.Faccessat(unix.AT_FDCWD, node, unix.R_OK|unix.W_OK, unix.AT_EACCESS); {
		case errors.Is(err, fs.ErrNotExist):
			lost, minors = append(lost, node), minors+" -c "+minor
		case err != nil:
			return Explain(&fs.PathError{Op: "use", Path: node, Err: err}, Reads|Writes)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("%s missing, though the kernel module is loaded: run nvidia-smi or nvidia-modprobe%s as "+
		"root, because a unit with NoNewPrivileges= cannot run it; a container gets the nodes through --gpus all",
		strings.Join(lost, ", "), minors)
}

// Withheld reports whether the kernel drives a GPU that this process was not
// given: an operator excluded it, or this is a container that was given others
// and lacks the GPU's device node or its entry in /proc. A device cgroup does
// not show.
func (k Kernel) Withheld(address string) bool {
	if k.Dev == "" || k.Driver().GPUs == "" {
		return false
	}
	minor, excluded, err := k.information(address)
	if minor != "" && !excluded {
		_, err = os.Stat(filepath.Join(k.Dev, "nvidia"+minor))
	}
	return excluded || errors.Is(err, fs.ErrNotExist)
}

// information returns the number of a GPU's device node, which is empty if the
// kernel does not report it, and whether the driver was told not to use the GPU.
func (k Kernel) information(address string) (minor string, excluded bool, err error) {
	text, err := fs.ReadFile(k.proc(), path.Join("driver/nvidia/gpus", address, "information"))
	for l := range strings.Lines(string(text)) {
		switch name, value, _ := strings.Cut(l, ":"); name {
		case "Device Minor":
			minor = strings.TrimSpace(value)
		case "GPU Excluded":
			excluded = strings.TrimSpace(value) == "Yes"
		}
	}
	return minor, excluded, err
}
