package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"gpusteward/internal/fixture"
)

// A targetGroup is a group of Prometheus's HTTP service discovery.
type targetGroup struct {
	Targets []string
	Labels  map[string]string
}

// targets returns the hosts in the list of a fleet.
func (a *agent) targets() (all []targetGroup) {
	a.t.Helper()
	status, body := a.get("/sd")
	err := json.Unmarshal([]byte(body), &all)
	fixture.Stop(a.t, err != nil || status != http.StatusOK, "/sd: %d %v: %s", status, err, body)
	return all
}

// TestFleetListsItsHosts: Prometheus's discovery and people find every host at the address of their request.
func TestFleetListsItsHosts(t *testing.T) {
	t.Parallel()
	a := start(t, "--demo=h100", "--demo.hosts=101").ready()
	all := a.targets()
	fixture.Need(t, len(all), 101, "hosts are listed")
	_, list := a.get("/")
	for i, want := range map[int]string{0: "node-001 cluster-1 rack-01", 9: "node-010 cluster-1 rack-01",
		10: "node-011 cluster-1 rack-02", 99: "node-100 cluster-1 rack-10", 100: "node-101 cluster-2 rack-01"} {
		l := all[i].Labels
		fixture.Equal(t, fmt.Sprint(l["instance"], " ", l["cluster"], " ", l["rack"]), want, "host %d is", i)
		if "http://"+all[i].Targets[0] != a.url || l["__scheme__"] != "http" {
			t.Errorf("host %d is at %s://%s, want %s", i, l["__scheme__"], all[i].Targets[0], a.url)
		}
		if status, body := a.get(l["__metrics_path__"]); status != http.StatusOK ||
			!strings.Contains(body, "\nnvgpu_up{") {
			t.Errorf("%s: %d", l["__metrics_path__"], status)
		}
		if page := "/hosts/" + l["instance"] + "/"; !strings.Contains(list, `<a href="`+page[1:]+`">`) {
			t.Errorf("the list of hosts lacks %s", page)
		} else if _, body := a.get(page); !strings.Contains(body, `<h1 data-field="host">`+l["instance"]+"<") {
			t.Errorf("%s is not that host's page", page)
		}
	}
	if status, _ := a.get("/hosts/node-102/metrics"); status != http.StatusNotFound {
		t.Errorf("a host that is not there answers with %d", status)
	}
	a.endsWell()
}

// TestFleetHostsDiffer: no two hosts have the same GPU, and a host of a fleet
// equals the one that an agent of its own would simulate.
func TestFleetHostsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	info := func(a *agent, path string) (line string) {
		eventually(t, "it says what GPU it has", func() bool {
			_, body := a.get(path)
			_, line, _ = strings.Cut(body, "\nnvgpu_info{")
			line, _, _ = strings.Cut(line, "\n")
			return line != ""
		})
		return line
	}
	a := start(t, "--demo=h100", "--demo.hosts=4", "--demo.seed=7").ready()
	for _, target := range a.targets() {
		seen[info(a, target.Labels["__metrics_path__"])] = true
	}
	fixture.Equal(t, len(seen), 4, "four hosts have … different GPUs")
	one := info(start(t, "--demo=h100", "--demo.seed=8").ready(), "/metrics")
	fixture.If(t, !seen[one], "the agent of the second host has %s, which no host of the fleet has: %v", one, seen)
}

// The configurations for Prometheus say the same of the agents, however it finds them.
func TestScrapeConfigsAgree(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("deploy/prometheus/*_sd.yml")
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	var first string
	for _, name := range append(files, "deploy/prometheus/kubernetes.yml") {
		text := content(t, name)
		var config map[string]any
		fixture.Must(t, yaml.Unmarshal([]byte(text), &config))
		jobs := config["scrape_configs"].([]any)
		job := jobs[0].(map[string]any)
		for key := range job {
			if strings.HasSuffix(key, "_sd_configs") || key == "relabel_configs" {
				delete(job, key)
			}
		}
		if said := fmt.Sprint(config); first == "" {
			first = said
		} else if said != first {
			t.Errorf("%s says %s, want %s", name, said, first)
		}
		for _, rule := range config["rule_files"].([]any) {
			fixture.Must(t, fixture.Error(os.Stat(filepath.Join("alerts", filepath.Base(rule.(string))))))
		}
	}
	fixture.If(t, !strings.Contains(first, "job_name:gpusteward") || !strings.Contains(first, "scrape_interval:15s") ||
		!strings.Contains(first, "sample_limit:"), "they say %s", first)
}
