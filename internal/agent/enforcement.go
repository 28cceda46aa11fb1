package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/alecthomas/kingpin/v2"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/device"
	"gpusteward/collectors/gpu"
	"gpusteward/collectors/host"
	"gpusteward/collectors/links"
	"gpusteward/enforcer"
	"gpusteward/enforcer/backend"
	"gpusteward/enforcer/broker"
	"gpusteward/enforcer/crash"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/gemini"
	"gpusteward/enforcer/jobs"
	"gpusteward/enforcer/policy"
	"gpusteward/enforcer/preload"
	"gpusteward/enforcer/suspend"
	"gpusteward/exporter"
	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/config"
)

// An enforcement is the enforcer in this process with the servers for Gemini's
// hook. Its zero value enforces nothing.
type enforcement struct {
	open     func() (*enforcer.Enforcer, error)
	enforcer *atomic.Pointer[enforcer.Enforcer] // holds nil while the runtime directory has no room
	// tells at the end from when and until when the driver gives memory back
	returning <-chan bool
	gemini    gemini.Servers
	socket    string          // for orders
	crashes   string          // socket for crashes
	listed    []config.Gemini // the entries that the servers were made from
	shared    bool            // at once, as it was at the start
	files     *config.TenantFiles
	config    *atomic.Pointer[config.Enforcer] // in force
	view      policy.HostView
	// has the socket for crashes answer further requests; nil: it has no others
	further func(next http.Handler) http.Handler
	log     *slog.Logger
}

// newEnforcement returns the enforcement of c, which already listens, unless the
// runtime directory is full: run tries again. gpus knows the GPUs and their
// processes; monitor knows which GPUs had faults of their own; record takes the
// steps of the escalation.
func newEnforcement(f flags, c config.Enforcer, m *hostConfig, gpus *collectors.Host, monitor *health.Monitor,
	record func(incident.Event)) (enforcement, error) {
	if !c.Enabled {
		return enforcement{}, nil
	}
	log := m.options.Log
	memory := &gpuMemory{gpus: gpus, log: log, available: func() (uint64, bool) {
		_, available, err := suspend.Host{ProcFS: f.procfs}.Memory()
		return available, err == nil
	}}
	if m.real {
		memory.ask = func(ctx context.Context) (map[string]suspend.Size, error) { return suspend.AskSizes(ctx) }
	}
	e := enforcement{enforcer: new(atomic.Pointer[enforcer.Enforcer]), socket: f.socket(exporter.EnforcerSocket), crashes: f.socket(exporter.CrashSocket),
		listed: c.Gemini, shared: c.Concurrent(), view: policy.HostView{Process: m.options.Processes.Lookup,
			Names: gpus.Names, Memory: func(uuid string) (uint64, bool) {
				total, _, _, ok := memory.of(uuid)
				return total, ok
			}}, log: log,
		files: &config.TenantFiles{Log: log}, config: new(atomic.Pointer[config.Enforcer])}
	e.config.Store(&c)
	returning := make(chan bool, 2) // so nobody waits for who reads it
	e.returning = returning
	socket := c.BrokerSocket(f.runtimeDir)
	listener, err := f.brokerListener()
	if err != nil {
		return enforcement{}, err
	}
	if listener != nil && listener.Addr().String() != socket {
		log.Warn("systemd's socket of the broker is not at the path that programs and agents use",
			"socket", listener.Addr().String(), "enforcer.socket", socket)
	}
	if e.gemini, err = newGemini(f, c.Gemini, log); err != nil {
		return enforcement{}, err
	}
	o := enforcer.Options{
		Refused: e.files.Refusals, Gemini: e.gemini.Books,
		Dir: f.runtimeDir, Host: enforcedHost{gpus, m.options.Processes, memory},
		Hardware: func(uuid string, within time.Duration) bool { return monitor.Hardware(gpus.Parent(uuid), within) },
		Evidence: func(uuid string) jobs.Evidence { return evidence(gpus, uuid) },
		Record:   func(s escalation.Step) { record(enforced(s)) }, Tell: func(s suspend.End) { record(suspended(s)) },
		Crashed:   func(h crash.Head) { record(crashed(h)) },
		Returning: func(is bool) { returning <- is }, NCCL: c.NCCL, Trusted: c.Trusted, Kernels: c.KernelTimes, Simulated: !m.real,
		CgroupFS: filepath.Join(f.sysfs, "fs/cgroup"),
		Broker: broker.Options{Socket: socket, Listener: listener, Observer: f.isObserver, Holds: gpus.Holds,
			Known: gpus.Knows, InFlight: c.InFlight, Turn: c.Turn, FailClosed: c.Fail == "closed", Slices: c.TimeSlices == "auto",
			Concurrent: c.Concurrent(), ProcFS: f.procfs, Spans: m.spans, Logger: log},
	}
	if m.real {
		o.StateFile = filepath.Join(f.stateDir, "enforcer.json")
		o.CrashDir = filepath.Join(f.stateDir, "crashes")
		if host.InitialPIDs() { // the kernel's log has no others
			o.KernelLog = m.kernelLog
		}
		o.Backends = []backend.Backend{backend.NewKernelMemory(backend.KernelMemoryOptions{
			Limit: gpu.Limits{NV: m.options.NVML, Calls: new(gpu.Calls)}.Limit,
			Proc:  m.proc, Cgroups: o.CgroupFS, Log: log,
		})}
	}
	if m.real && c.Concurrent() {
		mps := backend.NewMPS(backend.MPSOptions{Proc: m.proc, Log: log,
			Tenant: func(uid int) (string, bool) { return e.enforcer.Load().TenantOf(uid) }})
		o.Backends, o.Servers = append(o.Backends, mps), mps.Servers
	}
	e.open = func() (*enforcer.Enforcer, error) {
		if listener == nil {
			if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
				return nil, fmt.Errorf("make the broker's directory: %w", err)
			}
		}
		c := *e.config.Load()
		files, _ := e.files.Look(c, false)
		o.Policy = policy.New(c.Table(files), e.view, log)
		return enforcer.New(o)
	}
	now, err := e.open()
	switch {
	case host.Full(err):
		log.Error("nothing is enforced until the runtime directory has room", "again", roomEach.String(), "err",
			host.Explain(err, host.Reads|host.Writes))
	case err != nil:
		return e, host.Explain(err, host.Reads|host.Writes)
	default:
		e.enforcer.Store(now)
	}
	return e, nil
}

// roomEach is the time from one attempt to start in a full runtime directory to the next.
const roomEach = time.Second

// opened waits until the enforcer can start, and returns nil if ctx ends before that.
func (e enforcement) opened(ctx context.Context) (*enforcer.Enforcer, error) {
	for e.enforcer.Load() == nil {
		select {
		case <-ctx.Done():
			return nil, nil
		case <-time.After(roomEach):
		}
		now, err := e.open()
		switch {
		case err == nil:
			e.enforcer.Store(now)
			e.look(true) // another configuration may have come meanwhile
			e.log.Info("the runtime directory has room, and quotas are enforced")
		case !host.Full(err):
			return nil, host.Explain(err, host.Reads|host.Writes)
		}
	}
	return e.enforcer.Load(), nil
}

// newGemini returns a server for each entry. The servers already listen.
func newGemini(f flags, list []config.Gemini, log *slog.Logger) (servers gemini.Servers, err error) {
	for i, c := range list {
		o := c.Options()
		o.ProcFS, o.CgroupFS, o.Logger = f.procfs, filepath.Join(f.sysfs, "fs/cgroup"), log.With("gemini", i)
		s, err := gemini.New(o)
		if err != nil {
			return nil, fmt.Errorf("gemini[%d]: %w", i, err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// isObserver reports whether a user is the one that the agent observes as: the
// owner of the control socket's directory, if its parent belongs to root.
func (f flags) isObserver(uid uint32) bool {
	info, err := os.Lstat(filepath.Join(f.runtimeDir, filepath.Dir(exporter.ControlSocket)))
	if err != nil {
		return false
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	return ok && owner.Uid == uid
}

// An enforcedHost is a host as the enforcer needs it.
type enforcedHost struct {
	*collectors.Host
	processes *host.Table
	memory    *gpuMemory
}

func (s enforcedHost) Process(pid int) (host.Process, error) { return s.processes.Lookup(pid) }

func (s enforcedHost) Memory(uuid string) (total, free, reserved uint64, ok bool) {
	return s.memory.of(uuid)
}

// Silent returns the GPUs, and which of them do not answer. It is asked once a second.
func (s enforcedHost) Silent() map[string]bool {
	all := s.Host.Silent()
	s.memory.look(all)
	return all
}

// Rates returns the maximum transfer rates of a GPU in bytes per second: over
// its PCIe link in one direction, and to and from its memory; 0 if the driver
// does not report the rate. ok is false if both are unknown or the GPU does not
// answer.
func (s enforcedHost) Rates(uuid string) (link, memory float64, ok bool) {
	link = links.PCIeRate(s.Host, uuid, "max")
	memory, _ = s.Reading(uuid, device.MemoryBandwidth)
	return link, memory, link > 0 || memory > 0
}

// evidence returns what is known of a GPU's clocks and links for slow steps.
func evidence(h *collectors.Host, uuid string) jobs.Evidence {
	read := func(m *collectors.Metric, labels ...string) float64 {
		v, _ := h.Reading(uuid, m, labels...)
		return v
	}
	active := func(reason string) bool { return read(device.ClockEventActive, reason) > 0 }
	known := jobs.Evidence{Power: active("sw_power_cap") || active("hw_power_brake"),
		Thermal: active("sw_thermal") || active("hw_thermal"), PCIe: links.PCIeRate(h, uuid, "current"),
		NVLink: links.NVLinkRate(h, uuid)}
	if most := read(device.ClockMax, "sm"); most > 0 {
		known.Clock = read(device.Clock, "sm") / most
	}
	return known
}

// enforced returns a step of the escalation as an event of the journal.
func enforced(s escalation.Step) incident.Event {
	e := incident.Event{Kind: incident.KindEnforcement, Time: s.Time,
		Entity: incident.Entity{Tenant: s.Tenant, Workload: s.Workload},
		Was:    s.From.String(), Now: s.To.String(), Result: s.Result, Severity: incident.Info, Message: s.Why,
		Action: s.Detail}
	if s.To > s.From && s.Result != escalation.Shadowed {
		e.Severity = incident.Warning
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
	group.Go(func() error {
		now, err := e.opened(ctx)
		if now == nil {
			return err
		}
		control := &exporter.Control{Path: e.socket, Actions: suspendActions(now), Done: func() {}, Log: e.log}
		group.Go(func() error { return control.Run(ctx) })
		reads := userReads(now)
		if e.further != nil {
			reads = e.further(reads)
		}
		crashes := &exporter.Control{Path: e.crashes, Anyone: true, Reads: reads, Log: e.log}
		group.Go(func() error { return crashes.Run(ctx) })
		return now.Run(ctx)
	})
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

// lookEach is the interval between looks at the files of tenants.
const lookEach = time.Second

// look applies a new table to all sessions when the files of tenants or the
// configuration have changed.
func (e enforcement) look(again bool) {
	c := *e.config.Load()
	files, changed := e.files.Look(c, again)
	if now := e.enforcer.Load(); now != nil && (changed || again) {
		now.Configure(policy.New(c.Table(files), e.view, e.log))
	}
}

// configure applies a new table to all sessions. The rest of c takes effect at
// the next start.
func (e enforcement) configure(c config.Enforcer) {
	if e.enforcer == nil {
		return
	}
	e.config.Store(&c)
	e.look(true)
	if !slices.Equal(c.Gemini, e.listed) {
		e.log.Warn("enforcer.gemini has changed, which requires a restart: the previous entries stay in force")
	}
	if c.Concurrent() != e.shared {
		e.log.Warn("enforcer.sharing has changed, which requires a restart")
	}
}

// execCommand adds the command that starts a program under the hook.
func execCommand(app *kingpin.Application) (*kingpin.CmdClause, *preload.ExecOptions) {
	o := new(preload.ExecOptions)
	c := app.Command("exec",
		"Run a program under the hook, which observes its steps and holds it to its quota: gpusteward exec -- "+
			"python3 train.py. On a terminal it says which tenant and quota hold.")
	c.Flag("tenant", "Tenant to run as, one of those that the quota table allows. The default is the one that fits the "+
		"program most closely.").
		PlaceHolder("NAME").StringVar(&o.Tenant)
	c.Flag("socket", "Socket of the broker. The default is $GPUSTEWARD_SOCKET, or broker/broker.sock in "+
		"--runtime.dir.").
		PlaceHolder("PATH").StringVar(&o.Socket)
	c.Flag("observe", "Only observe the program. Exit with status 125 if terms of the quota table apply to it, or if "+
		"no broker answers.").BoolVar(&o.Observe)
	libraryFlag(c, &o.Library)
	c.Flag("require-broker", "Exit with status 125 if no broker accepts the program. By default it runs "+
		"without a quota, after a message.").BoolVar(&o.Require)
	c.Arg("COMMAND", "The program and its arguments, after --.").Required().StringsVar(&o.Command)
	return c, o
}

// libraryFlag adds the flag that names the hook's library.
func libraryFlag(c *kingpin.CmdClause, path *string) {
	c.Flag("library", "Path of the hook. The default is $GPUSTEWARD_LIBRARY, or the installed libgpusteward.so.").
		PlaceHolder("PATH").StringVar(path)
}

// execute replaces this process with the program. It returns the exit status if
// that fails.
func execute(o preload.ExecOptions, f flags, stderr io.Writer) int {
	o.Socket = cmp.Or(o.Socket, os.Getenv("GPUSTEWARD_SOCKET"), config.Enforcer{}.BrokerSocket(f.runtimeDir))
	o.Tell = isTerminal(stderr)
	status, err := preload.Exec(o, stderr)
	fmt.Fprintf(stderr, "gpusteward: %v\n", err)
	return status
}

// installCommand adds the command that installs the files for containers.
func installCommand(app *kingpin.Application) (*kingpin.CmdClause, *preload.InstallOptions) {
	o := new(preload.InstallOptions)
	c := app.Command("install", "Copy this program and the hook to a directory that containers of this host "+
		"can mount, and create the directories of an agent in a container: gpusteward install "+
		"--cdi=/var/run/cdi /usr/local/lib/gpusteward. It replaces only what is missing or outdated, and "+
		"never changes a file in use.")
	c.Flag("cdi", "Directory of CDI specifications, /etc/cdi or /var/run/cdi, for the device "+
		"gpusteward.dev/hook=hook.").
		PlaceHolder("DIR").StringVar(&o.CDI)
	libraryFlag(c, &o.Library)
	c.Flag("owner", "User of an unprivileged agent in a container. It becomes the owner of --state.dir with "+
		"its contents, and of the control socket's directory in --runtime.dir.").
		PlaceHolder("UID").IntVar(&o.Owner)
	c.Arg("DIR", "Destination directory; created if it does not exist.").StringVar(&o.Dir)
	return c, o
}

// install installs on the host the files that o names.
func install(o preload.InstallOptions, f flags) error {
	if o.Owner != 0 {
		o.Own = []string{f.stateDir, filepath.Dir(filepath.Join(f.runtimeDir, exporter.ControlSocket))}
	}
	o.Socket = config.Enforcer{}.BrokerSocket(f.runtimeDir)
	return preload.Install(o)
}
