package links

import (
	"testing"

	"gpusteward/internal/fixture"
)

func TestBitErrorRate(t *testing.T) {
	// Mantissa 5 (bits 8 to 11), exponent 12 (bits 0 to 7).
	fixture.Near(t, bitErrorRate(5<<8|12), 5e-12, 1e-20, "bitErrorRate =")
}
