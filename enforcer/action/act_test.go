package action

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/escalation"
	"gpusteward/internal/fixture"
	"gpusteward/internal/procs"
)

// actor returns an Actor on this machine's processes.
func actor(t *testing.T) *Actor {
	t.Helper()
	a := &Actor{ProcFS: "/proc", CgroupFS: "/sys/fs/cgroup"}
	t.Cleanup(a.Close)
	return a
}

// child starts a program, which is killed and reaped when the test ends.
func child(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

// kill kills a child and waits until it is gone.
func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func target(t testing.TB, a *Actor, pid int) Target {
	t.Helper()
	s, err := a.status(pid)
	for errors.Is(err, procs.ErrLate) { // it executes its program
		s, err = a.status(pid)
	}
	fixture.Must(t, err)
	return Target{PID: pid, Start: s.Start}
}

// sleepers starts n children that do nothing.
func sleepers(t testing.TB, a *Actor, n int) (all []Target) {
	t.Helper()
	for range n {
		all = append(all, target(t, a, child(t, "sleep", "1000").Process.Pid))
	}
	return all
}

// eventually waits for a condition that the kernel brings about.
var someone = audit.Subject{Tenant: "team", Workload: "unit:train.service"}

// state returns a process's state, or 0 if there is no process.
func state(a *Actor, pid int) byte {
	s, err := a.status(pid)
	if err != nil {
		return 0
	}
	return s.State
}

func anybody(int) bool { return true }

func processGroup(unhooked ...Target) ProcessGroup {
	return ProcessGroup{Subject: someone, Unhooked: unhooked, Check: anybody}
}

// An answer is the result of an action with its detail.
type answer struct{ result, detail string }

func answered(result, detail string) answer { return answer{result, detail} }

// is ends the test unless the answer is this one.
func (a answer) is(t *testing.T, result, detail string) {
	t.Helper()
	fixture.Need(t, a, answer{result, detail}, "the answer")
}

// tells ends the test unless the answer has a result, and its detail a text.
func (a answer) tells(t *testing.T, result, text string) {
	t.Helper()
	fixture.Stop(t, a.result != result || !strings.Contains(a.detail, text), "%+v, want %s, %s", a, result, text)
}

func wantOutcome(t *testing.T, got []Outcome, result, detail string) {
	t.Helper()
	fixture.If(t, len(got) != 1 || got[0].Result != result || !strings.Contains(got[0].Detail, detail),
		"got %+v, want %s: %s", got, result, detail)
}

func TestSignalReachesItsProcess(t *testing.T) {
	a := actor(t)
	who := sleepers(t, a, 1)
	wantOutcome(t, a.Signal(who, anybody, unix.SIGSTOP), escalation.Done, "")
	fixture.Eventually(t, "it stands still", func() bool { return state(a, who[0].PID) == 'T' })
	wantOutcome(t, a.Signal(who, anybody, unix.SIGCONT), escalation.Done, "")
	fixture.Eventually(t, "it goes on", func() bool { return state(a, who[0].PID) == 'S' })
}

func TestSignalMissesOtherProcesses(t *testing.T) {
	a := actor(t)
	cmd := child(t, "sleep", "1000")
	who := target(t, a, cmd.Process.Pid)
	later := who
	later.Start++
	wantOutcome(t, a.Signal([]Target{later}, anybody, unix.SIGKILL), escalation.Missed, "another process's")
	wantOutcome(t, a.Signal([]Target{who}, func(int) bool { return false }, unix.SIGKILL), escalation.Missed,
		"no longer belongs to the workload")
	fixture.Eventually(t, "it goes on as if nothing were", func() bool { return state(a, who.PID) == 'S' })
	fixture.Must(t, cmd.Process.Kill())
	fixture.Eventually(t, "it is a zombie", func() bool { return state(a, who.PID) == 'Z' })
	wantOutcome(t, a.Signal([]Target{who}, anybody, unix.SIGKILL), escalation.Missed, "has ended")
	_ = cmd.Wait()
	wantOutcome(t, a.Signal([]Target{who}, anybody, unix.SIGKILL), escalation.Missed, "has ended")
}

// reuse starts a child with a PID that another process had.
func reuse(t *testing.T, pid int) *exec.Cmd {
	t.Helper()
	const last = "/proc/sys/kernel/ns_last_pid"
	for range 50 {
		if err := os.WriteFile(last, []byte(strconv.Itoa(pid-1)), 0); err != nil {
			t.Skip("only root chooses PIDs:", err)
		}
		cmd := exec.Command("sleep", "1000")
		fixture.Must(t, cmd.Start())
		if cmd.Process.Pid == pid {
			t.Cleanup(func() { kill(cmd) })
			return cmd
		}
		kill(cmd)
	}
	t.Skip("others were faster to take the PID, 50 times")
	return nil
}

func TestReusedPID(t *testing.T) {
	t.Run("before the action", func(t *testing.T) {
		a := actor(t)
		cmd := child(t, "sleep", "1000")
		who := target(t, a, cmd.Process.Pid)
		kill(cmd)
		// Starts differ by at least a hundredth of a second.
		fixture.Eventually(t, "time passes", func() bool {
			return target(t, a, child(t, "true").Process.Pid).Start > who.Start
		})
		heir := reuse(t, who.PID)
		wantOutcome(t, a.Signal([]Target{who}, anybody, unix.SIGKILL), escalation.Missed, "another process's")
		answered(a.Terminate(time.Now(), processGroup(who), time.Second)).tells(t, escalation.Missed, "")
		for _, way := range []string{byFreezer, bySignal} {
			answered(a.Pause(processGroup(who), []string{way})).tells(t, escalation.Missed, "")
		}
		fixture.Eventually(t, "who has the PID now was not hit", func() bool { return state(a, heir.Process.Pid) == 'S' })
	})
	t.Run("in the midst of the action", func(t *testing.T) {
		a := actor(t)
		cmd := child(t, "sleep", "1000")
		who := target(t, a, cmd.Process.Pid)
		var heir *exec.Cmd
		out := a.Signal([]Target{who}, func(int) bool { // the pidfd is open, and the start has been compared
			kill(cmd)
			heir = reuse(t, who.PID)
			return true
		}, unix.SIGKILL)
		wantOutcome(t, out, escalation.Missed, "has ended")
		fixture.Eventually(t, "who has the PID now was not hit", func() bool { return state(a, heir.Process.Pid) == 'S' })
	})
}

func TestSparedAreRefused(t *testing.T) {
	a := actor(t)
	for name, who := range map[string]Target{
		"init":         target(t, a, 1),
		"this process": target(t, a, os.Getpid()),
		"its parent":   target(t, a, os.Getppid()),
		"zero":         {PID: 0}, "a group": {PID: -os.Getpid()}, "everybody": {PID: -1},
	} {
		t.Run(name, func(t *testing.T) {
			wantOutcome(t, a.Signal([]Target{who}, anybody, unix.SIGCONT), escalation.Failed, "refused")
			for _, ways := range [][]string{{byFreezer}, {bySignal}, {byFreezer, bySignal}} {
				answered(a.Pause(processGroup(who), ways)).tells(t, escalation.Failed, "refused")
			}
		})
	}
	grandparent := fixture.Value(a.status(os.Getppid()))(t)
	fixture.If(t, grandparent.Parent > 0 && a.spared()[grandparent.Parent] == "",
		"the parent of our parent, %d, is not spared", grandparent.Parent)
}

// fakeProc returns an Actor on a procfs with the given stat line of a process.
func fakeProc(t *testing.T, pid int, stat string) *Actor {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, strconv.Itoa(pid))
	fixture.Rewrite(t, filepath.Join(dir, "stat"), stat)
	return &Actor{ProcFS: root}
}

func TestStat(t *testing.T) {
	pid := child(t, "sleep", "1000").Process.Pid
	const stat = "%d (%s) S 2 0 0 0 -1 %d 0 0 0 0 0 0 0 0 20 0 1 0 %s 0 0"
	for _, test := range []struct{ name, stat, result, detail string }{
		{"a kernel thread", fmt.Sprintf(stat, pid, "kworker/0:1", 0x4208060, "42"), escalation.Failed,
			"refused: it is a kernel thread"},
		{"a name with brackets", fmt.Sprintf(stat, pid, "a) R 1 (b", 0, "42"), escalation.Done, ""},
		{"no line", "", escalation.Failed, "refused: read stat"},
		{"no number", fmt.Sprintf(stat, pid, "sleep", 0, "4x"), escalation.Failed, "refused: strconv"},
	} {
		t.Run(test.name, func(t *testing.T) {
			a := fakeProc(t, pid, test.stat)
			wantOutcome(t, a.Signal([]Target{{PID: pid, Start: 42}}, anybody, unix.SIGCONT), test.result, test.detail)
		})
	}
	a := actor(t)
	if s, err := a.status(2); err == nil && s.Kernel {
		wantOutcome(t, a.Signal([]Target{{PID: 2, Start: s.Start}}, anybody, unix.SIGKILL), escalation.Failed,
			"refused")
	}
}

func TestPauseBySignal(t *testing.T) {
	a := actor(t)
	who := sleepers(t, a, 3)
	var kept [][]Paused
	a.Keep = func(all []Paused) error {
		kept = append(kept, all)
		if len(kept) == 1 {
			for _, w := range who {
				fixture.Equal(t, state(a, w.PID) == 'T', false, "it was stopped before that was kept:")
			}
		}
		return nil
	}
	answered(a.Pause(processGroup(who...), []string{byBroker, bySignal})).is(t, escalation.Done,
		"signal: 3 done, 0 missed, 0 failed")
	fixture.Stop(t, len(kept) == 0 || len(kept[0]) != 1 || !slices.Equal(kept[0][0].Stopped, who), "kept %+v", kept)
	still := func() bool { is, err := a.Still(someone); return is && err == nil }
	fixture.Eventually(t, "all stand still", still)

	// Its user continues one of them, and another process arrives.
	wantOutcome(t, a.Signal(who[:1], nil, unix.SIGCONT), escalation.Done, "")
	fixture.Eventually(t, "it goes on", func() bool { return !still() })
	who = append(who, sleepers(t, a, 1)...)
	answered(a.Pause(processGroup(who...), []string{bySignal})).tells(t, escalation.Done, "")
	fixture.Eventually(t, "all stand still again", still)
	got := a.Paused()
	fixture.If(t, len(got) != 1 || !slices.Equal(got[0].Stopped, who), "kept in mind: %+v", got)

	// The next enforcer knows the paused processes, and resumes them even if they now belong to another subject.
	next := actor(t)
	next.Restore(a.Paused())
	answered(next.Resume(ProcessGroup{Subject: someone})).is(t, escalation.Done, "thawed 0 cgroups, continued 4 processes")
	for _, w := range who {
		fixture.Eventually(t, "it goes on", func() bool { return state(a, w.PID) == 'S' })
	}
	fixture.Equal(t, len(next.Paused()), 0, "in mind still")
}

func TestPauseLeavesStoppedProcesses(t *testing.T) {
	a := actor(t)
	who := sleepers(t, a, 1)
	a.Signal(who, nil, unix.SIGSTOP) // by its user
	fixture.Eventually(t, "it stands still", func() bool { return state(a, who[0].PID) == 'T' })
	answered(a.Pause(processGroup(who...), []string{bySignal})).tells(t, escalation.Done, "")
	a.Resume(ProcessGroup{Subject: someone})
	fixture.Equal(t, state(a, who[0].PID), 'T', "its user had stopped it, and it is in state")
}

func TestPauseThatCannotBeKept(t *testing.T) {
	a := actor(t)
	a.Keep = func([]Paused) error { return fmt.Errorf("write state: %w", fs.ErrNotExist) }
	dir, _ := realGroup(t, a, false)
	who := sleepers(t, a, 1)
	join(t, dir, who[0].PID)
	for _, way := range []string{bySignal, byFreezer} {
		answered(a.Pause(processGroup(who...), []string{way})).tells(t, escalation.Failed, "write state")
		if still, err := a.Still(someone); still || err != nil || len(a.Paused()) != 0 {
			t.Errorf("it would be forgotten: %v, %v, %+v", still, err, a.Paused())
		}
		fixture.Eventually(t, "it goes on", func() bool { return state(a, who[0].PID) == 'S' })
	}
}

func TestPauseByBroker(t *testing.T) {
	a := actor(t)
	who := sleepers(t, a, 2)
	for _, test := range []struct {
		name           string
		ways           []string
		hooked, other  []Target
		broken         error
		result         string
		held           bool
		first, another byte
	}{
		{"hooked only", []string{byBroker, bySignal}, who, nil, nil, escalation.Done, true, 'S', 'S'},
		{"both", []string{byBroker, bySignal}, who[:1], who[1:], nil, escalation.Done, true, 'S', 'T'},
		{"in another order", []string{bySignal, byBroker}, who[:1], who[1:], nil, escalation.Done, true, 'S', 'T'},
		{"not a way", []string{bySignal}, who[:1], who[1:], nil, escalation.Done, false, 'T', 'T'},
		{"no broker", []string{byBroker, bySignal}, who[:1], nil, errors.New("it ended"), escalation.Done, false,
			'T', 'S'},
		{"no way for others", []string{byBroker}, who[:1], who[1:], nil, escalation.Failed, false, 'S', 'S'},
		{"others are spared", []string{byBroker, bySignal}, who[:1], []Target{who[1], {PID: 0}}, nil, escalation.Failed,
			false, 'S', 'S'},
		{"nobody", []string{byBroker, bySignal}, nil, nil, nil, escalation.Missed, false, 'S', 'S'},
		{"no way at all", nil, nil, who, nil, escalation.Failed, false, 'S', 'S'},
	} {
		t.Run(test.name, func(t *testing.T) {
			held := false
			c := ProcessGroup{Subject: someone, Hooked: test.hooked, Unhooked: test.other, Check: anybody,
				Hold: func(on bool) error {
					held = on && test.broken == nil
					return test.broken
				}}
			result, detail := a.Pause(c, test.ways)
			fixture.If(t, result != test.result || held != test.held,
				"%s, held %v, want %s, %v: %s", result, held, test.result, test.held, detail)
			fixture.Eventually(t, "they do what they should",
				func() bool { return state(a, who[0].PID) == test.first && state(a, who[1].PID) == test.another })
			c.Hold = func(on bool) error { held = on; return nil }
			result, detail = a.Resume(c)
			fixture.If(t, result != escalation.Done || held, "resume: %s, %s, held %v", result, detail, held)
			fixture.Eventually(t, "both go on", func() bool {
				return state(a, who[0].PID) == 'S' && state(a, who[1].PID) == 'S'
			})
		})
	}
}

func TestResumeIsTriedUntilItWorks(t *testing.T) {
	a := actor(t)
	who := sleepers(t, a, 1)
	answered(a.Pause(processGroup(who...), []string{bySignal})).tells(t, escalation.Done, "")
	fixture.Eventually(t, "it stands still", func() bool { return state(a, who[0].PID) == 'T' })
	a.ProcFS = fakeProc(t, who[0].PID, "garbage").ProcFS
	answered(a.Resume(ProcessGroup{Subject: someone})).tells(t, escalation.Failed, "continue")
	a.ProcFS = "/proc"
	a.Continue(time.Now())
	fixture.Eventually(t, "it goes on", func() bool { return state(a, who[0].PID) == 'S' })
	fixture.Equal(t, len(a.Paused()), 0, "in mind still")
}

func TestRestoreKeepsToWhatCouldBe(t *testing.T) {
	var a Actor
	a.Restore([]Paused{{Tenant: "t", Workload: "w", Frozen: []Frozen{{Path: "/../../etc"}, {Path: "/ok"}},
		Stopped: []Target{{PID: -1}, {PID: 1}, {PID: 42, Start: 1}}}})
	got := a.Paused()
	fixture.If(t, len(got) != 1 || len(got[0].Frozen) != 1 || len(got[0].Stopped) != 1, "%+v", got)
}

// ready starts a child, and waits until it reports that it is ready.
func ready(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(name, args...)
	out := fixture.Value(cmd.StdoutPipe())(t)
	fixture.Must(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	fixture.Must(t, fixture.Error(bufio.NewReader(out).ReadByte()))
	return cmd
}

// signalOf waits for a child and returns the signal that ended it.
func signalOf(cmd *exec.Cmd) syscall.Signal {
	_ = cmd.Wait()
	return cmd.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

func TestTerminate(t *testing.T) {
	a := actor(t)
	meek, deaf := child(t, "sleep", "1000"), ready(t, "sh", "-c", "trap '' TERM; echo; exec sleep 1000")
	c := processGroup(target(t, a, meek.Process.Pid), target(t, a, deaf.Process.Pid))
	now := time.Now()
	answered(a.Terminate(now, c, 30*time.Second)).is(t, escalation.Done, "SIGTERM: 2 done, 0 missed, 0 failed")
	fixture.Equal(t, signalOf(meek), unix.SIGTERM, "the first ended by")
	fixture.Equal(t, len(a.Continue(now.Add(30*time.Second-1))), 0, "ends within the grace")
	fixture.Eventually(t, "it lives within the grace", func() bool { return state(a, deaf.Process.Pid) == 'S' })
	result, _ := a.Terminate(now, c, 0)
	fixture.If(t, result != escalation.Done || len(a.dying) != 2, "twice: %s, %d are dying", result, len(a.dying))
	fixture.Equal(t, len(a.Continue(now.Add(30*time.Second))), 0, "ends of those just killed")
	fixture.Equal(t, signalOf(deaf), unix.SIGKILL, "the second ended by")
	e := a.Continue(now.Add(31 * time.Second))
	if len(e) != 1 || e[0].Subject != someone || e[0].Result != escalation.Done || len(e[0].Outcomes) != 2 ||
		!strings.Contains(e[0].Outcomes[0].Detail, "SIGTERM") || !strings.Contains(e[0].Outcomes[1].Detail, "SIGKILL") {
		t.Errorf("%+v", e)
	}
	fixture.Equal(t, len(a.dying), 0, "… are dying still")
}

func TestTerminateEndsPausedProcesses(t *testing.T) {
	a := actor(t)
	cmd := child(t, "sleep", "1000")
	c := processGroup(target(t, a, cmd.Process.Pid))
	a.Pause(c, []string{bySignal})
	fixture.Eventually(t, "it stands still", func() bool { return state(a, cmd.Process.Pid) == 'T' })
	answered(a.Terminate(time.Now(), c, time.Minute)).tells(t, escalation.Done, "")
	fixture.Equal(t, signalOf(cmd), unix.SIGTERM, "it ended by")
	fixture.Equal(t, len(a.Paused()), 0, "it is kept in mind as paused")
}

func TestDyingAreBounded(t *testing.T) {
	a := actor(t)
	who := sleepers(t, a, 2)
	a.dying = slices.Repeat([]*dying{{fd: -1}}, maxDying-1)
	result, detail := a.Terminate(time.Now(), processGroup(who...), time.Minute)
	fixture.If(t, result != escalation.Done ||
		detail != fmt.Sprintf("SIGTERM: 1 done, 0 missed, 1 failed (%d: too many processes are being ended)",
			who[1].PID), "%s, %s", result, detail)
	a.dying = a.dying[maxDying-1:]
}

// TestUninterruptibleSleep has a process in state D, which ignores SIGTERM: the parent of a vfork until its child ends.
func TestUninterruptibleSleep(t *testing.T) {
	a := actor(t)
	cmd := ready(t, build(t, "vfork", `
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>
int main(void) {
	if (vfork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); write(1, "", 1); sleep(1000); _exit(0); }
	return 0;
}
`, "-w"))
	pid := cmd.Process.Pid
	fixture.Eventually(t, "it is in state D", func() bool { return state(a, pid) == 'D' })
	who := target(t, a, pid)
	began := time.Now()
	answered(a.Pause(processGroup(who), []string{bySignal})).tells(t, escalation.Done, "")
	if still, err := a.Still(someone); still || err != nil {
		t.Errorf("it is in state %c, and said to stand still: %v", state(a, pid), err)
	}
	answered(a.Terminate(began, processGroup(who), 30*time.Second)).tells(t, escalation.Done, "")
	if e := a.Continue(began.Add(time.Second)); e != nil || state(a, pid) != 'D' {
		t.Errorf("%+v, state %c", e, state(a, pid))
	}
	fixture.AtMost(t, time.Since(began), time.Second, "the enforcer waited for")
	a.Continue(began.Add(30 * time.Second)) // SIGKILL ends this kind of sleep
	fixture.Equal(t, signalOf(cmd), unix.SIGKILL, "it ended by")
	e := a.Continue(began.Add(31 * time.Second))
	fixture.If(t, len(e) != 1 || e[0].Result != escalation.Done, "%+v", e)
}

// build compiles C into a file of a new directory. Exec accepts any library as the hook, even one that does nothing.
func build(t *testing.T, name, source string, flags ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.Command("gcc", append([]string{"-x", "c", "-o", path, "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(source)
	out, err := cmd.CombinedOutput()
	fixture.Stop(t, err != nil, "%v\n%s", err, out)
	return path
}

// TestLateLooks acts on processes of which the first looks are late, and on one of which all are.
func TestLateLooks(t *testing.T) {
	t.Parallel()
	a := actor(t)
	who := sleepers(t, a, 3)
	late := map[int]int{who[0].PID: 2, who[1].PID: math.MaxInt, who[2].PID: 0}
	a.look = func(procfs string, pid int) (procs.Stat, error) {
		if late[pid]--; late[pid] >= 0 {
			return procs.Stat{}, procs.ErrLate
		}
		return procs.ReadStat(procfs, pid)
	}
	began := time.Now()
	all := a.Signal(who, anybody, unix.SIGTERM)
	fixture.AtMost(t, a.waited, lateMost, "waits")
	fixture.AtLeast(t, time.Since(began), lateMost, "it acted in")
	for i, want := range []string{escalation.Done, escalation.Failed, escalation.Done} {
		fixture.Equal(t, all[i].Result, want, "process %d: %s", i, all[i].Detail)
	}
	fixture.Equal(t, a.Signal(who[1:2], anybody, unix.SIGTERM)[0].Result, escalation.Failed, "it is late again")
	a.Continue(time.Now())
	fixture.Equal(t, a.waited, 0, "waits that a second later still count")
}
