package workloads

import (
	"fmt"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/collectors/hosttest"
	"gpusteward/internal/fixture"
)

// TestStaysRecordWhenAProcessWasOnAGPU derives arrivals and departures from the driver's lists, second by second.
func TestStaysRecordWhenAProcessWasOnAGPU(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	process := func(pid uint32, begun uint64) *holder {
		return &holder{pid: pid, process: host.Process{PID: int(pid), Start: begun, Comm: fmt.Sprint("c", begun)}}
	}
	nobody := &holder{pid: 7, unknown: true}
	u := &users{}
	var all []collectors.Stay
	for second, holders := range [][]*holder{
		{process(5, 1), process(5, 1)}, // on two instances
		{process(5, 1), process(6, 2), nobody},
		{process(5, 3), process(6, 2), nobody}, // another process has the PID
		{process(5, 3), nobody},
	} {
		all = u.stay(start.Add(time.Duration(second)*time.Second), holders)
	}
	got := ""
	for _, s := range all {
		at := func(t time.Time) string {
			if t.IsZero() {
				return "-"
			}
			return fmt.Sprint(int(t.Sub(start).Seconds()))
		}
		got += fmt.Sprintf("%d %s %s..%s; ", s.Process.PID, s.Process.Comm, at(s.After), at(s.Until))
	}
	fixture.Equal(t, got, "5 c1 -..2; 6 c2 0..3; 7  0..-; 5 c3 1..-; ", "it is")
	all = u.stay(start.Add(keepStays+3*time.Second), nil)
	fixture.If(t, len(all) != 3 || all[0].Process.PID != 6, "later: %+v", all)
	var crowd []*holder
	for pid := range uint32(mostStays) {
		crowd = append(crowd, process(100+pid, uint64(pid)))
	}
	all = u.stay(start.Add(keepStays+4*time.Second), crowd)
	fixture.Equal(t, len(all), mostStays, "… stays of %d processes", len(crowd))
}

// TestStaysOfAHost checks that the stays of a GPU are those of its processes,
// and outlive a driver that no longer answers.
func TestStaysOfAHost(t *testing.T) {
	hosttest.In(t, "workloads", collectors.DefaultConfig(), func(t *testing.T, h *collectors.Host) {
		hosttest.Advance(12 * time.Second)
		uuid := hosttest.Told(h, collectors.Up, "gpu", "0")["uuid"]
		pids := map[int]bool{}
		for _, x := range h.DeviceProcesses() {
			if x.UUID == uuid {
				pids[x.Process.PID] = true
			}
		}
		stays := h.Stays(uuid)
		for _, s := range stays {
			fixture.Equal(t, !pids[s.Process.PID] || !s.Until.IsZero(), false, "%+v", s)
			delete(pids, s.Process.PID)
		}
		fixture.Equal(t, len(pids) > 0 || len(stays) == 0, false, "no stay of %v in %+v", pids, stays)
		fixture.Equal(t, len(h.Stays("GPU-none")), 0, "a missing GPU has stays")
	})
}
