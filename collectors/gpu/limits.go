package gpu

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// As nvml.h of CUDA 13.4 has them: nvmlSetMemoryLimits_v1_t and
// nvmlGetMemoryLimits_v1_t.
typedef struct { const char *cgroup; unsigned long long soft, hard; } set_limits;
typedef struct { const char *cgroup; unsigned long long soft, hard, used; } get_limits;

// loaded returns the library that NVML was opened from; it opens none.
static void *loaded(void) { return dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_NOLOAD); }

static int by_uuid(void *f, const char *uuid, uintptr_t *device)
{
	return ((int (*)(const char *, uintptr_t *))f)(uuid, device);
}

static int set(void *f, uintptr_t device, const char *cgroup, unsigned long long soft, unsigned long long hard)
{
	set_limits l = { cgroup, soft, hard };
	return ((int (*)(uintptr_t, set_limits *))f)(device, &l);
}

static int get(void *f, uintptr_t device, const char *cgroup, unsigned long long *soft, unsigned long long *hard)
{
	get_limits l = { cgroup, 0, 0, 0 };
	int ret = ((int (*)(uintptr_t, get_limits *))f)(device, &l);
	*soft = l.soft;
	*hard = l.hard;
	return ret;
}
*/
import "C"

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// NoLimit is the hard limit of a cgroup without one, in bytes; nvml.h calls it
// NVML_DEVICE_MEMORY_LIMIT_MAX. The value, all ones, is an assumption: no
// driver that defines it was available.
const NoLimit = math.MaxUint64

// ErrNoMemoryLimits means that the driver cannot limit the GPU memory of
// cgroups. Drivers of CUDA 13.4 and later can.
var ErrNoMemoryLimits = errors.New("this driver has no memory limits for cgroups; drivers of CUDA 13.4 and later " +
	"have them")

// Limits sets memory limits for cgroups in the driver. This is the only setting
// that the package changes. The driver needs Linux with cgroups v2, root, and a
// GPU without MIG. It keeps the limits in the cgroup's dmem.max and dmem.min if
// the kernel has these files. The driver must be asked even then, because it
// also adds a guarantee to the cgroups above. A limit lasts as long as its
// cgroup.
//
// Each call opens NVML and looks up the GPU's handle again, so it shares
// nothing with the goroutine that reads the GPU. A call waits as long as the
// driver does. Safe for concurrent use.
type Limits struct {
	NV    nvml.Interface
	Calls *Calls
}

// Limit sets the guaranteed bytes (soft) and the maximum bytes (hard) of a
// cgroup's processes in the memory of the GPU with that UUID; 0 and NoLimit
// remove both. cgroup is the full path of its directory. Limit changes nothing
// if the driver already has these limits, and verifies a change. The error is
// ErrNoMemoryLimits, an *Error, or the limits that the driver has instead.
func (l Limits) Limit(uuid, cgroup string, soft, hard uint64) error {
	if err := l.done("nvmlInit", l.NV.Init()); err != nil {
		return err
	}
	defer func() { _ = l.done("nvmlShutdown", l.NV.Shutdown()) }()
	library := C.loaded()
	if library == nil {
		return ErrNoMemoryLimits // a simulated host
	}
	defer C.dlclose(library)
	find, read, write := symbol(library, byUUID), symbol(library, getLimits), symbol(library, setLimits)
	if read == nil || write == nil || find == nil {
		l.Calls.miss(setLimits)
		return ErrNoMemoryLimits
	}
	id, path := C.CString(uuid), C.CString(cgroup)
	defer C.free(unsafe.Pointer(id))
	defer C.free(unsafe.Pointer(path))
	var device C.uintptr_t
	if err := l.done(byUUID, nvml.Return(C.by_uuid(find, id, &device))); err != nil {
		return err
	}
	var gotSoft, gotHard C.ulonglong
	get := func() error { return l.done(getLimits, nvml.Return(C.get(read, device, path, &gotSoft, &gotHard))) }
	holds := func() bool { return near(uint64(gotSoft), soft) && near(uint64(gotHard), hard) }
	if get() == nil && holds() { // fails if nothing was set yet
		return nil
	}
	ret := nvml.Return(C.set(write, device, path, C.ulonglong(soft), C.ulonglong(hard)))
	if err := l.done(setLimits, ret); err != nil {
		return err
	}
	if soft == 0 && hard == NoLimit {
		return nil // there is nothing left to read, or a limit above applies
	}
	if err := get(); err != nil {
		return err
	}
	if !holds() {
		return fmt.Errorf("%s: asked for %d and %d bytes, the driver has %d and %d", setLimits, soft, hard,
			uint64(gotSoft), uint64(gotHard))
	}
	return nil
}

const (
	byUUID    = "nvmlDeviceGetHandleByUUID"
	getLimits = "nvmlDeviceGetMemoryLimits_v1"
	setLimits = "nvmlDeviceSetMemoryLimits_v1"
)

// done counts a call and returns the error for its return code.
func (l Limits) done(call string, ret nvml.Return) error {
	l.Calls.count(call, ret)
	return Err(call, ret)
}

// symbol returns a function of the library, or nil.
func symbol(library unsafe.Pointer, name string) unsafe.Pointer {
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	return C.dlsym(library, c)
}

// near reports whether got equals want up to the driver's rounding.
func near(got, want uint64) bool {
	return max(got, want)-min(got, want) <= want/32
}
