//go:build timed

package enforcer_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/enforcer/audit"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/fixture"
)

// ownGroup makes a cgroup of version 2 that the enforcer takes for a workload,
// and returns its directory. Its processes are killed when the test ends.
func (g *governed) ownGroup(key string) string {
	g.t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root = filepath.Join(root, "unified")
	}
	dir, err := os.MkdirTemp(root, "gs-enforcer-")
	if err != nil {
		g.t.Skip("NOT TESTED: cgroups cannot be made here:", err)
	}
	g.t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		for end := time.Now().Add(20 * time.Second); os.Remove(dir) != nil; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				g.t.Errorf("%s is not empty", dir)
				return
			}
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.groups["/"+filepath.Base(dir)] = key
	return dir
}

// seconds returns a number of ticks in seconds.
func (g *governed) seconds(ticks float64) string {
	return fmt.Sprintf("%.3f", ticks*time.Duration(g.tick).Seconds())
}

// short starts successive programs in a cgroup of their own. Each lives for some ticks.
func (g *governed) short(key string, env []string, ticks float64, options ...string) (dir string) {
	g.t.Helper()
	dir = g.ownGroup(key)
	group := fixture.Value(os.Open(dir))(g.t)
	defer func() { _ = group.Close() }()
	spawner := exec.Command("/bin/sh", append([]string{"-c",
		`while "$0" --kernel-us=200 --seconds="$@"; do :; done`, fixture.Given(g.t, "GS_LOAD", "hook/build/stub/load"), g.seconds(ticks)},
		options...)...)
	spawner.Env = append(append(os.Environ(), g.driver...), env...)
	spawner.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	fixture.Must(g.t, spawner.Start())
	g.t.Cleanup(func() { _ = spawner.Process.Kill(); _ = spawner.Wait() })
	return dir
}

// shortTick is long beside the start of a program.
const shortTick = audit.Tick(300 * time.Millisecond)

// freezing starts an enforcer that pauses the workloads of these units for a minute.
func freezing(t *testing.T, units ...string) *governed {
	t.Helper()
	steps := quick(policy.Pause)
	steps.Hold = time.Minute
	var rules []policy.Rule
	for _, name := range units {
		rules = append(rules, policy.Rule{Name: name, Steps: steps,
			Select: []policy.Selector{{Workloads: []string{"unit:" + name + ".service"}}},
			Terms:  policy.Terms{Priority: policy.PriorityNormal, Quota: none}})
	}
	g := prepared(t)
	g.tick = shortTick
	g.run(judging(rules...))
	return g
}

// freezes waits until a unit is paused, and its cgroup is frozen.
func (g *governed) freezes(unit, dir string) {
	g.t.Helper()
	took := poll(g.t, 2*time.Minute, "it is not paused",
		func() bool { return slices.Contains(g.told(unit), "pause done") })
	fmt.Printf("short lives (%s) paused after %v\n", unit, took)
	poll(g.t, 10*time.Second, "its cgroup is not frozen", func() bool {
		events, _ := os.ReadFile(filepath.Join(dir, "cgroup.events"))
		return strings.Contains(string(events), "frozen 1")
	})
}

// TestShortLivesAreFrozen has successive programs that go around the hook. Their workload is escalated, and is frozen
// together with the process that starts them. Beside them others do the same under the hook, and nothing happens.
func TestShortLivesAreFrozen(t *testing.T) {
	t.Parallel()
	g := freezing(t, "around", "honest")
	g.short("unit:honest.service", g.hook, .8)
	poll(t, 20*time.Second, "nobody has a session", func() bool { return g.it.Stats().Sessions["active"] > 0 })
	g.freezes("around", g.short("unit:around.service", nil, .8))
	fixture.EqualSlices(t, g.told("around"), []string{"warn done", "throttle done", "pause done"}, "the escalation did")
	fixture.EqualSlices(t, g.told("honest"), nil, "to those under the hook the escalation did")
}

// TestShortLapsesAreFrozen has successive programs that begin under the hook
// and then continue without it, each for less than the grace period.
func TestShortLapsesAreFrozen(t *testing.T) {
	t.Parallel()
	g := freezing(t, "shed")
	g.freezes("shed", g.short("unit:shed.service", g.hook, 1.5, "--shed="+g.seconds(7)))
}
