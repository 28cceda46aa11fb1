package input

import (
	"errors"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestSaysWhatWasMeant(t *testing.T) {
	t.Parallel()
	known := []string{"status", "stack", "gpu_missing", "GPUMissing", "--watch", "fast"}
	for name, want := range map[string]string{"stauts": "status", "statu": "status", "stak": "stack",
		"gpu_mising": "gpu_missing", "gpu-missing": "gpu_missing", "GPU missing": "gpu_missing", "wach": "--watch",
		"fsat": "fast", "fastt": "fast", "x": "", "fa": "", "": "", "nonsense": ""} {
		wanted := " (did you mean " + want + "?)"
		if want == "" {
			wanted = "; choose from " + strings.Join(known, ", ")
		}
		fixture.Equal(t, Instead(name, known), wanted, "%q", name)
	}
}

func TestErrorsAreOneByOne(t *testing.T) {
	t.Parallel()
	var inner, outer Errors
	fixture.Equal(t, outer.Err(), nil, "without an error")
	outer.If(inner.If(true, "a: %d", 1), "b: %w", errors.ErrUnsupported)
	inner.If(false, "c: it is well")
	inner.Below("d.", errors.New("e: bad"))
	outer.Below("x.", inner.Err())
	fixture.Equal(t, outer.Err().Error(), "b: unsupported operation\nx.a: 1\nx.d.e: bad", "the errors")
	fixture.Equal(t, errors.Is(outer.Err(), errors.ErrUnsupported), true, "the cause is kept")
	fixture.Equal(t, len(Each(outer.Err())), 3, "errors")
}
