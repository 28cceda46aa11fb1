package faults

import (
	"context"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

func TestEventsArePassedOn(t *testing.T) {
	var mu sync.Mutex
	var got []collectors.Event
	listen := func(o *collectors.Options) {
		o.Events = func(e collectors.Event) { mu.Lock(); defer mu.Unlock(); got = append(got, e) }
	}
	hosttest.With(t, `
gpus: [{model: h100}, {model: h100, mig: [3g.40gb, 3g.40gb]}]
faults:
  - {at: 2s, kind: xid, gpu: 0, code: 31}
  - {at: 3s, kind: xid, gpu: 1, code: 94, gi: 1}
  - {at: 4s, kind: event, gpu: 0, value: ecc_sbe_storm}
  - {at: 5s, kind: recovery_action, gpu: 0, value: reset}
`, listen, func(t *testing.T, h *collectors.Host) {
		start := time.Now()
		hosttest.Advance(10 * time.Second)
		mu.Lock()
		defer mu.Unlock()
		var all []string
		for _, e := range got {
			fixture.If(t, e.GPU.UUID == "" || e.GPU.PCI == "" || e.Time.Before(start), "%+v has no GPU or no time", e)
			all = append(all, fmt.Sprintf("%v gpu%d %s %d gi=%q", e.Time.Sub(start).Round(time.Second), e.GPU.Index,
				e.Type, e.Code, e.GI))
		}
		wanted := []string{`2s gpu0 xid 31 gi=""`, `3s gpu1 xid 94 gi="1"`, `3s gpu1 poison_nonfatal 0 gi=""`,
			`4s gpu0 ecc_sbe_storm 0 gi=""`, `5s gpu0 recovery_action 1 gi=""`, `5s gpu0 xid 154 gi=""`}
		fixture.EqualSlices(t, all, wanted, "events")
		hosttest.Want(t, h, 1, XIDErrors, "0", "31", "")
		hosttest.Want(t, h, 1, XIDErrors, "1", "94", "1")
		hosttest.Want(t, h, 1, Events, "0", "ecc_sbe_storm")
		hosttest.Want(t, h, 0, Events, "0", "poison_fatal")
	})
}

func TestAllEventsExceptClocksAreWanted(t *testing.T) {
	fixture.If(t, wantedEvents&nvml.EventTypeClock != 0 || wantedEvents|nvml.EventTypeClock != ^uint64(0),
		"mask %#x", wantedEvents)
	now := time.Now()
	for _, c := range []struct {
		raw  nvml.EventData
		want collectors.Event
	}{
		{nvml.EventData{EventType: 1 << 40, EventData: 5, GpuInstanceId: gpu.NoInstance},
			collectors.Event{Time: now, GPU: gpu.ID{Index: 3}, Type: "other", Code: 5}},
		{nvml.EventData{EventType: nvml.EventTypeXidCriticalError, EventData: 31, GpuInstanceId: 2},
			collectors.Event{Time: now, GPU: gpu.ID{Index: 3}, Type: "xid", Code: 31, GI: "2"}},
	} {
		fixture.Equal(t, event(c.raw, gpu.ID{Index: 3}, now), c.want, "event")
	}
	named := uint64(nvml.EventTypeXidCriticalError | nvml.EventTypeClock)
	for _, bit := range gpu.EventTypes {
		named |= bit
	}
	fixture.If(t, named != nvml.EventTypeAll, "the named events are %#x, go-nvml knows %#x", named, nvml.EventTypeAll)
}

func TestXIDsAreCountedFromZero(t *testing.T) {
	c := collectors.DefaultConfig()
	c.XIDs = []int{31, 79}
	hosttest.In(t, "gpus: [{model: h100}]\nfaults: [{at: 10s, kind: xid, gpu: 0, code: 31}, {at: 15s, kind: xid, gpu: 0, "+
		"code: 45}]\n", c, func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(5 * time.Second)
		hosttest.Want(t, h, 0, XIDErrors, "0", "31", "")
		hosttest.Want(t, h, 0, XIDErrors, "0", "79", "")
		hosttest.WantNone(t, h, XIDErrors, "0", "45", "")
		hosttest.Want(t, h, 0, XIDs, "0")
		hosttest.Advance(15 * time.Second)
		hosttest.Want(t, h, 2, XIDs, "0")
		for _, s := range h.Samples() { // 45 is new, 31 was 0 before
			if s.Metric == XIDErrors && (s.Origin != nil) != (s.Labels[2] == "45") {
				t.Errorf("XID %s began at %v", s.Labels[2], s.Origin)
			}
		}
		hosttest.Want(t, h, 1, XIDErrors, "0", "31", "")
		hosttest.Want(t, h, 1, XIDErrors, "0", "45", "")
		hosttest.Want(t, h, 0, XIDErrors, "0", "79", "")
		if at, _ := hosttest.Get(t, h, XIDLast, "0", "31"); math.Abs(at-float64(time.Now().Unix()-10)) > 2 {
			t.Errorf("XID 31 seen at %v, now is %v", at, time.Now().Unix())
		}
	})
}

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
	// Before the agent: two lines of one fault, and one about a GPU of another host.
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
		{Sequence: 2, Priority: 12, Text: "NVRM: Xid (PCI:0000:1b:00): 79, as a user writes it"},
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
		n, ok := hosttest.Get(t, h, collectors.CollectErrors, "", "kernel_xid", "no_permission")
		fixture.If(t, !ok || n < 1, "%v failures because of a missing permission", n)
	})
}

func TestCorruptInfoROMIsShown(t *testing.T) {
	d := hosttest.Mock()
	d.ValidateInforomFunc = func() nvml.Return { return nvml.ERROR_CORRUPTED_INFOROM }
	v, shown := hosttest.ReadDevice(t, "inforom_valid", d)["nvgpu_inforom_valid{}"]
	fixture.Equal(t, shown && v == 0, true, "a corrupt InfoROM is shown as not valid")
}
