package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/enforcer"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/gemini"
	"gpusteward/enforcer/ladder"
	"gpusteward/enforcer/policy"
	"gpusteward/exporter"
	"gpusteward/health"
)

// EnforcerConfig says whether GPUs are shared out by the broker, and who gets
// how much.
type EnforcerConfig struct {
	Enabled     bool           `yaml:"enabled"`
	Socket      string         `yaml:"socket"`
	Turn        time.Duration  `yaml:"turn"`
	InFlight    time.Duration  `yaml:"in_flight"`
	Fail        string         `yaml:"fail"`
	MPS         bool           `yaml:"mps"`
	Default     DefaultConfig  `yaml:"default"`
	Ladder      LadderConfig   `yaml:"ladder"`
	Tenants     []TenantConfig `yaml:"tenants"`
	TenantsDirs []string       `yaml:"tenants_dirs"` // of files with more: see tenantFiles
	Gemini      []GeminiConfig `yaml:"gemini"`
}

func defaultEnforcerConfig() EnforcerConfig {
	return EnforcerConfig{Turn: 10 * time.Millisecond, InFlight: 750 * time.Microsecond, Fail: "open",
		Default: DefaultConfig{Priority: policy.PriorityNormal, Limit: 1},
		Ladder: LadderConfig{Mode: policy.Warn, Shadow: true, Confirm: 3, Of: 5, Hold: time.Minute, Throttle: 0.5,
			Pause: []string{"broker", "freezer", "signal"}, Grace: 30 * time.Second, Actions: 10},
		TenantsDirs: []string{"/etc/gpusteward/tenants.d", "/run/gpusteward/tenants.d"},
	}
}

func (c EnforcerConfig) validate() error {
	switch {
	case c.Socket != "" && !filepath.IsAbs(c.Socket):
		return fmt.Errorf("enforcer.socket: %q is not an absolute path; \"\" is broker/broker.sock in --runtime.dir", c.Socket)
	case len(c.Socket) > maxSocket:
		return fmt.Errorf("enforcer.socket: a socket's path has at most %d bytes, this one %d", maxSocket, len(c.Socket))
	case c.Turn < 2*time.Millisecond || c.Turn > 100*time.Millisecond:
		return fmt.Errorf("enforcer.turn: %v is not between 2ms and 100ms", c.Turn)
	case c.InFlight < 100*time.Microsecond || c.InFlight > c.Turn:
		return fmt.Errorf("enforcer.in_flight: %v is not between 100us and the turn (%v)", c.InFlight, c.Turn)
	case c.Fail != "open" && c.Fail != "closed":
		return fmt.Errorf("enforcer.fail: %q is neither open nor closed", c.Fail)
	}
	for i, dir := range c.TenantsDirs {
		if !filepath.IsAbs(dir) {
			return fmt.Errorf("enforcer.tenants_dirs[%d]: %q is not an absolute path", i, dir)
		}
		if slices.Contains(c.TenantsDirs[:i], dir) {
			return fmt.Errorf("enforcer.tenants_dirs[%d]: %q is in it twice", i, dir)
		}
	}
	if err := c.checkWith(); err != nil {
		return err
	}
	return checkGemini(c.Gemini)
}

// maxSocket is how long the path of a Unix socket may be, in bytes.
const maxSocket = 107

// brokerSocket returns where the broker of this configuration listens. Its
// directory is the broker's, and holds nothing else: programs in containers are
// given that, and neither the control socket nor the enforcer's lock.
func (c EnforcerConfig) brokerSocket(runtimeDir string) string {
	return cmp.Or(c.Socket, filepath.Join(runtimeDir, "broker", "broker.sock"))
}

// An enforcement is the enforcer within this process, and the servers for
// Gemini's hook beside it; its zero value enforces nothing.
type enforcement struct {
	enforcer *enforcer.Enforcer
	gemini   gemini.Servers
	listed   []GeminiConfig // what they were made from
	mps      bool           // as it was at the start
	files    *tenantFiles
	config   *atomic.Pointer[EnforcerConfig] // in force
	view     policy.HostView
	log      *slog.Logger
}

// newEnforcement returns what c says, listening already. The host says which
// GPUs there are and who is on them; hardware whether a GPU itself was at
// fault of late; record takes what the ladder does.
func newEnforcement(f flags, c EnforcerConfig, m *machine, gpus *collectors.Host, hardware func(uuid string, within time.Duration) bool, record func(health.Event)) (enforcement, error) {
	if !c.Enabled {
		return enforcement{}, nil
	}
	log := m.options.Log
	e := enforcement{listed: c.Gemini, mps: c.MPS, view: policy.HostView{Process: m.options.Processes.Lookup, Names: gpus.Names, Memory: total(gpus)}, log: log,
		files: &tenantFiles{log: log}, config: new(atomic.Pointer[EnforcerConfig])}
	e.config.Store(&c)
	files, _ := e.files.look(c, true)
	socket := c.brokerSocket(f.runtimeDir)
	listener, err := f.brokerListener()
	switch {
	case err != nil:
		return enforcement{}, err
	case listener == nil:
		if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
			return enforcement{}, host.Explain(fmt.Errorf("make the broker's directory: %w", err), host.Reads|host.Writes)
		}
	case listener.Addr().String() != socket:
		log.Warn("systemd's socket of the broker is not where programs and agents look for it", "socket", listener.Addr().String(), "enforcer.socket", socket)
	}
	if e.gemini, err = newGemini(f, c.Gemini, log); err != nil {
		return enforcement{}, err
	}
	o := enforcer.Options{
		Policy: policy.New(c.table(files), e.view, log), Refused: e.files.refusals, Gemini: e.gemini.Books, Dir: f.runtimeDir, Host: sights{gpus, m.options.Processes}, Hardware: hardware,
		Record: func(s ladder.Step) { record(enforced(s)) }, Simulated: !m.real, CgroupFS: filepath.Join(f.sysfs, "fs/cgroup"),
		Broker: broker.Options{Socket: socket, Listener: listener, Observer: f.isObserver, Holds: gpus.Holds, Known: gpus.Knows, InFlight: c.InFlight, Turn: c.Turn, FailClosed: c.Fail == "closed", ProcFS: f.procfs, Logger: log},
	}
	if m.real {
		o.StateFile = filepath.Join(f.stateDir, "enforcer.json")
		o.Backends = []backend.Backend{backend.NewKernelMemory(backend.KernelMemoryOptions{Limit: gpu.Limits{NV: m.options.NVML, Calls: new(gpu.Calls)}.Limit, Proc: m.proc, Cgroups: o.CgroupFS, Log: log})}
	}
	if m.real && c.MPS {
		mps := backend.NewMPS(backend.MPSOptions{Proc: m.proc, Log: log, Tenant: func(uid int) (string, bool) { return e.enforcer.TenantOf(uid) }})
		o.Backends, o.Servers = append(o.Backends, mps), mps.Servers
	}
	e.enforcer, err = enforcer.New(o)
	return e, host.Explain(err, host.Reads|host.Writes)
}

// total returns what tells how much memory a GPU has.
func total(gpus *collectors.Host) func(uuid string) (uint64, bool) {
	return func(uuid string) (uint64, bool) {
		all, _, _, ok := gpus.Room(uuid)
		return all, ok
	}
}

// sights are what the enforcer asks of a host.
type sights struct {
	*collectors.Host
	processes *host.Table
}

func (s sights) Process(pid int) (host.Process, error) { return s.processes.Lookup(pid) }

// enforced returns a step of the ladder as the journal has it.
func enforced(s ladder.Step) health.Event {
	e := health.Event{Kind: health.KindEnforcement, Time: s.Time, Entity: health.Entity{Tenant: s.Tenant, Workload: s.Workload},
		Was: s.From.String(), Now: s.To.String(), Result: s.Result, Severity: health.Info, Message: s.Why, Action: s.Detail}
	if s.To > s.From && s.Result != ladder.Shadowed {
		e.Severity = health.Warning
	}
	for _, v := range s.Evidence {
		e.Message += fmt.Sprintf("; %s on %s: %s", v.Objective, v.GPU, v.Text)
	}
	if len(s.Evidence) > 0 {
		first := s.Evidence[0]
		e.Value, e.Threshold, e.Count = first.Value, first.Allowed, len(s.Evidence)
		if len(first.PIDs) > 0 {
			e.PID = first.PIDs[0]
		}
	}
	return e
}

// run serves until ctx ends.
func (e enforcement) run(ctx context.Context) error {
	if e.enforcer == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.enforcer.Run(ctx) })
	group.Go(func() error {
		for tick := time.Tick(lookEach); ; {
			select {
			case <-ctx.Done():
				return nil
			case <-tick:
				e.look(false)
			}
		}
	})
	for _, s := range e.gemini {
		group.Go(func() error { return s.Run(ctx) })
	}
	return group.Wait()
}

// lookEach is how often files of tenants are looked at.
const lookEach = time.Second

// look has all sessions judged by another table where the files of tenants
// changed, or the configuration did.
func (e enforcement) look(again bool) {
	c := *e.config.Load()
	if files, changed := e.files.look(c, again); changed || again {
		e.enforcer.Configure(policy.New(c.table(files), e.view, e.log))
	}
}

// configure has all sessions judged by another table. The rest of c is for the
// next start.
func (e enforcement) configure(c EnforcerConfig) {
	if e.enforcer == nil {
		return
	}
	e.config.Store(&c)
	e.look(true)
	if !slices.Equal(c.Gemini, e.listed) {
		e.log.Warn("enforcer.gemini has changed, which takes a restart: the entries from before stay in force")
	}
	if c.MPS != e.mps {
		e.log.Warn("enforcer.mps has changed, which takes a restart")
	}
}

// execCommand adds the command that starts programs under the hook.
func execCommand(app *kingpin.Application) (*kingpin.CmdClause, *enforcer.ExecOptions) {
	o := new(enforcer.ExecOptions)
	c := app.Command("exec", "Run a program under the hook, so that the broker shares the GPU out to it: gpusteward exec -- python3 train.py.")
	c.Flag("tenant", "Tenant whose quota it draws on, of those that the policy allows it; by default the first one.").PlaceHolder("NAME").StringVar(&o.Tenant)
	c.Flag("socket", "Socket of the broker; by default $GPUSTEWARD_SOCKET, or broker/broker.sock in --runtime.dir.").PlaceHolder("PATH").StringVar(&o.Socket)
	c.Flag("library", "The hook; by default $GPUSTEWARD_LIBRARY, or libgpusteward.so where it is installed.").PlaceHolder("PATH").StringVar(&o.Library)
	c.Flag("require-broker", "Exit with status 125 instead of starting the program where no broker takes it: by default that is said, and the program runs without a quota.").BoolVar(&o.Require)
	c.Arg("COMMAND", "The program and its arguments, after --.").Required().StringsVar(&o.Command)
	return c, o
}

// execute becomes the program; it returns the exit status where that fails.
func execute(o enforcer.ExecOptions, f flags, stderr io.Writer) int {
	o.Socket = cmp.Or(o.Socket, os.Getenv("GPUSTEWARD_SOCKET"), EnforcerConfig{}.brokerSocket(f.runtimeDir))
	status, err := enforcer.Exec(o, stderr)
	fmt.Fprintf(stderr, "gpusteward: %v\n", err)
	return status
}

// installCommand adds the command that gives a host what its containers need.
func installCommand(app *kingpin.Application) (*kingpin.CmdClause, *enforcer.InstallOptions) {
	o := new(enforcer.InstallOptions)
	c := app.Command("install", "Put this program and the hook where containers of this host can have them mounted, and make what an agent in a container needs: gpusteward install --cdi=/var/run/cdi /usr/local/lib/gpusteward. It changes only what is not there yet, and never a file that runs.")
	c.Flag("cdi", "Directory of CDI specifications, /etc/cdi or /var/run/cdi, that gets one for the hook: the device gpusteward.dev/hook=hook.").PlaceHolder("DIR").StringVar(&o.CDI)
	c.Flag("library", "The hook; by default $GPUSTEWARD_LIBRARY, or libgpusteward.so where it is installed.").PlaceHolder("PATH").StringVar(&o.Library)
	c.Flag("owner", "User of an agent in a container that is not root: --state.dir, with what is in it, and the control socket's directory in --runtime.dir are made for it.").PlaceHolder("UID").IntVar(&o.Owner)
	c.Arg("DIR", "Directory that gets them; it is made if it is not there.").StringVar(&o.Dir)
	return c, o
}

// install gives the host what o says.
func install(o enforcer.InstallOptions, f flags) error {
	if o.Owner != 0 {
		o.Own = []string{f.stateDir, filepath.Dir(filepath.Join(f.runtimeDir, exporter.ControlSocket))}
	}
	o.Socket = EnforcerConfig{}.brokerSocket(f.runtimeDir)
	return enforcer.Install(o)
}
