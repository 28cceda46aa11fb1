//go:build !race

package enforcer_test

// raceEnabled says that everything takes ten times as long.
const raceEnabled = false
