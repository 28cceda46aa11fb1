package suspend

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An Op is a call of the driver on one process.
type Op string

// The calls. Each returns the state of the process after it.
const (
	Ask        Op = "state"
	Lock       Op = "lock"       // wait for its work to end, and stop it at its next call of the driver
	Checkpoint Op = "checkpoint" // copy its GPU memory to the host, and free it
	Restore    Op = "restore"    // copy it back
	Unlock     Op = "unlock"     // let it go on
)

// A State is the driver's state of a process, as CUprocessState numbers it.
type State int

// The states.
const (
	Unknown State = iota - 1
	Running
	Locked
	Checkpointed
	Broken // the driver could not restore or checkpoint it, and it cannot use its GPU any more
)

// String returns the driver's word for the state.
func (s State) String() string {
	if s < Unknown || s > Broken {
		return fmt.Sprintf("state %d", int(s))
	}
	return [...]string{"unknown", "running", "locked", "checkpointed", "failed"}[s-Unknown]
}

// A Reason is why a workload is not suspended, or not resumed: a label of
// metrics.
type Reason string

// The reasons.
const (
	OldDriver    Reason = "driver"        // it does not have the calls
	Unsupported  Reason = "unsupported"   // the driver refuses: shared memory, unified memory, multicast
	Busy         Reason = "busy"          // its work did not end in time
	WrongState   Reason = "state"         // somebody else locked it, or the driver broke it
	HostMemory   Reason = "host_memory"   // too little is available
	CgroupMemory Reason = "cgroup_memory" // the cgroup's limit leaves too little
	GPUMemory    Reason = "gpu_memory"    // the GPU has no room for it now
	MPS          Reason = "mps"           // clients of MPS share a context
	NoAnswer     Reason = "no_answer"     // the driver did not answer in time, or its process crashed
	NotCUDA      Reason = "not_cuda"      // the driver does not know the process
	Other        Reason = "other"
)

// Reasons are all reasons, in the order of the documentation.
var Reasons = []Reason{OldDriver, Unsupported, Busy, WrongState, HostMemory, CgroupMemory, GPUMemory, MPS, NoAnswer,
	NotCUDA, Other}

// A Refusal is an error with its reason.
type Refusal struct {
	Reason Reason
	Text   string
}

func (r *Refusal) Error() string { return r.Text }

func refuse(reason Reason, format string, args ...any) *Refusal {
	return &Refusal{reason, fmt.Sprintf(format, args...)}
}

// reasons are those of the driver's return codes.
var reasons = map[int]Reason{
	1:   NotCUDA,     // INVALID_VALUE
	2:   GPUMemory,   // OUT_OF_MEMORY
	401: WrongState,  // ILLEGAL_STATE
	600: Busy,        // NOT_READY
	801: Unsupported, // NOT_SUPPORTED
}

// A Call makes one call of the driver on a process, and returns the state of the
// process after it. It ends when ctx does, and its errors are Refusals.
type Call func(ctx context.Context, op Op, pid int) (State, error)

// Command is the hidden command of this program that makes one call:
// gpusteward call-driver OP PID.
const Command = "call-driver"

// Helper makes each call in a child process, which is this program again, and
// kills it when ctx ends. env is added to the child's environment.
func Helper(env ...string) Call {
	return func(ctx context.Context, op Op, pid int) (State, error) {
		// The child must not outlive this process: the kernel kills it when the
		// thread that started it ends.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var out, complaint bytes.Buffer
		cmd := exec.CommandContext(ctx, "/proc/self/exe", Command, string(op), strconv.Itoa(pid))
		cmd.Env = append(unhooked(os.Environ()), env...)
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &complaint, time.Second
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		err := cmd.Run()
		var a answer
		switch {
		case ctx.Err() != nil:
			return Unknown, refuse(NoAnswer, "%s of %d: the driver did not answer in time", op, pid)
		case err != nil:
			text := strings.TrimSpace(complaint.String())
			return Unknown, refuse(NoAnswer, "%s of %d: its child process failed: %v %.200s", op, pid, err, text)
		}
		if err := json.Unmarshal(out.Bytes(), &a); err != nil {
			return Unknown, refuse(NoAnswer, "%s of %d: its child process wrote no answer: %v", op, pid, err)
		}
		return a.State, a.err(op, pid)
	}
}

// unhooked returns an environment without the hook, which must not hold back
// its own enforcer.
func unhooked(env []string) (left []string) {
	for _, one := range env {
		if !strings.HasPrefix(one, "LD_PRELOAD=") {
			left = append(left, one)
		}
	}
	return left
}

func (a answer) err(op Op, pid int) error {
	if a.Missing != "" {
		return refuse(OldDriver, "%s of %d: the driver has no %s; suspending requires driver 570 or later", op, pid,
			a.Missing)
	}
	if a.Code == 0 {
		return nil
	}
	reason, known := reasons[a.Code]
	if !known {
		reason = Other
	}
	return refuse(reason, "%s of %d: %s (%d), and the state of the process is %s", op, pid, a.Name, a.Code,
		a.State)
}

// ReasonOf returns the reason of an error.
func ReasonOf(err error) Reason {
	var r *Refusal
	if errors.As(err, &r) {
		return r.Reason
	}
	return Other
}
