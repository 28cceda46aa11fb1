package hook

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpusteward/internal/fixture"
)

var (
	suffix = regexp.MustCompile(`(_v\d+)?(_ptsz|_ptds)?$`)
	remark = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	// The macro CUDAAPI is empty, so a preprocessed header lacks it.
	declared = regexp.MustCompile(`\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\(`)
	inline   = regexp.MustCompile(`\binline\s+CUresult\s+(\w+)`) // functions of the program itself
	renamed  = regexp.MustCompile(`(?m)^\s*#\s*define\s+(cu[A-Z]\w*)\s+` +
		`(?:__CUDA_API_(PT[DS][SZ])\((\w+)\)|(cu[A-Z]\w*))`)
)

// base returns the common name of all versions of an entry.
func base(name string) string {
	return name[:suffix.FindStringIndex(name)[0]]
}

// entries returns the classes of entries.h by name.
func entries(t *testing.T) map[string]string {
	t.Helper()
	text := fixture.Value(os.ReadFile("src/base/entries.h"))(t)
	_, table, _ := strings.Cut(string(text), "\n#ifdef GS_ENTRY\n")
	table, _, _ = strings.Cut(table, "\n#undef GS_ENTRY\n")
	classes, last := map[string]string{}, ""
	for _, line := range strings.Split(remark.ReplaceAllString(table, ""), "\n") {
		if line == "" {
			continue
		}
		m := regexp.MustCompile(`^GS_ENTRY\((cu[A-Z]\w*), (gated|copied|admitted|followed|noted|harmless|audit)` +
			`(?:, "([^"]+)")?\)$`).FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("entries.h: %q is not GS_ENTRY(name, class) with the reason of an audit", line)
		}
		fixture.Equal(t, m[2] == "audit", m[3] != "", "entries.h: %s is %s, and an audit alone has a reason:", m[1], m[2])
		if m[1] <= last {
			t.Errorf("entries.h: %s comes after %s: sort the lines", m[1], last)
		}
		classes[m[1]], last = m[2], m[1]
	}
	return classes
}

// wrappers returns the exported names of calls.h that are wrapped.
func wrappers(t *testing.T) map[string]bool {
	t.Helper()
	text := fixture.Value(os.ReadFile("src/base/calls.h"))(t)
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^GS_WRAP\((\w+),`).FindAllStringSubmatch(string(text), -1) {
		names[m[1]] = true
	}
	return names
}

// TestEntries compares the table of the driver's entries with the wrapped calls.
func TestEntries(t *testing.T) {
	t.Parallel()
	classes := entries(t)
	if len(classes) < 444 { // of CUDA 13.0
		t.Errorf("the table has %d entries", len(classes))
	}
	wrapped := map[string]bool{}
	for name := range wrappers(t) {
		wrapped[base(name)] = true
	}
	for name, class := range classes {
		if governed := class != "harmless" && class != "audit"; governed != wrapped[name] {
			t.Errorf("%s is %s in entries.h; wrapped in calls.h: %t", name, class, wrapped[name])
		}
	}
	for name := range wrapped {
		fixture.Equal(t, classes[name] == "", false, "calls.h wraps %s, which entries.h lacks:", name)
	}
}

// gaps returns the entries of a driver's header that are missing here: entries that are not in the table, and current
// versions of wrapped entries that have no wrapper.
func gaps(header string, classes map[string]string, wrapped map[string]bool) []string {
	header = remark.ReplaceAllString(header, "")
	missing := map[string]bool{}
	governed := func(name string) bool {
		class := classes[base(name)]
		return class != "" && class != "harmless" && class != "audit"
	}
	for _, m := range declared.FindAllStringSubmatch(header, -1) {
		if classes[base(m[1])] == "" {
			missing[base(m[1])] = true
		}
	}
	for _, m := range renamed.FindAllStringSubmatch(header, -1) {
		name := m[3] + m[4]
		if !governed(m[1]) || base(name) != base(m[1]) {
			continue
		}
		versions := []string{name}
		if m[2] != "" {
			versions = append(versions, name+"_"+strings.ToLower(m[2]))
		}
		for _, v := range versions {
			if !wrapped[v] {
				missing[v] = true
			}
		}
	}
	for _, m := range inline.FindAllStringSubmatch(header, -1) {
		delete(missing, base(m[1]))
		delete(missing, m[1])
	}
	return slices.Sorted(maps.Keys(missing))
}

// TestNamesOfADriver compares both tables with the names that a driver exports.
// If only one version of a call were governed, a program could use another.
func TestNamesOfADriver(t *testing.T) {
	t.Parallel()
	classes, wrapped := entries(t), wrappers(t)
	// The names are those of nm -D --defined-only libcuda.so.580.159.04 that begin with cu[A-Z].
	text := fixture.Value(os.ReadFile("testdata/exports-580.159.txt"))(t)
	exports := strings.Fields(string(text))
	if len(exports) < 600 {
		t.Fatalf("the driver exports %d names", len(exports))
	}
	for _, name := range exports {
		switch classes[base(name)] {
		case "":
			t.Errorf("%s is not in entries.h", name)
		case "harmless", "audit":
		default:
			if !wrapped[name] {
				t.Errorf("%s is not wrapped, though %s is %s", name, base(name), classes[base(name)])
			}
		}
	}
}

// TestGaps reads a header with more entries than the tables.
func TestGaps(t *testing.T) {
	t.Parallel()
	const header = `
#define cuMemFree                       cuMemFree_v2
#define cuCtxCreate                     cuCtxCreate_v99
    #define cuMemcpyHtoD                __CUDA_API_PTDS(cuMemcpyHtoD_v2)
    #define cuMemcpyHtoDAsync           __CUDA_API_PTSZ(cuMemcpyHtoDAsync_v9)
#define cuGetProcAddress_v2             cuGetProcAddress_v2_ptsz
#define cuGraphAddNode                  cuGraphAddNode_v7
/* CUresult CUDAAPI cuOfARemark(void); */
CUresult CUDAAPI cuMemFree(CUdeviceptr dptr);
CUresult CUDAAPI cuBrandNew(void);
CUresult CUDAAPI cuBrandNew_v2_ptsz(void);
CUresult cuPreprocessed(int);
static inline CUresult cuGetProcAddress_v2_ptsz(const char *symbol) {
static inline CUresult cuOfTheProgram(int);
typedef void (CUDA_CB *CUstreamCallback)(CUstream hStream);
`
	want := []string{"cuBrandNew", "cuCtxCreate_v99", "cuMemcpyHtoDAsync_v9", "cuMemcpyHtoDAsync_v9_ptsz",
		"cuPreprocessed"}
	if got := gaps(header, entries(t), wrappers(t)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
