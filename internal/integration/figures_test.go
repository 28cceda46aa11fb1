//go:build bench || gpu

package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

// A figure is the cost of one agent that is scraped at one rate.
type figure struct {
	ready         time.Duration // from its start until /-/ready answers 200
	scrapes       int
	p50, p99, max time.Duration
	cpu           float64 // share of one core
	rss, peak     float64 // MiB
	series, bytes int     // of the last scrape; bytes as sent (gzip)
}

func (f figure) String() string {
	return fmt.Sprintf("ready %4.0f ms | scrapes %4d | p50 %5.2f ms p99 %5.2f ms max %5.2f ms | cpu %5.2f %% of a "+
		"core | rss %4.1f MiB peak %4.1f | %d series, %d bytes gzipped",
		f.ready.Seconds()*1e3, f.scrapes, ms(f.p50), ms(f.p99), ms(f.max), f.cpu*100, f.rss, f.peak, f.series, f.bytes)
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// binary returns the agent to measure: AGENT, or one built here as make build
// does.
func binary(t *testing.T) string {
	if path := os.Getenv("AGENT"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "gpusteward")
	if out, err := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path,
		".").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// A measured agent runs as a child process.
type measured struct {
	t     *testing.T
	cmd   *exec.Cmd
	url   string
	ready time.Duration

	runtime string // directory of its control socket
}

func startMeasured(t *testing.T, path string, args ...string) *measured {
	t.Helper()
	address := fixture.FreeAddress(t)
	m := &measured{t: t, url: "http://" + address}
	for _, a := range args {
		if dir, given := strings.CutPrefix(a, "--runtime.dir="); given {
			m.runtime = dir
		}
	}
	if m.runtime == "" {
		m.runtime = t.TempDir()
		args = append(args, "--runtime.dir="+m.runtime)
	}
	m.cmd = exec.Command(path, append(args, "--web.listen-address="+address, "--state.dir="+t.TempDir())...)
	var log bytes.Buffer
	m.cmd.Stderr = &log
	began := time.Now()
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		m.cmd.Process.Signal(os.Interrupt)
		if err := m.cmd.Wait(); err != nil {
			t.Errorf("the agent did not live to be stopped: %v", err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	})
	for {
		r, err := http.Get(m.url + "/-/ready")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				m.ready = time.Since(began)
				return m
			}
		}
		if time.Since(began) > 20*time.Second {
			t.Fatalf("not ready after 20 s: %v\n%s", err, log.String())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// run scrapes at an interval for a while (never if every is 0), and returns the
// cost.
func (m *measured) run(every, length time.Duration) figure {
	m.t.Helper()
	f := figure{ready: m.ready}
	client := &http.Client{Transport: &http.Transport{DisableCompression: true}}
	cpu, began := m.cpu(), time.Now()
	var took []time.Duration
	for time.Since(began) < length {
		if every == 0 {
			time.Sleep(length)
			break
		}
		r, _ := http.NewRequest(http.MethodGet, m.url+"/metrics", nil)
		r.Header.Set("Accept-Encoding", "gzip")
		r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "10")
		start := time.Now()
		answer, err := client.Do(r)
		if err != nil {
			m.t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			m.t.Fatal(answer.Status, err)
		}
		took = append(took, time.Since(start))
		f.bytes = len(body)
		time.Sleep(every - time.Since(start))
	}
	f.cpu = (m.cpu() - cpu) / time.Since(began).Seconds()
	f.scrapes = len(took)
	if len(took) > 0 {
		slices.Sort(took)
		f.p50, f.p99, f.max = took[len(took)/2], took[(len(took)-1)*99/100], took[len(took)-1]
	}
	f.rss, f.peak = m.status("VmRSS"), m.status("VmHWM")
	text := m.scrape()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			f.series++
		}
	}
	return f
}

func (m *measured) scrape() string {
	m.t.Helper()
	return m.fetch("/metrics")
}

func (m *measured) fetch(path string) string {
	m.t.Helper()
	r, err := http.Get(m.url + path)
	if err != nil {
		m.t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		m.t.Fatal(err)
	}
	return string(body)
}

// cpu returns the agent's processor time so far, in seconds.
func (m *measured) cpu() float64 {
	stat := content(m.t, fmt.Sprintf("/proc/%d/stat", m.cmd.Process.Pid))
	f := strings.Fields(string(stat[strings.LastIndexByte(stat, ')')+1:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // USER_HZ
}

// status returns a line of /proc/PID/status, in MiB.
func (m *measured) status(key string) float64 {
	file, err := os.Open(fmt.Sprintf("/proc/%d/status", m.cmd.Process.Pid))
	if err != nil {
		m.t.Fatal(err)
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), key+":"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return kib / 1024
		}
	}
	m.t.Fatalf("no %s in /proc/PID/status", key)
	return 0
}
