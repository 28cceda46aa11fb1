package collectors

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestKernelLogIsCountedForItsGPU(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	say := func(line string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if !strings.HasPrefix(line, "12,") {
			line = "4,1,1,-;" + line // the kernel's
		}
		if _, err := f.WriteString(line + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	// Before the agent: two lines of one fault, and one of a GPU that is not here.
	say("NVRM: Xid (PCI:0000:1b:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address")
	say("NVRM: Xid (PCI:0000:1b:00): 13, pid=787, name=python3, Graphics Exception")
	say("NVRM: Xid (PCI:0000:ff:00): 79, GPU has fallen off the bus.")
	// A user can write to the kernel's log, but not as the kernel.
	say("12,1,1,-;NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
	c := DefaultConfig()
	c.KernelLog = path
	in(t, "gpus: [{model: h100}]\n", c, func(t *testing.T, h *Host) {
		for _, s := range h.Samples() {
			if s.Metric == Info && s.Labels[6] != "00000000:1B:00.0" {
				t.Fatalf("the simulated GPU is at %s", s.Labels[6])
			}
		}
		want(t, h, 2, KernelXIDMessages, "0", "13")
		wantNone(t, h, KernelXIDMessages, "0", "79")
		wantNone(t, h, NVSwitchSXIDs, "", "0000:c1:00.0", "28006")
		say("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)")
		say("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
		advance(11 * time.Second)
		want(t, h, 2, KernelXIDMessages, "0", "13")
		want(t, h, 1, KernelXIDMessages, "0", "79")
		want(t, h, 1, NVSwitchSXIDs, "", "0000:c1:00.0", "28006")
	})
}

func TestKernelLogThatCannotBeRead(t *testing.T) {
	in(t, "gpus: [{model: h100}]\n", DefaultConfig(), func(t *testing.T, h *Host) {
		want(t, h, 1, Unsupported, "0", KernelXIDMessages.Name)
	})
	c := DefaultConfig()
	c.KernelLog = filepath.Join(os.DevNull, "kmsg") // not a directory: an error that is not absence
	in(t, "gpus: [{model: h100}]\n", c, func(t *testing.T, h *Host) {
		want(t, h, 0, CollectSuccess, "", "kernel_xid")
		want(t, h, 1, CollectErrors, "", "kernel_xid", "no_permission")
	})
}
