package diag

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

// A model has the maker's figures of a kind of GPU.
type model struct {
	name   string  // what NVML's name begins with
	memory float64 // bytes a second
	nvlink float64 // bytes a second one way, over all links; 0: none
}

//go:embed models.tsv
var modelTable string

//go:embed floors.tsv
var floorTable string

var models = func() (all []model) {
	for _, row := range rows(modelTable, 4) {
		all = append(all, model{row[0], 1e9 * float(row[1]), 1e9 * float(row[2])})
	}
	return all
}()

// floors are the least ratios of a measured value to the possible one.
var floors = func() map[string]float64 {
	all := map[string]float64{}
	for _, row := range rows(floorTable, 3) {
		all[row[0]] = float(row[1])
	}
	return all
}()

// modelOf returns the model with the longest name that the GPU's name begins with.
func modelOf(name string) (best model, ok bool) {
	for _, m := range models {
		if strings.HasPrefix(name, m.name) && len(m.name) > len(best.name) {
			best, ok = m, true
		}
	}
	return best, ok
}

// rows returns a table's rows without its heading. It panics on a malformed table, because the
// table is part of the program.
func rows(table string, columns int) (all [][]string) {
	for line := range strings.Lines(table) {
		row := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(row) != columns {
			panic(fmt.Sprintf("%q has %d columns instead of %d", line, len(row), columns))
		}
		all = append(all, row)
	}
	return all[1:]
}

func float(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err)
	}
	return v
}

// lane returns the bytes a second that a PCIe lane of a generation carries one way: its transfers
// without the encoding (PCI Express Base Specification: 8b/10b up to generation 2, 128b/130b up to
// generation 5, flits of 242 in 256 bytes from generation 6 on).
func lane(generation int) float64 {
	transfers := map[int]float64{1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9, 6: 64e9, 7: 128e9}[generation] / 8
	switch {
	case generation <= 2:
		return transfers * 8 / 10
	case generation <= 5:
		return transfers * 128 / 130
	}
	return transfers * 242 / 256
}
