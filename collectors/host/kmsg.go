// Package host reads what the host's kernel says of GPUs.
package host

import (
	"bytes"
	"errors"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// A KernelLog reads /dev/kmsg from the start of the kernel's ring, so that
// what was logged before the agent started is not lost. It never waits. It
// belongs to one goroutine, and is closed when nobody holds it any more.
type KernelLog struct {
	fd       int
	buffer   [8192]byte // the kernel's records are shorter
	rest     []byte     // of a plain file, where a read is not a record
	Overruns int        // times the kernel dropped records that were not read yet
}

// OpenKernelLog opens the log at path; a plain file of records will do.
func OpenKernelLog(path string) (*KernelLog, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	l := &KernelLog{fd: fd}
	runtime.AddCleanup(l, func(fd int) { _ = syscall.Close(fd) }, fd)
	return l, nil
}

// Next returns the text of the next record; false where there is none yet.
func (l *KernelLog) Next() (string, bool, error) {
	for {
		for len(l.rest) > 0 {
			line, rest, _ := bytes.Cut(l.rest, []byte("\n"))
			l.rest = rest
			// "priority,sequence,microseconds,flags;text"; lines that begin
			// with a space belong to the record before.
			if _, text, ok := bytes.Cut(line, []byte(";")); ok && line[0] != ' ' {
				return string(text), true, nil
			}
		}
		n, err := syscall.Read(l.fd, l.buffer[:])
		switch {
		case errors.Is(err, syscall.EPIPE):
			l.Overruns++ // and the next read goes on with the oldest that is left
		case errors.Is(err, syscall.EAGAIN) || err == nil && n == 0:
			return "", false, nil
		case err != nil:
			return "", false, err
		}
		l.rest = l.buffer[:max(n, 0)]
	}
}

// A PCI is the address of a device, without its function.
type PCI struct{ Domain, Bus, Device uint32 }

// ParsePCI reads an address as the kernel ("0000:9b:00", "0000:9b:00.0") or
// NVML ("00000000:9B:00.0") writes it.
func ParsePCI(s string) (PCI, bool) {
	s, _, _ = strings.Cut(s, ".")
	parts := strings.Split(s, ":")
	if len(parts) != 3 {
		return PCI{}, false
	}
	var n [3]uint32
	for i, p := range parts {
		v, err := strconv.ParseUint(p, 16, 32)
		if err != nil {
			return PCI{}, false
		}
		n[i] = uint32(v)
	}
	return PCI{n[0], n[1], n[2]}, true
}

// A Fault is an XID of a GPU or an SXid of an NVSwitch, as the driver logs it.
type Fault struct {
	Device  PCI
	Address string // the device's, as it is written
	Switch  bool   // an SXid
	Code    int
	PID     int    // of the process at fault; 0 where the driver does not know
	Text    string // what follows the code
}

var (
	faultLine = regexp.MustCompile(`(?:NVRM: Xid|nvidia-nvswitch\d+: SXid) \(PCI:([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)`)
	faultPID  = regexp.MustCompile(`\bpid='?(\d+)`)
)

// ParseFault reads a line of the kernel's log; false if it is about something
// else.
func ParseFault(text string) (Fault, bool) {
	if !strings.Contains(text, "Xid (PCI:") { // of millions of lines few are
		return Fault{}, false
	}
	m := faultLine.FindStringSubmatch(text)
	if m == nil {
		return Fault{}, false
	}
	device, ok := ParsePCI(m[1])
	code, err := strconv.Atoi(m[2])
	if !ok || err != nil {
		return Fault{}, false
	}
	f := Fault{Device: device, Address: m[1], Switch: strings.Contains(text, "SXid"), Code: code, Text: m[3]}
	if pid := faultPID.FindStringSubmatch(f.Text); pid != nil {
		f.PID, _ = strconv.Atoi(pid[1]) // digits that do not fit are no PID
	}
	return f, true
}
