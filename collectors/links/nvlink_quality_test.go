package links

import (
	"math"
	"testing"
)

func TestBitErrorRate(t *testing.T) {
	// Mantissa 5 (bits 8 to 11), exponent 12 (bits 0 to 7).
	if got := bitErrorRate(5<<8 | 12); math.Abs(got-5e-12) > 1e-20 {
		t.Errorf("bitErrorRate = %v, want 5e-12", got)
	}
}
