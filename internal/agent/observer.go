package agent

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"gpusteward/collectors"
	"gpusteward/exporter"
	"gpusteward/internal/config"
)

// assembleObserver assembles the parts that read, judge and serve, and in the
// role all the enforcer as well.
func (r role) assembleObserver(f flags, conf *config.File, c config.Config) (a assembly, err error) {
	m, err := newHostConfig(f, c, conf.Log)
	if err != nil {
		return a, err
	}
	n, err := newObservedHost(f, c, m, conf.Samples)
	if err != nil {
		return a, err
	}
	host, judgement := n.host, n.judgement
	enforcement, err := newEnforcement(f, r.brokers(c.Enforcer), m, host, judgement.monitor, judgement.journal.Append)
	if err != nil {
		return a, fmt.Errorf("enforcer: %w", err)
	}
	control := &exporter.Control{
		Path: filepath.Join(f.runtimeDir, exporter.ControlSocket),
		Actions: map[string]exporter.Action{
			"drain":  {May: []string{"silence", "gpu"}, Do: n.drain},
			"resume": {Do: n.resume},
			"ack":    judgement.ack(),
		},
		Done:  n.server.Forget,
		Reads: f.spanReads(m.spans, n.server),
		Log:   conf.Log,
	}
	listen := func(ctx context.Context) error { return exporter.Listen(ctx, n.server, f.web, conf.Log) }
	a = assembly{
		starts:    "gpusteward starts",
		tasks:     []task{n.run, enforcement.run, listen, control.Run},
		returning: enforcement.returning,
		host:      host,
		configure: func(c config.Config) {
			c = m.labelled(c)
			n.configure(c)
			host.Configure(m.config(c))
			judgement.configure(c)
			enforcement.configure(c.Enforcer)
			m.spans.Set(float64(c.Tracing.Sample))
		},
	}
	if f.requireDriver {
		a.tasks = append(a.tasks, func(ctx context.Context) error { return requireDriver(ctx, host) })
	}
	return a, nil
}

// brokers returns the part of c that a process of this role brokers.
func (r role) brokers(c config.Enforcer) config.Enforcer {
	if r == roleObserve {
		c.Enabled = false
	}
	return c
}

// requireDriver fails once it is certain that there is no driver.
func requireDriver(ctx context.Context, host *collectors.Host) error {
	for {
		switch err := host.Driver(); {
		case err == nil:
			return nil
		case !errors.Is(err, collectors.ErrOpening):
			return fmt.Errorf("--require-driver: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(50 * time.Millisecond):
		}
	}
}
