package exporter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	prometheus "github.com/prometheus/client_golang/api/prometheus/v1"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/workloads"
	"gpusteward/health"
	"gpusteward/internal/wire"
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
	name   string
	status int
	paint  string
}{{"critical", 2, red}, {"down", 2, red}, {"warning", 1, yellow}, {"unknown", 3, yellow}, {"drained", 0, dim}, {"ok", 0, ""}}

// rank returns the place of a state among fleetStates.
func rank(state string) int {
	for i, s := range fleetStates {
		if s.name == state {
			return i
		}
	}
	return len(fleetStates)
}

// FleetOptions say what Survey asks and shows.
type FleetOptions struct {
	URL      string       // of the API of a Prometheus, or of what answers like one
	Client   *http.Client // nil: one without a certificate or a password
	Selector string       // matchers of the agents' series
	Timeout  time.Duration
	Most     int  // hosts and jobs that the text shows; 0: all
	JSON     bool // in place of the text
}

// Survey writes the verdict on all hosts, and returns the exit status for it. Its
// errors say what an operator can do.
func Survey(ctx context.Context, o FleetOptions, stdout io.Writer) (status int, err error) {
	f, err := o.ask(ctx)
	if err != nil {
		return 0, err
	}
	if status = fleetStates[rank(f.State)].status; status == 0 && f.Notes != nil {
		status = fleetStates[rank("unknown")].status // a part of the answer is missing
	}
	var text string
	if o.JSON {
		all, err := json.MarshalIndent(f, "", "  ")
		if err != nil {
			return 0, fmt.Errorf("write JSON: %w", err)
		}
		text = escaped(string(all)) + "\n"
	} else {
		st, _ := styleOf(stdout)
		text = st.fleet(f, o.Most)
	}
	_, err = io.WriteString(stdout, text)
	return status, err
}

// An origin is where a series comes from.
type origin struct{ cluster, host, workload string }

// A fleetReader makes a Fleet of series.
type fleetReader struct {
	time     time.Time
	hosts    map[origin]*fleetFacts
	jobs     map[origin]*FleetJob // the worst finding of a workload on a host
	users    map[origin]string
	together map[origin][]origin // by communicator, in place of the host: the workloads in it
}

// fleetFacts are what is known of a host.
type fleetFacts struct {
	FleetHost

	job      string // the label
	up       bool
	verdict  float64 // of NodeStatus; negative: there is none
	drained  bool
	severity map[string]string      // of firing alerts, by check
	failing  map[string]*FleetFault // by check
}

// host returns the entry of the host that a series is of.
func (r *fleetReader) host(m model.Metric) *fleetFacts {
	at := origin{cluster: string(m["cluster"]), host: string(m["instance"])}
	if r.hosts[at] == nil {
		r.hosts[at] = &fleetFacts{FleetHost: FleetHost{Host: at.host, Cluster: at.cluster}, up: true, verdict: -1,
			severity: map[string]string{}, failing: map[string]*FleetFault{}}
	}
	return r.hosts[at]
}

// suspect notes that a workload on a host hangs or lags, unless it is known to do worse.
func (r *fleetReader) suspect(m model.Metric, j FleetJob) {
	at := workOf(m)
	j.Workload, j.Cluster, j.Host, j.GPU = at.workload, at.cluster, at.host, number(string(m["gpu"]))
	if worse := r.jobs[at]; worse == nil || j.compare(*worse) < 0 {
		r.jobs[at] = &j
	}
}

func workOf(m model.Metric) origin {
	return origin{string(m["cluster"]), string(m["instance"]), string(m["workload"])}
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

// Labels by which a query keeps series apart. An agent that several servers
// scrape has several of each.
const (
	perHost = "max by (cluster, instance) "
	perWork = "max by (cluster, instance, workload, gpu, rank, reason, cause, evidence, where) "
)

// members are the workloads in communicators.
var members = "max by (cluster, instance, workload, communicator) (" + workloads.RankCollectives.Name + "{})"

// fleetQueries are the queries, without the matchers that select the agents' series, each
// with what is made of a series of the answer.
var fleetQueries = []struct {
	query string
	note  func(r *fleetReader, m model.Metric, v float64)
}{
	{"max by (job, cluster, rack, instance) (up{})", func(r *fleetReader, m model.Metric, v float64) {
		h := r.host(m)
		h.job, h.Rack, h.up = string(m["job"]), string(m["rack"]), v > 0
	}},
	{perHost + "(" + health.NodeStatus.Name + "{})", func(r *fleetReader, m model.Metric, v float64) { r.host(m).verdict = v }},
	{perHost + "(" + collectors.Drained.Name + "{} == 1)", func(r *fleetReader, m model.Metric, _ float64) {
		r.host(m).drained = true
	}},
	{perHost + "(" + collectors.Devices.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		r.host(m).GPUs = new(int(v))
	}},
	{perHost + "(" + collectors.DevicesExpected.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		r.host(m).Expected = new(int(v))
	}},
	{"max by (cluster, instance, alert, severity) (" + health.AlertFiring.Name + "{} > 0)",
		func(r *fleetReader, m model.Metric, _ float64) {
			h, severity := r.host(m), string(m["severity"])
			if c, err := health.Named(string(m["alert"])); err == nil && !c.OfWork() &&
				slices.Index(severities, severity) >= slices.Index(severities, h.severity[c.ID]) {
				h.severity[c.ID] = severity
			}
		}},
	{"max by (cluster, instance, check, gpu) (" + health.CheckFailing.Name + "{} == 1)",
		func(r *fleetReader, m model.Metric, _ float64) {
			h, check := r.host(m), string(m["check"])
			if c, err := health.Named(check); err == nil && c.OfWork() {
				return
			}
			if h.failing[check] == nil {
				h.failing[check] = &FleetFault{Check: check}
			}
			if gpu, err := strconv.Atoi(string(m["gpu"])); err == nil {
				h.failing[check].GPUs = append(h.failing[check].GPUs, gpu)
			}
		}},
	{perWork + "(" + workloads.JobHang.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		reason := string(m["reason"])
		r.suspect(m, FleetJob{Hang: &Hang{Seconds: v, Rank: string(m["rank"]), Reason: reason,
			What: cmp.Or(wire.HangReasons[reason], reason), Where: string(m["where"])}})
	}},
	{perWork + "(" + workloads.JobStraggler.Name + "{} > 0)", func(r *fleetReader, m model.Metric, v float64) {
		cause := string(m["cause"])
		r.suspect(m, FleetJob{Straggler: &Straggler{Ratio: v, Rank: string(m["rank"]), Cause: cause,
			What: cmp.Or(wire.StragglerCauses[cause], cause)}})
	}},
	{perWork + `(ALERTS{alertname="JobStraggler",alertstate="firing"})`, func(r *fleetReader, m model.Metric, _ float64) {
		r.suspect(m, FleetJob{Straggler: &Straggler{Rank: string(m["rank"])}})
	}},
	{perWork + "(" + workloads.JobSlowdown.Name + "{})", func(r *fleetReader, m model.Metric, v float64) {
		cause := string(m["cause"])
		r.suspect(m, FleetJob{Slow: &Slow{Ratio: v, Cause: cause, What: cmp.Or(wire.SlowCauses[cause], cause),
			Evidence: string(m["evidence"])}})
	}},
	{"max by (cluster, instance, workload, slurm_user) (last_over_time(" + workloads.WorkloadInfo.Name + `{slurm_user!=""}[5m]))`,
		func(r *fleetReader, m model.Metric, _ float64) { r.users[workOf(m)] = string(m["slurm_user"]) }},
	{members + " and on (cluster, communicator) (" + members + " and on (cluster, instance, workload) (" +
		workloads.JobHang.Name + "{} or " + workloads.JobStraggler.Name + "{} or " + workloads.JobSlowdown.Name + "{}))",
		func(r *fleetReader, m model.Metric, _ float64) {
			in := origin{cluster: string(m["cluster"]), host: string(m["communicator"])}
			r.together[in] = append(r.together[in], workOf(m))
		}},
}

// selecting adds matchers to each selector of a query.
func selecting(query, matchers string) string {
	matchers = strings.Trim(matchers, "{} ")
	return strings.NewReplacer("{}", "{"+matchers+"}", `"}`, `",`+matchers+"}").Replace(query)
}

// questions is how many queries a server works on at once.
const questions = 4

// ask asks all queries.
func (o FleetOptions) ask(ctx context.Context) (f Fleet, err error) {
	if err := whole(o.URL); err != nil {
		return f, fmt.Errorf("--url=%s: %w", o.URL, err)
	}
	web := http.Client{Transport: http.DefaultTransport}
	if o.Client != nil {
		web = *o.Client
	}
	web.Transport = bounded{web.Transport}
	client, err := api.NewClient(api.Config{Address: o.URL, Client: &web})
	if err != nil {
		return f, fmt.Errorf("--url: %w", err)
	}
	server, answers := prometheus.NewAPI(client), make([]model.Vector, len(fleetQueries))
	warnings := make([]prometheus.Warnings, len(fleetQueries))
	var targets []prometheus.ActiveTarget
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(questions)
	for i, q := range fleetQueries {
		group.Go(func() error {
			limited, cancel := context.WithTimeout(within, o.Timeout)
			defer cancel()
			v, warned, _, err := server.Query(limited, selecting(q.query, o.Selector), time.Time{},
				prometheus.WithTimeout(o.Timeout))
			if err != nil {
				return err
			}
			warnings[i] = warned
			if answers[i], _ = v.(model.Vector); answers[i] == nil {
				return &prometheus.Error{Type: prometheus.ErrBadResponse, Msg: "no vector"}
			}
			return nil
		})
	}
	group.Go(func() error {
		limited, cancel := context.WithTimeout(within, o.Timeout)
		defer cancel()
		targets = activeTargets(limited, client)
		return nil
	})
	if err := group.Wait(); err != nil {
		return f, o.explain(err)
	}
	r := fleetReader{hosts: map[origin]*fleetFacts{}, jobs: map[origin]*FleetJob{}, users: map[origin]string{},
		together: map[origin][]origin{}}
	for i, q := range fleetQueries {
		for _, s := range answers[i] {
			r.time = s.Timestamp.Time()
			q.note(&r, s.Metric, float64(s.Value))
		}
	}
	if len(r.hosts) == 0 {
		return f, fmt.Errorf("%s has no host: no series is like up{%s}. Is that the Prometheus that scrapes the agents, with "+
			"a job_name of gpusteward as in /usr/share/gpusteward/prometheus? --selector names other labels", o.name(), o.Selector)
	}
	return r.fleet(targets, slices.Concat(warnings...)), nil
}

// A bounded transport fails if an answer is too large.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		answer.Body = http.MaxBytesReader(nil, answer.Body, maxAnswer)
	}
	return answer, err
}

// name returns the URL without a password.
func (o FleetOptions) name() string {
	if u, err := url.Parse(o.URL); err == nil {
		return printable(u.Redacted())
	}
	return printable(o.URL)
}

// explain adds to an error what to do about it.
func (o FleetOptions) explain(err error) error {
	var said *prometheus.Error
	if errors.As(err, &said) {
		err = errors.New(printable(fmt.Sprintf("%.200s", strings.TrimSpace(said.Msg+" "+said.Detail))))
	}
	fixed := remedied(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), said != nil && said.Type == prometheus.ErrTimeout:
		return fmt.Errorf("%s does not answer within %v: --timeout allows more", o.name(), o.Timeout)
	case errors.As(err, new(*http.MaxBytesError)):
		return fmt.Errorf("%s has an answer of more than %d MiB: --selector narrows it, as in --selector='job=\"gpusteward\","+
			"cluster=\"a\"'", o.name(), maxAnswer>>20)
	case said == nil:
		return fmt.Errorf("no Prometheus answers at %s: %w", o.name(), fixed)
	case fixed.Error() != err.Error(), said.Type == prometheus.ErrExec, said.Type == prometheus.ErrServer:
		return fmt.Errorf("%s cannot answer: %w", o.name(), fixed)
	case said.Type == prometheus.ErrBadData:
		return fmt.Errorf("%s refuses a query: %w: is --selector=%s right?", o.name(), err, printable(o.Selector))
	case strings.HasSuffix(said.Msg, " 401"), strings.HasSuffix(said.Msg, " 403"):
		return fmt.Errorf("%s requires authentication: %s", o.name(), authenticate)
	}
	return fmt.Errorf("%s does not answer as Prometheus does: %w: is --url the address of its API, without /api/v1? That "+
		"of Mimir ends with /prometheus, that of VictoriaMetrics's cluster with /select/0/prometheus", o.name(), err)
}

// activeTargets returns the targets of the server; nil if it has none, as Mimir.
func activeTargets(ctx context.Context, client api.Client) []prometheus.ActiveTarget {
	u := client.URL("/api/v1/targets", nil)
	u.RawQuery = "state=active"
	r, err := http.NewRequest(http.MethodGet, u.String(), nil)
	if err != nil {
		return nil
	}
	_, text, err := client.Do(ctx, r) //nolint:bodyclose // it reads the body and closes it
	var answer struct{ Data prometheus.TargetsResult }
	if err != nil || json.Unmarshal(text, &answer) != nil {
		return nil
	}
	return answer.Data.Active
}

// fleet returns what the series say.
func (r *fleetReader) fleet(targets []prometheus.ActiveTarget, warnings prometheus.Warnings) Fleet {
	f := Fleet{Time: r.time.UTC(), State: "ok"}
	pages := map[[2]string]string{} // by job and instance
	for _, t := range targets {
		u, err := url.Parse(t.ScrapeURL)
		if err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.HasSuffix(u.Path, "/metrics") {
			u.User, u.RawQuery, u.Path = nil, "", strings.TrimSuffix(u.Path, "metrics")
			pages[[2]string{string(t.Labels["job"]), string(t.Labels["instance"])}] = u.String()
		}
	}
	for _, h := range r.hosts {
		h.Page = pages[[2]string{h.job, h.Host}]
		if _, port, ok := strings.Cut(h.Host, ":"); ok && h.Page == "" && number(port) > 0 {
			h.Page = "http://" + h.Host + "/"
		}
		h.judge()
		if rank(h.State) < rank(f.State) {
			f.State = h.State
		}
		f.Hosts = append(f.Hosts, h.FleetHost)
	}
	slices.SortFunc(f.Hosts, func(a, b FleetHost) int {
		return cmp.Or(cmp.Compare(rank(a.State), rank(b.State)), -cmp.Compare(a.worst(), b.worst()),
			-cmp.Compare(a.missing(), b.missing()), cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Host, b.Host))
	})
	f.Jobs = r.grouped()
	slices.Sort(warnings)
	f.Notes = slices.Compact(warnings)
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
