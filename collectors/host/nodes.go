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
		minor := k.minor(at[:strings.LastIndexByte(at, ':')])
		if minor == "" {
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

// minor returns the number of a GPU's device node; empty if the kernel does not
// report it, or has excluded the GPU.
func (k Kernel) minor(address string) (number string) {
	text, _ := fs.ReadFile(k.proc(), path.Join("driver/nvidia/gpus", address, "information")) // it may have gone
	for l := range strings.Lines(string(text)) {
		switch name, value, _ := strings.Cut(l, ":"); {
		case name == "Device Minor":
			number = strings.TrimSpace(value)
		case name == "GPU Excluded" && strings.TrimSpace(value) == "Yes":
			return ""
		}
	}
	return number
}
