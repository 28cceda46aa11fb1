package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/exporter"
)

// surveyFlags are the flags of gpusteward fleet.
type surveyFlags struct {
	exporter.FleetOptions
	http   clientFile
	format string
}

// surveyLeast is the shortest time that a query may have.
const surveyLeast = 100 * time.Millisecond

func surveyCommand(app *kingpin.Application) (*kingpin.CmdClause, *surveyFlags) {
	s := new(surveyFlags)
	cmd := app.Command("fleet", "Show the health of all hosts, the worst first, and the jobs that hang or lag, from the "+
		"Prometheus that scrapes their agents, or from Thanos, Mimir or VictoriaMetrics. The exit status is 0 if all hosts are "+
		"healthy or drained, 1 if the worst has a warning, 2 if one is critical or does not answer, and 3 if the health of one is "+
		"unknown, if there is no answer, or for a usage error. Faults of workloads and tenants do not affect it.")
	cmd.Flag("url", "Address of the server's API, such as http://prometheus:9090 or https://mimir/prometheus.").
		StringVar(&s.URL)
	s.http.flag(cmd)
	cmd.Flag("selector", "Matchers of the hosts' series, as in 'job=\"gpusteward\",cluster=\"a\"'.").
		Default(`job="gpusteward"`).StringVar(&s.Selector)
	cmd.Flag("most", "Number of hosts and of jobs to show as text; 0 is all. Healthy hosts are only counted.").
		Default("20").IntVar(&s.Most)
	cmd.Flag("timeout", "Time limit of each query.").Default("10s").DurationVar(&s.Timeout)
	cmd.Flag("format", "Format: text or json.").Default("text").EnumVar(&s.format, "text", "json")
	cmd.Validate(func(*kingpin.CmdClause) error { return s.validate() })
	return cmd, s
}

func (s *surveyFlags) validate() error {
	switch {
	case s.URL == "":
		return errors.New("--url is missing: it takes the address of the Prometheus that scrapes the agents, such as " +
			"http://prometheus:9090")
	case s.Timeout < surveyLeast:
		return fmt.Errorf("--timeout=%v is too short; at least %v", s.Timeout, surveyLeast)
	case s.Most < 0:
		return fmt.Errorf("--most=%d is negative", s.Most)
	}
	return nil
}

// run shows the fleet and returns the exit status.
func (s *surveyFlags) run(ctx context.Context, stdout, stderr io.Writer) int {
	s.Client, s.JSON = s.http.client, s.format == "json"
	status, err := exporter.Survey(ctx, s.FleetOptions, stdout)
	if err != nil {
		fmt.Fprintln(stderr, err)
		return checkMistaken
	}
	return status
}
