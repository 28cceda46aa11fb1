package agent

import (
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/enforcer/preload"
	"gpusteward/health/diag"
	"gpusteward/health/incident"
)

// diagFlags are the flags of gpusteward diag.
type diagFlags struct {
	level string
	gpus  string
	busy  string
	json  bool
	least string
	fault string
}

func diagCommand(app *kingpin.Application) (*kingpin.CmdClause, *diagFlags) {
	d := new(diagFlags)
	cmd := app.Command("diag", "Test idle GPUs: memory, arithmetic of every SM, copies to the host and between GPUs, "+
		"clocks and power under load, and the errors that the driver counts meanwhile. The command resets nothing "+
		"and sets no clocks. The exit status is 0 for healthy, 1 for a warning (slower than expected), 2 for "+
		"critical (wrong results, new errors, a GPU that hangs), and 3 for unknown (no driver, a GPU that was not "+
		"tested) or a usage error.")
	cmd.Flag("level", "Duration for a host: 1 takes about 10 s, 2 a minute, 3 ten minutes.").Default("1").
		EnumVar(&d.level, "1", "2", "3")
	cmd.Flag("gpus", "GPUs to test: indices or UUIDs, separated by commas.").PlaceHolder("GPU,...").
		StringVar(&d.gpus)
	cmd.Flag("busy", "What to do with a GPU in use: refuse, or test it anyway in its free memory.").
		Default("refuse").EnumVar(&d.busy, "refuse", "test")
	cmd.Flag("json", "Write JSON: the fields of gpusteward check --format=json, and each result.").BoolVar(&d.json)
	cmd.Flag("fail-on", "Minimum severity of a failure: warning or critical.").Default("warning").
		EnumVar(&d.least, "warning", "critical")
	cmd.Flag("fault", "Inject a fault, to see it found.").Hidden().
		EnumVar(&d.fault, "", string(diag.WrongSM), string(diag.WrongBit), string(diag.LowClock), string(diag.Hang))
	cmd.Validate(func(*kingpin.CmdClause) error { return gpuNames("--gpus", d.gpus) })
	return cmd, d
}

// run tests the GPUs and returns the exit status.
func (d *diagFlags) run(ctx context.Context, stdout io.Writer) int {
	var least incident.Severity
	level, err := strconv.Atoi(d.level)
	if errors.Join(err, least.UnmarshalText([]byte(d.least))) != nil {
		return checkMistaken
	}
	o := diag.Options{Level: level, GPUs: list(d.gpus), Busy: d.busy == "test", Node: hostName(),
		Fault: diag.Fault(d.fault)}
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

// test runs the tests, unless it is itself under the hook.
func (d *diagFlags) test(ctx context.Context, o diag.Options) *diag.Report {
	if strings.Contains(os.Getenv("LD_PRELOAD"), preload.Library) {
		return o.Unknown(errors.New("the test would measure a quota, not the GPU: start it without the hook " +
			"(LD_PRELOAD)"))
	}
	return diag.Run(ctx, o)
}
