// Package diag tests GPUs that nobody uses: memory, arithmetic, copies, links, clocks and
// power. It is gpusteward diag; docs/diag.md says what the tests find.
//
//	Run -> a child for each GPU <- orders -- steps of the plan -> readings -> judge -> Report
//
// A Plan (plan.go) gives the time of each step of a level. Children (package worker) make all
// calls of the driver: Run sends an Order, and the child's Work answers with a Reading. Kernels
// are PTX, which the driver compiles, so no CUDA toolkit is needed. A Unit is a row (unit.go): a
// kind of arithmetic, with its kernel, its inputs and its exact results. Inputs are small whole
// numbers, so that each type holds every sum exactly, and any other result is wrong. Memory is
// written and read back in patterns (pattern.go), in which every bit of a word is once 0 and once
// 1. judge.go compares readings with what the maker says of the model (models.go) and with the
// GPU's counters of errors.
//
// Invariants:
//
//   - A child that hangs or crashes gives its GPU a bad verdict, and the test goes on.
//   - A test changes nothing of a GPU except the contents of its memory.
//   - A GPU that is in use is skipped, unless Options.Busy asks for it.
//   - What could not be tested is unknown, and not good.
//   - A Fault can be injected: wrong sums, a wrong bit, a low clock, a kernel that never ends. A
//     test on a real GPU requires each to be found.
//
// Begin with Run in diag.go, plan.go and judge.go.
package diag
