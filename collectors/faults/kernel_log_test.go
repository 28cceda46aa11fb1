package faults

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

func TestKernelLogIsCountedForItsGPU(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kmsg")
	sequence := 0
	say := func(line string) {
		f := fixture.Value(os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600))(t)
		defer f.Close()
		priority := 4 // of the kernel
		if text, ok := strings.CutPrefix(line, "user: "); ok {
			priority, line = 12, text
		}
		sequence++
		fixture.Must(t, fixture.Error(fmt.Fprintf(f, "%d,%d,1,-;%s\n", priority, sequence, line)))
	}
	// Before the agent: two lines of one fault, and one about a GPU of another
	// host.
	say("NVRM: Xid (PCI:0000:1b:00): 13, Graphics SM Warp Exception on (GPC 1, TPC 4, SM 0): Misaligned Address")
	say("NVRM: Xid (PCI:0000:1b:00): 13, pid=787, name=python3, Graphics Exception")
	say("NVRM: Xid (PCI:0000:ff:00): 79, GPU has fallen off the bus.")
	// A user can write to the kernel's log, but not as the kernel.
	say("user: NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
	follow := func(o *collectors.Options) { o.KernelLog = host.NewKernelLog(path).Follow }
	hosttest.With(t, "gpus: [{model: h100}]\n", follow, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(11 * time.Second)
		for _, s := range h.Samples() {
			if s.Metric == device.Info && s.Labels[6] != "00000000:1B:00.0" {
				t.Fatalf("the simulated GPU is at %s", s.Labels[6])
			}
		}
		hosttest.Want(t, h, 2, KernelXIDMessages, "0", "13")
		hosttest.WantNone(t, h, KernelXIDMessages, "0", "79")
		hosttest.WantNone(t, h, NVSwitchSXIDs, "", "0000:c1:00.0", "28006")
		say("nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)")
		say("NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
		hosttest.Advance(11 * time.Second)
		hosttest.Want(t, h, 2, KernelXIDMessages, "0", "13")
		hosttest.Want(t, h, 1, KernelXIDMessages, "0", "79")
		hosttest.Want(t, h, 1, NVSwitchSXIDs, "", "0000:c1:00.0", "28006")
	})
}

// TestKernelLogIsCountedOnce reopens the driver, and lets the log fail and be
// followed again from the start of the kernel's ring.
func TestKernelLogIsCountedOnce(t *testing.T) {
	ring := []host.Record{
		{Sequence: 3, Text: "NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception"},
		{Sequence: 4, Text: "NVRM: Xid (PCI:0000:1b:00): 13, Graphics Exception"},
	}
	fail := make(chan error)
	follow := func(ctx context.Context, each func(host.Record)) error {
		for _, r := range ring {
			each(r)
		}
		select {
		case err := <-fail:
			return err
		case <-ctx.Done():
			return nil
		}
	}
	options := func(o *collectors.Options) { fail, o.KernelLog = make(chan error), follow }
	hosttest.With(t, "gpus: [{model: h100}]\n", options, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(11 * time.Second)
		hosttest.Want(t, h, 2, KernelXIDMessages, "0", "13")
		fixture.Must(t, h.Drain(t.Context()))
		fixture.Must(t, h.Resume(t.Context()))
		hosttest.Advance(11 * time.Second)
		hosttest.Want(t, h, 2, KernelXIDMessages, "0", "13")
		ring = append(ring, host.Record{Sequence: 5,
			Text: "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."})
		fail <- syscall.EIO
		hosttest.Advance(11 * time.Second)
		hosttest.Want(t, h, 2, KernelXIDMessages, "0", "13")
		hosttest.Want(t, h, 1, KernelXIDMessages, "0", "79")
		hosttest.Want(t, h, 1, collectors.CollectSuccess, "", "kernel_xid")
	})
}

func TestUnreadableKernelLog(t *testing.T) {
	hosttest.In(t, "gpus: [{model: h100}]\n", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Want(t, h, 1, collectors.Unsupported, "0", KernelXIDMessages.Name)
	})
	denied := func(context.Context, func(host.Record)) error { return &fs.PathError{Err: syscall.EPERM} }
	hosttest.With(t, "gpus: [{model: h100}]\n", func(o *collectors.Options) { o.KernelLog = denied }, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(11 * time.Second)
		hosttest.Want(t, h, 0, collectors.CollectSuccess, "", "kernel_xid")
		if n, ok := hosttest.Get(t, h, collectors.CollectErrors, "", "kernel_xid", "no_permission"); !ok || n < 1 {
			t.Errorf("%v failures because of a missing permission", n)
		}
	})
}
