package diag

import (
	"fmt"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

func TestModels(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]model{
		"NVIDIA H200":               {"NVIDIA H200", 4.8e12, 450e9},
		"NVIDIA H200 NVL":           {"NVIDIA H200 NVL", 4.8e12, 450e9},
		"NVIDIA L40S":               {"NVIDIA L40S", 864e9, 0},
		"NVIDIA L40":                {"NVIDIA L40", 864e9, 0},
		"NVIDIA A100-SXM4-80GB MIG": {"NVIDIA A100-SXM4-80GB", 2039e9, 300e9},
		"NVIDIA A40-8Q":             {"NVIDIA A40", 696e9, 56.25e9},
		"NVIDIA H2":                 {},
		"":                          {},
	} {
		if got, ok := modelOf(name); got != want || ok != (want.name != "") {
			t.Errorf("%q is %+v, %v", name, got, ok)
		}
	}
	if len(models) != strings.Count(modelTable, "\n")-1 || len(floors) != strings.Count(floorTable, "\n")-1 {
		t.Errorf("%d models and %d floors", len(models), len(floors))
	}
	for name, share := range floors {
		if share <= 0 || share >= 1 {
			t.Errorf("the share of %s is %v", name, share)
		}
	}
}

func TestLanes(t *testing.T) {
	t.Parallel()
	for generation, want := range []float64{0, 0.25, 0.5, 0.985, 1.969, 3.938, 7.563, 15.125, 0} { // GB/s
		fixture.Near(t, lane(generation)/1e9, want, 0.0005, "a lane of generation %d carries … GB/s", generation)
	}
}

// TestTables expects a wrong table to be found when the program starts.
func TestTables(t *testing.T) {
	t.Parallel()
	fixture.Equal(t, fmt.Sprint(rows("a\tb\n1\t2\n3\t4", 2)), "[[1 2] [3 4]]", "it is")
	for says, wrong := range map[string]func(){
		`"1\t2\n" has 2 columns instead of 3`: func() { rows("a\tb\tc\n1\t2\n", 3) },
		`parsing "x": invalid syntax`:         func() { float("x") },
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, says) {
					t.Errorf("%s, want %s", got, says)
				}
			}()
			wrong()
		}()
	}
}
