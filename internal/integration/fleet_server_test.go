//go:build servers

package integration

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

// fleetHosts is the number of hosts that one Prometheus has to scrape within 15 s.
const fleetHosts = 200

// TestDemoFleet has a Prometheus with the shipped rules and the shipped configuration for HTTP discovery find
// and scrape a fleet. It runs alone, because it checks an interval.
func TestDemoFleet(t *testing.T) {
	installed(t, "prometheus")
	a := spawn(t, nil, "--demo=h100", fmt.Sprint("--demo.hosts=", fleetHosts)).ready()
	prometheus := startOverFleet(t, a.url)
	is := func(query, label string, want map[string]float64) func() bool {
		return func() bool { return maps.Equal(asksFor(t, prometheus, query, label), want) }
	}
	all := map[string]float64{"": fleetHosts}
	within(t, "all hosts are scraped", is(`sum(up{job="gpusteward"})`, "", all))
	within(t, "every host was scraped twice in 31 s", is(`count(sum_over_time(up{job="gpusteward"}[31s]) >= 2)`,
		"", all))
	fixture.AtMost(t, len(asksFor(t, prometheus, `scrape_duration_seconds{job="gpusteward"} > 7.5`, "instance")), 0,
		"these scrapes took half of an interval")

	// The bad driver on four hosts of each cluster.
	within(t, "each cluster has its alert",
		is(`count by (cluster) (ALERTS{alertname="FleetXIDBurst",alertstate="firing",xid="119"})`, "cluster",
			map[string]float64{"cluster-1": 1, "cluster-2": 1}))

	// The recorded values are those of the hosts, by rack.
	families := map[string]string{
		"cluster_rack:nvgpu_devices_expected:sum":                          "nvgpu_devices_expected",
		"cluster_rack:nvgpu_up:sum":                                        "nvgpu_up",
		"cluster_rack_name:nvgpu_info:count":                               "nvgpu_info",
		`cluster_rack_name_state:nvgpu_memory_bytes:sum{state="reserved"}`: `nvgpu_memory_bytes{state="reserved"`,
	}
	differs := ""
	defer func() {
		if t.Failed() {
			t.Log(differs)
		}
	}()
	within(t, "what is recorded is what the hosts say", func() bool {
		said := map[string]map[string]float64{}
		for _, target := range a.targets() {
			_, page := a.get(target.Labels["__metrics_path__"])
			all := parse(page)
			for recorded, family := range families {
				if said[recorded] == nil {
					said[recorded] = map[string]float64{}
				}
				name, label, _ := strings.Cut(family, "{")
				for _, v := range all.family(name, label) {
					said[recorded][target.Labels["cluster"]+" "+target.Labels["rack"]] += v
				}
			}
		}
		differs = ""
		for recorded, want := range said {
			if got := asksFor(t, prometheus, `label_join(`+recorded+`, "both", " ", "cluster", "rack")`,
				"both"); len(want) != fleetHosts/10 || !maps.Equal(got, want) {
				differs += fmt.Sprintf("%s: %v, the hosts say %v\n", recorded, got, want)
			}
		}
		return differs == ""
	})

	// Every rule has been evaluated by then, except for groups that wait for minutes.
	var answer struct {
		Data struct {
			Groups []struct {
				Name     string
				Interval float64 // seconds
				Rules    []struct{ Name, Health, LastError string }
			}
		}
	}
	fixture.Must(t, json.Unmarshal([]byte(fixture.Get(t, prometheus+"/api/v1/rules")), &answer))
	asked := 0
	for _, g := range answer.Data.Groups {
		for _, r := range g.Rules {
			if r.Health == "ok" {
				asked++
			} else if r.Health != "unknown" || g.Interval < 60 {
				t.Errorf("%s of %s is %s: %s", r.Name, g.Name, r.Health, r.LastError)
			}
		}
	}
	fixture.AtLeast(t, asked, 60, "rules were evaluated")
}
