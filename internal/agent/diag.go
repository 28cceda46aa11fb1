package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/enforcer"
	"gpusteward/health/diag"
	"gpusteward/health/incident"
)

// diagFlags are those of gpusteward diag.
type diagFlags struct {
	level string
	gpus  string
	busy  string
	json  bool
	least string
	fault string
	child bool
}

func diagCommand(app *kingpin.Application) (*kingpin.CmdClause, *diagFlags) {
	d := new(diagFlags)
	cmd := app.Command("diag", "Test GPUs that nobody uses: memory, arithmetic of every SM, copies to the host and between GPUs, clocks and power under load, and the errors that the driver counts meanwhile. It resets nothing and sets no clocks. "+
		"Exit status: 0 is well, 1 a warning (slower than it should be), 2 critical (wrong results, new errors, a GPU that hangs), 3 unknown: no driver, a GPU that was not tested, or called wrongly.")
	cmd.Flag("level", "How long: 1 takes some 10 s for a host, 2 a minute, 3 ten minutes.").Default("1").EnumVar(&d.level, "1", "2", "3")
	cmd.Flag("gpus", "GPUs to test: indices or UUIDs, with commas between them.").PlaceHolder("GPU,...").StringVar(&d.gpus)
	cmd.Flag("busy", "What to do with a GPU that somebody uses: refuse, or test it all the same, in the memory that is left.").Default("refuse").EnumVar(&d.busy, "refuse", "test")
	cmd.Flag("json", "Write JSON: what gpusteward check --format=json writes, and each result.").BoolVar(&d.json)
	cmd.Flag("fail-on", "Least severity that is a failure: warning or critical.").Default("warning").EnumVar(&d.least, "warning", "critical")
	cmd.Flag("fault", "Put a fault in, to see it found.").Hidden().EnumVar(&d.fault, "", string(diag.WrongSM), string(diag.WrongBit), string(diag.LowClock), string(diag.Hang))
	cmd.Flag("child", "Do a parent's orders.").Hidden().BoolVar(&d.child)
	return cmd, d
}

// run tests, and returns the exit status.
func (d *diagFlags) run(ctx context.Context, stdin io.Reader, stdout io.Writer) int {
	if d.child {
		if diag.Work(stdin, stdout, diag.OpenDriver) != nil {
			return 1
		}
		return 0
	}
	var least incident.Severity
	level, err := strconv.Atoi(d.level)
	if errors.Join(err, least.UnmarshalText([]byte(d.least))) != nil {
		return checkMistaken
	}
	o := diag.Options{Level: level, GPUs: list(d.gpus), Busy: d.busy == "test", Node: hostName(), Fault: diag.Fault(d.fault),
		Command: func() *exec.Cmd { return exec.Command("/proc/self/exe", "diag", "--child") }}
	format := "text"
	if d.json {
		format = "json"
	}
	text, status := d.test(ctx, o).Report(format, least)
	if _, err := io.WriteString(stdout, text); err != nil {
		return checkMistaken
	}
	return status
}

// test tests, if not in a program's place: under the hook.
func (d *diagFlags) test(ctx context.Context, o diag.Options) *diag.Report {
	if strings.Contains(os.Getenv("LD_PRELOAD"), enforcer.Library) {
		return o.Unknown(errors.New("a quota would be tested, not the GPU: begin it without the hook (LD_PRELOAD)"))
	}
	return diag.Run(ctx, o)
}
