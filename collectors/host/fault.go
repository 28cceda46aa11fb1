package host

import (
	"regexp"
	"strconv"
	"strings"
)

// A PCI is the address of a device, without its function.
type PCI struct{ Domain, Bus, Device uint32 }

// ParsePCI parses an address as written by the kernel ("0000:9b:00",
// "0000:9b:00.0") or NVML ("00000000:9B:00.0").
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

// A Fault is an XID of a GPU or an SXid of an NVSwitch, as logged by the
// driver.
type Fault struct {
	Device  PCI
	Address string // of the device, verbatim
	Switch  bool   // an SXid
	Code    int
	GI      string // MIG GPU instance; empty outside MIG
	PID     int    // of the process at fault; 0 if the driver does not know it
	Owned   bool   // the process owns the channel that the line names; otherwise it may only have been in the driver then
	Comm    string // name of that process, which the process chooses itself
	Text    string // the rest of the line, verbatim
}

// The patterns follow krcReportXid in NVIDIA's open kernel modules. A process
// controls only its name in a line, which comes after everything that is
// parsed, so the beginning is trustworthy.
var (
	faultLine    = regexp.MustCompile(`^(?:NVRM: Xid|nvidia-nvswitch\d+: SXid) \((?:PCI:)?([0-9a-fA-F:.]+)(?: GPU-I:(\d+))?(?: GPU-CI:\d+)?\): (\d+),?\s*(.*)`)
	faultProcess = regexp.MustCompile(`^pid='?(\d+|<unknown>)'?(?:, name=(.*?)(?:, |,?$)|, )?`)
	faultChannel = regexp.MustCompile(`(?i)\bch(?:annel)?(?: ?id)?:? +(?:0x)?[0-9a-f]{2}`)
)

// ParseFault parses a line of the kernel's log; false if the line reports no
// fault.
func ParseFault(text string) (Fault, bool) {
	if !strings.Contains(text, "Xid (") { // a quick check, because few of millions of lines match
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
	f := Fault{Device: device, Address: m[1], Switch: strings.HasPrefix(text, "nvidia-nvswitch"),
		GI: strings.TrimLeft(m[2], "0"), Code: code, Text: m[4]}
	if m[2] != "" && f.GI == "" {
		f.GI = "0"
	}
	if p := faultProcess.FindStringSubmatch(f.Text); p != nil {
		if pid, err := strconv.ParseInt(p[1], 10, 32); err == nil { // digits that overflow are not a PID
			f.PID, f.Comm = int(pid), Unescape(p[2])
		}
		f.Text = f.Text[len(p[0]):]
		f.Owned = f.PID > 0 && faultChannel.MatchString(f.Text)
	}
	return f, true
}
