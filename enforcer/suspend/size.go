package suspend

/*
#include <dlfcn.h>
#include <stddef.h>

#define SIZE_CALLS(X) \
	X(cuInit, (unsigned flags)) \
	X(cuDeviceGetCount, (int *count)) \
	X(cuDeviceGet, (int *device, int index)) \
	X(cuDeviceGetUuid, (unsigned char *uuid, int device)) \
	X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
	X(cuDeviceTotalMem_v2, (size_t *bytes, int device))

#define SIZE_POINTER(name, arguments) int (*name) arguments;
static struct { SIZE_CALLS(SIZE_POINTER) } sizes;

// size_driver opens the library; it returns what is missing, or NULL.
static const char *size_driver(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return "libcuda.so.1";
#define SIZE_LOOK(name, arguments) if (!(sizes.name = dlsym(library, #name))) return #name;
	SIZE_CALLS(SIZE_LOOK)
	return NULL;
}

static int count(int *n)
{
	int error = sizes.cuInit(0);
	return error ? error : sizes.cuDeviceGetCount(n);
}

// one tells of a GPU; 18 is CU_DEVICE_ATTRIBUTE_INTEGRATED.
static int one(int index, unsigned char *uuid, size_t *bytes, int *integrated)
{
	int device, error = sizes.cuDeviceGet(&device, index);
	if (!error)
		error = sizes.cuDeviceGetUuid(uuid, device);
	if (!error)
		error = sizes.cuDeviceGetAttribute(integrated, 18, device);
	return error ? error : sizes.cuDeviceTotalMem_v2(bytes, device);
}
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"gpusteward/internal/worker"
)

// Sizes asks CUDA for the memory of all GPUs. It is no call on a process.
const Sizes Op = "sizes"

// A Size is a GPU's memory as CUDA tells it.
type Size struct {
	Total      uint64 `json:"total"`      // bytes
	Integrated bool   `json:"integrated"` // it is the host's memory
}

// sizing is the child that asks.
var sizing = worker.Kind{Command: []string{Command}, Running: 1, Children: 2}

// AskSizes asks CUDA for the memory of the host's GPUs by UUID, in a child process:
// NVML does not tell that of GPUs that use the host's. MIG devices are left out.
func AskSizes(ctx context.Context, env ...string) (map[string]Size, error) {
	out, err := sizing.Do(ctx, worker.Order{Args: []string{string(Sizes), "0"}, Env: env})
	if err != nil {
		return nil, fmt.Errorf("ask CUDA for the memory of GPUs: %w", err)
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		return nil, fmt.Errorf("ask CUDA for the memory of GPUs: its child process wrote no answer: %w", err)
	}
	switch {
	case a.Missing != "":
		return nil, fmt.Errorf("ask CUDA for the memory of GPUs: the driver has no %s", a.Missing)
	case a.Code != 0:
		return nil, fmt.Errorf("ask CUDA for the memory of GPUs: error %d", a.Code)
	case len(a.Sizes) == 0:
		return nil, errors.New("ask CUDA for the memory of GPUs: it has none")
	}
	return a.Sizes, nil
}

// sizesOfGPUs asks in this process.
func sizesOfGPUs() (a answer) {
	if err := os.Unsetenv("CUDA_VISIBLE_DEVICES"); err != nil { // all of the host's are asked for
		return answer{Missing: err.Error()}
	}
	if missing := C.size_driver(); missing != nil {
		return answer{Missing: C.GoString(missing)}
	}
	var n C.int
	if a.Code = int(C.count(&n)); a.Code != 0 {
		return a
	}
	a.Sizes = map[string]Size{}
	for i := range n {
		var uuid [16]C.uchar
		var total C.size_t
		var integrated C.int
		if code := C.one(i, &uuid[0], &total, &integrated); code != 0 {
			a.Code = int(code)
			return a
		}
		id := make([]byte, len(uuid))
		for k, b := range uuid {
			id[k] = byte(b)
		}
		a.Sizes[fmt.Sprintf("GPU-%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])] =
			Size{uint64(total), integrated != 0}
	}
	return a
}
