//go:build servers

package integration

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A demonstration is the running script of make demo.
type demonstration struct {
	*testing.T
	cmd       *exec.Cmd
	said      *transcript
	tmp       string
	addresses map[string]string // by server
	ended     chan error
}

// demonstrate starts the script on free addresses, except for the given ones.
func demonstrate(t *testing.T, environment ...string) *demonstration {
	t.Helper()
	d := &demonstration{T: t, said: new(transcript), tmp: t.TempDir(), ended: make(chan error, 1),
		addresses: map[string]string{}}
	d.cmd = exec.Command("/bin/bash", "deploy/demo/demo.sh")
	d.cmd.Env = append(os.Environ(), asAgent+"="+machine, "GORACE=atexit_sleep_ms=0", "GPUSTEWARD="+os.Args[0],
		"TMPDIR="+d.tmp)
	for _, name := range []string{"DEMO_AGENT", "DEMO_PROMETHEUS", "DEMO_ALERTMANAGER"} {
		d.addresses[name] = fixture.FreeAddress(t)
		d.cmd.Env = append(d.cmd.Env, name+"="+d.addresses[name])
	}
	d.cmd.Env = append(d.cmd.Env, environment...)
	d.cmd.Stdout, d.cmd.Stderr = d.said, d.said
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that an interrupt reaches all of it
	fixture.Must(t, d.cmd.Start())
	go func() { d.ended <- d.cmd.Wait() }()
	t.Cleanup(func() {
		_ = syscall.Kill(-d.cmd.Process.Pid, syscall.SIGKILL)
		if t.Failed() {
			t.Logf("the demo said:\n%s", d.said)
		}
	})
	return d
}

// end waits until the script has ended, and returns its exit status. No process of it may be left.
func (d *demonstration) end(status int) {
	d.Helper()
	var err error
	select {
	case err = <-d.ended:
	case <-time.After(patience):
		d.Fatal("the demo does not end")
	}
	if got := d.cmd.ProcessState.ExitCode(); got != status {
		d.Errorf("exit status %d (%v), want %d", got, err, status)
	}
	if err := syscall.Kill(-d.cmd.Process.Pid, 0); !errors.Is(err, syscall.ESRCH) {
		d.Errorf("processes are left: %v", err)
	}
	if left, err := os.ReadDir(d.tmp); err != nil || len(left) > 0 {
		d.Errorf("files are left: %v, %v", left, err)
	}
}

func (d *demonstration) says(what ...string) {
	d.Helper()
	for _, text := range what {
		fixture.Contains(d, d.said.String(), text, "it")
	}
}

// TestDemo: all three servers answer within patience, and Ctrl-C ends them all.
func TestDemo(t *testing.T) {
	t.Parallel()
	installed(t, "prometheus", "prometheus-alertmanager")
	d := demonstrate(t)
	eventually(t, "the demo runs", func() bool { return strings.Contains(d.said.String(), "Ctrl-C") })
	links := regexp.MustCompile(`http://\S+`).FindAllString(d.said.String(), -1)
	fixture.Need(t, len(links), len(d.addresses), "it has the links %q", links)
	for _, link := range append(links, "http://"+d.addresses["DEMO_ALERTMANAGER"]+"/api/v2/alerts") {
		r := fixture.Value(http.Get(link))(t)
		r.Body.Close()
		fixture.Equal(t, r.StatusCode, http.StatusOK, "%s: %s", link, r.Status)
	}
	eventually(t, "Prometheus scrapes the agent", func() bool {
		return strings.Contains(fixture.Get(t,
			"http://"+d.addresses["DEMO_PROMETHEUS"]+"/api/v1/query?query=nvgpu_quota_sessions"), `"tenant":"research"`)
	})
	rules := fixture.Get(t, "http://"+d.addresses["DEMO_PROMETHEUS"]+"/api/v1/rules")
	fixture.If(t, !strings.Contains(rules,
		"GPULost") || !strings.Contains(rules, "GPUStewardDown"), "Prometheus has not the shipped rules")
	fixture.Must(t, syscall.Kill(-d.cmd.Process.Pid, syscall.SIGINT))
	d.end(0)
}

// TestDemoReportsTheServerThatDied starts Alertmanager on a port in use.
func TestDemoReportsTheServerThatDied(t *testing.T) {
	t.Parallel()
	installed(t, "prometheus", "prometheus-alertmanager")
	taken := fixture.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer taken.Close()
	d := demonstrate(t, fmt.Sprint("DEMO_ALERTMANAGER=", taken.Addr()))
	d.end(1)
	d.says("alertmanager ended by itself", "address already in use", "DEMO_ALERTMANAGER=127.0.0.1:PORT make demo")
}

func TestDemoNamesMissingPrograms(t *testing.T) {
	t.Parallel()
	d := demonstrate(t, "PATH="+t.TempDir())
	d.end(1)
	d.says("make tools", "prometheus")
}
