package gpu

import (
	"debug/elf"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpusteward/internal/fixture"
)

// TestStartsWithoutNVML: no function of NVML must be there when the program starts, even
// if the loader binds all of them then. A function that the library lacks is told as such.
func TestStartsWithoutNVML(t *testing.T) {
	t.Parallel()
	program := fixture.Value(elf.Open("/proc/self/exe"))(t)
	defer program.Close()
	for _, s := range fixture.Value(program.ImportedSymbols())(t) {
		if strings.HasPrefix(s.Name, "nvml") {
			t.Errorf("the program imports %s", s.Name)
		}
	}
	if _, ret := nvml.SystemGetDriverVersion(); ret != nvml.ERROR_FUNCTION_NOT_FOUND {
		t.Errorf("without a library the driver's version is %v", ret)
	}
	bound := exec.Command("/proc/self/exe", "-test.run=^$")
	bound.Env = append(os.Environ(), "LD_BIND_NOW=1")
	if out, err := bound.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
