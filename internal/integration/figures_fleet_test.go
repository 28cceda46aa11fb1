//go:build servers && bench

package integration

import (
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpusteward/internal/fixture"
)

var (
	fleetSize = flag.Int("fleet.hosts", 200, "how many hosts TestSizing simulates")
	fleetTime = flag.Duration("fleet.for", 5*time.Minute,
		"for how long TestSizing has the hosts of each scenario scraped")
)

// TestSizing prints the figures of docs/fleet.md: the resources of one
// Prometheus with the shipped configuration and rules that scrapes hosts every
// 15 s, and the cost to an agent.
func TestSizing(t *testing.T) {
	installed(t, "prometheus")
	path := binary(t)
	for _, scenario := range []string{"h100", "workloads", "mixed"} {
		t.Run(scenario, func(t *testing.T) {
			fmt.Printf("%s: an agent by itself: %v\n", scenario,
				startMeasured(t, path, "--demo="+scenario).run(15*time.Second, time.Minute))
		})
		t.Run(scenario+" fleet", func(t *testing.T) { sizing(t, path, scenario) })
	}
}

// sizing prints the needs of Prometheus for a fleet of hosts with a scenario.
func sizing(t *testing.T, path, scenario string) {
	say := func(format string, args ...any) { fmt.Printf(scenario+": "+format+"\n", args...) }
	fleet := startMeasured(t, path, "--demo="+scenario, fmt.Sprint("--demo.hosts=", *fleetSize))
	prometheus := startOverFleet(t, fleet.url, "--web.enable-admin-api")
	ask := func(query string) float64 { return asksFor(t, prometheus, query, "")[""] }
	within(t, "all hosts are scraped", func() bool { return ask(`sum(up{job="gpusteward"})`) == float64(*fleetSize) })

	before, cpu, began := parse(fixture.Get(t, prometheus+"/metrics")), fleet.cpu(), time.Now()
	time.Sleep(*fleetTime)
	after, took := parse(fixture.Get(t, prometheus+"/metrics")), time.Since(began).Seconds()
	total := func(s series, name string) (sum float64) {
		for _, v := range s.family(name) { // of samples: one for each type
			sum += v
		}
		return sum
	}
	rose := func(name string) float64 { return (total(after, name) - total(before, name)) / took }
	over := func(name string) string { return fmt.Sprintf(`%s{job="gpusteward"}[%ds]`, name, int(took)) }

	say("%d hosts for %.0f s: %.0f series a host, %.0f samples a second and host, %.0f recorded series",
		*fleetSize, took,
		ask(`avg(scrape_samples_scraped{job="gpusteward"})`),
		rose("prometheus_tsdb_head_samples_appended_total")/float64(*fleetSize),
		ask(`count({__name__=~".+:.+:.+"})`))
	say("scrapes: %.0f, of %.0f that were due, %.0f failed; the median took %.0f ms, the slowest of 99 of 100 hosts "+
		"%.0f ms, the slowest %.0f ms",
		ask("sum(count_over_time("+over("up")+"))"), float64(*fleetSize)*took/15,
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
		q := url.Values{"query": {query}, "start": {fmt.Sprint(now.Add(-*fleetTime).Unix())},
			"end": {fmt.Sprint(now.Unix())}, "step": {"15"}}
		fixture.Contains(t, fixture.Get(t, prometheus+"/api/v1/query_range?"+q.Encode()), `"values"`, "%s", query)
		return time.Since(now)
	}
	say("the load of all GPUs in this time, each 15 s: %.0f ms from what was scraped, %.0f ms from what was recorded",
		ms(answered(`avg(nvgpu_utilization_ratio{engine="gpu"})`)),
		ms(answered(`sum(cluster_rack_name_engine:nvgpu_utilization_ratio:sum{engine="gpu"}) / `+
			`sum(cluster_rack_name:nvgpu_info:count)`)))
	onDisk(t, say, prometheus)
	rss, _ := fleet.memory()
	say("the simulation of all hosts: %.2f cores, %.0f MiB resident", (fleet.cpu()-cpu)/took, rss)
}

// onDisk prints the size of the scraped samples on disk, in a block of their
// own.
func onDisk(t *testing.T, say func(format string, args ...any), prometheus string) {
	r, err := http.Post(prometheus+"/api/v1/admin/tsdb/snapshot", "", nil)
	fixture.Must(t, err)
	defer r.Body.Close()
	var answer struct{ Data struct{ Name string } }
	var flags struct{ Data map[string]string }
	fixture.Must(t, json.NewDecoder(r.Body).Decode(&answer))
	fixture.Must(t, json.Unmarshal([]byte(fixture.Get(t, prometheus+"/api/v1/status/flags")), &flags))
	var chunks, index int64
	var meta struct {
		Stats struct{ NumSamples, NumSeries, NumChunks float64 }
	}
	err = filepath.WalkDir(filepath.Join(flags.Data["storage.tsdb.path"], "snapshots", answer.Data.Name),
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
	fixture.Must(t, err)
	s := meta.Stats
	say("on disk: %.2f bytes a sample with %.0f samples in a chunk, and %.0f bytes a series and block",
		float64(chunks)/s.NumSamples, s.NumSamples/s.NumChunks, float64(index)/s.NumSeries)
}
