//go:build !race

package schedule

const race = false
