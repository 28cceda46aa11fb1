package suspend

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>

// The calls exist since driver 570. Arguments are structures of 64 bytes, of
// which only the lock's timeout is used; all others are 0.
#define CALLS(X) \
	X(cuInit, (unsigned flags)) \
	X(cuGetErrorName, (int error, const char **name)) \
	X(cuCheckpointProcessGetState, (int pid, int *state)) \
	X(cuCheckpointProcessLock, (int pid, void *arguments)) \
	X(cuCheckpointProcessCheckpoint, (int pid, void *arguments)) \
	X(cuCheckpointProcessRestore, (int pid, void *arguments)) \
	X(cuCheckpointProcessUnlock, (int pid, void *arguments))

#define POINTER(name, arguments) int (*name) arguments;
static struct { CALLS(POINTER) } cu;

// driver opens the library; it returns what is missing, or NULL.
static const char *driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return "libcuda.so.1";
#define LOOK(name, arguments) if (!(cu.name = dlsym(library, #name))) return #name;
	CALLS(LOOK)
	return NULL;
}

static const char *name(int error)
{
	const char *s = NULL;
	return cu.cuGetErrorName(error, &s) || !s ? "an unknown error" : s;
}
static int init(void) { return cu.cuInit(0); }
static int state(int pid, int *s) { return cu.cuCheckpointProcessGetState(pid, s); }
static int lock(int pid, unsigned ms)
{
	uint64_t arguments[8] = {0};
	*(unsigned *)arguments = ms;
	return cu.cuCheckpointProcessLock(pid, arguments);
}
static int checkpoint(int pid) { return cu.cuCheckpointProcessCheckpoint(pid, 0); }
static int restore(int pid) { return cu.cuCheckpointProcessRestore(pid, 0); }
static int unlock(int pid) { return cu.cuCheckpointProcessUnlock(pid, 0); }
*/
import "C"

import (
	"encoding/json"
	"io"
	"os/signal"
	"syscall"
)

// An answer is what a child process writes.
type answer struct {
	State   State  `json:"state"`
	Code    int    `json:"code"`    // CUresult
	Name    string `json:"name"`    // of Code
	Missing string `json:"missing"` // the library or the call that the driver does not have

	Sizes map[string]Size `json:"sizes,omitempty"` // of GPUs, by UUID
}

// Serve makes one call of the driver in this process, and writes its answer. It
// is the child process that a Helper starts: a driver that hangs or crashes
// takes nothing else with it. The signals that stop a service do not end it.
func Serve(op Op, pid int, out io.Writer) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	return json.NewEncoder(out).Encode(call(op, pid))
}

func call(op Op, pid int) (a answer) {
	if op == Sizes {
		return sizesOfGPUs()
	}
	if missing := C.driver(); missing != nil {
		return answer{Missing: C.GoString(missing)}
	}
	told := func(code C.int) answer {
		if code != 0 {
			a.Code, a.Name = int(code), C.GoString(C.name(code))
		}
		return a
	}
	if code := C.init(); code != 0 {
		return told(code)
	}
	id, code := C.int(pid), C.int(0)
	switch op {
	case Lock:
		code = C.lock(id, C.uint(lockWithin.Milliseconds()))
	case Checkpoint:
		code = C.checkpoint(id)
	case Restore:
		code = C.restore(id)
	case Unlock:
		code = C.unlock(id)
	}
	var state C.int
	asked := C.state(id, &state)
	if a.State = State(state); asked != 0 {
		a.State = Unknown // such as that of a process that has ended
	}
	if code == 0 {
		code = asked
	}
	return told(code)
}
