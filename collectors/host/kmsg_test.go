package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/fixture"
)

// next returns the next record; false if there is none yet.
func next(l *recordReader) (Record, bool, error) {
	r, err := l.record(false)
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EAGAIN) {
		return Record{}, false, nil
	}
	return r, err == nil, err
}

func TestKernelLogOfARealHost(t *testing.T) {
	l := fixture.Value(openRecords("testdata/kmsg.txt"))(t)
	type seen struct {
		address string
		sxid    bool
		code    int
		pid     int
	}
	var got []seen
	records := 0
	for {
		r, ok, err := next(l)
		fixture.Must(t, err)
		if !ok {
			break
		}
		records++
		if f, ok := ParseFault(r.Text); ok {
			got = append(got, seen{f.Address, f.Switch, f.Code, f.PID})
		}
	}
	want := []seen{
		{"0000:00:06", false, 31, 698}, {"0000:00:06", false, 43, 745}, {"0000:00:06", false, 13, 0},
		{"0000:00:06", false, 13, 0},
		{"0000:00:06", false, 13, 787}, {"0000:c1:00.0", true, 28006, 0}, {"0000:9b:00", false, 94, 0},
		{"0000:9b:00", false, 79, 0},
	}
	fixture.Equal(t, records, 10, "records")
	fixture.Need(t, len(got), len(want), "… faults %v", got)
	for i := range want {
		fixture.Equal(t, got[i], want[i], "fault %d", i)
	}
}

func TestKernelLogContinuesWhereItEnded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	file := fixture.Value(os.Create(path))(t)
	defer file.Close()
	l := fixture.Value(openRecords(path))(t)
	for _, line := range []string{"", "one", "two"} {
		if line != "" {
			fixture.Must(t, fixture.Error(file.WriteString("4,1,1,-;"+line+"\n")))
		}
		if r, ok, err := next(l); err != nil || ok != (line != "") || r.Text != line {
			t.Errorf("%q, %v, %v; want %q", r.Text, ok, err, line)
		}
	}
}

func TestPCIAddressesCompare(t *testing.T) {
	kernel, ok1 := ParsePCI("0000:9b:00")
	nvml, ok2 := ParsePCI("00000000:9B:00.0")
	fixture.Equal(t, !ok1 || !ok2 || kernel != nvml, false, "%v and %v", kernel, nvml)
	for _, bad := range []string{"", "9b:00", "0000:9b:00:00", "0000:xx:00", "fffffffff:00:00"} {
		p, ok := ParsePCI(bad)
		fixture.If(t, ok, "ParsePCI(%q) = %v", bad, p)
	}
}

func TestRecordsHaveAuthorAndTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	var up unix.Timespec
	fixture.Must(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &up))
	now := time.Now()
	stamp := time.Duration(up.Nano()) - 40*time.Second
	lines := fmt.Sprintf("4,7,%d,-,caller=T1;kernel\n12,9,%d,-;user\nx;no\n1;no\n4,a,5,-;no\n"+
		"4,1,99999999999999999999,-;no\n", stamp.Microseconds(), stamp.Microseconds())
	fixture.Must(t, os.WriteFile(path, []byte(lines), 0o600))
	l := fixture.Value(openRecords(path))(t)
	first, ok1, _ := next(l)
	second, ok2, _ := next(l)
	third, ok, err := next(l)
	fixture.Stop(t, !ok1 || !ok2 || ok || err != nil, "%v, %v, and then %+v, %v", ok1, ok2, third, err)
	if first.Text != "kernel" || !first.Kernel() || first.Sequence != 7 || second.Kernel() || second.Priority != 12 {
		t.Errorf("%+v and %+v", first, second)
	}
	d := now.Add(-40 * time.Second).Sub(first.Time)
	fixture.If(t, d.Abs() > time.Second, "logged 40 s ago, dated %v from then", d)
}

// pipe returns a log that is a pipe, and a function that writes to it.
func pipe(t *testing.T) (*recordReader, func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kmsg")
	fixture.Must(t, syscall.Mkfifo(path, 0o600))
	l := fixture.Value(openRecords(path))(t)
	w := fixture.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	t.Cleanup(func() { w.Close() })
	return l, func(text string) {
		_, err := w.WriteString(text)
		fixture.If(t, err != nil, "%v", err)
	}
}

// followed returns the records of l, until the end of the test.
func followed(t *testing.T, l *recordReader) chan Record {
	records := make(chan Record)
	fixture.Running(t, func(ctx context.Context) error { return l.follow(ctx, func(r Record) { records <- r }) })
	return records
}

func TestFollowDeliversAtOnce(t *testing.T) {
	l, say := pipe(t)
	say("4,1,1000000,-;before\n")
	waits := make(chan bool, 10)
	l.sysRead = func(fd int, p []byte) (int, error) {
		n, err := syscall.Read(fd, p)
		if err != nil {
			waits <- true
		}
		return n, err
	}
	records := followed(t, l)
	r := <-records
	fixture.If(t, r.Text != "before", "%+v", r)
	// A record that the reader waited for is dated by its arrival, and calibrates the records that come with it.
	<-waits
	began := time.Now()
	say("4,2,5000000,-;now\n4,3,5000500,-;and h")
	say("alf a millisecond later\n4,4,1")
	now, then := <-records, <-records
	fixture.If(t, now.Time.Before(began) || time.Since(now.Time) > 10*time.Second, "%+v is not dated now", now)
	if d := then.Time.Sub(now.Time); d != 500*time.Microsecond || then.Text != "and half a millisecond later" {
		t.Errorf("%+v came %v after", then, d)
	}
}

func TestFollowAPlainFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := fixture.Value(os.Create(filepath.Join(t.TempDir(), "kmsg")))(t)
		defer w.Close()
		l := fixture.Value(openRecords(w.Name()))(t)
		records := followed(t, l)
		for i := range 3 {
			synctest.Wait() // until it waits at the end of the file
			fmt.Fprintf(w, "4,%d,1,-;x\n", i)
			if r := <-records; r.Sequence != uint64(i) || !r.Time.Equal(time.Now()) {
				t.Errorf("%+v at %v", r, time.Now())
			}
		}
	})
}

func TestRecordsDroppedByTheKernelAreCounted(t *testing.T) {
	l, say := pipe(t)
	lost := uint64(0)
	l.lost = func(n uint64) { lost += n }
	overrun := func(before int) { // the read after that many records finds an overrun
		l.sysRead = func(fd int, p []byte) (int, error) {
			if before--; before == -1 {
				return -1, syscall.EPIPE
			}
			return syscall.Read(fd, p)
		}
	}
	for _, c := range []struct {
		line     string
		sequence uint64
		lost     uint64 // with all earlier ones
	}{
		{"4,900,1,-;the oldest that is left\n", 900, 1}, // the number of earlier ones is unknown
		{"4,907,1,-;six later\n", 907, 7},
	} {
		overrun(0)
		say(c.line)
		if r, ok, err := next(l); !ok || err != nil || r.Sequence != c.sequence || lost != c.lost {
			t.Errorf("%+v, %v, %v with %d lost, want %+v", r, ok, err, lost, c)
		}
	}
	say("4,950,1,-;the kernel leaves some numbers out\n")
	if _, ok, err := next(l); !ok || err != nil || lost != 7 {
		t.Errorf("%v, %v and %d lost without an overrun", ok, err, lost)
	}
	l.sysRead = func(int, []byte) (int, error) { return -1, syscall.EIO }
	fixture.Fails(t, l.follow(t.Context(), func(Record) {}), "read kernel log", "follow")
}

func TestUnterminatedLineIsDropped(t *testing.T) {
	l, say := pipe(t)
	say("4,1,1,-;" + strings.Repeat("x", 20_000) + "\n4,2,1,-;good\n")
	r, ok, err := next(l)
	fixture.If(t, !ok || err != nil || r.Text != "good", "%.40q, %v, %v", r.Text, ok, err)
}

func TestFormsOfFaults(t *testing.T) {
	for line, want := range map[string]Fault{
		"NVRM: Xid (PCI:0000:9b:00): 94, pid=1234, name=python3, Ch 00000008": {
			Address: "0000:9b:00", Code: 94, PID: 1234, Owned: true, Comm: "python3", Text: "Ch 00000008",
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
		"NVRM: Xid (PCI:0000:9b:00): 13, pid=7, name=p, Graphics Exception: channel 0x0000000a, Class 0000cbc0": {
			Address: "0000:9b:00", Code: 13, PID: 7, Owned: true, Comm: "p",
			Text: "Graphics Exception: channel 0x0000000a, Class 0000cbc0",
		},
		"NVRM: Xid (PCI:0000:9b:00): 69, pid=7, name=p, Class Error: ChId 0028, Class 0000c7c0": {
			Address: "0000:9b:00", Code: 69, PID: 7, Owned: true, Comm: "p", Text: "Class Error: ChId 0028, Class 0000c7c0",
		},
		"NVRM: Xid (PCI:0000:9b:00): 13, pid=7, name=p, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address": {
			Address: "0000:9b:00", Code: 13, PID: 7, Comm: "p",
			Text: "Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address",
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
		got, ok := ParseFault(line)
		fixture.If(t, !ok || got != want, "%q is\n%+v, want\n%+v", line, got, want)
	}
	// The kernel quotes text from users, but never at the beginning of a line.
	for _, line := range []string{
		"process '/tmp/NVRM: Xid (PCI:0000:9b:00): 79, x' started with executable stack",
		"NVRM: Xid (PCI:0000:9b:00): 99999999999999999999, x", "NVRM: Xid (PCI:9b:00): 79", "NVRM: Xid (PCI:0000:9b:00",
		"nvidia-nvswitch: SXid (PCI:0000:9b:00): 1",
	} {
		f, ok := ParseFault(line)
		fixture.If(t, ok, "%q is %+v", line, f)
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
		fixture.If(t, !strings.HasSuffix(line, fault.Text) && !strings.Contains(line, "\n") ||
			!strings.Contains(line, fault.Comm) || len(fault.Text)+len(fault.Comm)+len(fault.Address) > len(line),
			"%q is not in %+v", line, fault)
	})
}
