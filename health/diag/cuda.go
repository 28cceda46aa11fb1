package diag

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

// The driver's functions, each with the name of its present version. A context
// and whatever else the driver made is a pointer, a device's memory an integer.
#define CALLS(X) \
	X(cuInit, cuInit, (unsigned flags)) \
	X(cuDriverGetVersion, cuDriverGetVersion, (int *version)) \
	X(cuGetErrorName, cuGetErrorName, (int error, const char **name)) \
	X(cuDeviceGetCount, cuDeviceGetCount, (int *n)) \
	X(cuDeviceGet, cuDeviceGet, (int *device, int i)) \
	X(cuDeviceGetUuid, cuDeviceGetUuid, (unsigned char *uuid, int device)) \
	X(cuDeviceGetAttribute, cuDeviceGetAttribute, (int *value, int attribute, int device)) \
	X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, (int *can, int device, int peer)) \
	X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, (void **context, int device)) \
	X(cuCtxSetCurrent, cuCtxSetCurrent, (void *context)) \
	X(cuCtxSynchronize, cuCtxSynchronize, (void)) \
	X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, (void *context, unsigned flags)) \
	X(cuMemGetInfo, cuMemGetInfo_v2, (size_t *free, size_t *total)) \
	X(cuMemAlloc, cuMemAlloc_v2, (uint64_t *memory, size_t bytes)) \
	X(cuMemFree, cuMemFree_v2, (uint64_t memory)) \
	X(cuMemHostAlloc, cuMemHostAlloc, (void **memory, size_t bytes, unsigned flags)) \
	X(cuMemsetD8, cuMemsetD8_v2, (uint64_t memory, unsigned char value, size_t bytes)) \
	X(cuMemcpyHtoD, cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t bytes)) \
	X(cuMemcpyDtoH, cuMemcpyDtoH_v2, (void *to, uint64_t from, size_t bytes)) \
	X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t bytes, void *stream)) \
	X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t bytes, void *stream)) \
	X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void *stream)) \
	X(cuMemcpyPeerAsync, cuMemcpyPeerAsync, \
		(uint64_t to, void *toContext, uint64_t from, void *fromContext, size_t bytes, void *stream)) \
	X(cuModuleLoadDataEx, cuModuleLoadDataEx, \
		(void **module, const void *image, unsigned n, int *options, void **values)) \
	X(cuModuleGetFunction, cuModuleGetFunction, (void **function, void *module, const char *name)) \
	X(cuLaunchKernel, cuLaunchKernel, \
		(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, \
		 unsigned shared, void *stream, void **parameters, void **extra)) \
	X(cuEventCreate, cuEventCreate, (void **event, unsigned flags)) \
	X(cuEventRecord, cuEventRecord, (void *event, void *stream)) \
	X(cuEventSynchronize, cuEventSynchronize, (void *event)) \
	X(cuEventElapsedTime, cuEventElapsedTime, (float *milliseconds, void *from, void *to))

#define POINTER(name, symbol, arguments) int (*name) arguments;
static struct { CALLS(POINTER) } cu;

// driver opens the library; it returns what is missing, or NULL.
static const char *driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return "libcuda.so.1";
#define LOOK(name, symbol, arguments) if (!(cu.name = dlsym(library, #symbol))) return #symbol;
	CALLS(LOOK)
	return NULL;
}

static int init(void) { return cu.cuInit(0); }
static int version(int *v) { return cu.cuDriverGetVersion(v); }
static const char *name(int error)
{
	const char *s = NULL;
	return cu.cuGetErrorName(error, &s) || !s ? "an unknown error" : s;
}
static int count(int *n) { return cu.cuDeviceGetCount(n); }
static int device(int *d, int i) { return cu.cuDeviceGet(d, i); }
static int uuid(void *id, int d) { return cu.cuDeviceGetUuid(id, d); }
static int attribute(int *v, int a, int d) { return cu.cuDeviceGetAttribute(v, a, d); }
static int reaches(int *can, int d, int peer) { return cu.cuDeviceCanAccessPeer(can, d, peer); }
static int retain(uintptr_t *c, int d) { return cu.cuDevicePrimaryCtxRetain((void **)c, d); }
static int current(uintptr_t c) { return cu.cuCtxSetCurrent((void *)c); }
static int finish(void) { return cu.cuCtxSynchronize(); }
static int reach(uintptr_t c) { return cu.cuCtxEnablePeerAccess((void *)c, 0); }
static int memory(size_t *free, size_t *total) { return cu.cuMemGetInfo(free, total); }
static int take(uint64_t *m, size_t n) { return cu.cuMemAlloc(m, n); }
static int give(uint64_t m) { return cu.cuMemFree(m); }
static int pin(uintptr_t *m, size_t n) { return cu.cuMemHostAlloc((void **)m, n, 1); }
static int clear(uint64_t m, size_t n) { return cu.cuMemsetD8(m, 0, n); }
static int put(uint64_t to, void *from, size_t n) { return cu.cuMemcpyHtoD(to, from, n); }
static int get(void *to, uint64_t from, size_t n) { return cu.cuMemcpyDtoH(to, from, n); }
static int up(uint64_t to, uintptr_t from, size_t n) { return cu.cuMemcpyHtoDAsync(to, (void *)from, n, NULL); }
static int down(uintptr_t to, uint64_t from, size_t n) { return cu.cuMemcpyDtoHAsync((void *)to, from, n, NULL); }
static int within(uint64_t to, uint64_t from, size_t n) { return cu.cuMemcpyDtoDAsync(to, from, n, NULL); }
static int across(uint64_t to, uintptr_t c, uint64_t from, uintptr_t d, size_t n)
{
	return cu.cuMemcpyPeerAsync(to, (void *)c, from, (void *)d, n, NULL);
}
static int function(uintptr_t *f, uintptr_t module, char *name)
{
	return cu.cuModuleGetFunction((void **)f, (void *)module, name);
}
static int event(uintptr_t *e) { return cu.cuEventCreate((void **)e, 1); } // CU_EVENT_BLOCKING_SYNC: a thread that waits for it sleeps
static int record(uintptr_t e) { return cu.cuEventRecord((void *)e, NULL); }
static int await(uintptr_t e) { return cu.cuEventSynchronize((void *)e); }
static int elapsed(float *ms, uintptr_t from, uintptr_t to)
{
	return cu.cuEventElapsedTime(ms, (void *)from, (void *)to);
}

// compile has the driver make a module of PTX, and says what is wrong with it.
static int compile(uintptr_t *module, char *text, char *log, size_t size)
{
	int options[] = { 5, 6 }; // the log of errors, and its size
	void *values[] = { log, (void *)size };
	return cu.cuModuleLoadDataEx((void **)module, text, 2, options, values);
}

// launch starts a kernel whose parameters stand in slots of 8 bytes.
static int launch(uintptr_t f, unsigned blocks, unsigned threads, uint64_t *slots, int n)
{
	void *parameters[8];
	for (int i = 0; i < n && i < 8; i++)
		parameters[i] = &slots[i];
	return cu.cuLaunchKernel((void *)f, blocks, 1, 1, threads, 1, 1, 0, NULL, parameters, NULL);
}
*/
import "C"

import (
	"errors"
	"fmt"
	"time"
	"unsafe"
)

// A cudaError is what a call of the driver returned.
type cudaError struct {
	call string
	code C.int
}

func (e *cudaError) Error() string {
	return fmt.Sprintf("%s: %s (%d)", e.call, C.GoString(C.name(e.code)), int(e.code))
}

// told returns the error that a return code stands for.
func told(call string, code C.int) error {
	if code == 0 {
		return nil
	}
	return &cudaError{call, code}
}

// Attributes of a device, as cuda.h numbers them.
const (
	attributeSMs   = 16
	attributeMajor = 75
	attributeMinor = 76
)

// openCUDA opens the driver, once in a process.
func openCUDA() error {
	if missing := C.driver(); missing != nil {
		return fmt.Errorf("%w: no %s", errNoCUDA, C.GoString(missing))
	}
	return told("cuInit", C.init())
}

// cudaDevice returns the driver's number of the GPU with a UUID.
func cudaDevice(uuid string) (C.int, error) {
	var n C.int
	if err := told("cuDeviceGetCount", C.count(&n)); err != nil {
		return 0, err
	}
	for i := range n {
		var d C.int
		var id [16]byte
		if err := told("cuDeviceGet", C.device(&d, i)); err != nil {
			return 0, err
		}
		if err := told("cuDeviceGetUuid", C.uuid(unsafe.Pointer(&id), d)); err != nil {
			return 0, err
		}
		if uuid == fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:]) {
			return d, nil
		}
	}
	return 0, fmt.Errorf("CUDA does not know %s", uuid)
}

func cudaAttribute(d, attribute C.int) int {
	var v C.int
	if C.attribute(&v, attribute, d) != 0 {
		return 0
	}
	return int(v)
}

// A kernel is a function that the driver compiled.
type kernel C.uintptr_t

// compile returns the kernel of that name.
func compile(text, name string) (kernel, error) {
	const size = 4096
	source, entry, log := C.CString(text), C.CString(name), (*C.char)(C.calloc(1, size))
	defer C.free(unsafe.Pointer(source))
	defer C.free(unsafe.Pointer(entry))
	defer C.free(unsafe.Pointer(log))
	var module, f C.uintptr_t
	if err := told("cuModuleLoadDataEx", C.compile(&module, source, log, size)); err != nil {
		return 0, fmt.Errorf("compile %s: %w: %s", name, err, C.GoString(log))
	}
	err := told("cuModuleGetFunction", C.function(&f, module, entry))
	return kernel(f), err
}

// launch starts the kernel.
func (k kernel) launch(blocks, threads int, parameters ...uint64) error {
	return told("cuLaunchKernel", C.launch(C.uintptr_t(k), C.uint(blocks), C.uint(threads),
		(*C.uint64_t)(unsafe.Pointer(&parameters[0])), C.int(len(parameters))))
}

// A clock times what the GPU does.
type clock struct{ from, to C.uintptr_t }

func newClock() (c clock, err error) {
	return c, errors.Join(told("cuEventCreate", C.event(&c.from)), told("cuEventCreate", C.event(&c.to)))
}

// time returns how long the GPU was busy with what work starts.
func (c clock) time(work func() error) (time.Duration, error) {
	if err := told("cuEventRecord", C.record(c.from)); err != nil {
		return 0, err
	}
	if err := work(); err != nil {
		return 0, err
	}
	if err := told("cuEventRecord", C.record(c.to)); err != nil {
		return 0, err
	}
	if err := told("cuEventSynchronize", C.await(c.to)); err != nil {
		return 0, err
	}
	var ms C.float
	err := told("cuEventElapsedTime", C.elapsed(&ms, c.from, c.to))
	return time.Duration(float64(ms) * float64(time.Millisecond)), err
}

// memory is a piece of a GPU's memory.
type memory struct {
	at   uint64
	size uint64
}

func take(bytes uint64) (m memory, err error) {
	var at C.uint64_t
	err = told("cuMemAlloc", C.take(&at, C.size_t(bytes)))
	return memory{uint64(at), bytes}, err
}

func (m memory) give() error  { return told("cuMemFree", C.give(C.uint64_t(m.at))) }
func (m memory) clear() error { return told("cuMemsetD8", C.clear(C.uint64_t(m.at), C.size_t(m.size))) }
func (m memory) put(offset uint64, b []byte) error {
	return told("cuMemcpyHtoD", C.put(C.uint64_t(m.at+offset), unsafe.Pointer(&b[0]), C.size_t(len(b))))
}
func (m memory) get(b []byte) error {
	return told("cuMemcpyDtoH", C.get(unsafe.Pointer(&b[0]), C.uint64_t(m.at), C.size_t(len(b))))
}

// The rest of the calls, with names of Go's.

func freeMemory() (free uint64, err error) {
	var f, total C.size_t
	err = told("cuMemGetInfo", C.memory(&f, &total))
	return uint64(f), err
}

func totalMemory() (bytes uint64, err error) {
	var f, total C.size_t
	err = told("cuMemGetInfo", C.memory(&f, &total))
	return uint64(total), err
}

func pin(bytes uint64) (at uint64, err error) {
	var m C.uintptr_t
	err = told("cuMemHostAlloc", C.pin(&m, C.size_t(bytes)))
	return uint64(m), err
}

func copyWay(way Way, gpu, other, bytes uint64) error {
	switch n := C.size_t(bytes); way {
	case FromHost:
		return told("cuMemcpyHtoDAsync", C.up(C.uint64_t(gpu), C.uintptr_t(other), n))
	case ToHost:
		return told("cuMemcpyDtoHAsync", C.down(C.uintptr_t(other), C.uint64_t(gpu), n))
	}
	return told("cuMemcpyDtoDAsync", C.within(C.uint64_t(gpu), C.uint64_t(other), C.size_t(bytes)))
}

// A cudaContext is a process's use of a GPU.
type cudaContext struct {
	device C.int
	handle C.uintptr_t
}

func newContext(uuid string) (c cudaContext, err error) {
	if c.device, err = cudaDevice(uuid); err != nil {
		return c, err
	}
	if err := told("cuDevicePrimaryCtxRetain", C.retain(&c.handle, c.device)); err != nil {
		return c, err
	}
	return c, c.enter()
}

// enter makes it the one that calls of this thread are about.
func (c cudaContext) enter() error { return told("cuCtxSetCurrent", C.current(c.handle)) }

// reach lets c use o's memory.
func (c cudaContext) reach(o cudaContext) error {
	var can C.int
	if err := told("cuDeviceCanAccessPeer", C.reaches(&can, c.device, o.device)); err != nil {
		return err
	}
	if can == 0 {
		return errNoPeer
	}
	if err := c.enter(); err != nil {
		return err
	}
	const already = 704
	if code := C.reach(o.handle); code != already {
		return told("cuCtxEnablePeerAccess", code)
	}
	return nil
}

// copyAcross copies from o's memory to c's.
func (c cudaContext) copyAcross(to uint64, o cudaContext, from, bytes uint64) error {
	return told("cuMemcpyPeerAsync", C.across(C.uint64_t(to), c.handle, C.uint64_t(from), o.handle, C.size_t(bytes)))
}
