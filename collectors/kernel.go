package collectors

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// kernelReaders returns a reader for each collector that needs no driver: one
// that hangs in a file of the kernel delays no other.
func (h *Host) kernelReaders() (all []*reader) {
	for _, c := range All() {
		if c.Kernel != nil {
			all = append(all, &reader{host: h, index: hostIndex, only: c, began: time.Now()})
		}
	}
	return all
}

// readKernel runs a collector that needs no driver until ctx ends. It begins
// once the driver has named the GPUs, or after settle, because its series carry
// their names. No caller waits for its end: files of the kernel can hang too.
func (r *reader) readKernel(ctx context.Context) {
	for range 50 {
		if r.host.named() || !sleep(ctx, settle/50) {
			break
		}
	}
	if err := r.readUntilLost(ctx, nil); err != nil {
		r.host.Log.Error("collector ended", "collector", r.only.Name, "err", err)
	}
}

// named reports whether every listed GPU has been identified, or there is no
// driver.
func (h *Host) named() bool {
	s := h.state.Load()
	return !errors.Is(s.err, ErrOpening) && !slices.ContainsFunc(s.readers, func(r *reader) bool {
		return r.index != hostIndex && r.peer.Load() == nil
	})
}

// OfKernel translates an error from a file of the kernel for Put: a missing
// file is an answer.
func OfKernel(err error) nvml.Return {
	switch {
	case err == nil:
		return nvml.SUCCESS
	case errors.Is(err, fs.ErrNotExist):
		return nvml.ERROR_NOT_SUPPORTED
	case errors.Is(err, fs.ErrPermission):
		return nvml.ERROR_NO_PERMISSION
	}
	return nvml.ERROR_OPERATING_SYSTEM
}
