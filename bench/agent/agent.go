package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"

	"gpusteward/internal/fixture"
)

// A server is an agent or a Prometheus that runs as a child process.
type server struct {
	url string
	cmd *exec.Cmd
	log *fixture.Transcript
	dir string        // removed at the end
	got time.Duration // from its start until /-/ready answered 200
}

// startAgent starts an agent with directories and a port of its own, and waits until it is ready.
func startAgent(path string, args ...string) (*server, error) {
	dir, err := os.MkdirTemp("", "gs") // a short name, as it holds sockets
	if err != nil {
		return nil, err
	}
	return start(dir, exec.Command(path, append(args, "--state.dir="+dir, "--runtime.dir="+dir,
		"--web.listen-address=127.0.0.1:0")...), "")
}

// start starts a program and waits until it is ready. Without a URL, the log says where it listens.
func start(dir string, cmd *exec.Cmd, url string) (*server, error) {
	s := &server{url: url, cmd: cmd, log: new(fixture.Transcript), dir: dir}
	cmd.Stderr = s.log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := within(time.Minute, "is ready", s.ready); err != nil {
		s.end()
		return nil, fmt.Errorf("%s: %w; its log:\n%s", cmd.Path, err, s.log)
	}
	s.got = time.Since(began)
	return s, nil
}

func (s *server) ready() bool {
	for line := range strings.Lines(s.log.String()) {
		var entry struct{ Message, Address string }
		if s.url == "" && json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "Listening on" {
			s.url = "http://" + entry.Address
		}
	}
	_, err := s.get("/-/ready")
	return err == nil
}

// end ends the program and removes its directory.
func (s *server) end() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(time.Minute, func() { _ = s.cmd.Process.Kill() })
	_ = s.cmd.Wait()
	late.Stop()
	_ = os.RemoveAll(s.dir)
}

// within waits until cond holds, for a limited time.
func within(limit time.Duration, what string, cond func() bool) error {
	for began := time.Now(); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > limit {
			return fmt.Errorf("not within %v: it %s", limit, what)
		}
	}
	return nil
}

// open requests a page as it is sent: compressed if gzipped is true.
func (s *server) open(client *http.Client, path string, gzipped bool) (io.ReadCloser, error) {
	r, err := http.NewRequest(http.MethodGet, s.url+path, nil)
	if err != nil {
		return nil, err
	}
	if gzipped {
		r.Header.Set("Accept-Encoding", "gzip") // the client then leaves the answer as it is
	}
	r.Header.Set("X-Prometheus-Scrape-Timeout-Seconds", "10")
	answer, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body.Close()
		return nil, fmt.Errorf("%s: %s", path, answer.Status)
	}
	return answer.Body, nil
}

func (s *server) get(path string) (string, error) {
	body, err := s.open(http.DefaultClient, path, false)
	if err != nil {
		return "", err
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	return string(text), err
}

// scrape returns the values of /metrics, by series as they are written there.
func (s *server) scrape() (map[string]float64, error) {
	text, err := s.get("/metrics")
	all := map[string]float64{}
	for line := range strings.Lines(text) {
		at := strings.LastIndexByte(line, ' ')
		if v, err := strconv.ParseFloat(strings.TrimSpace(line[at+1:]), 64); line[0] != '#' && err == nil {
			all[line[:at]] = v
		}
	}
	return all, err
}

// sum adds up the series of a family.
func sum(all map[string]float64, family string) (sum float64) {
	for name, v := range all {
		if n, _, _ := strings.Cut(name, "{"); n == family {
			sum += v
		}
	}
	return sum
}

// used returns the program's processor time so far in seconds, and its memory now and at its peak
// in MiB.
func (s *server) used() (cpu, rss, peak float64, err error) {
	p, err := procfs.NewProc(s.cmd.Process.Pid)
	if err != nil {
		return 0, 0, 0, err
	}
	stat, err := p.Stat()
	if err != nil {
		return 0, 0, 0, err
	}
	status, err := p.NewStatus()
	return stat.CPUTime(), float64(status.VmRSS) / (1 << 20), float64(status.VmHWM) / (1 << 20), err
}

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
		ms(f.ready), f.scrapes, ms(f.p50), ms(f.p99), ms(f.max), f.cpu*100, f.rss, f.peak, f.series, f.bytes)
}

func ms(d time.Duration) float64 { return d.Seconds() * 1e3 }

// measure scrapes at an interval for a while (never if every is 0), and returns the cost.
func (s *server) measure(every, length time.Duration) (f figure, err error) {
	f.ready = s.got
	before, _, _, err := s.used()
	if err != nil {
		return f, err
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	began := time.Now()
	var took []time.Duration
	for time.Since(began) < length {
		if every == 0 {
			time.Sleep(length)
			break
		}
		start := time.Now()
		body, err := s.open(client, "/metrics", true)
		if err != nil {
			return f, err
		}
		n, err := io.Copy(io.Discard, body)
		body.Close()
		if err != nil {
			return f, err
		}
		took = append(took, time.Since(start))
		f.bytes = int(n)
		time.Sleep(every - time.Since(start))
	}
	after, rss, peak, err := s.used()
	if err != nil {
		return f, err
	}
	f.cpu, f.rss, f.peak = (after-before)/time.Since(began).Seconds(), rss, peak
	if f.scrapes = len(took); f.scrapes > 0 {
		slices.Sort(took)
		f.p50, f.p99, f.max = took[len(took)/2], took[(len(took)-1)*99/100], took[len(took)-1]
	}
	all, err := s.scrape()
	f.series = len(all)
	return f, err
}
