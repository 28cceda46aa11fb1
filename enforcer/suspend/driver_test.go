package suspend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// as returns the calls of a child process that does so.
func as(child string) Call {
	return Helper("GS_CHILD="+child, "GORACE=atexit_sleep_ms=0") // the race detector lets each child sleep for 1 s
}

// TestMain is also the child process of a Helper, as GS_CHILD tells it.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == Command {
		switch os.Getenv("GS_CHILD") {
		case "":
			pid, _ := strconv.Atoi(os.Args[3])
			_ = Serve(Op(os.Args[2]), pid, os.Stdout)
		case "hang":
			select {}
		case "crash":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
			select {}
		case "babble":
			fmt.Println("hello")
		case "hooked":
			fmt.Printf(`{"state": 1, "code": 999, "name": "preloads <%s>"}`, os.Getenv("LD_PRELOAD"))
		default:
			fmt.Print(os.Getenv("GS_CHILD"))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAnswersOfTheDriver(t *testing.T) {
	t.Setenv("LD_PRELOAD", "")
	for child, want := range map[string]Reason{
		`{"state": 2}`: "",
		`{"state": 1, "code": 600, "name": "CUDA_ERROR_NOT_READY"}`:     Busy,
		`{"state": 1, "code": 801, "name": "CUDA_ERROR_NOT_SUPPORTED"}`: Unsupported,
		`{"state": 2, "code": 2, "name": "CUDA_ERROR_OUT_OF_MEMORY"}`:   GPUMemory,
		`{"code": 1, "name": "CUDA_ERROR_INVALID_VALUE"}`:               NotCUDA,
		`{"code": 401, "name": "CUDA_ERROR_ILLEGAL_STATE"}`:             WrongState,
		`{"state": 3, "code": 999, "name": "CUDA_ERROR_UNKNOWN"}`:       Other,
		`{"missing": "cuCheckpointProcessLock"}`:                        OldDriver,
		"crash":                                                         NoAnswer,
		"babble":                                                        NoAnswer,
		"hooked":                                                        Other,
	} {
		state, err := as(child)(context.Background(), Checkpoint, 4711)
		if (err == nil) != (want == "") || err != nil && ReasonOf(err) != want {
			t.Errorf("%s: %v, want %q", child, err, want)
		}
		if err != nil && !strings.Contains(err.Error(), "checkpoint of 4711") {
			t.Errorf("%s: %v does not name the call", child, err)
		}
		if err == nil && state != Checkpointed {
			t.Errorf("%s: %s", child, state)
		}
	}
}

// TestAHookIsNotForTheChild does not have the enforcer's own hook hold it back.
func TestAHookIsNotForTheChild(t *testing.T) {
	t.Setenv("LD_PRELOAD", "libnothing.so")
	if _, err := as("hooked")(context.Background(), Ask, 1); !strings.Contains(err.Error(), "preloads <>") {
		t.Errorf("the child has LD_PRELOAD: %v", err)
	}
}

// TestADriverThatHangsIsLeft kills the child at the deadline.
func TestADriverThatHangsIsLeft(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := as("hang")(ctx, Restore, 7)
	var r *Refusal
	if !errors.As(err, &r) || r.Reason != NoAnswer || !strings.Contains(r.Text, "in time") {
		t.Errorf("%v", err)
	}
}

func TestNames(t *testing.T) {
	if got := fmt.Sprint(Unknown, Running, Locked, Checkpointed, Broken, State(-2), State(4)); got !=
		"unknown running locked checkpointed failed state -2 state 4" {
		t.Error(got)
	}
	if r := ReasonOf(errors.New("anything")); r != Other {
		t.Error(r)
	}
	if r := ReasonOf(fmt.Errorf("more: %w", refuse(MPS, "less"))); r != MPS {
		t.Error(r)
	}
}

// TestServeWithoutADriver answers, whatever this machine has.
func TestServeWithoutADriver(t *testing.T) {
	var out strings.Builder
	if err := Serve(Ask, 1, &out); err != nil || !strings.Contains(out.String(), `"state"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}
