// Command gpusteward-kube is the agent's contact with Kubernetes. It is a program of its own, because
// the agent needs neither gRPC nor the API's types, and no privilege that this needs.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const usage = `usage: gpusteward-kube COMMAND [FLAGS]

Commands:
  allocations  Keep a file of the GPUs that the kubelet has given to pods.
  health       Report the agent's verdict as a node condition, and as taints of devices.

gpusteward-kube COMMAND --help prints the flags of a command.
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stderr))
}

// run runs a command until ctx ends and returns the exit status.
func run(ctx context.Context, args []string, stderr io.Writer) int {
	commands := map[string]func(context.Context, *flag.FlagSet, []string, *slog.Logger) error{
		"allocations": allocations,
		"health":      health,
	}
	if len(args) == 0 || commands[args[0]] == nil {
		fmt.Fprint(stderr, usage)
		return 2
	}
	flags := flag.NewFlagSet("gpusteward-kube "+args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	switch err := commands[args[0]](ctx, flags, args[1:], slog.New(slog.NewTextHandler(stderr, nil))); {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "gpusteward-kube %s: %v\n", args[0], err)
		return 2
	}
	return 0
}

// parse parses flags, and refuses further arguments.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	return nil
}

// each calls do now and at each interval until ctx ends. It logs a failure when it begins and when it
// ends, and not at each call.
func each(ctx context.Context, interval time.Duration, log *slog.Logger, what string, do func(context.Context) error) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	failing := ""
	for {
		switch err := do(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil && err.Error() != failing:
			failing = err.Error()
			log.Warn("cannot "+what, "err", err)
		case err == nil && failing != "":
			failing = ""
			log.Info("can " + what + " again")
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
