// Package collectors reads the GPUs of a host on timers and answers from memory. A Metric is
// a row of the catalogue, a Collector reads some metrics of one GPU, a reader runs the
// collectors of one GPU, and the Host runs the readers.
//
//	driver <- guarded call <- collector <- reader -> snapshot -> Host.Samples -> exporter, health
//
// A collector is one file in the package of its theme, below this one; package all links the
// themes. Put interprets the return code of a call: "not supported" is an answer and makes no
// series; any other failure makes none either, and is counted. Add raises a counter that the
// driver does not keep. Open replaces Read in a collector that keeps state between passes.
//
// A reader is one goroutine, locked to its thread, that owns the handles of one GPU. Another
// one reads what belongs to no GPU. At each multiple of the fast tier on the wall clock, the
// same moment for all GPUs, a reader runs the collectors that are due and publishes an
// immutable snapshot. The first passes of the GPUs are staggered, so that their expensive
// turns do not meet in the driver. A collector of which a GPU supports nothing is retried at
// the slow tier. Collectors with First set come first: the call of GPM makes the driver
// refresh the values that the others then read from memory.
//
// The tiers follow from costs, measured on an H100 with driver 580: 2.5 ms every second for the
// fast tier, 18 ms every ten seconds for the medium one, 10 ms every minute for the slow one.
// Reads that block for longer are opt-in.
//
// One goroutine, Host.Run, decides about the driver; opening and closing happen on goroutines
// of their own. NVML knows only the GPUs that existed when it was opened, so the Host reopens
// it when the kernel binds or unbinds a GPU or loads another module, when the number of GPUs
// changes, and when no GPU answers. After a driver upgrade it has Options.Renew replace this
// process, which cannot load another version of a library that it has bound. The inventory
// remembers the GPUs that the host ever had; another GPU in the same slot replaces one.
//
// Invariants:
//
//   - A scrape never calls the driver: Samples merges the present snapshots.
//   - A call that hangs holds up its own reader only, and NVML is not closed under it.
//   - What cannot be read is absent. A pass is shown for two of its intervals after its turn.
//     A GPU whose reader is two fast intervals late, or that the driver has lost, has nvgpu_up
//     0 and nothing else.
//   - Counters continue after the driver was reopened. Readers of kernel data work without a
//     driver, and each may hang in a file by itself.
//
// Begin with collector.go, reader.go and Host.Run in host.go.
package collectors
