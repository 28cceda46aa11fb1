package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"gpusteward/collectors/host"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/policy"
	"gpusteward/internal/config"
)

// named is the time to wait for names, the same as the agent's.
const named = 2 * time.Second

// checkConfig checks a file. Unless pid is empty, it also explains what the
// file means for that process.
func checkConfig(ctx context.Context, f flags, path, pid string, stdout io.Writer) error {
	silent := slog.New(slog.DiscardHandler)
	c, err := (&config.File{Root: f.root, Path: path, Log: silent}).Load()
	if err != nil {
		return err
	}
	files := config.TenantFiles{Log: silent}
	more, _ := files.Look(c.Enforcer, true)
	if err := files.Problems(); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "%s is good.\n", path)
	for _, f := range more {
		fmt.Fprintf(stdout, "%s is good.\n", f.Path)
	}
	for _, w := range c.Warnings() {
		fmt.Fprintf(stdout, "warning: %s\n", w)
	}
	table := c.Enforcer.Table(more)
	for _, stranger := range table.Unknown() {
		if strings.HasPrefix(stranger, "tenants[") {
			stranger = "enforcer." + stranger
		}
		fmt.Fprintf(stdout, "warning: %s\n", stranger)
	}
	if !c.Enforcer.Enabled && len(table.Rules) > 0 {
		fmt.Fprintln(stdout, "warning: enforcer.enabled is false: no quota of a tenant is enforced")
	}
	if pid == "" {
		return nil
	}
	n, err := strconv.Atoi(pid)
	if err != nil || n <= 0 {
		return fmt.Errorf("--explain=%s: give a PID above 0", pid)
	}
	facts, err := broker.FactsOf(f.procfs, n)
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("there is no such process")
	}
	if err != nil {
		return fmt.Errorf("--explain=%s: %w", pid, err)
	}
	w, err := workloadOf(ctx, f, c, n)
	if err != nil {
		return fmt.Errorf("--explain=%s: %w", pid, err)
	}
	fmt.Fprintln(stdout)
	policy.New(table, policy.HostView{}, nil).Explain(stdout, facts, w)
	return nil
}

// workloadOf finds the workload of a process, and waits for its names as the
// agent does. If names are missing, the workload is the one that the cgroup
// says.
func workloadOf(ctx context.Context, f flags, c config.Config, pid int) (*host.Workload, error) {
	m, err := newHostConfig(f, c, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, named)
	defer cancel()
	go func() { _ = m.options.Processes.Run(ctx) }() // it never fails
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		p, err := m.options.Processes.Lookup(pid)
		switch {
		case errors.Is(err, host.ErrGone):
			return nil, errors.New("the process has ended")
		case err != nil:
			return nil, fmt.Errorf("look the process up: %w", err)
		case p.Workload != nil && (p.Workload.Kind != host.KindSlurm || p.Workload.User != ""):
			return p.Workload, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return p.Workload, nil
		}
	}
}
