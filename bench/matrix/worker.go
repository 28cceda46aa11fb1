package main

import (
	"fmt"
	"math/bits"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

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

// pin binds a worker's threads, and its later ones, to n processors: those from the first on of
// the processors that this program may use.
func pin(w *worker.Worker, first, n int) error {
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("the processors of this program: %w", err)
	}
	var all []string
	for cpu := range len(may) * bits.UintSize {
		if may.IsSet(cpu) {
			all = append(all, strconv.Itoa(cpu))
		}
	}
	if first+n > len(all) {
		return fmt.Errorf("%d processors are too few: -cores %d takes processors %d to %d", len(all), n, first, first+n-1)
	}
	list := strings.Join(all[first:first+n], ",")
	if out, err := exec.Command("taskset", "-acp", list, fmt.Sprint(w.Cmd.Process.Pid)).CombinedOutput(); err != nil {
		return fmt.Errorf("taskset -acp %s: %w %s", list, err, out)
	}
	return nil
}
