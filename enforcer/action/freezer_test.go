package action

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/enforcer/escalation"
	"gpusteward/internal/fixture"
)

// realGroup makes a cgroup with a freezer of the given version, and returns its directory and its path in the
// hierarchy. It is removed at the end of the test, after its processes have ended.
func realGroup(t *testing.T, a *Actor, v1 bool) (dir, path string) {
	t.Helper()
	path = fmt.Sprintf("/gs-test-%d-%s", os.Getpid(), strings.Map(func(r rune) rune {
		if r == '/' {
			return '-'
		}
		return r
	}, t.Name()))
	dir = filepath.Join(a.freezer().hierarchy(v1), path)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Skip("NOT TESTED: cgroups cannot be made here:", err)
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(2 * time.Minute)
		for err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist); err = os.Remove(dir) {
			if time.Now().After(deadline) {
				t.Errorf("remove %s: %v", dir, err)
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	g := &cgroup{Frozen: Frozen{V1: v1}}
	root := fixture.Value(os.OpenRoot(dir))(t)
	g.root = root
	defer g.close()
	if _, err := g.frozen(); err != nil {
		t.Skip("NOT TESTED: this kernel has no such freezer:", err)
	}
	return dir, path
}

// join moves a process into a cgroup. At the end of the test the cgroup is thawed before the process is killed.
func join(t *testing.T, dir string, pid int) {
	t.Helper()
	t.Cleanup(func() {
		for name, text := range map[string]string{"freezer.state": "THAWED", "cgroup.freeze": "0"} {
			if file, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0); err == nil {
				_, _ = file.WriteString(text)
				_ = file.Close()
			}
		}
	})
	fixture.Must(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0))
}

// versions runs a test with the freezers of both versions.
func versions(t *testing.T, test func(t *testing.T, a *Actor, v1 bool)) {
	for name, v1 := range map[string]bool{"v1": true, "v2": false} {
		t.Run(name, func(t *testing.T) { test(t, actor(t), v1) })
	}
}

func TestPauseByFreezer(t *testing.T) {
	versions(t, func(t *testing.T, a *Actor, v1 bool) {
		dir, path := realGroup(t, a, v1)
		who := sleepers(t, a, 3)
		for _, w := range who {
			join(t, dir, w.PID)
		}
		var kept []Paused
		a.Keep = func(all []Paused) error { kept = all; return nil }
		answered(a.Pause(processGroup(who[0]), []string{byFreezer, bySignal})).is(t, escalation.Done, "freezer: "+path)
		defer a.Resume(processGroup()) // a failure would leave it frozen
		still := func() bool { is, err := a.Still(someone); return is && err == nil }
		fixture.Eventually(t, "all stand still", still)
		if len(kept) != 1 || len(kept[0].Frozen) != 1 || kept[0].Frozen[0].Path != path || kept[0].Frozen[0].ID == 0 {
			t.Errorf("kept %+v", kept)
		}
		if result, detail := a.Pause(processGroup(who...), []string{byFreezer}); result != escalation.Done ||
			len(a.Paused()[0].Frozen) != 1 {
			t.Errorf("again: %s, %s, %+v", result, detail, a.Paused())
		}
		next := actor(t) // after a restart
		next.Restore(kept)
		answered(next.Resume(processGroup())).is(t, escalation.Done, "thawed 1 cgroups, continued 0 processes")
		fixture.Eventually(t, "they go on", func() bool { return !still() })
	})
}

// TestTerminateEndsFrozenProcesses terminates a frozen process group and all
// other processes in its cgroup, which could start the next one.
func TestTerminateEndsFrozenProcesses(t *testing.T) {
	versions(t, func(t *testing.T, a *Actor, v1 bool) {
		dir, _ := realGroup(t, a, v1)
		cmd, starter := child(t, "sleep", "1000"), child(t, "sleep", "1000")
		join(t, dir, cmd.Process.Pid)
		join(t, dir, starter.Process.Pid)
		c := processGroup(target(t, a, cmd.Process.Pid))
		answered(a.Pause(c, []string{byFreezer})).tells(t, escalation.Done, "")
		defer a.Resume(c)
		answered(a.Terminate(time.Now(), c, time.Minute)).is(t, escalation.Done, "SIGTERM: 2 done, 0 missed, 0 failed")
		got := [2]syscall.Signal{signalOf(cmd), signalOf(starter)}
		fixture.If(t, got != [2]syscall.Signal{unix.SIGTERM, unix.SIGTERM}, "they ended by %v", got)
	})
}

// TestGivenUp has a process that SIGKILL does not end, because a foreign freezer of version 1 holds it.
func TestGivenUp(t *testing.T) {
	a := actor(t)
	dir, path := realGroup(t, a, true)
	cmd := child(t, "sleep", "1000")
	join(t, dir, cmd.Process.Pid)
	c := processGroup(target(t, a, cmd.Process.Pid))
	state := func(text string) {
		fixture.Must(t, os.WriteFile(filepath.Join(dir, "freezer.state"), []byte(text), 0))
	}
	state("FROZEN")
	defer state("THAWED")
	answered(a.Pause(c, []string{byFreezer})).is(t, escalation.Done, "freezer: "+path+" is frozen already")
	fixture.Equal(t, len(a.Paused()), 0, "it is not ours to thaw: paused")
	began := time.Now()
	a.Terminate(began, c, 10*time.Second)
	a.Continue(began.Add(10 * time.Second))
	fixture.Equal(t, len(a.Continue(began.Add(15*time.Second-1))), 0, "ends before five seconds were over")
	// The signal wakes the process for a moment.
	fixture.Eventually(t, "it is not frozen again", func() bool {
		s, err := a.status(cmd.Process.Pid)
		return err == nil && s.State == 'D'
	})
	e := a.Continue(began.Add(15 * time.Second))
	fixture.If(t, len(e) != 1 || e[0].Result != escalation.Failed ||
		!strings.Contains(e[0].Detail, "in uninterruptible sleep (state D) 5s after SIGKILL: given up"),
		"%+v", e)
	fixture.AtMost(t, time.Since(began), time.Second, "the enforcer waited for")
}

func TestFreezerNotAvailable(t *testing.T) {
	versions(t, func(t *testing.T, a *Actor, v1 bool) {
		dir, path := realGroup(t, a, v1)
		sub := filepath.Join(dir, "sub")
		fixture.Must(t, os.Mkdir(sub, 0o755))
		t.Cleanup(func() { fixture.Eventually(t, "it is empty", func() bool { return os.Remove(sub) == nil }) })
		who := sleepers(t, a, 2)
		c := processGroup(who[0])
		c.Check = func(pid int) bool { return pid != who[1].PID }
		refused := func(why string) {
			t.Helper()
			result, detail := a.Pause(c, []string{byFreezer})
			if result != escalation.Failed || !strings.Contains(detail, why) || len(a.Paused()) != 0 {
				t.Errorf("%s, %s, %+v; want %s", result, detail, a.Paused(), why)
			}
		}
		refused("it is the root")
		join(t, sub, who[0].PID)
		join(t, sub, who[1].PID)
		refused(fmt.Sprintf("process %d is in it", who[1].PID))
		join(t, dir, who[0].PID) // a stranger is below it now
		refused(fmt.Sprintf("process %d is in it", who[1].PID))

		join(t, filepath.Dir(dir), who[1].PID)
		self := strconv.Itoa(os.Getpid()) // this process is in it, according to a fake procfs
		a.ProcFS = t.TempDir()
		for pid, where := range map[string]string{self: path + "/sub", strconv.Itoa(who[0].PID): path} {
			stat := fixture.Value(os.ReadFile("/proc/" + pid + "/stat"))(t)
			fixture.Rewrite(t, filepath.Join(a.ProcFS, pid, "stat"), string(stat))
			fixture.Rewrite(t, filepath.Join(a.ProcFS, pid, "cgroup"), "0::"+where+"\n4:cpu,freezer:"+where+"\n")
		}
		refused("the enforcer is in it")
		a.ProcFS = "/proc"
		answered(a.Pause(c, []string{byFreezer, bySignal})).tells(t, escalation.Done, "freezer: ")
		a.Resume(c)
	})
}

// TestStrangerComesInBetween moves a foreign process into the cgroup between the check and the freeze, or after the
// freeze. Nothing stays frozen then, and the next method is used.
func TestStrangerComesInBetween(t *testing.T) {
	versions(t, func(t *testing.T, a *Actor, v1 bool) {
		dir, path := realGroup(t, a, v1)
		who := sleepers(t, a, 2)
		join(t, dir, who[0].PID)
		c := processGroup(who[0])
		c.Check = func(pid int) bool { return pid != who[1].PID }
		a.Keep = func(all []Paused) error { // called just before the freeze
			if len(all) == 1 {
				join(t, dir, who[1].PID)
			}
			return nil
		}
		g := fixture.Value(a.freezer().openGroup(path, v1))(t)
		defer g.close()
		stopped := func() {
			t.Helper()
			result, detail := a.Pause(c, []string{byFreezer, bySignal})
			fixture.If(t, result != escalation.Done || !strings.Contains(detail, fmt.Sprintf("process %d is in it", who[1].PID)) ||
				!strings.Contains(detail, "; signal: 1 done"), "%s, %s", result, detail)
			if asked, err := g.asked(); asked || err != nil || len(a.Paused()) != 1 || len(a.Paused()[0].Frozen) != 0 {
				t.Errorf("frozen %v, %v, %+v", asked, err, a.Paused())
			}
			a.Resume(c)
		}
		stopped()

		a.Keep = nil // or after the freeze
		join(t, filepath.Dir(dir), who[1].PID)
		if result, detail := a.Pause(c, []string{byFreezer, bySignal}); result != escalation.Done ||
			len(a.Paused()[0].Frozen) != 1 {
			t.Fatalf("%s, %s", result, detail)
		}
		join(t, dir, who[1].PID)
		stopped()
	})
}

func TestVanishedGroup(t *testing.T) {
	versions(t, func(t *testing.T, a *Actor, v1 bool) {
		dir, path := realGroup(t, a, v1)
		cmd := child(t, "sleep", "1000")
		join(t, dir, cmd.Process.Pid)
		c := processGroup(target(t, a, cmd.Process.Pid))
		a.Keep = func(all []Paused) error { // called just before the freeze
			if len(all) == 1 && cmd.ProcessState == nil {
				kill(cmd)
				fixture.Eventually(t, "it is removed", func() bool { return os.Remove(dir) == nil })
			}
			return nil
		}
		if result, detail := a.Pause(c, []string{byFreezer}); result != escalation.Missed || len(a.Paused()) != 0 {
			t.Errorf("%s, %s, %+v", result, detail, a.Paused())
		}
		// Another cgroup has the path now, and somebody else froze it.
		fixture.Must(t, os.Mkdir(dir, 0o755))
		g := fixture.Value(a.freezer().openGroup(path, v1))(t)
		defer g.close()
		fixture.Must(t, g.set(true))
		a.Keep = nil
		a.Restore([]Paused{{Tenant: someone.Tenant, Workload: someone.Workload,
			Frozen: []Frozen{{Path: path, V1: v1, ID: 1}, {Path: path + "/gone", V1: v1}}}})
		result, detail := a.Resume(c)
		fixture.If(t, result != escalation.Done || len(a.Paused()) != 0, "resume: %s, %s", result, detail)
		asked, err := g.asked()
		fixture.If(t, !asked || err != nil, "another's cgroup was thawed: %v", err)
	})
}

// TestFakeGroups covers layouts that this machine's kernel does not have.
func TestFakeGroups(t *testing.T) {
	who := child(t, "sleep", "1000").Process.Pid
	for _, test := range []struct {
		name, cgroups, result, detail string
		files                         map[string]string // below the mount
	}{
		{"v2 alone", "0::/job", escalation.Done, "freezer: /job",
			map[string]string{"cgroup.controllers": "", "job/cgroup.procs": "%d\n", "job/cgroup.freeze": "0\n"}},
		{"no freezer in v2, none in v1", "0::/job", escalation.Failed, "no such freezer",
			map[string]string{"cgroup.controllers": "", "job/cgroup.procs": "%d\n"}},
		{"no freezer in v2, one in v1", "0::/job\n7:freezer:/box", escalation.Done, "freezer: /box",
			map[string]string{"unified/job/cgroup.procs": "%d\n", "freezer/box/cgroup.procs": "%d\n",
				"freezer/box/freezer.self_freezing": "0\n", "freezer/box/freezer.state": "THAWED\n"}},
		{"out of sight", "0::/../job", escalation.Failed, "out of sight", map[string]string{"cgroup.controllers": ""}},
		{"removed", "0::/job (deleted)", escalation.Missed, "gone", map[string]string{"cgroup.controllers": ""}},
		{"of another namespace", "0::/job", escalation.Failed, "process 0 is in it",
			map[string]string{"cgroup.controllers": "", "job/cgroup.procs": "%d\n0\n", "job/cgroup.freeze": "0\n"}},
		{"of another mount", "0::/job", escalation.Failed, "left cgroup",
			map[string]string{"cgroup.controllers": "", "job/cgroup.procs": "", "job/cgroup.freeze": "0\n"}},
		{"deep below a stranger", "0::/job", escalation.Failed, "process 1 is in it",
			map[string]string{"cgroup.controllers": "", "job/cgroup.procs": "%d\n", "job/a/b/cgroup.procs": "1\n",
				"job/a/cgroup.procs": "", "job/cgroup.freeze": "0\n"}},
		{"too long a list", "0::/job", escalation.Failed, "too long",
			map[string]string{"cgroup.controllers": "", "job/cgroup.procs": strings.Repeat("%d\n", maxCgroupFile/2),
				"job/cgroup.freeze": "0\n"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			stat := fmt.Sprintf("%d (sleep) S 1 0 0 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 42", who)
			a := fakeProc(t, who, stat)
			a.CgroupFS = t.TempDir()
			for pid, text := range map[int]string{os.Getpid(): "0::/agent\n7:freezer:/agent\n", who: test.cgroups} {
				fixture.Rewrite(t, filepath.Join(a.ProcFS, strconv.Itoa(pid), "cgroup"), text)
			}
			for name, text := range test.files {
				fixture.Rewrite(t, filepath.Join(a.CgroupFS, name), strings.ReplaceAll(text, "%d", strconv.Itoa(who)))
			}
			result, detail := a.Pause(processGroup(Target{PID: who, Start: 42}), []string{byFreezer})
			fixture.If(t, result != test.result || !strings.Contains(detail, test.detail),
				"%s, %s; want %s, %s", result, detail, test.result, test.detail)
			fixture.Equal(t, len(a.Paused()) != 0, result == escalation.Done, "… in mind")
		})
	}
}
