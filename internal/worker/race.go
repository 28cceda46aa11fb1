//go:build race

package worker

// The race detector takes more memory than any limit leaves.
const limited = false
