package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/exporter"
	"gpusteward/internal/config"
)

// A simulated fleet consists of clusters, and a cluster of racks.
const (
	maxHosts       = 1000
	hostsOfCluster = 100
	hostsOfRack    = 10
)

// ailments are additional faults of some hosts of each cluster, by their places
// in it. They give rules over many hosts something to find.
var ailments = []struct {
	places []int
	fault  scenarios.Fault
}{
	// a bad driver on some hosts
	{[]int{3, 33, 63, 93}, scenarios.Fault{Kind: "xid", Code: 119, At: since(10 * time.Second),
		Every: since(10 * time.Minute)}},
	// a rack with failing cooling
	{[]int{21, 24, 27}, scenarios.Fault{Kind: "thermal", At: since(20 * time.Second)}},
	{[]int{45}, scenarios.Fault{Kind: "lost", At: since(20 * time.Second)}},
	{[]int{56}, scenarios.Fault{Kind: "wedge", At: since(3 * time.Minute), For: since(2 * time.Minute),
		Every: since(10 * time.Minute)}},
	{[]int{78}, scenarios.Fault{Kind: "driver_gone", At: since(6 * time.Minute), For: since(time.Minute)}},
}

func since(d time.Duration) scenarios.Duration { return scenarios.Duration(d) }

// A fleet is many simulated hosts in one process. Each is served below
// /hosts/NAME/ as an agent serves its host.
type fleet []*observedHost

// assembleFleet assembles f.demoHosts simulated hosts. A fleet does not reload
// c and has no control socket.
func assembleFleet(f flags, conf *config.File, c config.Config) (a assembly, err error) {
	hosts, err := newFleet(f, conf, c)
	if err != nil {
		return a, fmt.Errorf("--demo.hosts=%d: %w", f.demoHosts, err)
	}
	a = assembly{starts: "gpusteward starts", about: []any{"hosts", len(hosts)}}
	for _, n := range hosts {
		a.tasks = append(a.tasks, n.run)
	}
	a.tasks = append(a.tasks, func(ctx context.Context) error { return exporter.Listen(ctx, hosts.handler(), f.web, conf.Log) })
	return a, nil
}

// newFleet returns the hosts that f describes. They differ by their seeds.
func newFleet(f flags, conf *config.File, c config.Config) (fleet, error) {
	switch {
	case !f.demoGiven:
		return nil, misconfigured{errors.New("simulated hosts require --demo[=SCENARIO]")}
	case f.demoHosts < 1 || f.demoHosts > maxHosts:
		return nil, misconfigured{fmt.Errorf("the number of hosts is 1 to %d", maxHosts)}
	}
	scenario, err := loadScenario(f.demo)
	if err != nil {
		return nil, err
	}
	conf.Log.Warn("these hosts are simulated", "hosts", f.demoHosts, "scenario", scenario.Name, "doc", scenario.Doc)
	// The readings are as rare as suits scrapes every 15 s, and there is no
	// broker.
	c.Collectors.Fast, c.Collectors.Medium = max(c.Collectors.Fast, 10*time.Second),
		max(c.Collectors.Medium, 15*time.Second)
	c.Collectors.Slow, c.Enforcer.Enabled = max(c.Collectors.Slow, c.Collectors.Medium), false
	var all fleet
	for i := range f.demoHosts {
		name := fmt.Sprintf("node-%03d", i+1)
		// The events of so many hosts are in their journals.
		m := bareHostConfig(f, c, name, slog.New(slog.DiscardHandler))
		m.instance = name // as the targets below say
		m.options.Pooled, m.sharing = true, f.demoHosts
		s := scenario
		s.Faults = slices.Clone(s.Faults)
		for _, a := range ailments {
			if slices.Contains(a.places, i%hostsOfCluster) {
				s.Faults = append(s.Faults, a.fault)
			}
		}
		if err := m.simulated(f, s, f.demoSeed+uint64(i)); err != nil {
			return nil, err
		}
		n, err := newObservedHost(f, c, m, conf.Samples)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
	}
	return all, nil
}

// handler serves the fleet: each host's server, and the list of hosts for
// Prometheus and for people.
func (all fleet) handler() http.Handler {
	mux := http.NewServeMux()
	for _, n := range all {
		mux.Handle("/hosts/"+n.name+"/", http.StripPrefix("/hosts/"+n.name, n.server))
	}
	mux.Handle("GET /{$}", &exporter.FleetPage{From: func() string { return "all of them simulated" }, Ask: all.verdict})
	mux.Handle("GET /page/", all[0].server) // its style
	mux.HandleFunc("GET /sd", all.targets)
	mux.HandleFunc("GET /-/healthy", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "gpusteward is healthy.")
	})
	mux.HandleFunc("GET /-/ready", all.ready)
	return mux
}

func clusterOf(host int) string { return fmt.Sprintf("cluster-%d", host/hostsOfCluster+1) }
func rackOf(host int) string    { return fmt.Sprintf("rack-%02d", host%hostsOfCluster/hostsOfRack+1) }

// A targetGroup is a group of Prometheus's HTTP service discovery.
type targetGroup struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// targets lists the hosts at the address of the request.
func (all fleet) targets(w http.ResponseWriter, r *http.Request) {
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	var groups []targetGroup
	for i, n := range all {
		groups = append(groups, targetGroup{[]string{r.Host}, map[string]string{
			"__scheme__": scheme, "__metrics_path__": "/hosts/" + n.name + "/metrics", "instance": n.name,
			"cluster": clusterOf(i), "rack": rackOf(i),
		}})
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(groups) // the client has left: nobody to tell
}

// verdict returns the verdicts on the hosts.
func (all fleet) verdict(context.Context) (exporter.Fleet, error) {
	var hosts []exporter.FleetHost
	for i, n := range all {
		h := n.server.FleetHost("hosts/" + n.name + "/")
		h.Cluster, h.Rack = clusterOf(i), rackOf(i)
		hosts = append(hosts, h)
	}
	return exporter.NewFleet(time.Now(), hosts), nil
}

// ready answers whether all hosts are ready.
func (all fleet) ready(w http.ResponseWriter, _ *http.Request) {
	for _, n := range all {
		if err := n.host.Ready(); err != nil {
			http.Error(w, fmt.Sprintf("gpusteward is not ready: %s: %v", n.name, err), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "gpusteward is ready.")
}
