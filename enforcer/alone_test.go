//go:build timed || gpu

package enforcer_test

// patience is 1: these tests run alone, and some of their deadlines are guaranteed.
const patience = 1
