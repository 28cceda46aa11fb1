//go:build bench || gpu

package integration

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"

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
	*agent
	path    string        // of its program
	runtime string        // directory of its control socket
	took    time.Duration // from its start until /-/ready answers 200
}

func startMeasured(t *testing.T, path string, args ...string) *measured {
	t.Helper()
	m := &measured{path: path}
	for _, a := range args {
		if dir, given := strings.CutPrefix(a, "--runtime.dir="); given {
			m.runtime = dir
		}
	}
	if m.runtime == "" {
		m.runtime = t.TempDir()
		args = append(args, "--runtime.dir="+m.runtime)
	}
	cmd := exec.Command(path, append(args, loopback)...)
	cmd.Env = os.Environ()
	began := time.Now()
	m.agent = launch(t, cmd).ready()
	m.took = time.Since(began)
	t.Cleanup(m.endsWell)
	return m
}

// run scrapes at an interval for a while (never if every is 0), and returns the
// cost.
func (m *measured) run(every, length time.Duration) figure {
	m.t.Helper()
	f := figure{ready: m.took}
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
		answer := fixture.Value(client.Do(r))(m.t)
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
	f.rss, f.peak = m.memory()
	text := m.scrape()
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			f.series++
		}
	}
	return f
}

// scrape returns the text of /metrics.
func (m *measured) scrape() string {
	m.t.Helper()
	_, text := m.get("/metrics")
	return text
}

// process returns what the kernel says of the agent.
func (m *measured) process() procfs.Proc {
	m.t.Helper()
	return fixture.Value(procfs.NewProc(m.pid))(m.t)
}

// cpu returns the agent's processor time so far, in seconds.
func (m *measured) cpu() float64 {
	m.t.Helper()
	stat := fixture.Value(m.process().Stat())(m.t)
	return stat.CPUTime()
}

// memory returns the agent's memory now and at its peak, in MiB.
func (m *measured) memory() (rss, peak float64) {
	m.t.Helper()
	status := fixture.Value(m.process().NewStatus())(m.t)
	return float64(status.VmRSS) / (1 << 20), float64(status.VmHWM) / (1 << 20)
}
