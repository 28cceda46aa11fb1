package exporter

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/api"
	"github.com/prometheus/common/model"
	"golang.org/x/sync/errgroup"
)

// FleetOptions say what Survey asks and shows.
type FleetOptions struct {
	URL      string                       // of the API of a Prometheus, or of what answers like one
	Client   func() (*http.Client, error) // nil, or a nil client: one without a certificate or a password
	Selector string                       // matchers of the agents' series
	Timeout  time.Duration                // of each query
	Most     int                          // hosts and jobs that the text shows; 0: all
	JSON     bool                         // in place of the text
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

// selecting adds matchers to each selector of a query.
func selecting(query, matchers, more string) string {
	matchers = strings.Trim(matchers, "{} ")
	if more != "" {
		matchers = strings.TrimSuffix(matchers, ",") + "," + more
	}
	return strings.NewReplacer("{}", "{"+matchers+"}", `"}`, `",`+matchers+"}").Replace(query)
}

// questions is how many queries a server works on at once.
const questions = 4

// linksTime is the time that the list of targets may take, for the links alone.
const linksTime = 2 * time.Second

// ask asks all queries.
func (o FleetOptions) ask(ctx context.Context) (f Fleet, err error) {
	if err := whole(o.URL); err != nil {
		return f, fmt.Errorf("--url=%s: %w", o.URL, err)
	}
	web := http.Client{Transport: http.DefaultTransport}
	if o.Client != nil {
		c, err := o.Client()
		if err != nil {
			return f, err
		}
		if c != nil {
			web = *c
		}
	}
	web.Transport = bounded{web.Transport}
	client, err := api.NewClient(api.Config{Address: o.URL, Client: &web})
	if err != nil {
		return f, fmt.Errorf("--url: %w", err)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	targets := make(chan []scrapeTarget, 1)
	go func() {
		limited, cancel := context.WithTimeout(ctx, min(o.Timeout, linksTime))
		defer cancel()
		targets <- activeTargets(limited, client)
	}()
	r := fleetReader{hosts: map[origin]*fleetFacts{}, jobs: map[origin]*FleetJob{}, users: map[origin]string{},
		together: map[origin][]origin{}}
	err = o.answer(ctx, client, fleetQueries, "", &r)
	if ill := r.ill(); err == nil && ill != "" {
		err = o.answer(ctx, client, hostQueries, ill, &r)
	}
	if err == nil && len(r.jobs) > 0 {
		err = o.answer(ctx, client, jobQueries, "", &r)
	}
	if err != nil {
		return f, o.explain(err)
	}
	if len(r.hosts) == 0 {
		return f, fmt.Errorf("%s has no host: no series is like up{%s}. Is that the Prometheus that scrapes the agents, with "+
			"a job_name of gpusteward as in /usr/share/gpusteward/prometheus? --selector names other labels", o.name(), o.Selector)
	}
	return r.fleet(<-targets), nil
}

// answer asks queries at once, with additional matchers, and notes the answers.
func (o FleetOptions) answer(ctx context.Context, client api.Client, queries []fleetQuery, matchers string,
	r *fleetReader) error {
	answers, warnings := make([]model.Vector, len(queries)), make([][]string, len(queries))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(questions)
	for i, q := range queries {
		group.Go(func() error {
			limited, cancel := context.WithTimeout(ctx, o.Timeout)
			defer cancel()
			var err error
			answers[i], warnings[i], err = queried(limited, client, selecting(q.query, o.Selector, matchers), o.Timeout)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, q := range queries {
		r.warnings = append(r.warnings, warnings[i]...)
		for _, s := range answers[i] {
			r.time = s.Timestamp.Time()
			q.note(r, s.Metric, float64(s.Value))
		}
	}
	return nil
}

// mostNamed is the most hosts that a query names, so that it is not too long.
const mostNamed = 200

// ill returns the matcher of hosts that answer and are not well; empty: there are none.
func (r *fleetReader) ill() string {
	var names []string
	for _, h := range r.hosts {
		if h.up && !h.drained && h.verdict != 0 {
			names = append(names, regexp.QuoteMeta(h.Host))
		}
	}
	switch {
	case len(names) == 0:
		return ""
	case len(names) > mostNamed:
		return `instance!=""`
	}
	slices.Sort(names)
	return "instance=~" + strconv.Quote(strings.Join(slices.Compact(names), "|"))
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
	var said *refusal
	if errors.As(err, &said) {
		err = errors.New(printable(fmt.Sprintf("%.200s", said.Error())))
	}
	fixed := remedied(err)
	switch {
	case errors.Is(err, context.DeadlineExceeded), said != nil && said.kind == "timeout":
		return fmt.Errorf("%s does not answer within %v: --timeout allows more", o.name(), o.Timeout)
	case errors.As(err, new(*http.MaxBytesError)):
		return fmt.Errorf("%s has an answer of more than %d MiB: --selector narrows it, as in --selector='job=\"gpusteward\","+
			"cluster=\"a\"'", o.name(), maxAnswer>>20)
	case said == nil:
		return fmt.Errorf("no Prometheus answers at %s: %w", o.name(), fixed)
	case fixed.Error() != err.Error(), said.kind == "execution", said.kind == "server":
		return fmt.Errorf("%s cannot answer: %w", o.name(), fixed)
	case said.kind == "bad_data":
		return fmt.Errorf("%s refuses a query: %w: is --selector=%s right?", o.name(), err, printable(o.Selector))
	case strings.HasSuffix(said.said, " 401"), strings.HasSuffix(said.said, " 403"):
		return fmt.Errorf("%s requires authentication: %s", o.name(), authenticate)
	}
	return fmt.Errorf("%s does not answer as Prometheus does: %w: is --url the address of its API, without /api/v1? That "+
		"of Mimir ends with /prometheus, that of VictoriaMetrics's cluster with /select/0/prometheus", o.name(), err)
}
