//go:build long

package health

import (
	"testing"
	"time"
)

// TestDetectionSample is a small part of TestDetection.
func TestDetectionSample(t *testing.T) { eachDetection(t, 40) }

// TestCausesSample is a small part of TestCauses.
func TestCausesSample(t *testing.T) { eachScene(t, 12) }

// TestWorldFaultsSample is a small part of TestWorldFaultsAreFound.
func TestWorldFaultsSample(t *testing.T) {
	for _, f := range findAll(t, 18) {
		if f != nil && (f.after < 0 || f.shadow) {
			t.Errorf("%s is not found under its name within %v", f.Fault, time.Duration(f.Within))
		}
	}
}
