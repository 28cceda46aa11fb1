package broker

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpusteward/internal/fixture"
)

func TestGroups(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "status")
	for text, want := range map[string][]uint32{
		"Name:\tGroups: 7\nUid:\t0\t0\t0\t0\nGroups:\t4 27 1000 \nNStgid:\t1\n": {4, 27, 1000},
		"Name:\tx\nGroups:\t \n": nil,
		"":                       nil,
	} {
		fixture.Must(t, os.WriteFile(path, []byte(text), 0o600))
		fixture.EqualSlices(t, groups(path), want, "the groups of %q", text)
	}
	var own []uint32
	ids, err := os.Getgroups()
	for _, id := range ids {
		own = append(own, uint32(id))
	}
	if got := groups("/proc/self/status"); err != nil ||
		!slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(own))) {
		t.Errorf("of this process: %v, want %v (%v)", got, own, err)
	}
}
