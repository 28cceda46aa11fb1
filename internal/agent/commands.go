package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/exporter-toolkit/web/kingpinflag"

	"gpusteward/collectors/gpu/sim/scenarios"
	"gpusteward/enforcer/suspend"
	"gpusteward/exporter"
	"gpusteward/internal/config"
)

// Main runs the command line until it is done or a signal ends it. It returns
// the exit status. root is the directory that the default paths of the host
// begin at: /, or that of a host that a test made up.
func Main(root string) int {
	if err := takeSockets(); err != nil {
		fmt.Fprintln(os.Stderr, "gpusteward:", err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return Run(ctx, root, os.Args[1:], os.Stdout, os.Stderr)
}

// Exit statuses after which a restart is useless until somebody changes
// something, as in sysexits.h. The systemd units list them. A Go program that
// crashes exits with 2.
const (
	exitUsage  = 64
	exitConfig = 78
)

// misconfigured is an error in the operator's input.
type misconfigured struct{ error }

func (m misconfigured) Unwrap() error { return m.error }

// flags are the flags of the command line, and the host's root directory.
type flags struct {
	root           string
	config         string
	configGiven    bool
	demo           string
	demoGiven      bool
	demoSeed       uint64
	demoHosts      int
	demoHostsGiven bool
	requireDriver  bool
	role           role
	stateDir       string
	runtimeDir     string
	runtimeGiven   bool
	procfs, sysfs  string
	pprof          bool
	web            *web.FlagConfig
	logLevel       string
	logFormat      string
}

// ofMachine adds the flags that select the host of c and its scenario.
func (f *flags) ofMachine(c *kingpin.CmdClause) {
	c.Flag("config.file", "Configuration file.").
		Default(f.onHost(config.DefaultFile)).IsSetByUser(&f.configGiven).StringVar(&f.config)
	c.Flag("demo", "Simulate a host: --demo[=SCENARIO], with the name of a scenario or a YAML file. The scenarios "+
		"are "+strings.Join(scenarios.Names(), ", ")+".").
		PlaceHolder("SCENARIO").HintAction(scenarios.Names).IsSetByUser(&f.demoGiven).StringVar(&f.demo)
	c.Flag("demo.seed", "Seed of the simulated host. The same seed produces the same values.").
		Default("1").Uint64Var(&f.demoSeed)
}

// onHost returns where the host has a path.
func (f *flags) onHost(path string) string { return filepath.Join(f.root, path) }

// A commandLine has the program's commands, and what each of them does.
type commandLine struct {
	*kingpin.Application
	f              flags
	args           []string // that are parsed
	stdout, stderr io.Writer
	ended          bool // --help or --version has said everything
	does           map[string]func(ctx context.Context) int
	judges         []string // commands whose exit status is a verdict
}

// Run is the program. It returns the exit status, at the latest when ctx ends.
func Run(ctx context.Context, root string, args []string, stdout, stderr io.Writer) int {
	c := newCommandLine(root, stdout, stderr)
	name, err := c.parse(args)
	switch {
	case c.ended:
		return 0
	case err != nil:
		help := "--help"
		if command := chosen(c.Application, c.args); command != nil {
			help = command.FullCommand() + " --help"
		}
		fmt.Fprintf(stderr, "gpusteward: %v; see gpusteward %s\n", usageError(c.Application, c.args, err), help)
		return c.mistaken()
	}
	return c.does[name](ctx)
}

// on has a command do something. An error is printed, and the exit status is then 1.
func (c *commandLine) on(command *kingpin.CmdClause, do func(ctx context.Context) error) {
	c.exits(command, func(ctx context.Context) int {
		if err := do(ctx); err != nil {
			fmt.Fprintln(c.stderr, err)
			return 1
		}
		return 0
	})
}

// exits has a command do something that returns the exit status.
func (c *commandLine) exits(command *kingpin.CmdClause, do func(ctx context.Context) int) {
	c.does[command.FullCommand()] = do
}

// verdict has a command do something whose exit status is a verdict.
func (c *commandLine) verdict(command *kingpin.CmdClause, do func(ctx context.Context) int) {
	c.exits(command, do)
	c.judges = append(c.judges, command.FullCommand())
}

// newCommandLine returns the commands in the order in which the help has them.
func newCommandLine(root string, stdout, stderr io.Writer) *commandLine {
	c := &commandLine{f: flags{root: root}, stdout: stdout, stderr: stderr, does: map[string]func(context.Context) int{},
		Application: kingpin.New("gpusteward", "Monitors the NVIDIA GPUs of a host, checks their health and enforces quotas of "+
			"tenants.")}
	c.ofProgram()
	c.agent()
	judge, judging := checkCommand(c.Application, &c.f)
	c.verdict(judge, func(ctx context.Context) int { return judging.run(ctx, c.f, c.args, stdout) })
	diagnosis, diagnosing := diagCommand(c.Application)
	c.verdict(diagnosis, func(ctx context.Context) int { return diagnosing.run(ctx, stdout) })
	stacks, stacking := stackCommand(c.Application)
	c.on(stacks, func(ctx context.Context) error { return stacking.run(ctx, c.f.procfs, stdout) })
	c.configuration()
	c.status()
	survey, surveying := surveyCommand(c.Application)
	c.verdict(survey, func(ctx context.Context) int { return surveying.run(ctx, stdout, stderr) })
	dump, dumped := dumpCommand(c.Application)
	c.on(dump, func(ctx context.Context) error { return dumped.run(ctx, c.f.runtimeDir, stdout) })
	c.maintenance()
	suspension, resumption, suspended := suspendCommands(c.Application, &c.f)
	for _, command := range []*kingpin.CmdClause{suspension, resumption} {
		c.on(command, func(ctx context.Context) error {
			return c.order(ctx, exporter.EnforcerSocket, command, url.Values{"workload": {suspended.workload}}, "")
		})
	}
	crashing, crashed := crashCommand(c.Application)
	c.on(crashing, func(ctx context.Context) error { return crashed.run(ctx, c.f.runtimeDir, stdout) })
	profiling, profiled := profileCommand(c.Application, &c.f)
	c.on(profiling, func(ctx context.Context) error { return profiled.run(ctx, c.f.runtimeDir, stdout) })
	execution, program := execCommand(c.Application)
	c.exits(execution, func(context.Context) int { return execute(*program, c.f, stderr) })
	installation, installed := installCommand(c.Application)
	c.on(installation, func(context.Context) error { return install(*installed, c.f) })
	c.on(c.Command(probeCommand, "Open and close the driver.").Hidden(), func(context.Context) error { return probeDriver() })
	checkpoint, call := checkpointCommand(c.Application)
	c.on(checkpoint, func(context.Context) error { return suspend.Serve(suspend.Op(call.op), call.pid, stdout) })
	return c
}

// ofProgram adds the flags that all commands have.
func (c *commandLine) ofProgram() {
	f := &c.f
	c.UsageTemplate(kingpin.LongHelpTemplate).UsageWriter(c.stdout).ErrorWriter(c.stderr).
		HelpFlag.Short('h').Help("Show this help; gpusteward COMMAND --help shows that of a command.")
	c.Terminate(func(int) { c.ended = true })
	c.Version(fmt.Sprintf("gpusteward, version %s (revision: %s, commit of %s)\n  go version: %s\n  platform: %s/%s",
		version.Version, version.GetRevision(), cmp.Or(version.BuildDate, "an unknown time"), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)).VersionFlag.Short('V').Help("Show the version.")
	c.Flag("log.level", "Minimum severity of logged messages: debug, info, warn or error.").
		Default("info").EnumVar(&f.logLevel, "debug", "info", "warn", "error")
	c.Flag("log.format", "Log format: console, json, or auto, which is console on a terminal and json otherwise.").
		Default("auto").EnumVar(&f.logFormat, "auto", "console", "json")

	c.Flag("state.dir", "Directory for the agent's state: known GPUs, latched faults and the journal.").
		Default(f.onHost("/var/lib/gpusteward")).StringVar(&f.stateDir)
	c.Flag("runtime.dir", "Directory for the sockets agent/control.sock and broker/broker.sock.").
		Default(f.onHost("/run/gpusteward")).IsSetByUser(&f.runtimeGiven).StringVar(&f.runtimeDir)
	c.Flag("path.procfs", "Mount point of procfs.").Default(f.onHost("/proc")).StringVar(&f.procfs)
	c.Flag("path.sysfs", "Mount point of sysfs.").Default(f.onHost("/sys")).StringVar(&f.sysfs)
}

// agent adds the command that runs the agent.
func (c *commandLine) agent() {
	f := &c.f
	agent := c.Command("agent", "Run the agent (the default).").Default()
	f.ofMachine(agent)
	agent.Flag("role", "Role of this process: all; observe, which does everything except enforcement and "+
		"needs no privileges; or enforce, which does only enforcement and drops the capabilities that it does "+
		"not need. The two find each other by --runtime.dir.").
		Default("all").EnumVar((*string)(&f.role), "all", "observe", "enforce")
	agent.Flag("demo.hosts", fmt.Sprintf("Number of hosts to simulate with --demo, 1 to %d. Each is served "+
		"below /hosts/NAME/, and /sd lists them for Prometheus's HTTP service discovery.", maxHosts)).
		PlaceHolder("N").IsSetByUser(&f.demoHostsGiven).IntVar(&f.demoHosts)
	agent.Flag("require-driver", "Exit with status 1 if there is no NVIDIA driver.").BoolVar(&f.requireDriver)
	agent.Flag("web.pprof", "Serve profiles of the agent at /debug/pprof.").BoolVar(&f.pprof)
	f.web = kingpinflag.AddFlags(agent, ":9836")
	c.exits(agent, func(ctx context.Context) int {
		if isTerminal(c.stderr) && !slices.Contains(c.args, agent.FullCommand()) {
			fmt.Fprint(c.stderr, introduction(*f, os.Geteuid()))
		}
		log := newLogger(c.stderr, f.logLevel, f.logFormat)
		if err := f.role.serve(ctx, *f, log); err != nil {
			log.Error("gpusteward ends", "err", err)
			if errors.As(err, new(misconfigured)) {
				return exitConfig
			}
			return 1
		}
		return 0
	})
}

// configuration adds the command that checks configuration files.
func (c *commandLine) configuration() {
	config := c.Command("config", "Work with configuration files.")
	check := config.Command("check", "Check a configuration file. The exit status is 0 if it is valid.")
	file := check.Arg("FILE", "Configuration file.").Required().String()
	explained := check.Flag("explain", "Explain which quota this file gives to a running process, and why.").
		PlaceHolder("PID").String()
	c.on(check, func(ctx context.Context) error { return checkConfig(ctx, c.f, *file, *explained, c.stdout) })
}

// status adds the command that shows a running agent.
func (c *commandLine) status() {
	status := c.Command("status", "Show the GPUs and workloads of a running agent.")
	watch := status.Flag("watch", "Refresh every second. On a terminal, keys scroll, sort and filter; ? lists them.").Bool()
	format := status.Flag("format", "Format: text or json.").Default("text").Enum("text", "json")
	address := status.Flag("url", "Address of an agent, such as http://node7:9836. The default is the agent "+
		"at the control socket or, if there is none in the default directory, at "+exporter.DefaultURL+".").String()
	var http clientFile
	http.flag(status)
	c.on(status, func(ctx context.Context) (err error) {
		o := exporter.StatusOptions{RuntimeDir: c.f.runtimeDir, URL: *address, Watch: *watch, JSON: *format == "json"}
		if !c.f.runtimeGiven { // a named agent has no substitute
			o.Else = exporter.DefaultURL
		}
		if o.Client, err = http.client(); err != nil {
			return err
		}
		return exporter.Status(ctx, o, c.stdout)
	})
}

// maintenance adds the commands by which an administrator works on the host's GPUs.
func (c *commandLine) maintenance() {
	drain := c.Command("drain", "Release the driver and every GPU, for a GPU reset, a MIG change or a "+
		"driver upgrade. Requires root.")
	quieted := false
	quiet := drain.Flag("silence", "Silence the alerts about this host at each Alertmanager of the agent's configuration "+
		"for this time, such as 2h; resume ends the silence.").PlaceHolder("2h").IsSetByUser(&quieted).String()
	quietGPU := drain.Flag("gpu", "Silence only the alerts about the GPU with this index or UUID. All GPUs are released.").
		PlaceHolder("GPU").String()
	c.on(drain, func(ctx context.Context) error {
		arguments := url.Values{}
		if quieted {
			arguments.Set("silence", *quiet)
		}
		if *quietGPU != "" {
			arguments.Set("gpu", *quietGPU)
		}
		return c.order(ctx, exporter.ControlSocket, drain, arguments, "drained.")
	})

	resume := c.Command("resume", "Let a drained agent use the driver again, and end the silence of drain. Requires root.")
	c.on(resume, func(ctx context.Context) error {
		return c.order(ctx, exporter.ControlSocket, resume, nil, "resumed.")
	})

	ack := c.Command("ack", "Acknowledge a fault: clear a latched fault, accept a setting that drifted, or "+
		"forget a GPU that was removed. Requires root.")
	acked := url.Values{"check": {""}, "entity": {""}}
	ack.Arg("CHECK", "Check, such as gpu_lost; gpusteward check prints it.").Required().HintAction(checkNames).
		StringVar(&acked["check"][0])
	ack.Arg("ENTITY", "Entity that failed the check: node, a GPU's index or UUID, gpu=3,link=7, "+
		"workload=NAME, tenant=NAME or device=NAME.").
		Required().StringVar(&acked["entity"][0])
	c.on(ack, func(ctx context.Context) error { return c.order(ctx, exporter.ControlSocket, ack, acked, "") })
}

// order gives a running agent the order that a command is, at one of its sockets, and prints what is done
// and what the agent says about it.
func (c *commandLine) order(ctx context.Context, socket string, command *kingpin.CmdClause, arguments url.Values,
	done string) error {
	said, err := exporter.Order(ctx, c.f.socket(socket), command.FullCommand(), arguments)
	if err != nil {
		return err
	}
	if done != "" {
		fmt.Fprintln(c.stdout, done)
	}
	if said != "" || done == "" {
		fmt.Fprintln(c.stdout, said)
	}
	return nil
}

// parse returns the name of the command.
func (c *commandLine) parse(args []string) (name string, err error) {
	// --demo has an optional value, which kingpin does not support.
	args = slices.Clone(args)
	for i, a := range args {
		if a == "--demo" && args[0] != "--completion-bash" {
			args[i] = "--demo=demo"
		}
	}
	// kingpin's own command would show the program's help for a command that does not exist.
	if len(args) > 1 && args[0] == "help" {
		args = append(args[1:], "--help")
	}
	// The help of a command is its own; that of the program has all commands with
	// their flags.
	if chosen(c.Application, args) != nil {
		c.UsageTemplate(commandHelp)
	}
	c.args = args
	return c.Parse(args)
}

// mistaken returns the exit status of a usage error.
func (c *commandLine) mistaken() int {
	for _, name := range c.judges {
		if i := slices.Index(c.args, name); i >= 0 && !slices.Contains(c.args[:i], "config") {
			return checkMistaken // 2 is a verdict
		}
	}
	return exitUsage
}
