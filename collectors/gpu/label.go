package gpu

import (
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Text returns a reading as a label; empty if there is none.
func Text(s string, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return ""
	}
	return s
}

// Int returns a reading as a label; empty if there is none.
func Int(n int, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return ""
	}
	return strconv.Itoa(n)
}

// Known names an enumerated value, or returns its number if the table is older.
func Known[K ~uint32 | ~int32](names map[K]string, k K) string {
	if s, ok := names[k]; ok {
		return s
	}
	return strconv.FormatInt(int64(k), 10)
}
