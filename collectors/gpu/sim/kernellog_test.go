package sim

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/collectors/host"
)

// follow returns the records that the kernel logs within a time.
func follow(t *testing.T, h *Host, d time.Duration) (all []host.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := h.Follow(ctx, func(r host.Record) { all = append(all, r) }); err != nil {
		t.Error(err)
	}
	return all
}

// TestFaultsAreLogged parses the lines of each fault like those of a real
// kernel.
func TestFaultsAreLogged(t *testing.T) {
	gi := uint32(1)
	seconds := func(n int) scenarios.Duration { return scenarios.Duration(n) * scenarios.Duration(time.Second) }
	bubble(t, func(t *testing.T) {
		h := begin(t,
			scenarios.Scenario{
				GPUs: []scenarios.GPU{{Load: "training"}, {}, {MIG: []string{"3g.40gb", "3g.40gb"}, Load: "inference"}},
				Faults: []scenarios.Fault{
					{Kind: "xid", Code: 31, At: seconds(1)},
					{Kind: "xid", Code: 13, At: seconds(2)},
					{Kind: "xid", Code: 43, GPU: 1, At: seconds(3)},
					{Kind: "lost", GPU: 1, At: seconds(4)},
					{Kind: "recovery_action", Value: "reboot", At: seconds(5)},
					{Kind: "xid", Code: 94, GPU: 2, GI: &gi, At: seconds(6)},
					{Kind: "pcie_aer", Severity: "fatal", At: seconds(7)},
					{Kind: "kernel_line", Line: "EDAC MC0: 1 UE near {pci}", At: seconds(8)},
					{Kind: "xid", Code: 888, At: seconds(9)},
				}}, Options{})
		start := time.Now()
		type logged struct {
			after time.Duration
			code  int
			bus   uint32
			gi    string
			blame bool
		}
		var got []logged
		var others []string
		for i, r := range follow(t, h, 20*time.Second) {
			if r.Sequence != uint64(i) || !r.Kernel() {
				t.Errorf("record %d is %+v", i, r)
			}
			f, ok := host.ParseFault(r.Text)
			if !ok {
				others = append(others, r.Text)
				continue
			}
			if f.PID != 0 {
				if p, ok := h.Process(f.PID); !ok || p.Comm != f.Comm {
					t.Errorf("%q blames a process that is %+v", r.Text, p)
				}
			}
			got = append(got, logged{r.Time.Sub(start), f.Code, f.Device.Bus, f.GI, f.PID != 0})
		}
		s := time.Second
		want := []logged{{s, 31, 0x1b, "", true}, {2 * s, 13, 0x1b, "", false}, {2 * s, 13, 0x1b, "", false},
			{2 * s, 13, 0x1b, "", true},
			{3 * s, 43, 0x43, "", false}, {4 * s, 79, 0x43, "", false}, {5 * s, 154, 0x1b, "", false},
			{6 * s, 94, 0x52, "1", true}, {9 * s, 888, 0x1b, "", false}}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("logged\n%v, want\n%v", got, want)
		}
		for i, piece := range []string{"NVRM: GPU 0000:43:00.0: GPU has fallen off the bus",
			"(Fatal) error message received from 0000:1b:00.0",
			"nvidia 0000:1b:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal)", "EDAC MC0: 1 UE near 0000:1b:00"} {
			if i >= len(others) || !strings.Contains(others[i], piece) {
				t.Errorf("line %d of %q, want %q", i, others, piece)
			}
		}
	})
}

// TestEveryFollowerGetsTheSameKernelLog follows the log while another goroutine reads
// GPUs, and again from its beginning.
func TestEveryFollowerGetsTheSameKernelLog(t *testing.T) {
	s := scenarios.Scenario{GPUs: []scenarios.GPU{{Count: 2}}, Faults: []scenarios.Fault{
		{Kind: "xid", Code: 31, GPU: 1, At: scenarios.Duration(time.Second), Every: scenarios.Duration(3 * time.Second)},
		{Kind: "xid", Code: 13, GPU: 0, At: scenarios.Duration(1500 * time.Millisecond),
			Every: scenarios.Duration(2 * time.Second)},
	}}
	var logs []string
	for _, read := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			h := begin(t, s, Options{Seed: 1})
			start := time.Now()
			if read {
				time.Sleep(5 * time.Second)
				must[int](t)(gpuOf(t, h, 0).GetIndex())
			}
			text := ""
			for _, r := range follow(t, h, 30*time.Second-time.Since(start)) {
				text += fmt.Sprintln(r.Sequence, r.Time.Sub(start), r.Text)
			}
			logs = append(logs, text)
		})
	}
	if logs[0] != logs[1] || strings.Count(logs[0], "\n") != 10+3*15 {
		t.Errorf("the log is\n%sand for the late follower\n%s", logs[0], logs[1])
	}
}

// TestKernelLogIsBounded follows a log without its dropped beginning.
func TestKernelLogIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}},
			Faults: []scenarios.Fault{{Kind: "kernel_line", Line: "x", Every: scenarios.Duration(time.Second)}}}, Options{})
		time.Sleep(maxLines*time.Second + 9500*time.Millisecond)
		all := follow(t, h, time.Second/4)
		if len(all) != maxLines || all[0].Sequence != 10 {
			t.Errorf("%d records from %d on, want %d from 10", len(all), all[0].Sequence, maxLines)
		}
	})
}

// TestFollowEnds checks that Follow ends with its context.
func TestFollowEnds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		h := begin(t, scenarios.Scenario{GPUs: []scenarios.GPU{{}}}, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- h.Follow(ctx, func(host.Record) {}) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
