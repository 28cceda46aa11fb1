package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/host"
	"gpusteward/exporter"
	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/health/journal"
	"gpusteward/health/notifier"
	"gpusteward/internal/config"
)

// judgement is the agent's health: the judge, the journal and the notifier of
// Alertmanagers.
type judgement struct {
	monitor  *health.Monitor
	journal  *journal.Journal
	notifier *notifier.Notifier
	node     string // name of the host
	log      *slog.Logger
}

// newJudgement returns the judgement of the host m.
func newJudgement(f flags, c config.Config, m *hostConfig, h *collectors.Host) (*judgement, error) {
	j := &judgement{log: m.options.Log}
	boot, err := m.options.Kernel.BootID()
	if err != nil {
		j.log.Warn("a reboot cannot be distinguished from a restart of the agent: latched faults stay", "err", err)
	}
	dir := f.stateDir
	if !m.real {
		dir = "" // a simulated host has no state on disk
	}
	if j.journal, _, err = journal.Open(journal.Options{Dir: dir, Node: m.name, Boot: boot, Log: j.log}); err != nil {
		return nil, fmt.Errorf("--state.dir=%s: %w", dir, err)
	}
	j.node = m.name
	o, err := j.receivers(c)
	if err != nil {
		return nil, fmt.Errorf("health.%w", err)
	}
	o.Spans = m.spans
	if j.notifier, err = notifier.New(o); err != nil {
		return nil, fmt.Errorf("health.%w", err)
	}
	judged := m.judged(h, dir, boot)
	judged.Record, judged.Tell, judged.Forget = j.journal.Append, j.notifier.Tell, h.Forget
	judged.Lost = func() map[string]float64 {
		return map[string]float64{"journal": float64(j.journal.Lost() + j.journal.Late()),
			"kernel_log": float64(m.missed())}
	}
	j.monitor = health.NewMonitor(judged, c.Health.Settings())
	return j, nil
}

// judged returns the host m as health sees it in every role, with its state in dir.
func (m *hostConfig) judged(h *collectors.Host, dir, boot string) health.Options {
	return health.Options{
		Samples:    h.Samples,
		Ready:      h.Ready,
		Beat:       h.Interval,
		Kernel:     m.kernelLog,
		DriverTask: m.options.Kernel.DriverTask,
		Process:    m.options.Processes.Recall,
		Stays:      h.Stays,
		Self:       os.Getpid(),
		Foreign:    m.real && !host.InitialPIDs(),
		Store:      health.Store{Dir: dir},
		Boot:       boot,
		Node:       m.name,
		Simulated:  !m.real,
		Sharing:    m.sharing,
		Log:        m.options.Log,
	}
}

// receivers returns the options of the notifier.
func (j *judgement) receivers(c config.Config) (notifier.Options, error) {
	o, err := c.Health.Notifier()
	o.Log, o.Page = j.log, c.Web.External(j.node)
	return o, err
}

// configure applies another configuration. If that fails, the previous one
// stays in force.
func (j *judgement) configure(c config.Config) {
	j.monitor.Configure(c.Health.Settings())
	o, err := j.receivers(c)
	if err == nil {
		err = j.notifier.Reconfigure(o)
	}
	if err != nil {
		j.log.Error("the previous Alertmanagers stay in force", "err", err)
	}
}

// samples returns the samples that health adds to the readings.
func (j *judgement) samples() []collectors.Sample {
	return slices.Concat(j.monitor.Samples(), j.journal.Samples(), j.notifier.Samples())
}

// faults returns the failing checks, those in shadow mode included.
func (j *judgement) faults() (all []exporter.Fault) {
	for _, f := range j.monitor.Verdict().Findings {
		if f.Severity == incident.None {
			continue
		}
		all = append(all, faultOf(f))
	}
	return all
}

// faultOf returns a finding as the state has it.
func faultOf(f health.Finding) exporter.Fault {
	one := exporter.Fault{UUID: f.Entity.UUID, What: f.Message, Check: f.Check, Severity: f.Severity.String(),
		Last: &f.Since, Finding: exporter.Finding{Entity: f.Entity.String(), Workload: f.Entity.Workload, Tenant: f.Entity.Tenant,
			Shadow: f.Shadow, Latched: f.Latched, Value: &f.Value, Limit: f.Limit, Worst: &f.Worst, Action: f.Action}}
	if !f.WorstAt.IsZero() {
		one.WorstAt = &f.WorstAt
	}
	if !f.Recovered.IsZero() {
		one.Recovered, one.Clears = &f.Recovered, &f.Clears
		one.What = strings.TrimPrefix(f.Message, "Recovering. ") // they say more
	}
	if f.Alert != "" {
		one.Runbook = health.Runbook + "#" + strings.ToLower(f.Alert)
	}
	return one
}

// run judges, records and notifies until ctx ends.
func (j *judgement) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return j.monitor.Run(ctx) })
	group.Go(func() error { return j.journal.Run(ctx) })
	group.Go(func() error { return j.notifier.Run(ctx) })
	return group.Wait()
}

// ack is the order to acknowledge a fault.
func (j *judgement) ack() exporter.Action {
	return exporter.Action{Takes: []string{"check", "entity"},
		Do: func(ctx context.Context, a url.Values) (string, error) {
			entity, err := incident.ParseEntity(a.Get("entity"))
			if err != nil {
				return "", err
			}
			if err := j.monitor.Ack(ctx, a.Get("check"), entity, exporter.OrderedBy(ctx)); err != nil {
				return "", err
			}
			return fmt.Sprintf("%s of %s is acknowledged; it returns if the fault persists.", idOf(a.Get("check")), entity), nil
		}}
}

// idOf returns the ID of a check; name may be that of its alerts.
func idOf(name string) string {
	if c, err := health.Named(name); err == nil {
		return c.ID
	}
	return name
}

// events serves the journal.
func (j *judgement) events(w http.ResponseWriter, r *http.Request) {
	if query := r.URL.Query(); query.Has("check") {
		for i, name := range query["check"] {
			c, err := health.Named(name)
			if err != nil {
				http.Error(w, "check: "+err.Error(), http.StatusBadRequest)
				return
			}
			query["check"][i] = c.ID
		}
		r = r.Clone(r.Context())
		r.URL.RawQuery = query.Encode()
	}
	j.journal.ServeHTTP(w, r)
}
