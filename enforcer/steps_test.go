package enforcer

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// TestRefusedSuspensionLeavesThePause refuses a paused workload for want of host memory: the broker still holds it.
func TestRefusedSuspensionLeavesThePause(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1,
		Process: host.Process{PID: 7000, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	e := &Enforcer{held: map[audit.Subject]bool{s: true},
		suspender: suspend.Suspender{Mover: suspend.Mover{Room: func(_, _ map[int]uint64) error { return errors.New("no room") },
			Alive: func(action.Target) bool { return true }}},
		seen: audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
			Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }}}
	result, detail := e.suspendGroup(time.Now(), action.ProcessGroup{Subject: s}, "tested")
	if result != escalation.Refused || !strings.Contains(detail, "stays paused") || !strings.Contains(detail, "no room") {
		t.Errorf("%s: %s", result, detail)
	}
	fixture.If(t, !e.held[s], "it runs again")
}

// TestAClientOfMPSDoesNotJoin refuses a client of MPS in a suspended workload once, and not each second.
func TestAClientOfMPSDoesNotJoin(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	old := suspend.Process{Target: action.Target{PID: 7000, Start: 8}}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1, Kind: "mps",
		Process: host.Process{PID: 7001, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	e := &Enforcer{residence: newResidence(), log: slog.New(slog.DiscardHandler),
		seen: audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
			Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }}}
	now := time.Now()
	e.suspender.Restore(now, []suspend.Record{{Tenant: s.Tenant, Workload: s.Workload, Phase: suspend.Suspended,
		Processes: []suspend.Process{old}}})
	r, _ := e.suspender.Record(s)
	look := func() uint64 {
		e.joinSuspended(now, r, e.candidate(s).joining(r))
		return e.suspender.Totals().Refused[suspend.MPS]
	}
	fixture.Equal(t, look(), 1, "refusals")
	now = now.Add(restAfter - 1)
	fixture.Equal(t, look(), 1, "refusals in 10 minutes")
	now = now.Add(1)
	fixture.Equal(t, look(), 2, "refusals after 10 minutes")
}

// TestThreadsThatWaitForTheDriver looks at the threads of a process that gives way. Those of the
// driver wait on a futex as long as it is locked, and some of the program's do so anyway. One
// that does so since the lock has called the driver.
func TestThreadsThatWaitForTheDriver(t *testing.T) {
	t.Parallel()
	const poll, read = "7 0x7ffe", "0 0x0"
	lock := func(address string) string { return futex + " " + address }
	for name, c := range map[string]struct {
		comm, before, then, now string
		stuck                   bool
	}{
		"the driver's events":        {"cuda-EvtHandlr", poll, lock("0x10"), lock("0x10"), false},
		"another one of the driver":  {"cuda00001400006", poll, lock("0x10"), lock("0x10"), false},
		"a program named after CUDA": {"cuda_train", read, lock("0x10"), lock("0x10"), true},
		"at rest":                    {"python3", read, read, read, false},
		"in a pool":                  {"python3", lock("0x20"), lock("0x20"), lock("0x20"), false},
		"since the lock":             {"python3", read, lock("0x10"), lock("0x10"), true},
		"from the pool to a call":    {"python3", lock("0x20"), lock("0x10"), lock("0x10"), true},
		"for a moment":               {"python3", read, lock("0x10"), lock("0x30"), false},
	} {
		procfs, pid := t.TempDir(), 7
		is := func(call string) {
			dir := filepath.Join(procfs, strconv.Itoa(pid), "task", "8")
			fixture.Must(t, os.MkdirAll(dir, 0o700))
			for file, text := range map[string]string{"comm": c.comm + "\n", "syscall": call + " 0x0\n"} {
				fixture.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
		}
		is(c.before)
		u := use{first: fixture.Value(waits(procfs, pid))(t)}
		for _, call := range []string{c.then, c.now} {
			is(call)
			u.look(procfs, pid)
		}
		fixture.Equal(t, u.stuck, c.stuck, "%s: it waits for the driver", name)
	}
}

// TestWaitingAllocationKeepsItsPlace has an allocation that nobody asks for again for some
// seconds, as on a busy host, keep its place until it is granted.
func TestWaitingAllocationKeepsItsPlace(t *testing.T) {
	t.Parallel()
	who, start := waiter{7, "gpu"}, time.Now()
	q := queue{all: map[waiter]*waiting{who: {since: start, asked: start}}}
	for _, c := range []struct {
		after   float64 // seconds
		granted bool
		want    int
	}{{10, false, 1}, {12, true, 1}, {13, true, 1}, {14.5, false, 0}} {
		now := start.Add(time.Duration(c.after * float64(time.Second)))
		if c.granted {
			q.grant(now, who)
		}
		fixture.Equal(t, len(q.requests(now)), c.want, "after %v s … allocations wait", c.after)
	}
	q.all[who] = &waiting{since: start, asked: start}
	fixture.Equal(t, len(q.requests(start.Add(time.Minute))), 0, "an allocation waits that nobody asks for any more")
}

// TestPausedWorkContinuesWithoutADisk ends an enforcer that cannot save what it paused.
func TestPausedWorkContinuesWithoutADisk(t *testing.T) {
	t.Parallel()
	child := exec.Command("sleep", "600")
	fixture.Must(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	pid := child.Process.Pid
	fixture.Must(t, child.Process.Signal(syscall.SIGSTOP))
	is := func(state byte) func() bool { return func() bool { return procs.State("/proc", pid) == state } }
	fixture.Eventually(t, "it stops", is('T'))
	e := Enforcer{actor: action.Actor{ProcFS: "/proc", Keep: func([]action.Paused) error {
		t.Error("it waits for the disk")
		return nil
	}}}
	e.actor.Restore([]action.Paused{{Tenant: "a", Workload: "w",
		Stopped: []action.Target{{PID: pid, Start: fixture.Value(procs.ReadStat("/proc", pid))(t).Start}}}})
	e.rest()
	fixture.Eventually(t, "it continues", is('S'))
	fixture.Equal(t, len(e.actor.Paused()), 0, "workloads that stay paused")
}
