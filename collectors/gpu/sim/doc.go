// Package sim simulates an NVIDIA GPU host behind go-nvml's nvml.Interface: GPUs with loads,
// processes, consistent physics and counters, faults on a timeline, and the kernel's view of
// them.
//
// A scenario (package scenarios) says what a host has: GPUs with loads and jobs, tenants, and
// faults. This package has an effect for each kind of fault (effect.go), package models has
// the constants of each product, and package broker keeps the books of tenants as a broker and
// an enforcer would, from the share of the work that this package gives to each process.
//
// Simulated time is the time since New. A GPU advances in steps of 100 ms when it is read, so
// an unread host costs nothing. Each step computes the load, then clocks under the power cap,
// power, temperature with inertia, energy and traffic. A test compares an idle and a loaded
// H100 with recordings of a real one.
//
// Invariants:
//
//   - Values depend only on the seed, the scenario, the GPU's index and the number of the
//     step, and not on the order of the reads: two runs agree.
//   - There is no other clock: with testing/synctest, tests run minutes in milliseconds.
//   - A device answers "not supported" to what is not simulated; the host panics.
//
// Begin with host.go, gpu.go, physics.go and effect.go.
package sim
