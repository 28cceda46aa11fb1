//go:build long

package host

import (
	"context"
	"errors"
	"io/fs"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"gpusteward/internal/fixture"
)

// TestKernelLogOfThisHost reads the log of the running kernel with several followers: what the other tests write in its
// place should behave like it. Its contents do not matter.
func TestKernelLogOfThisHost(t *testing.T) {
	log := NewKernelLog("/dev/kmsg")
	last := uint64(0)
	_, err := log.Replay(t.Context(), 0, func(r Record) { last = r.Sequence })
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	}
	if err != nil || last == 0 {
		t.Fatal(last, err)
	}
	var group errgroup.Group
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		group.Go(func() error {
			before := uint64(0)
			return log.Follow(ctx, func(r Record) {
				fixture.If(t, r.Sequence <= before && before > 0 || r.Text == "" || time.Until(r.Time) > time.Minute,
					"%+v after record %d", r, before)
				if before = r.Sequence; before >= last {
					cancel()
				}
			})
		})
	}
	fixture.Must(t, group.Wait())
}
