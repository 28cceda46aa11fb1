//go:build nightly

package health

import "testing"

// TestDetection holds that each fault is found in time by its check, and by no other.
func TestDetection(t *testing.T) { eachDetection(t, 1) }

// TestCauses expects each check to ignore a healthy cause that resembles its fault, and to find the fault itself.
func TestCauses(t *testing.T) { eachScene(t, 1) }
