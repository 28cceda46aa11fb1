package suspend

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"gpusteward/internal/fixture"
)

// as returns the calls of a child process that does so.
func as(t *testing.T, child string) Call {
	return Helper(filepath.Join(t.TempDir(), "lock"), "GS_CHILD="+child,
		"GORACE=atexit_sleep_ms=0") // the race detector lets each child sleep for 1 s
}

// TestMain is also the child process of a Helper, as GS_CHILD tells it.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == Command {
		switch os.Getenv("GS_CHILD") {
		case "":
			pid, _ := strconv.Atoi(os.Args[3])
			_ = Serve(Op(os.Args[2]), pid, os.Stdout)
		case "hang": // in a call, until the test opens the pipe
			_ = Serve("", 0, io.Discard) // it ignores signals from then on
			_, _ = os.ReadFile(os.Getenv("GS_PIPE"))
			fmt.Print(`{"state": 1}`)
		case "crash":
			_ = syscall.Kill(os.Getpid(), syscall.SIGSEGV)
			select {}
		case "babble":
			fmt.Println("hello")
		default:
			fmt.Print(os.Getenv("GS_CHILD"))
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestAnswersOfTheDriver(t *testing.T) {
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
	} {
		state, err := as(t, child)(context.Background(), Checkpoint, 4711)
		fixture.If(t, (err == nil) != (want == "") || err != nil && ReasonOf(err) != want,
			"%s: %v, want %q", child, err, want)
		fixture.If(t, err != nil && !strings.Contains(err.Error(), "checkpoint of 4711"),
			"%s: %v does not name the call", child, err)
		fixture.If(t, err == nil && state != Checkpointed, "%s: %s", child, state)
	}
}

// hanging returns calls that hang until they are let go, which the end of the test
// does, too, and the path of their locks.
func hanging(t *testing.T) (call Call, path string, letGo func()) {
	path, pipe := filepath.Join(t.TempDir(), "lock"), filepath.Join(t.TempDir(), "pipe")
	fixture.Must(t, syscall.Mkfifo(pipe, 0o600))
	letGo = sync.OnceFunc(func() {
		if f, err := os.OpenFile(pipe, os.O_WRONLY, 0); err == nil { // once the child has opened it
			_ = f.Close()
		}
	})
	t.Cleanup(letGo)
	return Helper(path, "GS_CHILD=hang", "GS_PIPE="+pipe, "GORACE=atexit_sleep_ms=0"), path, letGo
}

// childOf returns the PID of the child process that makes a call on a process. It reads the arguments of this
// process's children only, because the read does not end while the kernel holds the memory of that process.
func childOf(t *testing.T, of string) (pid int) {
	t.Helper()
	ours := fmt.Sprintf("\nPPid:\t%d\n", os.Getpid())
	fixture.Eventually(t, "a child process makes the call", func() bool {
		all, _ := filepath.Glob("/proc/[0-9]*/status")
		for _, file := range all {
			status, _ := os.ReadFile(file)
			if !strings.Contains(string(status), ours) {
				continue
			}
			text, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			if arguments := strings.Split(string(text), "\x00"); len(arguments) > 3 && arguments[1] == Command &&
				arguments[3] == of {
				pid, _ = strconv.Atoi(strings.Split(file, "/")[2])
				return ignores(string(status), syscall.SIGTERM)
			}
		}
		return false
	})
	return pid
}

// ignores says whether a process ignores a signal.
func ignores(status string, signal syscall.Signal) bool {
	_, rest, _ := strings.Cut(status, "SigIgn:")
	text, _, _ := strings.Cut(strings.TrimSpace(rest), "\n")
	set, _ := strconv.ParseUint(text, 16, 64)
	return set>>(signal-1)&1 == 1
}

// TestADriverThatHangsIsLeft gives a call up at its deadline. Its child process goes on, whatever asks it to end. Until
// it has returned, no other call is made on that process, even by another enforcer, and calls on others are.
func TestADriverThatHangsIsLeft(t *testing.T) {
	call, path, letGo := hanging(t)
	const of = 999_991
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() {
		_, err := call(ctx, Restore, of)
		result <- err
	}()
	child := childOf(t, strconv.Itoa(of))
	cancel()
	var r *Refusal
	if err := <-result; !errors.As(err, &r) || r.Reason != NoAnswer || !strings.Contains(r.Text, "in time") {
		t.Errorf("%v", err)
	}
	_ = syscall.Kill(child, syscall.SIGTERM)
	next := Helper(path, `GS_CHILD={"state": 1}`, "GORACE=atexit_sleep_ms=0")
	short, cancel := context.WithTimeout(context.Background(), 2*lookAgain)
	defer cancel()
	if _, err := next(short, Ask, of); ReasonOf(err) != NoAnswer || !strings.Contains(err.Error(), "earlier call") {
		t.Errorf("a second call on the process: %v", err)
	}
	fixture.Must(t, fixture.Error(next(context.Background(), Ask, of+1))) // a call on another process
	go letGo()
	fixture.Equal(t, fixture.Value(next(context.Background(), Ask, of))(t), Locked, "after it has returned")
}

// TestCallsAreBounded leaves children behind that hang. A suspension makes no call any more while
// resumptions still do, until there are too many for these, too.
func TestCallsAreBounded(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	fixture.Must(t, syscall.Mkfifo(pipe, 0o600))
	call := Helper(filepath.Join(t.TempDir(), "lock"), "GS_CHILD=hang", "GS_PIPE="+pipe)
	late, cancel := context.WithCancel(t.Context())
	cancel()
	var of []int
	made := func(op Op) (n int) {
		for ; n <= maxCalls; n++ {
			if _, err := call(late, op, 999_000_000+len(of)); strings.Contains(err.Error(), "earlier calls") {
				break
			}
			of = append(of, 999_000_000+len(of))
		}
		return n
	}
	fixture.Equal(t, made(Lock), maxCalls-keptCalls, "calls of suspensions")
	fixture.Equal(t, made(Restore), keptCalls, "further calls of resumptions")
	for _, pid := range of {
		child := childOf(t, strconv.Itoa(pid))
		t.Cleanup(func() { _ = syscall.Kill(child, syscall.SIGKILL) })
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", child))
		fixture.AtMost(t, len(tasks), callTasks, "tasks of a call")
	}
}

// TestCallsNeedTheirLock makes no call that another enforcer would not notice.
func TestCallsNeedTheirLock(t *testing.T) {
	fixture.Fails(t, fixture.Error(Helper(filepath.Join(t.TempDir(), "none", "lock"))(context.Background(), Ask, 1)), "lock", "the call")
}

func TestNames(t *testing.T) {
	got := fmt.Sprint(Unknown, Running, Locked, Checkpointed, Broken, State(-2), State(4))
	fixture.If(t, got !=
		"unknown running locked checkpointed failed state -2 state 4", "%v", got)
	fixture.Equal(t, ReasonOf(errors.New("anything")), Other, "the reason of anything")
	fixture.Equal(t, ReasonOf(fmt.Errorf("more: %w", refuse(MPS, "less"))), MPS, "the reason within an error")
}

// TestServeWithoutADriver answers, whatever this machine has.
func TestServeWithoutADriver(t *testing.T) {
	var out strings.Builder
	if err := Serve(Ask, 1, &out); err != nil || !strings.Contains(out.String(), `"state"`) {
		t.Errorf("%v: %s", err, out.String())
	}
}
