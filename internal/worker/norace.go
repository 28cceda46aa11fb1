//go:build !race

package worker

const limited = true
