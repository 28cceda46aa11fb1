package exporter

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"gpusteward/collectors"
)

// A Fleet is what a Prometheus says of the hosts that it scrapes.
type Fleet struct {
	Time  time.Time   `json:"time"`
	State string      `json:"state"`          // of the worst host
	Hosts []FleetHost `json:"hosts"`          // the worst first
	Jobs  []FleetJob  `json:"jobs,omitempty"` // that hang or lag, the worst first
	Notes []string    `json:"notes,omitempty"`
}

// A FleetHost is the verdict on a host.
type FleetHost struct {
	Host     string       `json:"host"` // the label instance
	Cluster  string       `json:"cluster,omitempty"`
	Rack     string       `json:"rack,omitempty"`
	State    string       `json:"state"`
	GPUs     *int         `json:"gpus,omitempty"`
	Expected *int         `json:"gpus_expected,omitempty"`
	Faults   []FleetFault `json:"faults,omitempty"` // the worst first
	Page     string       `json:"page,omitempty"`   // URL of its live page
}

// A FleetFault is a failing check of a host.
type FleetFault struct {
	Check    string `json:"check"`
	Severity string `json:"severity,omitempty"` // of its alert; empty: it alerts nobody
	GPUs     []int  `json:"gpus,omitempty"`     // empty: the host itself
}

// A FleetJob is a job that hangs, waits for a rank or is slow, on one host or several.
type FleetJob struct {
	Workload  string     `json:"workload"`
	User      string     `json:"user,omitempty"`
	Cluster   string     `json:"cluster,omitempty"`
	Hosts     []string   `json:"hosts"`
	Host      string     `json:"host"` // of the process for which it waits, with its GPU
	GPU       int        `json:"gpu"`
	Hang      *Hang      `json:"hang,omitempty"`
	Straggler *Straggler `json:"straggler,omitempty"`
	Slow      *Slow      `json:"slow,omitempty"`
}

// fleetStates are the states of hosts, the worst first, each with the exit status that it
// causes: as in gpusteward check. A host that does not answer is critical, as in the
// shipped rules. One that is drained is as somebody wants it.
var fleetStates = []struct {
	name, title string
	status      int
	severity    string
}{
	{"critical", "Critical", 2, "critical"}, {"down", "Down", 2, "critical"}, {"warning", "Warning", 1, "warning"},
	{"unknown", "Unknown", 3, "warning"}, {"drained", "Drained", 0, "info"}, {"ok", "OK", 0, ""},
}

// rank returns the place of a state among fleetStates.
func rank(state string) int {
	for i, s := range fleetStates {
		if s.name == state {
			return i
		}
	}
	return len(fleetStates)
}

// compare orders jobs, the worst first.
func (j FleetJob) compare(than FleetJob) int {
	weight := func(j FleetJob) (kind int, blames bool, much float64) {
		switch {
		case j.Hang != nil:
			return 3, !slices.Contains([]string{"elsewhere", "unknown"}, j.Hang.Reason), j.Hang.Seconds
		case j.Straggler != nil && j.Straggler.Ratio == 0: // of all its hosts
			return 2, true, 0
		case j.Straggler != nil:
			return 1, true, j.Straggler.Ratio
		}
		return 0, true, j.Slow.Ratio
	}
	kind, blames, much := weight(j)
	k, b, m := weight(than)
	return cmp.Or(cmp.Compare(k, kind), -cmp.Compare(collectors.Bool(blames), collectors.Bool(b)), cmp.Compare(m, much),
		cmp.Compare(j.Cluster+j.Host+j.Workload, than.Cluster+than.Host+than.Workload))
}

// NewFleet returns the verdict on hosts.
func NewFleet(at time.Time, hosts []FleetHost) Fleet {
	f := Fleet{Time: at.UTC(), State: "ok", Hosts: hosts}
	for _, h := range f.Hosts {
		if rank(h.State) < rank(f.State) {
			f.State = h.State
		}
	}
	slices.SortFunc(f.Hosts, func(a, b FleetHost) int {
		return cmp.Or(cmp.Compare(rank(a.State), rank(b.State)), -cmp.Compare(a.worst(), b.worst()),
			-cmp.Compare(a.missing(), b.missing()), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Host, b.Host))
	})
	return f
}

// fleet returns what the series say.
func (r *fleetReader) fleet(targets []scrapeTarget) Fleet {
	pages := map[[2]string]string{} // by job and instance
	for _, t := range targets {
		u, err := url.Parse(t.ScrapeURL)
		if err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.HasSuffix(u.Path, "/metrics") {
			u.User, u.RawQuery, u.Path = nil, "", strings.TrimSuffix(u.Path, "metrics")
			pages[[2]string{t.Labels["job"], t.Labels["instance"]}] = u.String()
		}
	}
	var hosts []FleetHost
	for _, h := range r.hosts {
		h.Page = pages[[2]string{h.job, h.Host}]
		if _, port, ok := strings.Cut(h.Host, ":"); ok && h.Page == "" && number(port) > 0 {
			h.Page = "http://" + h.Host + "/"
		}
		h.judge()
		hosts = append(hosts, h.FleetHost)
	}
	f := NewFleet(r.time, hosts)
	f.Jobs = r.grouped()
	slices.Sort(r.warnings)
	f.Notes = slices.Compact(r.warnings)
	return f
}

// judge sets the state of the host and its faults: those that alert somebody, or
// all if none does.
func (h *fleetFacts) judge() {
	switch {
	case !h.up:
		h.State, h.GPUs = "down", nil
		return
	case h.drained:
		h.State = "drained"
		return
	case h.verdict >= 2:
		h.State = "critical"
	case h.verdict >= 1:
		h.State = "warning"
	case h.verdict == 0:
		h.State = "ok"
		return
	default:
		h.State = "unknown"
	}
	for check, f := range h.failing {
		if f.Severity = h.severity[check]; f.Severity != "" || len(h.severity) == 0 {
			slices.Sort(f.GPUs)
			h.Faults = append(h.Faults, *f)
		}
	}
	slices.SortFunc(h.Faults, func(a, b FleetFault) int {
		return cmp.Or(-cmp.Compare(a.weight(), b.weight()), cmp.Compare(a.Check, b.Check))
	})
}

// clusters says whether the hosts are of more than one cluster.
func (f Fleet) clusters() bool {
	return slices.ContainsFunc(f.Hosts, func(h FleetHost) bool { return h.Cluster != f.Hosts[0].Cluster })
}

// count returns the number of hosts in each state, and of GPUs.
func (f Fleet) count() (in map[string]int, listed, expected int) {
	in = map[string]int{}
	for _, h := range f.Hosts {
		in[h.State]++
		if h.Expected != nil {
			expected += *h.Expected
			if h.GPUs != nil {
				listed += *h.GPUs
			}
		}
	}
	return in, listed, expected
}

// name returns the host's name, with its cluster if there are several.
func (h FleetHost) name(clusters bool) string {
	if clusters {
		return h.Cluster + "/" + h.Host
	}
	return h.Host
}

// gpus returns how many GPUs the host lists, of how many; "" if that is unknown.
func (h FleetHost) gpus() string {
	if h.GPUs == nil || h.Expected == nil {
		return ""
	}
	return fmt.Sprintf("%d/%d", *h.GPUs, *h.Expected)
}

// said returns what is wrong with the host, and how bad that is.
func (h FleetHost) said() (severity, text string) {
	severity = fleetStates[rank(h.State)].severity
	switch {
	case h.State == "down":
		return severity, "The agent does not answer: its GPUs are not watched."
	case len(h.Faults) > 0:
		var all []string
		for _, f := range h.Faults {
			text := strings.TrimSpace(f.Severity + " " + f.Check)
			if f.GPUs != nil {
				text += " on GPU " + ranges(f.GPUs)
			}
			all = append(all, text)
		}
		return cmp.Or(h.Faults[0].Severity, severity), strings.Join(all, "; ")
	case h.State == "unknown":
		return severity, "The agent answers, but a part of it has no data."
	}
	return severity, ""
}

// name returns the job's name, with its user.
func (j FleetJob) name() string {
	if j.User != "" {
		return j.Workload + " (" + j.User + ")"
	}
	return j.Workload
}

// on says on which hosts the job runs.
func (j FleetJob) on() string {
	if len(j.Hosts) > 1 {
		return plural(len(j.Hosts), "host")
	}
	return j.Host
}

// said returns what the job waits for, and how bad that is.
func (j FleetJob) said() (severity, text string) {
	place := onGPU(j.GPU)
	if len(j.Hosts) > 1 {
		place += " of " + j.Host
	}
	switch {
	case j.Hang != nil:
		return "critical", j.Hang.text(place)
	case j.Straggler != nil:
		return "warning", j.Straggler.text(place)
	}
	return "warning", j.Slow.text(place)
}

// weight is greater for worse faults.
func (f FleetFault) weight() int { return slices.Index(severities, f.Severity) }

// worst is the weight of the worst fault.
func (h FleetHost) worst() int {
	if len(h.Faults) == 0 {
		return -1
	}
	return h.Faults[0].weight()
}

// missing is the number of GPUs that the host should have and does not list.
func (h FleetHost) missing() int {
	if h.GPUs == nil || h.Expected == nil {
		return 0
	}
	return *h.Expected - *h.GPUs
}

// grouped returns the jobs, the worst first. Workloads with a communicator in common
// are one, on however many hosts.
func (r *fleetReader) grouped() (all []FleetJob) {
	groups := map[origin]*[]origin{}
	group := func(at origin) *[]origin {
		if groups[at] == nil {
			groups[at] = &[]origin{at}
		}
		return groups[at]
	}
	for _, in := range r.together {
		first := group(in[0])
		for _, at := range in[1:] {
			if more := group(at); more != first {
				*first = append(*first, *more...)
				for _, m := range *more {
					groups[m] = first
				}
			}
		}
	}
	done := map[*[]origin]bool{}
	for at, j := range r.jobs {
		if done[group(at)] {
			continue
		}
		done[group(at)] = true
		worst := *j
		for _, at := range *group(at) {
			worst.Hosts = append(worst.Hosts, at.host)
			if j := r.jobs[at]; j != nil && j.compare(worst) < 0 {
				hosts := worst.Hosts
				worst, worst.Hosts = *j, hosts
			}
		}
		slices.Sort(worst.Hosts)
		worst.Hosts = slices.Compact(worst.Hosts)
		worst.User = r.users[origin{worst.Cluster, worst.Host, worst.Workload}]
		all = append(all, worst)
	}
	slices.SortFunc(all, FleetJob.compare)
	return all
}
