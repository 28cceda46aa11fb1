package symbol

import (
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestNames(t *testing.T) {
	const vec = "at::native::vectorized_elementwise_kernel<"
	for name, want := range map[string]string{"triton_poi_fused_add_0": "triton_poi_fused_add_0", "_Z4spinm": "spin", "_Z": "_Z",
		"_Z99x": "_Z99x", "": "", "_Z1kI": "k<...>", "_Z1kIE": "k<...>", "_Z1kILin2ELb1EE": "k<-2, 1>",
		"_ZN2at12_GLOBAL__N_11kEv": "at::(anonymous)::k", "_Z1kILN2at4ModeE12ELb1EEvT_": "k<Mode, 12, 1>",
		"_Z1kIZN2at4copyEvEUlfE_EvT_": "k<copy, float>", "_Z1kI200" + strings.Repeat("x", 200): "k<" + strings.Repeat("x", 100) + "...>",
		"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_": vec +
			"4, CUDAFunctor_add, float, array, char, 3>"} {
		fixture.Equal(t, Long(name), want, "%s:", name)
		if long, _, is := strings.Cut(want, "<"); is {
			want = long + "<...>"
		}
		fixture.Equal(t, Short(name), want, "%s:", name)
	}
}
