//go:build race

package schedule

const race = true
