package ras

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"gpusteward/internal/fixture"
)

// TestRefuse: a version with a fault is not asked, nor is an unknown one.
func TestRefuse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ version, trusted, want string }{
		{"", "", "not known"}, {"2.28", "", "not known"}, {"2.28.x", "", "not known"}, {"", "2", "not known"},
		{"2.23.4", "", "no RAS"},
		{"2.24.3", "", "1669, 1718"}, {"2.26.2", "", "1762"}, {"2.26.5", "", "1762"},
		{"2.27.3", "", "2346"}, {"2.28.9", "", "2346"}, {"2.29.7", "", "2346"}, {"2.30.7", "", "2346"}, {"3.1.0", "", "2346"},
		{"2.28.9", "2.28.9", ""}, {"2.28.9", "2.28", ""}, {"2.28.9", "2.2", "2346"}, {"2.28.19", "2.28.1", "2346"},
	} {
		err := Refuse(c.version, strings.Fields(c.trusted))
		if c.want == "" {
			fixture.Must(t, err)
			continue
		}
		fixture.Fails(t, err, c.want, "%s, trusted %q", c.version, c.trusted)
	}
	// Each fault is known by its whole range, and a repaired one ends with it.
	fixture.Equal(t, fmt.Sprint(faults), "[{[2 24 0] [2 27 3] 1669, 1718 while it makes communicators} "+
		"{[2 26 0] [2 29 2] 1762 while a rank does not answer} {[2 27 3] [0 0 0] 2346 while it makes communicators}]", "faults")
}

func TestVersionIn(t *testing.T) {
	t.Parallel()
	const text = "\x00NCCL version 2.28.9+cuda12.9\x00"
	read := func(s string) string { return VersionIn(strings.NewReader(s)) }
	for at := 1<<20 - 70; at < 1<<20+10; at++ { // wherever a piece ends
		fixture.Need(t, read(strings.Repeat("x", at)+text+strings.Repeat("x", 1<<20)), "2.28.9", "at %d", at)
	}
	for data, want := range map[string]string{
		"": "", text: "2.28.9", text + "NCCL version 2.28.9 compiled with CUDA": "2.28.9",
		text + "NCCL version 2.27.3": "", "compiled with NCCL version %d": "", "NCCL version 2.28": ""} {
		fixture.Equal(t, read(data), want, "%q", data)
	}
	fixture.Equal(t, VersionIn(io.MultiReader(strings.NewReader(text), iotest.ErrReader(io.ErrClosedPipe))), "", "half a file")
	for name, want := range map[string]bool{"libnccl.so.2": true, "libnccl.so.2.28.9": true, "libnccl-1a2b3c.so.2": true,
		"libtorch_cuda.so": false, "libnccl.txt": false} {
		fixture.Equal(t, IsLibrary(name), want, "%s", name)
	}
}
