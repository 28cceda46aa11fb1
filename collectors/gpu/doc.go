// Package gpu opens NVIDIA's management library (NVML) and provides its GPUs. It is the only
// package that calls Init and Shutdown, and the only one that knows return codes.
//
// go-nvml leaves it to the loader to find NVML's functions. A function that the installed
// library lacks would end the process at its first call, or keep it from starting if the
// loader binds at once. Generated entries (entries.go) therefore look for a function when it
// is called, and a generated wrapper (calls_gen.go) guards each reading call: it refuses a
// call whose symbol is missing, counts the return code, and records the call in progress, so
// that others can see which call hangs. generate.go writes both from go-nvml's source. Calls
// that change a setting have no wrapper.
//
// Calls of GPM do not overlap, even for different GPUs, because agents on hosts with two GPUs
// crashed in NVML when they did. The same holds for field values. A call waits at most 250 ms
// for one that does not return (calls.go), so a wedged GPU does not silence the others.
//
// Invariants:
//
//   - A missing symbol costs only the readings that need it; it never ends the process.
//   - A GPU's handles belong to one reader. A Caller is the record of one goroutine's calls.
//   - Return codes become errors and their names here (return.go), and nowhere else.
//
// Begin with Open in library.go, Device in device.go and return.go.
package gpu
