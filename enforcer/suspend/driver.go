package suspend

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"gpusteward/internal/procs"
	"gpusteward/internal/worker"
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
// process after it. It is given up when ctx ends, and its errors are Refusals.
type Call func(ctx context.Context, op Op, pid int) (State, error)

// Command is the hidden command of this program that makes one call:
// gpusteward call-driver OP PID.
const Command = "call-driver"

// Bounds of the child processes that make calls, those included whose calls were given up. A
// suspension makes no call that would leave too few for resumptions, and of a user no more calls
// are left behind than others still have: his processes can see to it that none returns.
const (
	maxCalls  = 4 * maxMoving
	keptCalls = maxMoving
	callTasks = 16 // of one child process, with the threads of the driver
)

// Helper makes each call in a child process, which is this program again. The driver
// goes on with a call whose caller has died, and tells nobody when it is over. So
// nothing ends a child: when ctx ends, the call is given up, and the child goes on,
// even after this process. While it does, no other call is made on that process: a
// child locks the byte of that PID in the file at path. env is added to the child's
// environment.
func Helper(path string, env ...string) Call {
	calls := &worker.Kind{Command: []string{Command}, Running: maxCalls, Children: maxCalls, Stays: true}
	return func(ctx context.Context, op Op, pid int) (State, error) {
		turn, err := turnOn(ctx, path, pid)
		if err != nil {
			return Unknown, err
		}
		defer func() { _ = turn.Close() }() // the child has it, too
		order := worker.Order{Args: []string{string(op), strconv.Itoa(pid)}, Env: env, Files: []*os.File{turn},
			Of: procs.Whose("/proc", pid)}
		if op == Lock || op == Checkpoint {
			order.Spare = keptCalls
		}
		out, err := calls.Do(ctx, order)
		var full *worker.Full
		switch {
		case errors.As(err, &full):
			return Unknown, refuse(NoAnswer, "%s of %d: %d earlier calls of the driver have not returned", op, pid,
				full.Children)
		case err != nil && ctx.Err() != nil:
			return Unknown, refuse(NoAnswer, "%s of %d: the driver has not answered in time", op, pid)
		case err != nil:
			return Unknown, refuse(NoAnswer, "%s of %d: %v", op, pid, err)
		}
		var a answer
		if err := json.Unmarshal(out, &a); err != nil {
			return Unknown, refuse(NoAnswer, "%s of %d: its child process wrote no answer: %v", op, pid, err)
		}
		return a.State, a.err(op, pid)
	}
}

// lookAgain is how often a call looks whether the one before it has ended.
const lookAgain = 50 * time.Millisecond

// turnOn waits until no call on a process is under way, and returns the file that
// holds the lock.
func turnOn(ctx context.Context, path string, pid int) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, refuse(Other, "the lock for calls of the driver: %v", err)
	}
	its := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(pid), Len: 1}
	err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &its)
	for errors.Is(err, unix.EAGAIN) && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(lookAgain):
			err = unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &its)
		}
	}
	if err == nil {
		return file, nil
	}
	_ = file.Close()
	if errors.Is(err, unix.EAGAIN) {
		return nil, refuse(NoAnswer, "an earlier call of the driver on %d has not returned", pid)
	}
	return nil, refuse(Other, "lock %s: %v", path, err)
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
