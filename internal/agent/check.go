package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/exporter"
	"gpusteward/health"
	"gpusteward/health/incident"
	"gpusteward/internal/config"
)

// checkMistaken is the exit status of gpusteward check after a usage error:
// nothing is known, and nobody should drain a node for a typing error.
const checkMistaken = 3

// handOver is the time before the timeout at which a child has its verdict.
const handOver = 500 * time.Millisecond

// checkFlags are the flags of gpusteward check.
type checkFlags struct {
	url        string
	http       clientFile
	standalone bool
	child      int64 // deadline of the verdict for the parent, Unix time, ns; 0: this is no child
	timeout    time.Duration
	format     string
	least      string
	only       string
	except     string
	gpus       string
	gpusGiven  bool
}

func checkCommand(app *kingpin.Application, f *flags) (*kingpin.CmdClause, *checkFlags) {
	c := new(checkFlags)
	cmd := app.Command("check", "Check the health of the host once. The command prints the agent's verdict. If "+
		"no agent answers, it opens the driver and observes the GPUs for a few seconds. The exit status is 0 for "+
		"healthy, 1 for a warning, 2 for critical or worse, and 3 for unknown or a usage error. Informational "+
		"findings, checks in shadow mode and faults of workloads and tenants are shown, but do not affect it. For Slurm, "+
		"/usr/libexec/gpusteward/healthcheck.sh as HealthCheckProgram drains a critical node. For "+
		"node-problem-detector, --format=npd prints one line of at most 80 characters, and exits "+
		"with 0, with 1 for a problem or with 2 for unknown; "+
		"/usr/share/gpusteward/kubernetes/npd-gpusteward.json runs it.")
	cmd.Flag("url", "Address of an agent, such as http://node7:9836. No other agent is asked, and the driver "+
		"is not opened.").StringVar(&c.url)
	c.http.flag(cmd)
	cmd.Flag("standalone", "Open the driver without asking an agent.").BoolVar(&c.standalone)
	cmd.Flag("timeout", "Time limit without an agent, at least 5s. A driver that hangs is reported by then.").
		Default("20s").DurationVar(&c.timeout)
	cmd.Flag("format", "Format: "+strings.Join(health.Formats, ", ")+".").Default("text").
		EnumVar(&c.format, health.Formats...)
	cmd.Flag("fail-on", "Minimum severity of a failure: warning or critical.").
		Default("warning").EnumVar(&c.least, "warning", "critical")
	cmd.Flag("only", "Comma-separated checks to consider.").PlaceHolder("CHECK,...").HintAction(checkNames).
		StringVar(&c.only)
	cmd.Flag("except", "Comma-separated checks to leave out.").PlaceHolder("CHECK,...").HintAction(checkNames).
		StringVar(&c.except)
	cmd.Flag("gpu", "Comma-separated indices or UUIDs of GPUs to consider, besides the node itself.").
		PlaceHolder("GPU,...").IsSetByUser(&c.gpusGiven).StringVar(&c.gpus)
	cmd.Flag("child", "Check, and send the verdict to the parent by this time.").Hidden().Int64Var(&c.child)
	f.ofMachine(cmd)
	cmd.Validate(func(*kingpin.CmdClause) error { return c.validate() })
	return cmd, c
}

func (c *checkFlags) validate() error {
	if c.timeout < health.LookLeast {
		return fmt.Errorf("--timeout=%v is too short; at least %v", c.timeout, health.LookLeast)
	}
	if c.standalone && c.url != "" {
		return errors.New("--standalone asks no agent, and --url names one: leave one of them out")
	}
	if c.gpusGiven && slices.Contains(strings.Split(c.gpus, ","), "") {
		return fmt.Errorf("--gpu=%s: the list has an empty GPU", c.gpus)
	}
	if err := gpuNames("--gpu", c.gpus); err != nil {
		return err
	}
	for flag, names := range map[string]string{"--only": c.only, "--except": c.except} {
		if _, err := checks(names); err != nil {
			return fmt.Errorf("%s: %w", flag, err)
		}
	}
	return nil
}

// gpuName is what a GPU is called on the command line.
var gpuName = regexp.MustCompile(`^(?:\d+(?::\d+)?|(?:GPU|MIG)-.+)$`)

// gpuNames refuses what no GPU of any host is called in a flag's list.
func gpuNames(flag, names string) error {
	for _, name := range list(names) {
		if !gpuName.MatchString(name) {
			return fmt.Errorf("%s: %q is neither an index nor a UUID: write them with commas, as in %s=0,1; without the "+
				"flag all GPUs are meant", flag, name, flag)
		}
	}
	return nil
}

// checks returns the IDs of a comma-separated list of checks.
func checks(names string) (ids []string, err error) {
	for _, name := range list(names) {
		c, err := health.Named(name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, c.ID)
	}
	return ids, nil
}

// list returns the items of a comma-separated list.
func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

// run checks the host and returns the exit status.
func (c *checkFlags) run(ctx context.Context, f flags, args []string, stdout io.Writer) int {
	if c.child != 0 {
		if json.NewEncoder(stdout).Encode(c.look(ctx, f)) != nil {
			return checkMistaken
		}
		return 0
	}
	j := c.judge(ctx, f, args)
	only, _ := checks(c.only) // they are valid
	except, _ := checks(c.except)
	j.Narrow(only, except, list(c.gpus))
	var least incident.Severity
	if err := least.UnmarshalText([]byte(c.least)); err != nil {
		return checkMistaken
	}
	text, status := j.Report(c.format, least)
	if _, err := io.WriteString(stdout, text); err != nil {
		return checkMistaken
	}
	return status
}

// judge asks the agent, or looks itself if there is none.
func (c *checkFlags) judge(ctx context.Context, f flags, args []string) health.Judgement {
	var unasked error
	if !c.standalone {
		client, err := c.http.client()
		if err != nil {
			return health.NoVerdict(health.FromAgent, c.node(), err)
		}
		answer, err := exporter.Agent{RuntimeDir: f.runtimeDir, URL: c.url, Client: client}.Ask(ctx, "/api/v1/health")
		if err == nil {
			var j health.Judgement
			if j, err = health.Answered(answer, time.Now()); err == nil {
				if f.demoGiven {
					j.Notes = append(j.Notes, "this is the verdict of the running agent; --standalone checks the host of --demo")
				}
				return j
			}
		}
		if unasked = err; !errors.Is(err, exporter.ErrNoAgent) {
			unasked = fmt.Errorf("%w: %w", exporter.ErrNoAgent, err)
		}
		if c.url != "" {
			return health.NoVerdict(health.FromAgent, c.node(), unasked)
		}
	}
	look := c.look
	if !f.demoGiven {
		look = func(ctx context.Context, _ flags) health.Judgement { return c.away(ctx, args) }
	}
	j := look(ctx, f)
	if unasked != nil {
		j.Notes = append(j.Notes, unasked.Error())
	}
	return j
}

// node is the address that --url names; empty: this host.
func (c *checkFlags) node() string {
	if u, err := url.Parse(c.url); err == nil && u.Host != "" {
		return u.Host
	}
	return ""
}

// away has a child look. A driver call may hang so that no signal reaches it,
// and the process that made it cannot end. That process is the child, which is
// left behind.
func (c *checkFlags) away(ctx context.Context, args []string) health.Judgement {
	fail := func(err error) health.Judgement {
		return health.NoVerdict(health.Standalone, hostName(), err)
	}
	deadline := time.Now().Add(c.timeout)
	child := exec.Command("/proc/self/exe", append(slices.Clone(args),
		fmt.Sprintf("--child=%d", deadline.Add(-handOver).UnixNano()))...)
	pipe, err := child.StdoutPipe()
	if err == nil {
		err = child.Start()
	}
	if err != nil {
		return fail(fmt.Errorf("start the check: %w", err))
	}
	var j health.Judgement
	told := make(chan error, 1)
	go func() { told <- json.NewDecoder(pipe).Decode(&j) }()
	late := time.NewTimer(time.Until(deadline))
	defer late.Stop()
	select {
	case err = <-told:
		if err != nil {
			return fail(fmt.Errorf("look: %w", err))
		}
		return j
	case <-late.C:
		err = fmt.Errorf("the driver hangs: no verdict within %v", c.timeout)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return fail(errors.Join(err, child.Process.Kill()))
}

// look opens the driver and judges. It only reads the state of an agent.
func (c *checkFlags) look(ctx context.Context, f flags) health.Judgement {
	log := slog.New(slog.DiscardHandler) // the verdict says everything
	node := hostName()
	conf := &config.File{Root: f.root, Path: f.config, Optional: !f.configGiven, Log: log}
	settings, err := conf.Load()
	if err != nil {
		return health.NoVerdict(health.Standalone, node, fmt.Errorf("--config.file: %w", err))
	}
	settings.Collectors.Medium = settings.Collectors.Fast // a value that is read once does not show that it lasts
	m, err := newHostConfig(f, settings, log)
	if err != nil {
		return health.NoVerdict(health.Standalone, node, err)
	}
	boot, err := m.options.Kernel.BootID()
	l := health.Look{Host: m.options, Kernel: m.kernelLog, Boot: boot, Node: node, Timeout: c.timeout,
		Settings: settings.Health.Settings()}
	if c.child != 0 { // the start of the child is part of the timeout
		l.Timeout = time.Until(time.Unix(0, c.child))
	}
	if m.real {
		l.Store.Dir = f.stateDir
	}
	j := l.Judge(ctx)
	if err != nil {
		j.Notes = append(j.Notes, err.Error())
	}
	return j
}
