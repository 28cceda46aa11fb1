package agent

import (
	"context"
	"errors"
	"io"

	"github.com/alecthomas/kingpin/v2"

	"gpusteward/enforcer/stack"
)

// stackFlags are the flags of gpusteward stack.
type stackFlags struct {
	pid  int32
	json bool
}

func stackCommand(app *kingpin.Application) (*kingpin.CmdClause, *stackFlags) {
	s := new(stackFlags)
	cmd := app.Command("stack", "Show the current line of each thread of a process: its Python code, its system call "+
		"and the place in its native code. The process continues meanwhile, and no argument or variable is read. "+
		"Requires root for another user's process. The exit status is 1 if something could not be read.")
	cmd.Flag("json", "Write JSON.").BoolVar(&s.json)
	cmd.Arg("PID", "Process, such as a rank that hangs.").Required().Int32Var(&s.pid)
	return cmd, s
}

// run shows everything that can be read, and why the rest cannot.
func (s *stackFlags) run(ctx context.Context, procfs string, stdout io.Writer) error {
	p, err := stack.Of(ctx, int(s.pid), stack.Options{Procfs: procfs})
	if err != nil {
		return err
	}
	text := p.Text()
	if s.json {
		text = p.JSON()
	}
	if _, err := io.WriteString(stdout, text); err != nil {
		return err
	}
	if p.Problem != "" {
		return errors.New("not all of it was read")
	}
	return nil
}
