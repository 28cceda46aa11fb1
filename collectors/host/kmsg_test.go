package host

import (
	"os"
	"path/filepath"
	"testing"
)

func TestKernelLogOfARealHost(t *testing.T) {
	l, err := OpenKernelLog("testdata/kmsg.txt")
	if err != nil {
		t.Fatal(err)
	}
	type seen struct {
		address string
		sxid    bool
		code    int
		pid     int
	}
	var got []seen
	records := 0
	for {
		text, ok, err := l.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		records++
		if f, ok := ParseFault(text); ok {
			got = append(got, seen{f.Address, f.Switch, f.Code, f.PID})
		}
	}
	want := []seen{
		{"0000:00:06", false, 31, 698}, {"0000:00:06", false, 43, 745}, {"0000:00:06", false, 13, 0}, {"0000:00:06", false, 13, 0},
		{"0000:00:06", false, 13, 787}, {"0000:c1:00.0", true, 28006, 0}, {"0000:9b:00", false, 94, 0}, {"0000:9b:00", false, 79, 0},
	}
	if records != 10 {
		t.Errorf("%d records, want 10: what begins with a space belongs to the record before", records)
	}
	if len(got) != len(want) {
		t.Fatalf("%d faults %v, want %d", len(got), got, len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("fault %d: %v, want %v", i, got[i], want[i])
		}
	}
}

func TestKernelLogGoesOnWhereItEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	l, err := OpenKernelLog(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"", "one", "two"} {
		if line != "" {
			if _, err := file.WriteString("4,1,1,-;" + line + "\n"); err != nil {
				t.Fatal(err)
			}
		}
		if text, ok, err := l.Next(); err != nil || ok != (line != "") || text != line {
			t.Errorf("Next() = %q, %v, %v; want %q", text, ok, err, line)
		}
	}
}

func TestKernelLogThatIsNotThere(t *testing.T) {
	if _, err := OpenKernelLog(filepath.Join(t.TempDir(), "none")); !os.IsNotExist(err) {
		t.Errorf("error %v", err)
	}
}

func TestPCIAddressesCompare(t *testing.T) {
	kernel, ok1 := ParsePCI("0000:9b:00")
	nvml, ok2 := ParsePCI("00000000:9B:00.0")
	if !ok1 || !ok2 || kernel != nvml {
		t.Errorf("%v and %v", kernel, nvml)
	}
	for _, bad := range []string{"", "9b:00", "0000:9b:00:00", "0000:xx:00", "fffffffff:00:00"} {
		if p, ok := ParsePCI(bad); ok {
			t.Errorf("ParsePCI(%q) = %v", bad, p)
		}
	}
}

func FuzzParseFault(f *testing.F) {
	f.Add("NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Ch 00000008")
	f.Add("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal")
	f.Fuzz(func(t *testing.T, line string) {
		fault, ok := ParseFault(line)
		if !ok {
			return
		}
		if device, ok := ParsePCI(fault.Address); !ok || device != fault.Device || fault.Code < 0 || fault.PID < 0 {
			t.Errorf("%q gives %+v", line, fault)
		}
	})
}
