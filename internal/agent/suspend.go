package agent

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/enforcer"
	"gpusteward/enforcer/escalation"
	"gpusteward/enforcer/suspend"
	"gpusteward/exporter"
	"gpusteward/health/incident"
)

// suspendFlags are the arguments of suspend and resume-process.
type suspendFlags struct{ workload string }

func suspendCommands(app *kingpin.Application, f *flags) (suspension, resumption *kingpin.CmdClause, s *suspendFlags) {
	s = new(suspendFlags)
	suspension = app.Command("suspend", "Take the GPU memory of a workload and keep it in host memory, until "+
		"resume-process. Its processes stop at their next call of the driver, and lose nothing under the hook. Without it, "+
		"the driver may end one that waits for its GPU while something else, such as a debugger, traces it. Requires root, "+
		"the enforcer, and driver 570 or later.")
	resumption = app.Command("resume-process", "Give a suspended workload its GPU memory back. Requires root.")
	for _, c := range []*kingpin.CmdClause{suspension, resumption} {
		c.Arg("WORKLOAD", "Workload as status shows it, such as slurm:4711, or the PID of one of its processes.").
			Required().HintAction(f.workloadNames).StringVar(&s.workload)
	}
	return suspension, resumption, s
}

// checkpointFlags are the arguments of the child process that makes one call of
// the driver.
type checkpointFlags struct {
	op  string
	pid int
}

func checkpointCommand(app *kingpin.Application) (*kingpin.CmdClause, *checkpointFlags) {
	c := new(checkpointFlags)
	cmd := app.Command(suspend.Command, "Make one call of the driver on a process.").Hidden()
	cmd.Arg("OP", "Call.").Required().EnumVar(&c.op, string(suspend.Ask), string(suspend.Lock),
		string(suspend.Checkpoint), string(suspend.Restore), string(suspend.Unlock), string(suspend.Sizes))
	cmd.Arg("PID", "Process.").Required().IntVar(&c.pid)
	return cmd, c
}

// orderTime is how long an order to suspend or resume waits for its end: less
// than the control socket waits for an answer.
const orderTime = 8 * time.Second

// suspendActions returns the orders of the enforcer's control socket.
func suspendActions(e *enforcer.Enforcer) map[string]exporter.Action {
	act := func(do func(context.Context, url.Values) (string, error)) exporter.Action {
		return exporter.Action{Takes: []string{"workload"}, Do: func(ctx context.Context, v url.Values) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, orderTime)
			defer cancel()
			return do(ctx, v)
		}}
	}
	return map[string]exporter.Action{
		"suspend": act(func(ctx context.Context, v url.Values) (string, error) {
			return e.Suspend(ctx, v.Get("workload"), "ordered by "+exporter.OrderedBy(ctx))
		}),
		"resume-process": act(func(ctx context.Context, v url.Values) (string, error) {
			return e.ResumeProcess(ctx, v.Get("workload"), "ordered by "+exporter.OrderedBy(ctx))
		}),
	}
}

// suspended returns the end of a suspension or a resumption as an event of the
// journal.
func suspended(end suspend.End) incident.Event {
	e := incident.Event{Kind: incident.KindEnforcement, Time: time.Now(),
		Entity: incident.Entity{Tenant: end.Tenant, Workload: end.Workload}, Message: end.Why,
		Was: "running", Now: string(suspend.Suspended), Result: escalation.Done, Severity: incident.Info}
	if end.Done == suspend.Resuming {
		e.Was, e.Now = e.Now, e.Was
	}
	if end.Err != nil {
		e.Result, e.Severity = escalation.Failed, incident.Warning
		e.Message += ": " + end.Err.Error()
	}
	if len(end.Lost) > 0 {
		e.Severity, e.PID = incident.Critical, end.Lost[0]
		e.Message += fmt.Sprintf(": the driver broke processes %v, which cannot use their GPU any more", end.Lost)
	}
	return e
}

// socket returns the path of a socket in the runtime directory.
func (f *flags) socket(name string) string { return filepath.Join(f.runtimeDir, name) }
