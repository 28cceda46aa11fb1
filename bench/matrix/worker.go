package main

import (
	"fmt"
	"os/exec"
	"syscall"

	"gpusteward/bench/worker"
)

// startWorker starts a command with env in addition to this process's own environment, in a process
// group of its own.
func startWorker(name string, env []string, argv ...string) (*worker.Worker, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return worker.Start(name, cmd, env...)
}

// kill ends a worker and its ranks.
func kill(w *worker.Worker) {
	_ = syscall.Kill(-w.Cmd.Process.Pid, syscall.SIGKILL)
	w.Kill()
}

// pin binds a worker's threads, and its later ones, to so many processors from the first on.
func pin(w *worker.Worker, first, n int) error {
	list := fmt.Sprintf("%d-%d", first, first+n-1)
	if out, err := exec.Command("taskset", "-acp", list, fmt.Sprint(w.Cmd.Process.Pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset -acp %s: %w %s", list, err, out)
	}
	return nil
}
