package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/enforcer"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/gemini"
)

// EnforcerConfig says whether GPUs are shared out by the broker, and who gets
// how much.
type EnforcerConfig struct {
	Enabled  bool           `yaml:"enabled"`
	Socket   string         `yaml:"socket"`
	Turn     time.Duration  `yaml:"turn"`
	InFlight time.Duration  `yaml:"in_flight"`
	Fail     string         `yaml:"fail"`
	Default  QuotaConfig    `yaml:"default"`
	Tenants  []TenantConfig `yaml:"tenants"`
	Gemini   []GeminiConfig `yaml:"gemini"`
}

// QuotaConfig is what whoever no tenant is for may have of each GPU.
type QuotaConfig struct {
	Weight float64 `yaml:"weight"`
	Limit  part    `yaml:"limit"`
	Memory size    `yaml:"memory"`
}

// TenantConfig says who a tenant is, and what it may have of each GPU.
type TenantConfig struct {
	Name        string   `yaml:"name"`
	Users       []string `yaml:"users"`
	Groups      []string `yaml:"groups"`
	Workloads   []string `yaml:"workloads"`
	Executables []string `yaml:"executables"`
	Weight      *float64 `yaml:"weight"` // nil is 1
	Limit       *part    `yaml:"limit"`  // nil is 1
	Memory      size     `yaml:"memory"`
}

// A part is written as 0.3 or as 30 %.
type part float64

// UnmarshalText reads a part; its range is not looked at.
func (p *part) UnmarshalText(text []byte) error {
	number, percent := strings.CutSuffix(string(text), "%")
	v, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if err != nil {
		return fmt.Errorf("%q is not a part such as 0.3 or 30 %%", text)
	}
	if percent {
		v /= 100
	}
	*p = part(v)
	return nil
}

// A size is written in bytes or as 4 GiB.
type size uint64

var sizeUnits = map[string]float64{"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}

// UnmarshalText reads a size.
func (s *size) UnmarshalText(text []byte) error {
	end := strings.LastIndexAny(string(text), "0123456789.") + 1
	v, err := strconv.ParseFloat(string(text[:end]), 64)
	unit, known := sizeUnits[strings.TrimSpace(string(text[end:]))]
	if v *= unit; err != nil || !known || !(v >= 0 && v < math.MaxInt64) {
		return fmt.Errorf("%q is not a size such as 4 GiB, 500 MiB or a number of bytes", text)
	}
	*s = size(v)
	return nil
}

func defaultEnforcerConfig() EnforcerConfig {
	return EnforcerConfig{Turn: 10 * time.Millisecond, InFlight: 750 * time.Microsecond, Fail: "open", Default: QuotaConfig{Weight: 1, Limit: 1}}
}

// table returns what the enforcer needs of c.
func (c EnforcerConfig) table() enforcer.Table {
	t := enforcer.Table{Default: enforcer.Quota{Weight: c.Default.Weight, Limit: float64(c.Default.Limit), Memory: uint64(c.Default.Memory)}}
	for _, tenant := range c.Tenants {
		q := enforcer.Quota{Weight: 1, Limit: 1, Memory: uint64(tenant.Memory)}
		if tenant.Weight != nil {
			q.Weight = *tenant.Weight
		}
		if tenant.Limit != nil {
			q.Limit = float64(*tenant.Limit)
		}
		t.Rules = append(t.Rules, enforcer.Rule{Name: tenant.Name, Users: tenant.Users, Groups: tenant.Groups,
			Workloads: tenant.Workloads, Executables: tenant.Executables, Quota: q})
	}
	return t
}

func (c EnforcerConfig) validate() error {
	switch {
	case c.Socket != "" && !filepath.IsAbs(c.Socket):
		return fmt.Errorf("enforcer.socket: %q is not an absolute path; \"\" is broker.sock in --runtime.dir", c.Socket)
	case len(c.Socket) > maxSocket:
		return fmt.Errorf("enforcer.socket: a socket's path has at most %d bytes, this one %d", maxSocket, len(c.Socket))
	case c.Turn < 2*time.Millisecond || c.Turn > 100*time.Millisecond:
		return fmt.Errorf("enforcer.turn: %v is not between 2ms and 100ms", c.Turn)
	case c.InFlight < 100*time.Microsecond || c.InFlight > c.Turn:
		return fmt.Errorf("enforcer.in_flight: %v is not between 100us and the turn (%v)", c.InFlight, c.Turn)
	case c.Fail != "open" && c.Fail != "closed":
		return fmt.Errorf("enforcer.fail: %q is neither open nor closed", c.Fail)
	}
	if err := c.table().Check(); err != nil {
		return fmt.Errorf("enforcer.%w", err)
	}
	return checkGemini(c.Gemini)
}

// maxSocket is how long the path of a Unix socket may be, in bytes.
const maxSocket = 107

// brokerSocket returns where the broker of this configuration listens.
func (c EnforcerConfig) brokerSocket(runtimeDir string) string {
	return cmp.Or(c.Socket, filepath.Join(runtimeDir, "broker.sock"))
}

// An enforcement is the broker within the agent, and the servers for Gemini's
// hook beside it; its zero value enforces nothing.
type enforcement struct {
	broker *broker.Broker
	gemini []*gemini.Server
	listed []GeminiConfig // what they were made from
	log    *slog.Logger
}

// newEnforcement returns what c says, listening already. The host says which
// GPUs there are and who is on them.
func newEnforcement(f flags, c EnforcerConfig, host *collectors.Host, log *slog.Logger) (enforcement, error) {
	if !c.Enabled {
		return enforcement{}, nil
	}
	servers, err := newGemini(f, c.Gemini, log)
	if err != nil {
		return enforcement{}, err
	}
	socket := c.brokerSocket(f.runtimeDir)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return enforcement{}, fmt.Errorf("make the broker's directory: %w", err)
	}
	b, err := broker.New(broker.Options{
		Socket: socket, Policy: enforcer.NewPolicy(c.table(), log).Tenant, Holds: host.Holds, Known: host.Knows,
		InFlight: c.InFlight, Turn: c.Turn, FailClosed: c.Fail == "closed", ProcFS: f.procfs, Logger: log,
	})
	return enforcement{broker: b, gemini: servers, listed: c.Gemini, log: log}, err
}

// run serves until ctx ends.
func (e enforcement) run(ctx context.Context) error {
	if e.broker == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.broker.Run(ctx) })
	for _, s := range e.gemini {
		group.Go(func() error { return s.Run(ctx) })
	}
	return group.Wait()
}

// configure has all sessions judged by another table. The rest of c is for the
// next start.
func (e enforcement) configure(c EnforcerConfig) {
	if e.broker == nil {
		return
	}
	e.broker.Reload(enforcer.NewPolicy(c.table(), e.log).Tenant)
	if !slices.Equal(c.Gemini, e.listed) {
		e.log.Warn("enforcer.gemini has changed, which takes a restart: the entries from before stay in force")
	}
}

// execCommand adds the command that starts programs under the hook.
func execCommand(app *kingpin.Application) (*kingpin.CmdClause, *enforcer.ExecOptions) {
	o := new(enforcer.ExecOptions)
	c := app.Command("exec", "Run a program under the hook, so that the broker shares the GPU out to it: gpusteward exec -- python3 train.py.")
	c.Flag("tenant", "Tenant whose quota it draws on, of those that the policy allows it; by default the first one.").PlaceHolder("NAME").StringVar(&o.Tenant)
	c.Flag("socket", "Socket of the broker; by default $GPUSTEWARD_SOCKET, or broker.sock in --runtime.dir.").PlaceHolder("PATH").StringVar(&o.Socket)
	c.Flag("library", "The hook; by default $GPUSTEWARD_LIBRARY, or libgpusteward.so where it is installed.").PlaceHolder("PATH").StringVar(&o.Library)
	c.Arg("COMMAND", "The program and its arguments, after --.").Required().StringsVar(&o.Command)
	return c, o
}

// execute becomes the program; it returns the exit status where that fails.
func execute(o enforcer.ExecOptions, f flags, stderr io.Writer) int {
	o.Socket = cmp.Or(o.Socket, os.Getenv("GPUSTEWARD_SOCKET"), filepath.Join(f.runtimeDir, "broker.sock"))
	status, err := enforcer.Exec(o, stderr)
	fmt.Fprintf(stderr, "gpusteward: %v\n", err)
	return status
}
