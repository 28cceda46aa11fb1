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

// Run is the program. It returns the exit status, at the latest when ctx ends.
func Run(ctx context.Context, root string, args []string, stdout, stderr io.Writer) int {
	f := flags{root: root}
	app := kingpin.New("gpusteward", "Monitors the NVIDIA GPUs of a host, checks their health and enforces quotas of "+
		"tenants.")
	app.UsageTemplate(kingpin.LongHelpTemplate).UsageWriter(stdout).ErrorWriter(stderr).HelpFlag.Short('h')
	ended := false
	app.Terminate(func(int) { ended = true })
	app.Version(fmt.Sprintf("gpusteward, version %s (revision: %s, commit of %s)\n  go version: %s\n  platform: %s/%s",
		version.Version, version.GetRevision(), cmp.Or(version.BuildDate, "an unknown time"), runtime.Version(), runtime.GOOS,
		runtime.GOARCH)).VersionFlag.Short('V')
	app.Flag("log.level", "Minimum severity of logged messages: debug, info, warn or error.").
		Default("info").EnumVar(&f.logLevel, "debug", "info", "warn", "error")
	app.Flag("log.format", "Log format: console, json, or auto, which is console on a terminal and json otherwise.").
		Default("auto").EnumVar(&f.logFormat, "auto", "console", "json")

	app.Flag("state.dir", "Directory for the agent's state: known GPUs, latched faults and the journal.").
		Default(f.onHost("/var/lib/gpusteward")).StringVar(&f.stateDir)
	app.Flag("runtime.dir", "Directory for the sockets agent/control.sock and broker/broker.sock.").
		Default(f.onHost("/run/gpusteward")).IsSetByUser(&f.runtimeGiven).StringVar(&f.runtimeDir)
	app.Flag("path.procfs", "Mount point of procfs.").Default(f.onHost("/proc")).StringVar(&f.procfs)
	app.Flag("path.sysfs", "Mount point of sysfs.").Default(f.onHost("/sys")).StringVar(&f.sysfs)

	agent := app.Command("agent", "Run the agent (the default).").Default()
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

	judge, judging := checkCommand(app, &f)
	diagnosis, diagnosing := diagCommand(app)
	stacks, stacking := stackCommand(app)

	config := app.Command("config", "Work with configuration files.")
	check := config.Command("check", "Check a configuration file. The exit status is 0 if it is valid.")
	checked := check.Arg("FILE", "Configuration file.").Required().String()
	explained := check.Flag("explain", "Explain which quota this file gives to a running process, and why.").
		PlaceHolder("PID").String()

	status := app.Command("status", "Show the GPUs and workloads of a running agent.")
	watch := status.Flag("watch", "Refresh every second. On a terminal, keys scroll, sort and filter; ? lists them.").Bool()
	format := status.Flag("format", "Format: text or json.").Default("text").Enum("text", "json")
	address := status.Flag("url", "Address of an agent, such as http://node7:9836. The default is the agent "+
		"at the control socket or, if there is none in the default directory, at "+exporter.DefaultURL+".").String()
	var http clientFile
	http.flag(status)

	survey, surveying := surveyCommand(app)
	dump, dumped := dumpCommand(app)

	drain := app.Command("drain", "Release the driver and every GPU, for a GPU reset, a MIG change or a "+
		"driver upgrade. Requires root.")
	quieted := false
	quiet := drain.Flag("silence", "Silence the alerts about this host at each Alertmanager of the agent's configuration "+
		"for this time, such as 2h; resume ends the silence.").PlaceHolder("2h").IsSetByUser(&quieted).String()
	quietGPU := drain.Flag("gpu", "Silence only the alerts about the GPU with this index or UUID. All GPUs are released.").
		PlaceHolder("GPU").String()
	resume := app.Command("resume", "Let a drained agent use the driver again, and end the silence of drain. Requires root.")

	ack := app.Command("ack", "Acknowledge a fault: clear a latched fault, accept a setting that drifted, or "+
		"forget a GPU that was removed. Requires root.")
	acked := url.Values{"check": {""}, "entity": {""}}
	ack.Arg("CHECK", "Check, such as gpu_lost; gpusteward check prints it.").Required().HintAction(checkNames).
		StringVar(&acked["check"][0])
	ack.Arg("ENTITY", "Entity that failed the check: node, a GPU's index or UUID, gpu=3,link=7, "+
		"workload=NAME, tenant=NAME or device=NAME.").
		Required().StringVar(&acked["entity"][0])

	suspension, resumption, suspended := suspendCommands(app, &f)
	crashing, crashed := crashCommand(app)

	execution, program := execCommand(app)
	installation, installed := installCommand(app)

	probe := app.Command(probeCommand, "Open and close the driver.").Hidden()
	checkpoint, call := checkpointCommand(app)

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
	if c, _ := app.ParseContext(args); c != nil && c.SelectedCommand != nil {
		if name, _, _ := strings.Cut(c.SelectedCommand.FullCommand(), " "); slices.Contains(args, name) {
			app.UsageTemplate(kingpin.DefaultUsageTemplate)
		}
	}
	command, err := app.Parse(args)
	switch {
	case ended: // --help, --version
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gpusteward: %v; see gpusteward --help\n", usageError(app, args, err))
		for _, c := range []*kingpin.CmdClause{judge, diagnosis, survey} {
			if i := slices.Index(args, c.FullCommand()); i >= 0 && !slices.Contains(args[:i], "config") {
				return checkMistaken // 2 is a verdict
			}
		}
		return exitUsage
	}
	switch command {
	case check.FullCommand():
		err = checkConfig(ctx, f, *checked, *explained, stdout)
	case judge.FullCommand():
		return judging.run(ctx, f, args, stdout)
	case diagnosis.FullCommand():
		return diagnosing.run(ctx, stdout)
	case stacks.FullCommand():
		err = stacking.run(ctx, f.procfs, stdout)
	case crashing.FullCommand():
		err = crashed.run(ctx, f.runtimeDir, stdout)
	case execution.FullCommand():
		return execute(*program, f, stderr)
	case installation.FullCommand():
		err = install(*installed, f)
	case status.FullCommand():
		o := exporter.StatusOptions{RuntimeDir: f.runtimeDir, URL: *address, Watch: *watch, JSON: *format == "json"}
		if !f.runtimeGiven { // a named agent has no substitute
			o.Else = exporter.DefaultURL
		}
		if o.Client, err = http.client(); err == nil {
			err = exporter.Status(ctx, o, stdout)
		}
	case survey.FullCommand():
		return surveying.run(ctx, stdout, stderr)
	case dump.FullCommand():
		err = dumped.run(ctx, f.runtimeDir, stdout)
	case drain.FullCommand(), resume.FullCommand():
		arguments := url.Values{}
		if quieted {
			arguments.Set("silence", *quiet)
		}
		if *quietGPU != "" {
			arguments.Set("gpu", *quietGPU)
		}
		var said string
		if said, err = exporter.Order(ctx, f.socket(exporter.ControlSocket), command, arguments); err == nil {
			fmt.Fprintln(stdout, map[string]string{"drain": "drained.", "resume": "resumed."}[command])
			if said != "" {
				fmt.Fprintln(stdout, said)
			}
		}
	case ack.FullCommand():
		var said string
		if said, err = exporter.Order(ctx, f.socket(exporter.ControlSocket), command, acked); err == nil {
			fmt.Fprintln(stdout, said)
		}
	case suspension.FullCommand(), resumption.FullCommand():
		var said string
		said, err = exporter.Order(ctx, f.socket(exporter.EnforcerSocket), command,
			url.Values{"workload": {suspended.workload}})
		if err == nil {
			fmt.Fprintln(stdout, said)
		}
	case checkpoint.FullCommand():
		err = suspend.Serve(suspend.Op(call.op), call.pid, stdout)
	case probe.FullCommand():
		err = probeDriver()
	default:
		if isTerminal(stderr) && !slices.Contains(args, agent.FullCommand()) {
			fmt.Fprint(stderr, introduction(f, os.Geteuid()))
		}
		log := newLogger(stderr, f.logLevel, f.logFormat)
		if err := f.role.serve(ctx, f, log); err != nil {
			log.Error("gpusteward ends", "err", err)
			if errors.As(err, new(misconfigured)) {
				return exitConfig
			}
			return 1
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}
