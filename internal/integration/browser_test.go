//go:build servers || pictures

package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// pageTests is the directory of the scripts that test the live page in a browser.
const pageTests = "exporter/page/test"

// needBrowser skips the test if there is no browser; `make tools` installs one. It returns the browser's path.
func needBrowser(t *testing.T) string {
	t.Helper()
	browser, err := exec.LookPath("chromium")
	if err == nil {
		_, err = exec.LookPath("node")
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(pageTests, "node_modules"))
	}
	if err != nil {
		t.Skipf("the live page is NOT tested in a browser: %v (make tools installs what it needs)", err)
	}
	return browser
}

// crowded is a host with 200 workloads, some of them with markup in their names.
func crowded() string {
	var s strings.Builder
	s.WriteString("gpus:\n- model: h100\n  load: inference\n  processes:\n")
	for i := range 198 {
		fmt.Fprintf(&s, "  - {pid: %d, name: job, memory: 100, share: 0.01, cgroup: /system.slice/job-%03d.service}\n",
			1000+i, i)
	}
	s.WriteString(`  - {pid: 2001, name: x, memory: 100, share: 0.01, cgroup: "/system.slice/<img src=x onerror=alert(1)>.service"}
  - {pid: 2002, name: x, memory: 100, share: 0.01, cgroup: "/system.slice/docker-{id}.scope", container: {name: "<b>bold</b>", image: "<script>alert(2)</script>"}}
`)
	return s.String()
}

// cores has a place for each test that keeps a core busy, such as one with a browser.
var cores = make(chan struct{}, 2)

// takesCore waits until few enough of these tests run: they all have deadlines. It takes a place until the test ends.
func takesCore(t *testing.T) {
	cores <- struct{}{}
	t.Cleanup(func() { <-cores })
}

// TestPage tests the live page in a real browser. Each script is a test with agents of its own.
func TestPage(t *testing.T) {
	browser := needBrowser(t)
	const four = "gpus: [{model: h100, load: training, count: 4}]\n"
	for _, c := range []struct {
		script string
		alone  bool     // it measures times, or needs readings that are never stale
		hosts  []string // scenarios or their names, or the number of hosts, one agent each
	}{
		{"figures", true, []string{"gpus: [{model: h100, load: training, count: 8}]\n", "shared"}},
		{"jobs", true, []string{four + "tenants: [{name: research, workloads: [\"slurm:*\"]}]\n" +
			"faults: [{kind: job_straggler, gpu: 3, value: host, count: 12}]\n"}},
		{"fault", false, []string{four + "faults: [{at: 45s, kind: lost, gpu: 2}]\n", // the second one for a busy machine
			four + "faults: [{at: 150s, kind: lost, gpu: 2}]\n"}},
		{"look", false, []string{four}},
		{"attention", false, []string{four}},
		{"policy", false, []string{four}},
		{"cut", false, []string{four, "gpus: [{model: h100, load: training, count: 3}]\n"}},
		{"vanish", false, []string{four + "faults: [{at: 45s, kind: hot_remove, gpu: 1}]\n"}},
		{"crowd", false, []string{crowded()}},
		{"links", false, []string{"shared"}},
		{"faults", false, []string{four}},
		{"away", false, []string{"gpus: [{model: h100, count: 2}]\nfaults: [{at: 20s, for: 80s, kind: driver_gone}]\n",
			"no_driver", "no_gpus"}},
		{"past", false, []string{four}},
		{"fleet", false, []string{"--demo.hosts=101"}},
	} {
		t.Run(c.script, func(t *testing.T) {
			if !c.alone {
				t.Parallel()
			}
			takesCore(t)
			var urls []string
			for _, host := range c.hosts {
				args := []string{"--demo=" + host}
				switch {
				case strings.HasPrefix(host, "--"):
					args = []string{"--demo=h100", host}
				case strings.Contains(host, ":"):
					scenario := filepath.Join(t.TempDir(), "scenario.yml")
					fixture.Rewrite(t, scenario, host)
					args = []string{"--demo=" + scenario}
				}
				a := spawn(t, nil, args...).listening()
				if host != "no_driver" && host != "no_gpus" { // which are never ready
					a.ready()
				}
				urls = append(urls, a.url)
			}
			drive(t, browser, c.script, urls...)
		})
	}
}

// drive runs one of the scripts.
func drive(t *testing.T, browser, script string, args ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{script + ".mjs"}, args...)...)
	cmd.Dir, cmd.WaitDelay = pageTests, ending // a leftover browser ends by itself
	cmd.Env = append(os.Environ(), "CHROMIUM="+browser)
	out, err := cmd.CombinedOutput()
	if t.Logf("%s", out); err != nil {
		t.Error(err)
	}
}
