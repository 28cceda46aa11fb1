package main

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// sizing prints the figures of docs/fleet.md: the cost of an agent that is scraped every 15 s, and
// the resources of one Prometheus with the shipped configuration and rules that scrapes hosts.
func sizing(path string) error {
	for scenario := range strings.SplitSeq(*scenarios, ",") {
		s, err := startAgent(path, "--demo="+scenario)
		if err != nil {
			return err
		}
		f, err := s.measure(15*time.Second, time.Minute)
		s.end()
		if err != nil {
			return err
		}
		fmt.Printf("%s: an agent by itself: %v\n", scenario, f)
		if err := overFleet(path, scenario); err != nil {
			return fmt.Errorf("%s: %w", scenario, err)
		}
	}
	return nil
}

// overFleet prints the needs of Prometheus for a fleet of hosts with a scenario.
func overFleet(path, scenario string) (err error) {
	say := func(format string, args ...any) { fmt.Printf(scenario+": "+format+"\n", args...) }
	fleet, err := startAgent(path, "--demo="+scenario, fmt.Sprint("--demo.hosts=", *hosts))
	if err != nil {
		return err
	}
	defer fleet.end()
	prometheus, err := startPrometheus(fleet.url)
	if err != nil {
		return err
	}
	defer prometheus.end()
	if err := within(3*time.Minute, "scrapes all hosts", func() bool {
		up, _ := prometheus.asks(`sum(up{job="gpusteward"})`)
		return up == float64(*hosts)
	}); err != nil {
		return err
	}
	ask := func(query string) float64 {
		v, failure := prometheus.asks(query)
		if err == nil {
			err = failure
		}
		return v
	}

	cpu, _, _, err := fleet.used()
	if err != nil {
		return err
	}
	before, err := prometheus.scrape()
	if err != nil {
		return err
	}
	began := time.Now()
	time.Sleep(*scraped)
	after, err := prometheus.scrape()
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	rose := func(name string) float64 { return (sum(after, name) - sum(before, name)) / took } // of samples: one for each type
	over := func(name string) string { return fmt.Sprintf(`%s{job="gpusteward"}[%ds]`, name, int(took)) }

	say("%d hosts for %.0f s: %.0f series a host, %.0f samples a second and host, %.0f recorded series",
		*hosts, took,
		ask(`avg(scrape_samples_scraped{job="gpusteward"})`),
		rose("prometheus_tsdb_head_samples_appended_total")/float64(*hosts),
		ask(`count({__name__=~".+:.+:.+"})`))
	say("scrapes: %.0f, of %.0f that were due, %.0f failed; the median took %.0f ms, the slowest of 99 of 100 hosts "+
		"%.0f ms, the slowest %.0f ms",
		ask("sum(count_over_time("+over("up")+"))"), float64(*hosts)*took/15,
		ask("sum(count_over_time("+over("up")+") - sum_over_time("+over("up")+"))"),
		1e3*ask("quantile(.5, quantile_over_time(.5, "+over("scrape_duration_seconds")+"))"),
		1e3*ask("quantile(.99, max_over_time("+over("scrape_duration_seconds")+"))"),
		1e3*ask("max(max_over_time("+over("scrape_duration_seconds")+"))"))
	say("Prometheus: %.2f cores, %.0f MiB resident, %.1f KiB a series", rose("process_cpu_seconds_total"),
		after["process_resident_memory_bytes"]/(1<<20),
		after["process_resident_memory_bytes"]/1024/after["prometheus_tsdb_head_series"])
	for name, seconds := range after {
		if group, ok := strings.CutPrefix(name, "prometheus_rule_group_last_duration_seconds{"); ok {
			say("a pass of the rules %s takes %.0f ms", strings.Trim(group[strings.LastIndexByte(group, ';'):], `;"}`),
				1e3*seconds)
		}
	}
	answered := func(query string) time.Duration {
		now := time.Now()
		q := url.Values{"query": {query}, "start": {fmt.Sprint(now.Add(-*scraped).Unix())},
			"end": {fmt.Sprint(now.Unix())}, "step": {"15"}}
		text, failure := prometheus.get("/api/v1/query_range?" + q.Encode())
		if failure == nil && !strings.Contains(text, `"values"`) {
			failure = fmt.Errorf("%s has no values: %s", query, text)
		}
		if err == nil {
			err = failure
		}
		return time.Since(now)
	}
	say("the load of all GPUs in this time, each 15 s: %.0f ms from what was scraped, %.0f ms from what was recorded",
		ms(answered(`avg(nvgpu_utilization_ratio{engine="gpu"})`)),
		ms(answered(`sum(cluster_rack_name_engine:nvgpu_utilization_ratio:sum{engine="gpu"}) / `+
			`sum(cluster_rack_name:nvgpu_info:count)`)))
	if err != nil {
		return err
	}
	if err := onDisk(say, prometheus); err != nil {
		return err
	}
	now, rss, _, err := fleet.used()
	say("the simulation of all hosts: %.2f cores, %.0f MiB resident", (now-cpu)/took, rss)
	return err
}

// startPrometheus starts a Prometheus with the shipped configuration for HTTP discovery, which
// finds the hosts of a fleet.
func startPrometheus(fleet string) (*server, error) {
	shipped, err := os.ReadFile("deploy/prometheus/http_sd.yml")
	if err != nil {
		return nil, err
	}
	rules, err := filepath.Abs("alerts")
	if err != nil {
		return nil, err
	}
	config := string(shipped)
	for from, to := range map[string]string{"http://localhost:9836": fleet, "/usr/share/gpusteward/alerts": rules} {
		if !strings.Contains(config, from) {
			return nil, fmt.Errorf("the shipped configuration has no %q", from)
		}
		config = strings.ReplaceAll(config, from, to)
	}
	dir, err := os.MkdirTemp("", "gs")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") // Prometheus does not say which port it found
	if err != nil {
		return nil, err
	}
	address := l.Addr().String()
	l.Close()
	return start(dir, exec.Command("prometheus", "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.enable-admin-api", "--web.listen-address="+address, "--log.level=warn"), "http://"+address)
}

// asks returns a Prometheus's answer to a query for one number; 0 if there is none.
func (s *server) asks(query string) (float64, error) {
	var answer struct {
		Data struct {
			Result []struct{ Value [2]any }
		}
	}
	text, err := s.get("/api/v1/query?query=" + url.QueryEscape(query))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", query, err)
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil || len(answer.Data.Result) == 0 {
		return 0, err
	}
	return strconv.ParseFloat(fmt.Sprint(answer.Data.Result[0].Value[1]), 64)
}

// onDisk prints the size of the scraped samples on disk, in a block of their own.
func onDisk(say func(format string, args ...any), prometheus *server) error {
	r, err := http.Post(prometheus.url+"/api/v1/admin/tsdb/snapshot", "", nil)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	var answer struct{ Data struct{ Name string } }
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		return err
	}
	var chunks, index int64
	var meta struct {
		Stats struct{ NumSamples, NumSeries, NumChunks float64 }
	}
	err = filepath.WalkDir(filepath.Join(prometheus.dir, "data", "snapshots", answer.Data.Name),
		func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			switch {
			case err != nil:
				return err
			case e.Name() == "index":
				index += info.Size()
			case e.Name() == "meta.json":
				text, err := os.ReadFile(path)
				if err != nil {
					return err
				}
				return json.Unmarshal(text, &meta)
			default:
				chunks += info.Size()
			}
			return nil
		})
	s := meta.Stats
	say("on disk: %.2f bytes a sample with %.0f samples in a chunk, and %.0f bytes a series and block",
		float64(chunks)/s.NumSamples, s.NumSamples/s.NumChunks, float64(index)/s.NumSeries)
	return err
}
