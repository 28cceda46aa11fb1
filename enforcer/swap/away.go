package swap

import (
	"maps"
	"sync/atomic"
	"time"

	"gpusteward/collectors"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/suspend"
)

// away corrects what the driver lists. It no longer lists the memory of suspended processes,
// which remains charged to their tenants, and for a moment does not list yet what has come
// back. Any goroutine may call listed.
type away struct {
	memory   atomic.Pointer[map[awayPlace]uint64] // bytes of suspended processes
	returned map[action.Target]returned
}

type awayPlace struct {
	gpu string // UUID
	pid int
}

// A returned process is one whose memory has come back.
type returned struct {
	at     time.Time
	memory map[string]uint64 // bytes by UUID
}

// listed returns the driver's listing with what suspended processes had.
func (a *away) listed(listed func(uuid string, pid int) (uint64, time.Time, bool)) func(string, int) (uint64,
	time.Time, bool) {
	if listed == nil {
		return nil
	}
	return func(uuid string, pid int) (uint64, time.Time, bool) {
		bytes, at, is := listed(uuid, pid)
		if away, suspended := (*a.memory.Load())[awayPlace{uuid, pid}]; suspended {
			return max(bytes, away), at, true
		}
		return bytes, at, is
	}
}

// charge records the memory of the suspended processes, and returns their PIDs.
func (a *away) charge(records []suspend.Record) map[int]bool {
	away, absent := map[awayPlace]uint64{}, map[int]bool{}
	for _, r := range records {
		for _, p := range r.Processes {
			absent[p.PID] = true
			for uuid, bytes := range p.Memory {
				away[awayPlace{uuid, p.PID}] = bytes
			}
		}
	}
	a.memory.Store(&away)
	return absent
}

// back notes whose memory has come back.
func (a *away) back(all []suspend.Process) {
	for _, p := range all {
		a.returned[p.Target] = returned{time.Now(), p.Memory}
	}
}

// correct corrects readings from before memory came back, and forgets the processes with
// newer readings.
func (a *away) correct(all []collectors.DeviceProcess) []collectors.DeviceProcess {
	awaited := map[action.Target]bool{}
	for i := range all {
		h := &all[i]
		t := action.Target{PID: h.Process.PID, Start: h.Process.Start}
		if r, is := a.returned[t]; is && !h.At.After(r.at) {
			h.Memory, awaited[t] = max(h.Memory, r.memory[h.UUID]), true
		}
	}
	maps.DeleteFunc(a.returned, func(t action.Target, _ returned) bool { return !awaited[t] })
	return all
}
