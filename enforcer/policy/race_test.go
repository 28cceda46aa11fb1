//go:build race

package policy_test

// raceEnabled says that everything takes ten times as long.
const raceEnabled = true
