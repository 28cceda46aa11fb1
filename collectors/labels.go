package collectors

import (
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxLabel bounds a label's value, in bytes.
const maxLabel = 128

// label makes s a valid label value: UTF-8, at most maxLabel bytes.
func label(s string) string {
	if len(s) > maxLabel {
		s = s[:maxLabel]
	}
	return strings.ToValidUTF8(s, "")
}

// Text returns a reading as a label; empty if there is none.
func Text(s string, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return ""
	}
	return s
}

// Number returns a reading as a label; empty if there is none.
func Number(n int, ret nvml.Return) string {
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
