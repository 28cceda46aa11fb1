package backend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An mpsControl asks the control daemon of CUDA MPS through NVIDIA's own
// program, because the socket's protocol is not documented. The program prints
// answers and complaints alike on stdout, with exit status 0. Everything below
// is as in driver 580.
type mpsControl struct {
	command string        // nvidia-cuda-mps-control
	pipes   string        // the daemon's directory
	wait    time.Duration // the longest for one answer
}

// errServerGone means that an MPS server does not exist, or no longer.
var errServerGone = errors.New("the MPS server is gone")

// mostAnswer bounds an answer, bytes.
const mostAnswer = 64 << 10

// there reports whether a daemon listens. A daemon that another user could have
// started, or put in place of root's, is not trusted.
func (c mpsControl) there() (bool, error) {
	for _, path := range []string{c.pipes, filepath.Join(c.pipes, "control")} {
		info, err := os.Lstat(path)
		if errors.Is(err, os.ErrNotExist) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for the MPS control daemon: %w", err)
		}
		if owner := int(info.Sys().(*syscall.Stat_t).Uid); owner != 0 && owner != os.Geteuid() {
			return false, fmt.Errorf("%s belongs to uid %d, which could impersonate the MPS control daemon", path,
				owner)
		}
	}
	return true, nil
}

// ask returns the daemon's answer.
func (c mpsControl) ask(ctx context.Context, format string, args ...any) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.wait)
	defer cancel()
	question := fmt.Sprintf(format, args...)
	var out, complaint bounded
	cmd := exec.CommandContext(ctx, c.command)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(question+"\n"), &out, &complaint
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+c.pipes, "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = c.wait / 4 // for a child that left the group and holds the pipe
	err := cmd.Run()
	answer := strings.TrimSpace(string(out))
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("ask the MPS control daemon to %s: no answer within %v", question, c.wait)
	case err != nil && len(complaint) > 0:
		return "", fmt.Errorf("ask the MPS control daemon to %s: %w: %.200q", question, err,
			strings.TrimSpace(string(complaint)))
	case err != nil:
		return "", fmt.Errorf("ask the MPS control daemon to %s: %w", question, err)
	case strings.HasPrefix(answer, "Server ") && strings.HasSuffix(answer, " not found"):
		return "", errServerGone
	}
	return answer, nil
}

// pids asks for a list of processes.
func (c mpsControl) pids(ctx context.Context, format string, args ...any) ([]int, error) {
	answer, err := c.ask(ctx, format, args...)
	if err != nil {
		return nil, err
	}
	var all []int
	for field := range strings.FieldsSeq(answer) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("ask the MPS control daemon to %s: %.200q is not a list of processes",
				fmt.Sprintf(format, args...), answer)
		}
		all = append(all, pid)
	}
	return all, nil
}

// percent asks for a percentage, or for a command that answers with one.
func (c mpsControl) percent(ctx context.Context, format string, args ...any) (float64, error) {
	answer, err := c.ask(ctx, format, args...)
	if err != nil {
		return 0, err
	}
	v, err := strconv.ParseFloat(answer, 64)
	if err != nil || !(v >= 0 && v <= 100) {
		return 0, fmt.Errorf("ask the MPS control daemon to %s: %.200q is not a percentage",
			fmt.Sprintf(format, args...), answer)
	}
	return v, nil
}

// capMemory sets the most memory of a GPU that each later client of a server
// may have, MiB.
func (c mpsControl) capMemory(ctx context.Context, server int, gpu string, mebibytes uint64) error {
	return c.silent(ctx, "set_device_pinned_mem_limit %d %s %dM", server, gpu, mebibytes)
}

// capped reports whether capMemory's cap is in force; it is not if the server
// does not have the GPU. The daemon rounds the number down to GiB.
func (c mpsControl) capped(ctx context.Context, server int, gpu string, mebibytes uint64) (bool, error) {
	shown, err := c.ask(ctx, "get_device_pinned_mem_limit %d %s", server, gpu)
	return shown == fmt.Sprintf("%dM", mebibytes) ||
		mebibytes >= 1024 && shown == fmt.Sprintf("%dG", mebibytes/1024), err
}

// silent sends a command that has no answer.
func (c mpsControl) silent(ctx context.Context, format string, args ...any) error {
	answer, err := c.ask(ctx, format, args...)
	if err == nil && answer != "" {
		return fmt.Errorf("ask the MPS control daemon to %s: %.200q", fmt.Sprintf(format, args...), answer)
	}
	return err
}

// bounded is a text that refuses to grow beyond mostAnswer.
type bounded []byte

func (b *bounded) Write(p []byte) (int, error) {
	if len(*b)+len(p) > mostAnswer {
		return 0, io.ErrShortWrite
	}
	*b = append(*b, p...)
	return len(p), nil
}
