package swap

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/enforcer/action"
	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/suspend"
	"gpusteward/internal/fixture"
)

// TestAClientOfMPSDoesNotJoin refuses a client of MPS in a suspended workload once, and not each second.
func TestAClientOfMPSDoesNotJoin(t *testing.T) {
	t.Parallel()
	s := audit.Subject{Tenant: "a", Workload: "unit:a.service"}
	old := suspend.Process{Target: action.Target{PID: 7000, Start: 8}}
	p := collectors.DeviceProcess{UUID: "GPU-a", Memory: 1, Kind: "mps",
		Process: host.Process{PID: 7001, Start: 8, Workload: &host.Workload{Key: s.Workload}}}
	b := audit.Books{DeviceProcesses: []collectors.DeviceProcess{p},
		Tenant: func(collectors.DeviceProcess) (string, bool) { return s.Tenant, true }}
	e := New(Options{Log: slog.New(slog.DiscardHandler)})
	now := time.Now()
	e.Restore(now, []suspend.Record{{Tenant: s.Tenant, Workload: s.Workload, Phase: suspend.Suspended,
		Processes: []suspend.Process{old}}})
	r, _ := e.Suspender.Record(s)
	look := func() uint64 {
		e.residence.join(now, r, candidates(b, []suspend.Record{r})[0].joining(r))
		return e.Suspender.Totals().Refused[suspend.MPS]
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

// TestEndsOfSuspensionsAreReported tells the operator and the log what became of an order.
func TestEndsOfSuspensionsAreReported(t *testing.T) {
	t.Parallel()
	var log fixture.Transcript
	e, failed := New(Options{Log: slog.New(slog.NewTextHandler(&log, nil))}), errors.New("the driver is silent")
	for _, c := range []struct {
		end          suspend.End
		told, logged string
	}{
		{suspend.End{Done: suspend.Suspended, Joined: true, Err: failed},
			"its new processes are not suspended, and go on; the others stay suspended: the driver is silent",
			"new processes of a suspended workload could not be suspended"},
		{suspend.End{Done: suspend.Suspended, Lost: []int{7}, Err: failed}, "broke processes [7]", "pids=[7]"},
		{suspend.End{Done: suspend.Suspended}, "is suspended, and stays so", "a workload was suspended"},
	} {
		text, err := told(c.end, nil)
		fixture.Contains(t, fmt.Sprint(text, err), c.told, "the operator is told")
		e.ended(c.end)
		fixture.Contains(t, log.String(), c.logged, "the log")
	}
}

// TestSuspendOrderNamesUnguardedProcesses warns of processes that may not survive their suspension.
func TestSuspendOrderNamesUnguardedProcesses(t *testing.T) {
	t.Parallel()
	e := New(Options{Mover: suspend.Mover{Guard: &suspend.Guards{}}})
	defer e.Close()
	guarded := exec.Command("sleep", "600")
	fixture.Must(t, guarded.Start())
	defer func() { _ = guarded.Process.Kill(); _ = guarded.Wait() }()
	fixture.Must(t, e.Suspender.Guard.Take(guarded.Process.Pid))
	e.seen.Sessions = []audit.Session{{PID: 7}}
	of := func(pid int) suspend.Process { return suspend.Process{Target: action.Target{PID: pid}} }
	for want, all := range map[string][]suspend.Process{
		"Processes [8] run without the hook": {of(7), of(8)}, "gives it back.": {of(7)}, "freed": {of(guarded.Process.Pid)},
	} {
		said, err := told(suspend.End{Record: suspend.Record{Workload: "w", Processes: all}, Done: suspend.Suspended}, e.unprotected(all))
		if err != nil || !strings.Contains(said, want) || strings.Contains(said, "without") != (len(all) > 1) {
			t.Errorf("%q, %v, want %q", said, err, want)
		}
	}
}
