// Package all links every collector: a program has the collectors of the
// packages that it imports.
package all

import (
	_ "gpusteward/collectors/activity"
	_ "gpusteward/collectors/device"
	_ "gpusteward/collectors/faults"
	_ "gpusteward/collectors/links"
	_ "gpusteward/collectors/workloads"
)
