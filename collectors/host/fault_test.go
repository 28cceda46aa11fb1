package host

import (
	"strings"
	"testing"
)

func TestFormsOfFaults(t *testing.T) {
	for line, want := range map[string]Fault{
		"NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Ch 00000008": {
			Address: "0000:9b:00", Code: 94, PID: 1234, Comm: "python3", Text: "Ch 00000008",
		},
		"NVRM: Xid (PCI:0000:9b:00 GPU-I:07 GPU-CI:00): 94, pid='1234', name=a b, Contained": {
			Address: "0000:9b:00", Code: 94, GI: "7", PID: 1234, Comm: "a b", Text: "Contained",
		},
		"NVRM: Xid (PCI:0000:9b:00 GPU-I:00): 45, pid='<unknown>', name=<unknown>, x": {
			Address: "0000:9b:00", Code: 45, GI: "0", Text: "x",
		},
		"NVRM: Xid (PCI:0000:9b:00): 79": {
			Address: "0000:9b:00", Code: 79,
		},
		"NVRM: Xid (PCI:0000:9b:00): 31, pid=5, name=x pid=6, name=y, Ch": {
			Address: "0000:9b:00", Code: 31, PID: 5, Comm: "x pid=6", Text: "name=y, Ch",
		},
		"NVRM: Xid (PCI:0000:9b:00): 31, pid='<unknown>', name=<unknown>, pid=6": {
			Address: "0000:9b:00", Code: 31, Text: "pid=6",
		},
		"NVRM: Xid (PCI:0000:9b:00): 31, pid=99999999999, name=x, Ch": {
			Address: "0000:9b:00", Code: 31, Text: "Ch",
		},
		"nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)": {
			Address: "0000:c1:00.0", Switch: true, Code: 28006,
			Text: "Non-fatal, Link 46 MC TS crumbstore MCTO (First)",
		},
	} {
		want.Device, _ = ParsePCI(want.Address)
		if got, ok := ParseFault(line); !ok || got != want {
			t.Errorf("%q is\n%+v, want\n%+v", line, got, want)
		}
	}
	// The kernel quotes text from users, but never at the beginning of a line.
	for _, line := range []string{
		"process '/tmp/NVRM: Xid (PCI:0000:9b:00): 79, x' started with executable stack",
		"NVRM: Xid (PCI:0000:9b:00): 99999999999999999999, x", "NVRM: Xid (PCI:9b:00): 79", "NVRM: Xid (PCI:0000:9b:00",
		"nvidia-nvswitch: SXid (PCI:0000:9b:00): 1",
	} {
		if f, ok := ParseFault(line); ok {
			t.Errorf("%q is %+v", line, f)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Ch 00000008")
	f.Add("NVRM: Xid (PCI:0000:9b:00 GPU-I:07 GPU-CI:00): 94, pid='1234', name=python3, Contained")
	f.Add("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal")
	f.Fuzz(func(t *testing.T, line string) {
		fault, ok := ParseFault(line)
		if !ok {
			return
		}
		if device, ok := ParsePCI(fault.Address); !ok || device != fault.Device || fault.Code < 0 || fault.PID < 0 ||
			strings.TrimLeft(fault.GI, "0123456789") != "" {
			t.Errorf("%q gives %+v", line, fault)
		}
		if !strings.HasSuffix(line, fault.Text) && !strings.Contains(line, "\n") ||
			!strings.Contains(line, fault.Comm) || len(fault.Text)+len(fault.Comm)+len(fault.Address) > len(line) {
			t.Errorf("%q is not in %+v", line, fault)
		}
	})
}
