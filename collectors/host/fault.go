package host

import (
	"regexp"
	"strconv"
	"strings"
)

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
	GI      string // MIG GPU instance; empty outside MIG
	PID     int    // of the process at fault; 0 where the driver does not know
	Comm    string // the name of that process; it chose it, so it may be anything
	Text    string // what follows, as it is written
}

// The forms are those of krcReportXid in NVIDIA's open kernel modules. What a
// process could put into a line, its name, comes behind all that is read from
// it: so the beginning counts.
var (
	faultLine    = regexp.MustCompile(`^(?:NVRM: Xid|nvidia-nvswitch\d+: SXid) \(PCI:([0-9a-fA-F:.]+)(?: GPU-I:(\d+))?(?: GPU-CI:\d+)?\): (\d+),?\s*(.*)`)
	faultProcess = regexp.MustCompile(`^pid='?(\d+|<unknown>)'?(?:, name=([^,]*))?(?:, )?`)
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
	code, err := strconv.Atoi(m[3])
	if !ok || err != nil {
		return Fault{}, false
	}
	f := Fault{Device: device, Address: m[1], Switch: strings.HasPrefix(text, "nvidia-nvswitch"), GI: strings.TrimLeft(m[2], "0"), Code: code, Text: m[4]}
	if m[2] != "" && f.GI == "" {
		f.GI = "0"
	}
	if p := faultProcess.FindStringSubmatch(f.Text); p != nil {
		if pid, err := strconv.ParseInt(p[1], 10, 32); err == nil { // digits that do not fit are no PID
			f.PID, f.Comm = int(pid), p[2]
		}
		f.Text = f.Text[len(p[0]):]
	}
	return f, true
}
