// Gpusteward reads the NVIDIA GPUs of a host, judges them, keeps tenants to
// their share, and exposes it all to Prometheus. This file is the wiring: it
// alone names every part.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/alecthomas/kingpin/v2"
	"github.com/prometheus/common/version"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/prometheus/exporter-toolkit/web/kingpinflag"
	"golang.org/x/sync/errgroup"

	"gpusteward/collectors"
	"gpusteward/collectors/gpu/sim"
	"gpusteward/exporter"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// flags are the command line's.
type flags struct {
	config        string
	configGiven   bool
	demo          string
	demoGiven     bool
	demoSeed      uint64
	requireDriver bool
	pprof         bool
	web           *web.FlagConfig
	logLevel      string
	logFormat     string
}

// run is the program: it returns when ctx ends, with the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var f flags
	app := kingpin.New("gpusteward", "Reads a host's NVIDIA GPUs, judges them and keeps tenants to their share.")
	app.UsageTemplate(kingpin.LongHelpTemplate).UsageWriter(stdout).ErrorWriter(stderr).HelpFlag.Short('h')
	ended := false
	app.Terminate(func(int) { ended = true })
	app.Version(version.Print("gpusteward")).VersionFlag.Short('V')
	app.Flag("log.level", "Least severity that is logged: debug, info, warn or error.").Default("info").EnumVar(&f.logLevel, "debug", "info", "warn", "error")
	app.Flag("log.format", "Format of the log: console or json; auto is console on a terminal.").Default("auto").EnumVar(&f.logFormat, "auto", "console", "json")

	agent := app.Command("agent", "Run the agent (the default).").Default()
	agent.Flag("config.file", "Configuration file.").Default(defaultConfigFile).IsSetByUser(&f.configGiven).StringVar(&f.config)
	agent.Flag("demo", "Serve a simulated host: --demo[=SCENARIO], the name of a scenario or a YAML file; there are "+strings.Join(sim.Scenarios(), ", ")+".").PlaceHolder("SCENARIO").IsSetByUser(&f.demoGiven).StringVar(&f.demo)
	agent.Flag("demo.seed", "Seed of the simulated host: the same seed, the same values.").Default("1").Uint64Var(&f.demoSeed)
	agent.Flag("require-driver", "Exit with status 1 where there is no NVIDIA driver, instead of waiting for one.").BoolVar(&f.requireDriver)
	agent.Flag("web.pprof", "Serve profiles of the agent at /debug/pprof.").BoolVar(&f.pprof)
	f.web = kingpinflag.AddFlags(app, ":9836")

	config := app.Command("config", "Work with configuration files.")
	check := config.Command("check", "Check a configuration file: exit status 0 if it is good.")
	checked := check.Arg("FILE", "Configuration file.").Required().String()

	// --demo takes a value or none, which kingpin's flags cannot.
	args = slices.Clone(args)
	for i, a := range args {
		if a == "--demo" {
			args[i] = "--demo=mixed"
		}
	}
	command, err := app.Parse(args)
	switch {
	case ended: // --help, --version
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gpusteward: %v; see gpusteward --help\n", err)
		return 2
	case command == check.FullCommand():
		if _, err := loadConfig(*checked); err != nil {
			fmt.Fprintln(stderr, err)
			return 1
		}
		fmt.Fprintf(stdout, "%s is good.\n", *checked)
		return 0
	}
	log := newLogger(stderr, f.logLevel, f.logFormat)
	if err := serve(ctx, f, log); err != nil {
		log.Error("gpusteward ends", "err", err)
		return 1
	}
	return 0
}

// serve runs the agent until ctx ends.
func serve(ctx context.Context, f flags, log *slog.Logger) error {
	reload := make(chan os.Signal, 1) // from here on SIGHUP no longer ends the process
	signal.Notify(reload, syscall.SIGHUP)
	defer signal.Stop(reload)
	if err := web.Validate(*f.web.WebConfigFile); err != nil {
		return fmt.Errorf("--web.config.file=%s: %w", *f.web.WebConfigFile, err)
	}
	conf := &configFile{path: f.config, optional: !f.configGiven, log: log}
	c, err := conf.load()
	if err != nil {
		return fmt.Errorf("--config.file: %w", err)
	}
	library, note, err := openLibrary(f, log)
	if err != nil {
		return err
	}
	// Beside somebody else's work: two threads of Go are plenty (driver calls
	// have their own), and on a host with 200 cores the rest would only sweep
	// a small heap in parallel.
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	debug.SetGCPercent(50)
	kernelLog := "/dev/kmsg"
	if f.demo != "" {
		kernelLog = "" // it speaks of other GPUs
	}
	host := collectors.NewHost(library, c.Collectors.config(kernelLog), log)
	server, err := exporter.New(exporter.Options{
		Samples:    func() []collectors.Sample { return append(host.Samples(), conf.samples()...) },
		Ready:      host.Ready,
		Beat:       host.Beat,
		Note:       note,
		MaxScrapes: int(c.Web.MaxScrapes),
		PProf:      f.pprof,
		Log:        log,
	})
	if err != nil {
		return err
	}
	log.Info("gpusteward starts", "version", version.Version, "config", conf.origin())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := host.Run(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		return errors.New("the driver went away under a call that never returned: only a new process can open it again")
	})
	group.Go(func() error { return server.Run(ctx, f.web) })
	group.Go(func() error { return supervise(ctx, host, conf.fast, log) })
	group.Go(func() error {
		return conf.reloadOn(ctx, reload, func(c Config) {
			host.Configure(c.Collectors.config(kernelLog))
			server.Configure(int(c.Web.MaxScrapes))
		})
	})
	if f.requireDriver {
		group.Go(func() error { return requireDriver(ctx, host) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	log.Info("gpusteward ends")
	return nil
}

// openLibrary returns the NVML to read: the driver's, or a simulated one.
func openLibrary(f flags, log *slog.Logger) (nvml.Interface, string, error) {
	if !f.demoGiven {
		return nvml.New(), "", nil
	}
	scenario, err := loadScenario(f.demo)
	if err != nil {
		return nil, "", err
	}
	host, err := sim.New(scenario, sim.Options{Seed: f.demoSeed})
	if err != nil {
		return nil, "", fmt.Errorf("--demo=%s: %w", f.demo, err)
	}
	log.Warn("these GPUs are simulated", "scenario", scenario.Name, "doc", scenario.Doc)
	return host, "This host is simulated (--demo=" + f.demo + ").", nil
}

// requireDriver fails once it is plain that there is no driver.
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
