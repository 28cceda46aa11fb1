//go:build !timed && !gpu

package enforcer_test

// patience is by how much longer than on an idle machine a test waits before it fails.
const patience = 4
