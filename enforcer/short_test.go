package enforcer_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// ownGroup makes a cgroup of version 2 that the enforcer takes for a workload,
// and returns its directory. Its processes are killed when the test ends.
func (g *governed) ownGroup(key string) string {
	g.t.Helper()
	root := "/sys/fs/cgroup"
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
		root = filepath.Join(root, "unified")
	}
	dir := filepath.Join(root, fmt.Sprintf("gs-enforcer-%d-%d", os.Getpid(), len(g.groups)))
	if err := os.Mkdir(dir, 0o755); err != nil {
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

// short starts successive programs in a cgroup of their own. Each lives for a
// second unless the options differ.
func (g *governed) short(key string, env []string, options ...string) (dir string) {
	g.t.Helper()
	dir = g.ownGroup(key)
	group, err := os.Open(dir)
	if err != nil {
		g.t.Fatal(err)
	}
	defer func() { _ = group.Close() }()
	spawner := exec.Command("/bin/sh", append([]string{"-c",
		`while "$0" --kernel-us=200 --seconds=0.8 "$@"; do :; done`, path(g.t, "GS_LOAD", "hook/build/stub/load")},
		options...)...)
	spawner.Env = append(append(os.Environ(), g.driver...), env...)
	spawner.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	if err := spawner.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = spawner.Process.Kill(); _ = spawner.Wait() })
	return dir
}
