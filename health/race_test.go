//go:build race

package health

// raceEnabled says that everything takes ten times as long.
const raceEnabled = true
