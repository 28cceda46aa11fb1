package gpu

/*
#define _GNU_SOURCE
#include <dlfcn.h>

// entry returns NVML's function of that name, if a library with it is open.
__attribute__((visibility("hidden"))) void *gs_nvml_entry(const char *name)
{
	return dlsym(RTLD_DEFAULT, name);
}
*/
import "C"

// go-nvml refers to NVML's functions and leaves it to the loader to find them at
// the first call, in the library that it opens. A loader that binds at the start
// (LD_BIND_NOW=1, or a toolchain that passes -z now) then ends the program, which
// has opened nothing yet. entries_amd64.S and entries_arm64.S define the functions
// instead: each looks for the real one at each call, because the library is
// closed and opened again, and returns NVML_ERROR_FUNCTION_NOT_FOUND if there is none.
