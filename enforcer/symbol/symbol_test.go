package symbol

import (
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"triton_poi_fused_add_0": "triton_poi_fused_add_0", "_Z4spinm": "spin", "_Z": "_Z", "_Z99x": "_Z99x", "": "",
		"_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi": "at::native::vectorized_elementwise_kernel<...>",
		"_ZN2at12_GLOBAL__N_11kEv":                              "at::(anonymous)::k",
	} {
		fixture.Equal(t, Short(name), want, "%s:", name)
	}
	for name, want := range map[string]string{
		"_Z4spinm": "spin", "_Z1kI": "k<...>", "_Z1kIE": "k<...>", "_Z1kILin2ELb1EE": "k<-2, 1>",
		"_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_": "at::native::" +
			"vectorized_elementwise_kernel<4, CUDAFunctor_add, float, array, char, 3>",
		"_ZN7cutlass7Kernel2IN2at6native10gemm_16x64EEEvNT_6ParamsE": "cutlass::Kernel2<gemm_16x64>",
		"_Z1kIZN2at4copyEvEUlfE_EvT_":                                "k<copy, float>",
		"_Z1kILN2at4ModeE12ELb1EEvT_":                                "k<Mode, 12, 1>",
		"_Z1kI200" + strings.Repeat("x", 200) + "E":                  "k<" + strings.Repeat("x", 100) + "...>",
	} {
		fixture.Equal(t, Long(name), want, "%s:", name)
	}
}
